//! A result of an unnamed type cannot be read back from the store.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h")]
async fn charge(key: &str, amount: u64) -> Result<impl Into<u64>, Error> {
    let _ = key;
    Ok(amount)
}

fn main() {}
