//! The mode that is not there yet says so, once.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h", tx = tx)]
async fn charge(key: &str, amount: u64) -> Result<u64, Error> {
    tx.insert(key, amount).await?;
    Ok(amount)
}

#[idempotent(key = key, ttl = "24h", issued)]
async fn checkout(key: &str, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(amount)
}

fn main() {}
