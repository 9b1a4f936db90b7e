//! An `extern fn` cannot be idempotent, because other languages cannot await it.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h")]
unsafe extern "C" fn charge(key: u64, amount: u64) -> Result<u64, Error> {
    Ok(key + amount)
}

fn main() {}
