//! Errors about the result type and about the error type each point to the type.

use idem_runtime::idempotent;

struct Receipt;

struct ChargeError;

#[idempotent(key = key, ttl = "24h")]
async fn charge(key: &str) -> Result<Vec<Receipt>, ChargeError> {
    match key {
        "" => Err(ChargeError),
        _ => Ok(vec![Receipt]),
    }
}

fn main() {}
