//! The tests of idem that need more than one crate. Nothing here is for use.

/// The README's Rust compiles: its quick start runs in a crate of its own, see `it/outside.rs`.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
