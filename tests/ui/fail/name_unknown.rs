//! A typing error in the name of an argument is one error. The argument that is meant is not fingerprinted.

use idem_runtime::{Error, Idem, SqliteStore, idempotent};

#[idempotent(key = key, ttl = "24h", store = iden)]
async fn store(idem: &Idem, key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", store = handle, tx = tx)]
async fn transactions(db: &Idem<SqliteStore>, key: &str) -> Result<usize, Error> {
    drop(tx);
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", scope = tennant)]
async fn scope(key: &str, tenant: &str) -> Result<usize, Error> {
    Ok(key.len() + tenant.len())
}

#[idempotent(key = constant("k"), ttl = "24h", store = idem)]
async fn without_arguments() -> Result<(), Error> {
    Ok(())
}

fn main() {}
