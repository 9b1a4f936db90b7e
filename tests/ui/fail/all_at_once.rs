//! All errors of one attribute are reported together, and the body causes no further errors.

use idem_runtime::{Error, idempotent};

struct Charges;

impl Charges {
    #[idempotent(
        kye = key,
        ttl = "24",
        lease = "0s",
        wait = "5s",
        wait = "6s",
        skip(amuont),
        on_crash = refues,
        attempt = attempt
    )]
    async fn create(&self, key: &str, amount: u64) -> Result<u64, Error> {
        drop(attempt.clone());
        Ok(amount + key.len() as u64)
    }
}

fn main() {
    let _ = Charges.create("key", 3);
}
