//! A wait that is not a duration. Zero is allowed.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h", wait = "1.5s")]
async fn fraction(key: &str) -> Result<u64, Error> {
    Ok(key.len() as u64)
}

#[idempotent(key = key, ttl = "24h", wait = "soon")]
async fn word(key: &str) -> Result<u64, Error> {
    Ok(key.len() as u64)
}

#[idempotent(key = key, ttl = "24h", wait = "5seconds")]
async fn long(key: &str) -> Result<u64, Error> {
    Ok(key.len() as u64)
}

fn main() {}
