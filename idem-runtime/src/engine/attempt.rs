//! What a running body knows about itself.

/// A running attempt.
#[derive(Debug, Clone)]
pub struct Attempt {}
