//! All types of a generic function would share their records unseen.

use std::fmt::Display;

use idem_runtime::{Error, Fingerprint, idempotent};

#[idempotent(key = key, ttl = "24h")]
async fn of_a_type<'a, T: Fingerprint + Send>(key: &'a str, value: T) -> Result<usize, Error> {
    drop(value);
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h")]
async fn of_a_number<const N: usize>(key: &str) -> Result<usize, Error> {
    Ok(key.len() + N)
}

#[idempotent(key = key, ttl = "24h")]
async fn of_an_argument(key: &str, value: impl Display + Fingerprint) -> Result<String, Error> {
    let _ = key;
    Ok(value.to_string())
}

fn main() {}
