//! The tests of idem that need more than one crate. Nothing here is for use.
