//! The first thing that anybody writes.

use idem_runtime::{Error, idempotent};

#[idempotent]
async fn charge(amount: u64) -> Result<u64, Error> {
    Ok(amount)
}

fn main() {}
