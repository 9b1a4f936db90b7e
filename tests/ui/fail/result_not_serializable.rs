//! A result that cannot be stored cannot be given again.

use idem_runtime::{Error, idempotent};

struct Receipt {
    id: u64,
}

#[idempotent(key = key, ttl = "24h")]
async fn charge(key: &str, amount: u64) -> Result<Receipt, Error> {
    let _ = key;
    Ok(Receipt { id: amount })
}

fn main() {
    let _ = |receipt: Receipt| receipt.id;
}
