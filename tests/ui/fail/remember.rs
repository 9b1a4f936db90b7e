//! Options for what happens after the retention, that have no effect as they are written.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h", remember = "1d", refuse_old_keys = "0s")]
async fn as_long_as_the_ttl(key: &str) -> Result<u64, Error> {
    Ok(1)
}

#[idempotent(key = key, ttl = "24h", remember = "0s")]
async fn for_no_time(key: &str) -> Result<u64, Error> {
    Ok(1)
}

#[idempotent(key = fingerprint, ttl = "24h", refuse_old_keys = "1h")]
async fn without_a_time(order: &str) -> Result<u64, Error> {
    Ok(1)
}

#[idempotent(key = key, ttl = "24h", issued, refuse_old_keys = "1h")]
async fn issued(key: &str) -> Result<u64, Error> {
    Ok(1)
}

fn main() {}
