//! A name cannot mean two things.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h", attempt = attempt)]
async fn charge(key: &str, attempt: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(attempt)
}

fn main() {}
