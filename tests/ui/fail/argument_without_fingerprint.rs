//! Every argument that is not skipped needs a canonical form.

use idem_runtime::{Error, idempotent};

struct Bank {
    fee: u64,
}

#[idempotent(key = key, ttl = "24h")]
async fn charge(key: &str, bank: &Bank, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(amount + bank.fee)
}

fn main() {}
