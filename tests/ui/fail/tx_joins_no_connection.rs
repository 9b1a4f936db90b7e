//! `tx` with the name of a `&mut` argument that is not a connection.

use idem_runtime::{Error, Idem, SqliteStore, idempotent};

#[idempotent(key = key, ttl = "24h", store = idem, tx = lines)]
async fn order(idem: &Idem<SqliteStore>, key: &str, lines: &mut Vec<u64>) -> Result<u64, Error> {
    let _ = lines;
    Ok(1)
}

fn main() {}
