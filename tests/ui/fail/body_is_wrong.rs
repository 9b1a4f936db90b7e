//! Errors in the body are reported as without the macro.

use idem_runtime::{Error, idempotent};

struct ChargeError;

impl From<Error> for ChargeError {
    fn from(_: Error) -> Self {
        Self
    }
}

#[idempotent(key = key, ttl = "24h")]
async fn unknown(key: &str, amount: u64) -> Result<u64, Error> {
    let total: u64 = amount + fee;
    Ok(total + key.len() as u64)
}

#[idempotent(key = key, ttl = "24h")]
async fn mismatched(key: &str) -> Result<u64, Error> {
    let text: String = key.len();
    Ok(text)
}

#[idempotent(key = key, ttl = "24h")]
async fn endless(key: &str) -> Result<u64, Error> {
    key.len();
}

#[idempotent(key = key, ttl = "24h")]
async fn foreign(key: &str) -> Result<u64, ChargeError> {
    let number: u64 = key.parse()?;
    Ok(number)
}

fn main() {}
