//! Functions of `upgrade` and `downgrade` whose types do not fit.

use idem_runtime::{Error, TypedOperation, idempotent};

const PLACE: TypedOperation<u16> = TypedOperation::new("orders.place");

fn first_to_second(number: u8) -> u16 {
    number.into()
}

fn second_to_third(number: u16) -> u32 {
    number.into()
}

#[idempotent(key = key, ttl = "24h", version = 2, upgrade = first_to_second)]
async fn another_result(key: &str) -> Result<u32, Error> {
    Ok(1)
}

#[idempotent(key = key, ttl = "24h", version = 3, upgrade = [second_to_third, first_to_second])]
async fn another_order(key: &str) -> Result<u16, Error> {
    Ok(1)
}

#[idempotent(key = key, ttl = "24h", downgrade = first_to_second)]
async fn another_direction(key: &str) -> Result<u8, Error> {
    Ok(1)
}

#[idempotent(key = key, ttl = "24h", name = PLACE, version = 2, upgrade = first_to_second)]
async fn two_places(key: &str) -> Result<u16, Error> {
    Ok(1)
}

fn main() {}
