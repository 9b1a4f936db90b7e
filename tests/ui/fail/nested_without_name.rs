//! Only the path of a free function is a name that no other function has.

use idem_runtime::{Error, idempotent};

struct Charges;

impl Charges {
    #[idempotent(key = key, ttl = "24h")]
    async fn create(key: &str, amount: u64) -> Result<u64, Error> {
        let _ = key;
        Ok(amount)
    }
}

trait Refund {
    async fn refund(key: &str) -> Result<usize, Error>;
}

impl Refund for Charges {
    #[idempotent(key = key, ttl = "24h")]
    async fn refund(key: &str) -> Result<usize, Error> {
        Ok(key.len())
    }
}

async fn outer() -> Result<usize, Error> {
    #[idempotent(key = key, ttl = "24h")]
    async fn inner(key: &str) -> Result<usize, Error> {
        Ok(key.len())
    }
    inner("key").await
}

fn main() {}
