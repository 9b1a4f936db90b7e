//! A result cannot borrow from an argument, because it is read back from the store.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h")]
async fn charge<'a>(key: &str, text: &'a str) -> Result<&'a str, Error> {
    let _ = key;
    Ok(text)
}

fn main() {}
