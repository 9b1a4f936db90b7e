//! Nothing to compare has a word of its own.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h", fingerprint = none)]
async fn charge(key: &str, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(amount)
}

fn main() {}
