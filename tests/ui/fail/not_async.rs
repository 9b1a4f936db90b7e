//! An idempotent function must be async.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h")]
fn charge(key: &str, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(amount)
}

#[idempotent(key = key, ttl = "24h")]
fn future(key: &str) -> impl Future<Output = Result<usize, Error>> {
    async move { Ok(key.len()) }
}

fn main() {}
