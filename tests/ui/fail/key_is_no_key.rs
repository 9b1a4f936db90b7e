//! Types that cannot be a key, a scope or a request.

use idem_runtime::{Error, idempotent};

struct Order {
    id: Vec<u8>,
}

#[idempotent(key = order.id, ttl = "24h", scope = &order, fingerprint = order)]
async fn charge(order: Order) -> Result<u64, Error> {
    Ok(order.id.len() as u64)
}

fn main() {}
