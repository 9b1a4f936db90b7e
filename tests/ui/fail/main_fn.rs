//! `main` cannot be idempotent, because it has no caller.

use idem_runtime::{Error, idempotent};

#[idempotent(key = constant("nightly"), ttl = "24h")]
async fn main() -> Result<(), Error> {
    Ok(())
}
