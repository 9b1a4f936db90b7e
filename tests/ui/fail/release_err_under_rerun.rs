//! `release_err` has no effect under `rerun`, where every error is retried.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h", release_err = Error::Store(_))]
async fn charge(key: &str, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(amount)
}

fn main() {}
