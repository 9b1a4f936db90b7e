//! An option that borrows an argument fails to compile if the body has moved the argument.

use idem_runtime::{Error, idempotent};

#[idempotent(
    key = key,
    ttl = "24h",
    on_crash = refuse,
    release_err = Error::Store(_) if key.is_empty()
)]
async fn charge(key: String) -> Result<String, Error> {
    Ok(key)
}

fn main() {}
