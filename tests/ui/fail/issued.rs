//! Options that cannot be combined with `issued`.

use idem_runtime::{Error, Key, idempotent};

#[idempotent(key = fingerprint, ttl = "24h", issued)]
async fn no_key(amount: u64) -> Result<u64, Error> {
    Ok(amount)
}

#[idempotent(key = key, ttl = "24h", issued, on_store_error = run)]
async fn unprotected(key: &Key, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(amount)
}

#[idempotent(key = key, ttl = "24h", issued = true)]
async fn valued(key: &Key, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(amount)
}

#[idempotent(key = key, ttl = "24h", issued, issued)]
async fn twice(key: &Key, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(amount)
}

fn main() {}
