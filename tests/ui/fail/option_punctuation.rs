//! The value of an option stands after `=`, and is complete.

use idem_runtime::{Error, idempotent};

#[idempotent(key: key, ttl: "24h")]
async fn colons(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

#[idempotent(key(key), ttl("24h"))]
async fn parentheses(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

#[idempotent(ttl = "24h", key = key.)]
async fn unfinished(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

fn main() {}
