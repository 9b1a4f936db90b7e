//! The few commands a contributor types.
fn main() {}
