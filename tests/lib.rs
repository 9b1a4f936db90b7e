//! The tests of idem that need more than one crate. What several of them use is here; nothing is for anybody else.

pub mod ratio;
