//! A ttl of zero, for which no result would be stored.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "0s")]
async fn charge(key: &str, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(amount)
}

fn main() {}
