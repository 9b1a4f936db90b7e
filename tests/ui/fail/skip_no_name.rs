//! `skip` takes the names of arguments.

use idem_runtime::{Error, idempotent};

struct Order {
    id: String,
    note: String,
}

#[idempotent(key = key, ttl = "24h", skip("trace"))]
async fn quoted(key: &str, trace: u64) -> Result<u64, Error> {
    Ok(trace + key.len() as u64)
}

#[idempotent(key = key, ttl = "24h", skip(&trace))]
async fn borrowed(key: &str, trace: u64) -> Result<u64, Error> {
    Ok(trace + key.len() as u64)
}

#[idempotent(key = order.id, ttl = "24h", skip(order.note))]
async fn part(order: Order) -> Result<usize, Error> {
    Ok(order.note.len())
}

fn main() {}
