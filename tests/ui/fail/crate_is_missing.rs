//! A wrong path of the runtime is one error.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h", wait = "2s", crate = my::idem)]
async fn charge(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

fn main() {}
