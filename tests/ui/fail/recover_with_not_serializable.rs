//! A recovery input must be serializable, because it is stored.

use idem_runtime::{Error, Fingerprint, idempotent};

#[derive(Fingerprint)]
struct Order {
    number: u64,
}

#[idempotent(key = order.number, ttl = "24h", recover_with = order)]
async fn checkout(order: Order) -> Result<u64, Error> {
    Ok(order.number)
}

fn main() {}
