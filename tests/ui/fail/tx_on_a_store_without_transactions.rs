//! Only SQL stores have transactions, and a handle that hides its store may be on any.

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
