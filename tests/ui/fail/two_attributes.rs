//! Two attributes on one function.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h")]
#[idempotent(key = key, ttl = "7d", wait = "5s")]
async fn charge(key: &str, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(amount)
}

fn main() {}
