//! `skip` beside an option that makes it ineffective.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h", skip(amount), skip_all)]
async fn all(key: &str, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(amount)
}

#[idempotent(key = key, ttl = "24h", skip(note), fingerprint = amount)]
async fn replaced(key: &str, amount: u64, note: &str) -> Result<u64, Error> {
    let _ = (key, note);
    Ok(amount)
}

fn main() {}
