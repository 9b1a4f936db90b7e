//! Messages of the compiler that the questions and answers of the book quote: the macro cannot tell what is meant.

use idem_runtime::{Error, Idem, SqliteStore, idempotent};
use sqlx::{Sqlite, SqliteConnection, Transaction};

#[idempotent(key = key, ttl = "24h", store = idem)]
async fn on_any_store(idem: &Idem, key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

async fn on_one_store(idem: &Idem<SqliteStore>) -> Result<usize, Error> {
    on_any_store(idem, "key").await
}

#[idempotent(key = key, ttl = "24h", store = idem, tx = tx)]
async fn ended(idem: &Idem<SqliteStore>, key: &str) -> anyhow::Result<usize> {
    let connection = tx;
    connection.commit().await?;
    Ok(key.len())
}

async fn read(connection: &mut SqliteConnection) -> sqlx::Result<()> {
    sqlx::query("SELECT 1").execute(connection).await?;
    Ok(())
}

async fn write(transaction: &mut Transaction<'_, Sqlite>) -> sqlx::Result<()> {
    read(&mut *transaction).await
}

#[idempotent(key = key, ttl = "24h", store = idem, tx = tx)]
async fn spawned(idem: &Idem<SqliteStore>, key: &str) -> anyhow::Result<usize> {
    let connection = tx;
    tokio::spawn(async move { read(connection).await }).await??;
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", store = idem, tx = tx)]
async fn given_to_a_repository(idem: &Idem<SqliteStore>, key: &str) -> anyhow::Result<usize> {
    write(tx).await?;
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h", store = idem, tx = tx)]
async fn borrowed_twice(idem: &Idem<SqliteStore>, key: &str) -> anyhow::Result<usize> {
    sqlx::query("SELECT 1").execute(&mut tx).await?;
    Ok(key.len())
}

struct BankError;

#[idempotent(key = key, ttl = "24h", attempt = attempt)]
async fn in_a_step(key: &str) -> Result<u64, Error> {
    let charged = attempt.step("charge", async || Err::<u64, _>(BankError)).await;
    Ok(charged.unwrap_or_default())
}

fn main() {}
