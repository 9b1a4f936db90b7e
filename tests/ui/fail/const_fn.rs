//! A `const fn` cannot be idempotent, because there is no store at compile time.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h")]
const fn charge(key: &str, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(amount)
}

fn main() {}
