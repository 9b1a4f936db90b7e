//! A ttl that is longer than a store can count.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "9999999999999999d")]
async fn charge(key: &str, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(amount)
}

fn main() {}
