//! The tests of idem that need more than one crate. What several of them use is here; nothing is for anybody else.

pub mod backends;
pub mod ledger;
pub mod proxy;
pub mod ratio;
#[cfg(unix)]
pub mod slow_disk;
pub mod statements;

/// The README's Rust compiles: its quick start runs in a crate of its own, see `it/outside.rs`.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
