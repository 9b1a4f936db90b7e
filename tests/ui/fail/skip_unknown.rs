//! `skip` of an argument that does not exist.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h", skip(trace))]
async fn slip(key: &str, traces: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(traces)
}

#[idempotent(key = key, ttl = "24h", skip(height))]
async fn part(key: &str, (width, height): (u64, u64)) -> Result<u64, Error> {
    let _ = key;
    Ok(width * height)
}

#[idempotent(key = key, ttl = "24h", skip(bank, 2))]
async fn stranger(key: &str, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(amount)
}

fn main() {}
