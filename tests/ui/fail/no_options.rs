//! An attribute without options: the errors name the required ones.

use idem_runtime::{Error, idempotent};

#[idempotent]
async fn charge(amount: u64) -> Result<u64, Error> {
    Ok(amount)
}

fn main() {}
