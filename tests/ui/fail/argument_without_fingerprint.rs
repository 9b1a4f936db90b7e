//! Every argument is compared, unless it is left out.

use idem_runtime::{Error, idempotent};

struct Bank {
    fee: u64,
}

#[idempotent(key = key, ttl = "24h")]
async fn charge(key: &str, bank: &mut Bank, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(amount + bank.fee)
}

fn main() {}
