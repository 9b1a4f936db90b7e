//! The call ends its transaction itself, and the body keeps it.

use idem_runtime::{Error, Idem, SqliteStore, idempotent};

async fn insert(connection: &mut impl Sized, key: &str) -> Result<usize, Error> {
    let _ = connection;
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", store = idem, tx = tx)]
async fn ended(idem: &Idem<SqliteStore>, key: &str) -> Result<usize, Error> {
    let inserted = insert(&mut *tx, key).await?;
    if inserted == 0 {
        tx.rollback().await?;
    }
    tx.commit().await?;
    Ok(inserted)
}

#[idempotent(key = key, ttl = "24h", store = idem, tx = tx)]
async fn spawned(idem: &Idem<SqliteStore>, key: &str) -> Result<usize, Error> {
    let task = tokio::spawn(async move { insert(&mut *tx, "a").await });
    task.await.unwrap()
}

fn main() {}
