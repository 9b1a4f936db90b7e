//! A function is no part of a request.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h", name = "charge")]
async fn charge(key: &str, notify: impl Fn(u64), retry: &dyn Fn() -> bool, log: fn(&str)) -> Result<usize, Error> {
    let _ = (notify, retry, log);
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", fingerprint = |amount| amount % 100)]
async fn closure(key: &str, amount: u64) -> Result<u64, Error> {
    Ok(amount)
}

#[idempotent(key = key, ttl = "24h", fingerprint = ())]
async fn nothing(key: &str, amount: u64) -> Result<u64, Error> {
    Ok(amount)
}

fn main() {}
