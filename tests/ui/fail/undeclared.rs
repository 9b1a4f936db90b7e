//! A body that uses the attempt or the transaction without the option that declares it.

use idem_runtime::{Attempt, Error, Idem, SqliteStore, idempotent};

async fn insert(connection: &mut impl Sized, key: &str) -> Result<usize, Error> {
    let _ = connection;
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h")]
async fn attempt(key: &str) -> Result<usize, Error> {
    let downstream = attempt.downstream_key("bank");
    Ok(key.len() + downstream.as_str().len() + attempt.number() as usize)
}

#[idempotent(key = key, ttl = "24h", store = idem)]
async fn transaction(idem: &Idem<SqliteStore>, key: &str) -> Result<usize, Error> {
    insert(&mut *tx, key).await
}

async fn charge(attempt: &Attempt) -> Result<u32, Error> {
    Ok(attempt.number())
}

#[idempotent(key = key, ttl = "24h")]
async fn attempt_passed_on(key: &str) -> Result<u32, Error> {
    charge(&attempt).await
}

#[idempotent(key = key, ttl = "24h", store = idem)]
async fn transaction_passed_on(idem: &Idem<SqliteStore>, key: &str) -> Result<usize, Error> {
    insert(tx, key).await
}

fn main() {}
