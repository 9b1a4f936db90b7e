//! A method needs a `name`, because the attribute cannot see its type.

use async_trait::async_trait;
use idem_runtime::{Error, idempotent};

struct Charges;

impl Charges {
    #[idempotent(key = key, ttl = "24h")]
    async fn create(&self, key: &str, amount: u64) -> Result<u64, Error> {
        let _ = key;
        Ok(amount)
    }

    #[idempotent(key = key, ttl = "24h", skip(charges))]
    async fn refund(charges: &Self, key: &str, amount: u64) -> Result<u64, Error> {
        let _ = (charges, key);
        Ok(amount)
    }
}

#[async_trait]
trait Capture {
    async fn capture(key: &str) -> Result<u64, Error>;
}

#[async_trait]
impl Capture for Charges {
    #[idempotent(key = key, ttl = "24h")]
    async fn capture(key: &str) -> Result<u64, Error> {
        Ok(key.len() as u64)
    }
}

fn main() {}
