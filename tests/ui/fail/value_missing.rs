//! Options without a value: each error shows an example.

use idem_runtime::{Error, idempotent};

#[idempotent(key, ttl = , name, store =)]
async fn bare(key: &str) -> Result<u64, Error> {
    Ok(key.len() as u64)
}

#[idempotent(key = key, ttl = "24h", skip = amount, on_crash, attempt = 3)]
async fn other(key: &str, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(amount)
}

#[idempotent(key = key ttl = "24h", skip(), skip_all(amount), "30s")]
async fn punctuation(key: &str, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(amount)
}

fn main() {}
