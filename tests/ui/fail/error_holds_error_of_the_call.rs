//! An error that is stored, with a variant that cannot be.

use idem_runtime::{Error, idempotent};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
enum ChargeError {
    Declined,
    Call(Error),
}

impl From<Error> for ChargeError {
    fn from(error: Error) -> Self {
        Self::Call(error)
    }
}

#[idempotent(key = key, ttl = "24h", replay_err = ChargeError::Declined)]
async fn charge(key: &str) -> Result<usize, ChargeError> {
    Ok(key.len())
}

fn main() {}
