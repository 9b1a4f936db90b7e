//! A function without a return type.

use idem_runtime::idempotent;

#[idempotent(key = key, ttl = "24h")]
async fn charge(key: &str, amount: u64) {
    let _ = (key, amount);
}

fn main() {}
