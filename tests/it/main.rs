//! One binary for all integration tests: one link, one list.

mod fingerprint;
mod ui;
