//! The return type must be a `Result`, written as such or through an alias.

use idem_runtime::{Reconciled, idempotent};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Receipt;

#[idempotent(key = key, ttl = "24h")]
async fn count(key: &str) -> Option<u64> {
    Some(key.len() as u64)
}

#[idempotent(key = key, ttl = "24h")]
async fn charge(key: &str) -> Receipt {
    let _ = key;
    Receipt
}

struct Json<T>(T);

#[idempotent(
    key = key,
    ttl = "24h",
    on_crash = reconcile(async { drop(attempt.clone()); Ok(Reconciled::NotDone) }),
    attempt = attempt,
    replay_err = 3
)]
async fn refund(key: &str) -> Json<Receipt> {
    let _ = (key, attempt);
    Json(Receipt)
}

fn main() {
    let _ = |json: Json<Receipt>| json.0;
}
