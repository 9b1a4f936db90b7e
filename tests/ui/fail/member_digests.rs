//! Options that cannot be combined with `member_digests`.

use idem_runtime::{Error, idempotent};

#[idempotent(key = fingerprint, ttl = "24h", member_digests)]
async fn charge(cents: u64) -> Result<u64, Error> {
    Ok(cents)
}

#[idempotent(key = key, ttl = "24h", member_digests = true)]
async fn charge_if_so(key: &str, cents: u64) -> Result<u64, Error> {
    Ok(cents)
}

#[idempotent(key = key, ttl = "24h", member_digests(cents))]
async fn charge_some(key: &str, cents: u64) -> Result<u64, Error> {
    Ok(cents)
}

fn main() {}
