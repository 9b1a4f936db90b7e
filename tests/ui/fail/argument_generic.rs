//! The type of an argument is generic: say which bound is missing.

use std::fmt::Display;

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h", name = "print")]
async fn print<T: Display>(key: &str, value: T, more: Vec<T>) -> Result<String, Error> {
    Ok(format!("{key}{value}{}", more.len()))
}

#[idempotent(key = key, ttl = "24h", name = "show")]
async fn show(key: &str, value: impl Display) -> Result<String, Error> {
    Ok(format!("{key}{value}"))
}

fn main() {}
