//! An option may be given only once.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h", wait = "5s", ttl = "7d")]
async fn charge(key: &str, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(amount)
}

fn main() {}
