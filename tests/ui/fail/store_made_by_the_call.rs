//! A handle that each call makes for itself finds no record of another call.

use idem_runtime::{Error, Idem, MemoryStore, idempotent};

#[idempotent(key = key, ttl = "24h", store = Idem::new(MemoryStore::new()))]
async fn made(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", store = &Idem::new(MemoryStore::new()).erased())]
async fn erased(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

fn main() {}
