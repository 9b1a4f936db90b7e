//! Text in quotes is a constant, also if it looks like an argument.

use idem_runtime::{Error, Idem, idempotent};

struct Service {
    idem: Idem,
}

impl Service {
    #[idempotent(
        key = key,
        ttl = "1h",
        name = "charges.create",
        store = "self.idem",
        scope = "tenant",
        fingerprint = "amount.cents()",
        recover_with = "&amount",
    )]
    async fn charge(&self, key: &str, tenant: &str, amount: u64) -> Result<u64, Error> {
        let _ = (&self.idem, key, tenant);
        Ok(amount)
    }
}

fn main() {}
