//! Where an option is missing or wrong, the compiler still checks the others.

use idem_runtime::{Error, idempotent};

struct Order {
    id: String,
    tenant: String,
}

#[idempotent(key = order.idd, scope = order.tenant)]
async fn no_ttl(order: Order) -> Result<usize, Error> {
    Ok(order.tenant.len())
}

#[idempotent(key = order.id, ttl = "24", scope = order.tenent, skip(oder))]
async fn bad_ttl(order: Order) -> Result<usize, Error> {
    Ok(order.tenant.len())
}

fn main() {}
