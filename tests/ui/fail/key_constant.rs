//! A key that cannot depend on the call would merge all calls.

use idem_runtime::{Error, Idem, Key, idempotent};

struct Order {
    id: String,
}

const NIGHTLY: &str = "nightly";

#[idempotent(key = "order.id", ttl = "24h", skip(order))]
async fn quoted(order: Order) -> Result<u64, Error> {
    Ok(order.id.len() as u64)
}

impl Order {
    #[idempotent(key = "order", ttl = "24h", name = "orders.place")]
    async fn place(&self) -> Result<usize, Error> {
        Ok(self.id.len())
    }
}

#[idempotent(key = "nightly", ttl = "24h")]
async fn text(day: u64) -> Result<u64, Error> {
    Ok(day)
}

#[idempotent(key = 7, ttl = "24h")]
async fn number() -> Result<u64, Error> {
    Ok(7)
}

#[idempotent(key = NIGHTLY, ttl = "24h")]
async fn named(day: u64) -> Result<u64, Error> {
    Ok(day)
}

#[idempotent(key = Key::derive(["report", NIGHTLY]), ttl = "24h")]
async fn derived(day: u64) -> Result<u64, Error> {
    Ok(day)
}

#[idempotent(key = format!("{NIGHTLY}-report"), ttl = "24h")]
async fn formatted(day: u64) -> Result<u64, Error> {
    Ok(day)
}

#[idempotent(key = "create_invoice", ttl = "24h", store = idem, scope = tenant, skip(trace))]
async fn not_the_handle(idem: &Idem, tenant: u64, trace: u64, invoice: u64) -> Result<u64, Error> {
    Ok(tenant + trace + invoice)
}

#[idempotent(key = payment, ttl = "24h")]
async fn of_the_body(order: u64) -> Result<usize, Error> {
    let payment = format!("payment-{order}");
    Ok(payment.len())
}

#[idempotent(key = ordr, ttl = "24h")]
async fn misspelt(order: u64) -> Result<u64, Error> {
    Ok(order)
}

#[idempotent(key = constant(order), ttl = "24h")]
async fn no_constant(order: u64) -> Result<u64, Error> {
    Ok(order)
}

#[idempotent(key = constant(), ttl = "24h")]
async fn empty(order: u64) -> Result<u64, Error> {
    Ok(order)
}

#[idempotent(key = Key::generate(), ttl = "24h")]
async fn generated(order: u64) -> Result<u64, Error> {
    Ok(order)
}

fn main() {}
