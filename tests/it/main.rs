//! One binary for all integration tests, so that they link once.

#![expect(
    clippy::unwrap_used,
    reason = "a panic fails the test that it happens in"
)]

mod attempts;
mod backends;
mod batches;
mod cached;
mod client;
mod connect;
mod console;
mod corrections;
mod deploys;
mod disk;
mod engine;
mod fingerprint;
mod formats;
mod http;
mod idempotent;
mod imposter;
mod issued;
mod keys;
mod memory;
mod moving;
mod mysql;
mod network;
mod outbox;
mod outcome;
mod outside;
mod postgres;
mod processes;
mod purging;
mod records;
mod recovery;
mod redis;
mod remember;
mod replay;
mod rotation;
mod runtimes;
mod scale;
mod scopes;
mod silence;
mod sqlite;
mod steps;
mod tls;
mod transaction;
mod unreadable;
