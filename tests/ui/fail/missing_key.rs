//! `key` is required.

use idem_runtime::{Error, idempotent};

#[idempotent(ttl = "24h")]
async fn charge(amount: u64) -> Result<u64, Error> {
    Ok(amount)
}

fn main() {}
