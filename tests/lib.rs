//! The tests of idem that need more than one crate. This crate contains the code that several of them share, and is not
//! for any other use.

pub mod backends;
pub mod by_hand;
pub mod cas;
pub mod claims;
pub mod clocked;
pub mod copies;
pub mod ledger;
pub mod places;
pub mod private;
pub mod proxy;
pub mod ratio;
pub mod recording;
#[cfg(unix)]
pub mod slow_disk;
pub mod small_disk;
pub mod sql;
pub mod statements;
pub mod steady;
pub mod wait;

pub use wait::until;

/// Compiles the README's Rust code. Its quick start runs in a separate crate, see `it/outside.rs`.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The Rust in the crates' own READMEs compiles, too.
#[cfg(doctest)]
#[doc = include_str!("../idem-runtime/README.md")]
struct RuntimeReadme;

#[cfg(doctest)]
#[doc = include_str!("../idem-macros/README.md")]
struct MacrosReadme;

#[cfg(doctest)]
#[doc = include_str!("../idem-store/README.md")]
struct StoreReadme;

#[cfg(doctest)]
#[doc = include_str!("../docs/writing-a-store.md")]
struct WritingAStore;

#[cfg(doctest)]
#[doc = include_str!("../idem-client/README.md")]
struct ClientReadme;

#[cfg(doctest)]
#[doc = include_str!("../idem-console/README.md")]
struct ConsoleReadme;

#[cfg(doctest)]
#[doc = include_str!("../idem-testing/README.md")]
struct TestingReadme;
