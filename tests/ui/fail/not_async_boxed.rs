//! A function that returns a boxed future must be async instead.

use std::pin::Pin;

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, ttl = "24h")]
fn charge(key: String, amount: u64) -> Pin<Box<dyn Future<Output = Result<u64, Error>> + Send>> {
    let key = key + "!";
    Box::pin(async move { Ok(amount + key.len() as u64) })
}

fn main() {}
