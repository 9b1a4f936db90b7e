//! Under `#[async_trait]`, an attribute that changes the function must be below `#[idempotent]`.

use async_trait::async_trait;
use idem_runtime::{Error, idempotent};
use tracing::instrument;

#[async_trait]
trait Charges {
    async fn charge(&self, key: &str, amount: u64) -> Result<u64, Error>;
}

struct Service;

#[async_trait]
impl Charges for Service {
    #[instrument(skip_all)]
    #[idempotent(key = key, ttl = "24h", name = "charges.create")]
    async fn charge(&self, key: &str, amount: u64) -> Result<u64, Error> {
        Ok(amount + key.len() as u64)
    }
}

fn main() {}
