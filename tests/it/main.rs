//! One binary for all integration tests: one link, one list.

#![expect(
    clippy::unwrap_used,
    reason = "a panic fails the test that it happens in"
)]

mod backends;
mod cached;
mod engine;
mod fingerprint;
mod idempotent;
mod memory;
mod mysql;
mod network;
mod outside;
mod postgres;
mod records;
mod redis;
mod sqlite;
mod ui;
