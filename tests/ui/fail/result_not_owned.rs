//! A result is read back from the store, so it cannot borrow from an argument.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h")]
async fn charge<'a>(key: &str, text: &'a str) -> Result<&'a str, Error> {
    let _ = key;
    Ok(text)
}

fn main() {}
