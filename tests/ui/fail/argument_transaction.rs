//! A transaction among the arguments is joined or left out.

use idem_runtime::{Error, Idem, SqliteStore, idempotent};

struct Transaction<'c>(&'c str);

#[idempotent(key = key, ttl = "24h", store = idem)]
async fn place(idem: &Idem<SqliteStore>, db: &mut Transaction<'_>, key: &str) -> Result<usize, Error> {
    Ok(db.0.len() + key.len())
}

fn main() {}
