//! Attributes of other macros, before and after `#[idempotent]`.
#![deny(warnings)]

use idem_runtime::{Error, idempotent};
use tracing::instrument;

#[instrument(skip_all)]
#[idempotent(key = key, ttl = "24h")]
async fn outside(key: &str, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(amount)
}

#[idempotent(key = key, ttl = "24h")]
#[instrument(err, ret)]
async fn inside(key: &str, amount: u64) -> Result<u64, Error> {
    tracing::info!(amount, "charged");
    let _ = key;
    Ok(amount)
}

#[cfg_attr(not(any()), idempotent(key = key, ttl = "24h"))]
async fn conditional(key: &str) -> Result<u64, Error> {
    Ok(key.len() as u64)
}

fn is_send<T: Send>(_: T) {}

fn main() {
    is_send(outside("key", 3));
    is_send(inside("key", 3));
    is_send(conditional("key"));
}
