//! A ttl that is a plain number or an expression that is not a `Duration`.

use idem_runtime::{Error, idempotent};

const HOURS: u64 = 24;

#[idempotent(key = key, ttl = 24)]
async fn literal(key: &str) -> Result<u64, Error> {
    Ok(key.len() as u64)
}

#[idempotent(key = key, ttl = -1)]
async fn negative(key: &str) -> Result<u64, Error> {
    Ok(key.len() as u64)
}

#[idempotent(key = key, ttl = HOURS)]
async fn constant(key: &str) -> Result<u64, Error> {
    Ok(key.len() as u64)
}

fn main() {}
