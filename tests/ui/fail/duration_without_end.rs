//! Every duration has an end.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = forever)]
async fn ttl(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", lease = None, wait = none)]
async fn lease_and_wait(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

fn main() {}
