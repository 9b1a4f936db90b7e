//! The name of an operation is a constant.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h", name = format!("charges.{kind}"), skip(kind))]
async fn formatted(key: &str, kind: &str) -> Result<usize, Error> {
    Ok(key.len() + kind.len())
}

#[idempotent(key = key, ttl = "24h", name = kind, skip(kind))]
async fn argument(key: &str, kind: &'static str) -> Result<usize, Error> {
    Ok(key.len() + kind.len())
}

fn configured() -> &'static str {
    "charges"
}

#[idempotent(key = key, ttl = "24h", name = configured())]
async fn computed(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

const VERSION: u64 = 3;

#[idempotent(key = key, ttl = "24h", name = VERSION)]
async fn number(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

fn main() {}
