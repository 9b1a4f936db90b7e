//! `tx` with the name of an argument that is not a `&mut` of a connection.

use idem_runtime::{Error, Idem, SqliteStore, idempotent};

#[idempotent(key = key, ttl = "24h", store = idem, tx = amount)]
async fn no_connection(idem: &Idem<SqliteStore>, key: &str, amount: u64) -> Result<u64, Error> {
    let _ = (idem, key);
    Ok(amount)
}

struct Transaction;

#[idempotent(key = key, ttl = "24h", store = idem, tx = tx)]
async fn by_value(idem: &Idem<SqliteStore>, key: &str, tx: Transaction) -> Result<u64, Error> {
    let _ = (idem, key);
    drop(tx);
    Ok(1)
}

#[idempotent(key = key, ttl = "24h", store = idem, tx = tx)]
async fn shared(idem: &Idem<SqliteStore>, key: &str, tx: &Transaction) -> Result<u64, Error> {
    let _ = (idem, key, tx);
    Ok(1)
}

#[idempotent(key = key, ttl = "24h", store = idem, tx = tx)]
async fn part(idem: &Idem<SqliteStore>, key: &str, (tx, _): (u64, u64)) -> Result<u64, Error> {
    let _ = (idem, key, tx);
    Ok(1)
}

fn main() {}
