//! Options that have no effect with `tx`.

use idem_runtime::{Error, Idem, SqliteStore, idempotent};

#[idempotent(key = key, ttl = "24h", store = idem, tx = tx, on_crash = refuse)]
async fn refuse(idem: &Idem<SqliteStore>, key: &str) -> Result<u64, Error> {
    let _ = (idem, key);
    Ok(1)
}

#[idempotent(key = key, ttl = "24h", store = idem, tx = tx, lease = "30s", release_err = Error::Unrecorded,
             on_store_error = run)]
async fn others(idem: &Idem<SqliteStore>, key: &str) -> Result<u64, Error> {
    let _ = (idem, key);
    Ok(1)
}

#[idempotent(key = key, ttl = "24h", store = idem, tx = it, attempt = it)]
async fn one_name_for_two(idem: &Idem<SqliteStore>, key: &str) -> Result<u64, Error> {
    let _ = (idem, key);
    Ok(1)
}

#[idempotent(key = key, ttl = "24h", store = idem, tx = "tx")]
async fn no_name(idem: &Idem<SqliteStore>, key: &str) -> Result<u64, Error> {
    let _ = (idem, key);
    Ok(1)
}

fn main() {}
