//! A pattern that is one name is the constant or the variant of that name, and no variable.

use idem_runtime::{Error, idempotent};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
enum ChargeError {
    Declined,
    Busy,
}

impl From<Error> for ChargeError {
    fn from(_: Error) -> Self {
        Self::Busy
    }
}

#[idempotent(key = key, ttl = "24h", replay_err = Declined)]
async fn charge(key: &str) -> Result<usize, ChargeError> {
    Ok(key.len())
}

fn main() {}
