//! Unknown values: the error lists the known ones.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h", on_crash = refus)]
async fn slip(key: &str) -> Result<u64, Error> {
    Ok(key.len() as u64)
}

#[idempotent(key = key, ttl = "24h", on_crash = panic, on_store_error = fail)]
async fn stranger(key: &str) -> Result<u64, Error> {
    Ok(key.len() as u64)
}

#[idempotent(key = key, ttl = "24h", on_crash = reconcile)]
async fn without_question(key: &str) -> Result<u64, Error> {
    Ok(key.len() as u64)
}

fn main() {}
