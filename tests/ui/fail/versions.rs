//! Versions of a result that a build could not read.

use idem_runtime::{Error, idempotent};

fn first_to_second(number: u8) -> u16 {
    number.into()
}

fn second_to_third(number: u16) -> u32 {
    number.into()
}

#[idempotent(key = key, ttl = "24h", version = 2)]
async fn no_upgrade(key: &str) -> Result<u16, Error> {
    Ok(1)
}

#[idempotent(key = key, ttl = "24h", version = 4)]
async fn no_upgrades(key: &str) -> Result<u16, Error> {
    Ok(1)
}

#[idempotent(key = key, ttl = "24h", upgrade = [first_to_second, second_to_third])]
async fn no_version(key: &str) -> Result<u32, Error> {
    Ok(1)
}

#[idempotent(key = key, ttl = "24h", version = 1)]
async fn no_effect(key: &str) -> Result<u16, Error> {
    Ok(1)
}

#[idempotent(key = key, ttl = "24h", version = 1, upgrade = first_to_second)]
async fn none_before(key: &str) -> Result<u16, Error> {
    Ok(1)
}

#[idempotent(key = key, ttl = "24h", version = 0, upgrade = first_to_second)]
async fn zero(key: &str) -> Result<u16, Error> {
    Ok(1)
}

#[idempotent(key = key, ttl = "24h", version = "2", upgrade = first_to_second)]
async fn text(key: &str) -> Result<u16, Error> {
    Ok(1)
}

#[idempotent(key = key, ttl = "24h", version = 3, upgrade = second_to_third)]
async fn too_few(key: &str) -> Result<u32, Error> {
    Ok(1)
}

#[idempotent(key = key, ttl = "24h", version = 2, upgrade = [first_to_second, second_to_third])]
async fn too_many(key: &str) -> Result<u32, Error> {
    Ok(1)
}

#[idempotent(key = key, ttl = "24h", version = 3, upgrade = [first_to_second, _])]
async fn a_gap(key: &str) -> Result<u32, Error> {
    Ok(1)
}

#[idempotent(key = key, ttl = "24h", version = 2, upgrade = |old: u8| u16::from(old))]
async fn a_closure(key: &str) -> Result<u16, Error> {
    Ok(1)
}

#[idempotent(key = key, ttl = "24h", downgrade = second_to_third(1))]
async fn a_call(key: &str) -> Result<u16, Error> {
    Ok(1)
}

fn main() {}
