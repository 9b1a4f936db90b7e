//! A lease that is not a duration, or is zero.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h", lease = "30 s")]
async fn space(key: &str) -> Result<u64, Error> {
    Ok(key.len() as u64)
}

#[idempotent(key = key, ttl = "24h", lease = "0ms")]
async fn zero(key: &str) -> Result<u64, Error> {
    Ok(key.len() as u64)
}

fn main() {}
