//! `tx` needs a `store` whose type is known.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h", tx = tx)]
async fn charge(key: &str, amount: u64) -> Result<u64, Error> {
    tx.insert(key, amount).await?;
    Ok(amount)
}

fn main() {}
