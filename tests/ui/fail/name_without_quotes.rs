//! The name of an operation stands in quotes.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h", name = charges.create)]
async fn dotted(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", name = charges::create)]
async fn path(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", name = charge)]
async fn word(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

fn main() {}
