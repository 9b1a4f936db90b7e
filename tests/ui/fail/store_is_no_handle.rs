//! A store alone has no policy.

use std::sync::Arc;

use idem_runtime::{Error, Store, idempotent};

#[idempotent(key = key, ttl = "24h", store = store)]
async fn charge(key: &str, store: Arc<dyn Store>) -> Result<u64, Error> {
    let _ = store;
    Ok(key.len() as u64)
}

fn main() {}
