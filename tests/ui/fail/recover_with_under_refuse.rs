//! `recover_with` cannot be combined with `on_crash = refuse`, which never retries.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h", recover_with = amount, on_crash = refuse)]
async fn charge(key: &str, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(amount)
}

fn main() {}
