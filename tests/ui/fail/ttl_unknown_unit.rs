//! A ttl with an unknown unit.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "2weeks")]
async fn charge(key: &str, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(amount)
}

fn main() {}
