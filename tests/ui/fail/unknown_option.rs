//! Unknown options: a misspelled one gets a suggestion, any other one the list.

use idem_runtime::{Error, idempotent};

#[idempotent(key = key, tll = "24h")]
async fn slip(key: &str, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(amount)
}

#[idempotent(key = key, ttl = "24h", cache(size = 3), color = Vec::<u8, u16>::new(), skip_al)]
async fn stranger(key: &str, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(amount)
}

#[idempotent(key = key, ttl = "24h", timeout = "5s", retries = 3, tenant = key, background)]
async fn other_words(key: &str, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(amount)
}

fn main() {}
