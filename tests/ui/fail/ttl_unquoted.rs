//! A duration stands in quotes, with its unit in lower case.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = 24h, lease = 1.5h, wait = 5S)]
async fn unquoted(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24H", lease = "1w", wait = "")]
async fn quoted(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = 86400u64, lease = 2w)]
async fn typed(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

fn main() {}
