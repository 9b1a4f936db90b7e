//! Keys that may be absent, malformed or random, or are text with names in braces.

use idem_runtime::{Error, Key, idempotent};

struct Order {
    id: String,
}

struct Uuid;

impl Uuid {
    fn new_v4() -> u128 {
        4
    }
}

#[idempotent(key = key, ttl = "24h")]
async fn absent(key: Option<String>) -> Result<usize, Error> {
    Ok(key.map_or(0, |key| key.len()))
}

#[idempotent(key = Key::new(text), ttl = "24h")]
async fn checked(text: &str) -> Result<usize, Error> {
    Ok(text.len())
}

#[idempotent(key = format!("{user}-{}", Uuid::new_v4()), ttl = "24h")]
async fn random(user: &str) -> Result<usize, Error> {
    Ok(user.len())
}

#[idempotent(key = "order-{id}", ttl = "24h")]
async fn braces(id: &str) -> Result<usize, Error> {
    Ok(id.len())
}

#[idempotent(key = "{tenant}/{order.id}", ttl = "24h")]
async fn braces_around_fields(tenant: u64, order: Order) -> Result<usize, Error> {
    Ok(tenant as usize + order.id.len())
}

fn main() {
    let _ = (Uuid::new_v4(), Key::generate());
}
