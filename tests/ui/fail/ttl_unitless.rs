//! A ttl without a unit.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24")]
async fn charge(key: &str, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(amount)
}

fn main() {}
