//! Conditions, lists and functions in the place of a pattern of errors.

use idem_runtime::{Error, idempotent};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
enum ChargeError {
    Declined,
    Busy(u16),
}

impl From<Error> for ChargeError {
    fn from(_: Error) -> Self {
        Self::Busy(503)
    }
}

fn is_final(error: &ChargeError) -> bool {
    matches!(error, ChargeError::Declined)
}

#[idempotent(key = key, ttl = "24h", replay_err = error.is_final())]
async fn condition(key: &str) -> Result<usize, ChargeError> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", replay_err = !matches!(error, ChargeError::Busy(_)))]
async fn negation(key: &str) -> Result<usize, ChargeError> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", replay_err = is_final(error))]
async fn call(key: &str) -> Result<usize, ChargeError> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", replay_err = [ChargeError::Declined, ChargeError::Busy(503)])]
async fn list(key: &str) -> Result<usize, ChargeError> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", replay_err = ChargeError::Declined || ChargeError::Busy(503))]
async fn two_bars(key: &str) -> Result<usize, ChargeError> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", replay_err = true)]
async fn truth(key: &str) -> Result<usize, ChargeError> {
    Ok(key.len())
}

fn main() {
    let _ = is_final(&ChargeError::Declined);
}
