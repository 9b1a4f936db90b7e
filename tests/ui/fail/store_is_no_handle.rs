//! `store` is a handle, which is made from a store once.

use std::sync::OnceLock;

use idem_runtime::{Error, Idem, SqliteStore, idempotent};

static LATER: OnceLock<Idem> = OnceLock::new();

#[idempotent(key = key, ttl = "24h", store = db)]
async fn on_a_store(db: &SqliteStore, key: &str) -> Result<usize, Error> {
    let _ = db;
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", store = LATER)]
async fn on_a_lock(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

struct State {
    idem: Option<Idem>,
}

#[idempotent(key = key, ttl = "24h", store = state.idem.as_ref(), skip(state))]
async fn on_an_option(state: &State, key: &str) -> Result<usize, Error> {
    let _ = &state.idem;
    Ok(key.len())
}

fn main() {}
