//! Fuzz targets of idem.
//!
//! A [`Target`] takes any bytes. It fails by a panic: of the code under test, or of the target itself if a property does
//! not hold. The inputs in `corpus` are the seeds of a run, what earlier runs found worth keeping, and every input that
//! once failed.
//!
//! `tests/fuzz.rs` replays all of them, and a short round of mutations that is the same each time. `cargo xtask prove
//! --fuzz` runs libFuzzer, which follows the coverage of the code.
#![allow(
    clippy::allow_attributes,
    clippy::large_enum_variant,
    dead_code,
    reason = "of the sources that are compiled here once more, their own crates use all; with the features of other \
              packages, their types have other sizes"
)]

pub mod corpus;
mod round;
mod targets;

/// The sources of `idem-macros`. A crate of macros exports nothing else, so they are compiled once more.
#[path = "../../../idem-macros/src"]
mod macros {
    pub(crate) mod canonical;
    pub(crate) mod errors;
    pub(crate) mod fingerprint;
    pub(crate) mod floats;
    pub(crate) mod idempotent;
    pub(crate) mod manifest;
    pub(crate) mod suggest;
}

// The readers of the Redis store and of `Cached`, which are private there.
#[path = "../../../idem-runtime/src/store/redis/decode.rs"]
mod decode;
#[path = "../../../idem-runtime/src/store/redis/layout.rs"]
mod layout;
#[path = "../../../idem-runtime/src/store/redis/errors.rs"]
mod redis_errors;
#[path = "../../../idem-runtime/src/store/tls.rs"]
mod tls;
#[path = "../../../idem-runtime/src/store/cached/wire.rs"]
mod wire;

// Paths that the sources above have at home.
mod errors {
    pub(crate) use crate::macros::errors::*;
    pub(crate) use crate::redis_errors::{corrupt, unknown_layout, unreadable};
}
pub(crate) use crate::macros::{canonical, fingerprint, floats, idempotent, manifest, suggest};
mod store {
    pub(crate) use crate::tls;
    pub(crate) use idem_store::store::*;
}
pub(crate) use idem_store::{error, key, record};

pub use crate::round::Round;
pub use crate::targets::TARGETS;

/// A fuzz target.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Name, also of its file in `corpus`.
    pub name: &'static str,
    /// Runs one input. Panics if a property does not hold.
    pub run: fn(&[u8]),
}

/// Returns the target of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|it| it.name == name)
}
