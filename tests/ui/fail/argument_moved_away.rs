//! Options borrow, so an argument is there for the body; behind the body it may be gone.

use idem_runtime::{Error, idempotent};

#[idempotent(
    key = key,
    ttl = "24h",
    on_crash = refuse,
    retry_err = Error::Store(_) if key.is_empty()
)]
async fn charge(key: String) -> Result<String, Error> {
    Ok(key)
}

fn main() {}
