//! The attribute on items that are not functions.

use idem_runtime::{Error, idempotent};

#[idempotent(key = id, ttl = "24h")]
struct Charge {
    id: String,
}

#[idempotent]
impl Charge {
    async fn create(&self) -> Result<u64, Error> {
        Ok(self.id.len() as u64)
    }
}

#[idempotent(key = self.id, ttl = "24h")]
trait Refund {
    #[idempotent(key = self.id, ttl = "24h", name = "refund")]
    async fn refund(&self) -> Result<u64, Error>;
}

#[idempotent(key = 1, ttl = "24h")]
const LIMIT: u64 = 100;

fn main() {
    let charge = Charge { id: String::new() };
    let _ = (charge.create(), LIMIT);
}
