//! Nobody calls `main` again.

use idem_runtime::{Error, idempotent};

#[idempotent(key = "nightly", ttl = "24h")]
async fn main() -> Result<(), Error> {
    Ok(())
}
