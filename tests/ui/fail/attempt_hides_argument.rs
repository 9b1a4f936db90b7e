//! The name of `attempt` must differ from the names of the arguments.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h", attempt = attempt)]
async fn charge(key: &str, attempt: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(attempt)
}

fn main() {}
