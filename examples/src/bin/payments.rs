//! Placeholder until the first story is told.
fn main() {}
