//! A result must be serializable, because it is stored.

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
