//! The guard of a running attempt.
