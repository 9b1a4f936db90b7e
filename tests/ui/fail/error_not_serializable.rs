//! An error that `replay_err` names must be serializable, because it is stored.

use idem_runtime::{Error, idempotent};

#[derive(Debug)]
enum ChargeError {
    Declined,
    Idempotency(Error),
}

impl From<Error> for ChargeError {
    fn from(error: Error) -> Self {
        Self::Idempotency(error)
    }
}

#[idempotent(key = key, ttl = "24h", replay_err = ChargeError::Declined)]
async fn charge(key: &str, amount: u64) -> Result<u64, ChargeError> {
    if key.is_empty() {
        return Err(ChargeError::Declined);
    }
    Ok(amount)
}

fn main() {
    let _ = |error| matches!(error, ChargeError::Idempotency(_));
}
