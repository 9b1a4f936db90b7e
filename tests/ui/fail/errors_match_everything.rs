//! A pattern that matches every error is hardly meant, and written as `all`.

use idem_runtime::{Error, idempotent};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
enum ChargeError {
    Declined,
    Busy(u16),
}

impl ChargeError {
    fn is_final(&self) -> bool {
        matches!(self, Self::Declined)
    }
}

impl From<Error> for ChargeError {
    fn from(_: Error) -> Self {
        Self::Busy(503)
    }
}

#[idempotent(key = key, ttl = "24h", replay_err = _)]
async fn wildcard(key: &str) -> Result<usize, ChargeError> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", replay_err = ChargeError::Declined | _)]
async fn alternative(key: &str) -> Result<usize, ChargeError> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", on_crash = refuse, release_err = error)]
async fn variable(key: &str) -> Result<usize, ChargeError> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", replay_err = Err(_))]
async fn of_the_result(key: &str) -> Result<usize, ChargeError> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", replay_err = Err(ChargeError::Busy(503)))]
async fn in_the_result(key: &str) -> Result<usize, ChargeError> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", replay_err = "ChargeError::Declined")]
async fn quoted(key: &str) -> Result<usize, ChargeError> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", replay_err = |error| error.is_final())]
async fn closure(key: &str) -> Result<usize, ChargeError> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", replay_err = |e: &ChargeError| matches!(e, ChargeError::Declined))]
async fn typed_closure(key: &str) -> Result<usize, ChargeError> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", replay_err = ChargeError::is_final)]
async fn function(key: &str) -> Result<usize, ChargeError> {
    Ok(key.len())
}

fn main() {}
