//! The error type must be `From<Error>`, so that the caller learns that its key is in flight, reused or interrupted.

use idem_runtime::idempotent;

#[derive(Debug)]
enum ChargeError {
    Declined,
}

#[idempotent(key = key, ttl = "24h")]
async fn charge(key: &str, amount: u64) -> Result<u64, ChargeError> {
    if amount > 100 {
        return Err(ChargeError::Declined);
    }
    Ok(amount + key.len() as u64)
}

fn main() {}
