//! Invalid names.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h", name = "")]
async fn empty(key: &str) -> Result<u64, Error> {
    Ok(key.len() as u64)
}

#[idempotent(key = key, ttl = "24h", name = "charges\ncreate")]
async fn two_lines(key: &str) -> Result<u64, Error> {
    Ok(key.len() as u64)
}

#[idempotent(key = key, ttl = "24h", name = 'c')]
async fn letter(key: &str) -> Result<u64, Error> {
    Ok(key.len() as u64)
}

fn main() {}
