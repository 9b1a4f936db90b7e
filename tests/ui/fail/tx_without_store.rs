//! The connection is that of a store, whose type has to be known.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h", tx = tx)]
async fn charge(key: &str, amount: u64) -> Result<u64, Error> {
    tx.insert(key, amount).await?;
    Ok(amount)
}

fn main() {}
