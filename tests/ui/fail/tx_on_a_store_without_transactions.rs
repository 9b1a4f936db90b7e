//! `tx` needs a store that is known to have transactions: a SQL store, and not an erased handle.

use idem_runtime::{Error, Idem, MemoryStore, idempotent};

#[idempotent(key = key, ttl = "24h", store = idem, tx = tx)]
async fn in_memory(idem: &Idem<MemoryStore>, key: &str) -> Result<u64, Error> {
    let _ = tx;
    Ok(1)
}

#[idempotent(key = key, ttl = "24h", store = idem, tx = tx)]
async fn anywhere(idem: &Idem, key: &str) -> Result<u64, Error> {
    let _ = tx;
    Ok(1)
}

fn main() {}
