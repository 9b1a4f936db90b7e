//! A part of a key that is none is reported at that part.

use idem_runtime::{Error, idempotent};

struct Order {
    id: u64,
    lines: Vec<u64>,
}

#[idempotent(key = (tenant, order.id, order.lines), ttl = "24h", skip(order))]
async fn place(tenant: &str, order: Order) -> Result<usize, Error> {
    Ok(order.lines.len())
}

fn main() {}
