//! Each option has a name, and a comma after it.

use idem_runtime::{Error, idempotent};

struct Order {
    id: String,
}

#[idempotent(order.id, ttl = "24h")]
async fn key(order: Order) -> Result<usize, Error> {
    Ok(order.id.len())
}

#[idempotent("orders.place", key = order.id, "24h")]
async fn name(order: Order) -> Result<usize, Error> {
    Ok(order.id.len())
}

#[idempotent(key = order.id, , ttl = "24h")]
async fn two_commas(order: Order) -> Result<usize, Error> {
    Ok(order.id.len())
}

#[idempotent(key = order., ttl = "24h")]
async fn unfinished(order: Order) -> Result<usize, Error> {
    Ok(order.id.len())
}

fn main() {}
