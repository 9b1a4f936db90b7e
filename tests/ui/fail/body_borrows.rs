//! Errors about borrows in the body name the argument, the attempt and the transaction, as without the macro.

use idem_runtime::{Error, Idem, SqliteStore, idempotent};

#[idempotent(key = key, ttl = "24h", attempt = attempt)]
async fn spawned(key: String) -> Result<usize, Error> {
    tokio::spawn(async { key.len() });
    tokio::spawn(async { attempt.number() });
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", store = idem, tx = tx)]
async fn moved(idem: &Idem<SqliteStore>, key: String) -> Result<usize, Error> {
    drop(tx);
    drop(tx);
    drop(key);
    Ok(key.len())
}

fn main() {}
