//! A duration is text with a unit, or a `Duration`.

use idem_runtime::{Error, idempotent};

const SECONDS: u64 = 3600;
const TEXT: &str = "24h";

#[idempotent(key = key, ttl = SECONDS)]
async fn number(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "1h", lease = TEXT, wait = 2 * 3)]
async fn text(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

fn main() {}
