//! Handwritten statements on PostgreSQL, the baseline of benchmarks: an insert and an update of a table of four columns
//! with a text key and no second index.

use std::collections::BTreeMap;

use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

/// Number of connections of each pool.
pub const CONNECTIONS: u32 = 16;

/// Number of completed keys, `done-0` and following: more than tasks, because concurrent replays of one key share a read.
pub const COMPLETED: u64 = 1000;

/// A table in a database.
#[derive(Clone)]
pub struct ByHand {
    pool: PgPool,
}

impl ByHand {
    /// Creates the table, with [`COMPLETED`] rows, in the database of this pool.
    ///
    /// # Errors
    ///
    /// A statement fails.
    pub async fn create(pool: PgPool) -> Result<Self, sqlx::Error> {
        let create =
            "CREATE TABLE small (id text PRIMARY KEY, token bigint, state text, payload bytea)";
        sqlx::query(create).execute(&pool).await?;
        let by_hand = Self { pool };
        for number in 0..COMPLETED {
            by_hand.call(&completed(number)).await?;
        }
        Ok(by_hand)
    }

    /// Claims the key and completes it.
    ///
    /// # Errors
    ///
    /// A statement fails.
    pub async fn call(&self, key: &str) -> Result<(), sqlx::Error> {
        sqlx::query(
            "INSERT INTO small (id, token, state) VALUES ($1, $2, 'running') ON CONFLICT DO NOTHING",
        )
        .bind(key)
        .bind(7_i64)
        .execute(&self.pool)
        .await?;
        sqlx::query(
            "UPDATE small SET state = 'completed', payload = $1 WHERE id = $2 AND token = $3",
        )
        .bind(&b"34"[..])
        .bind(key)
        .bind(7_i64)
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Reads the row of a completed key.
    ///
    /// # Errors
    ///
    /// The statement fails, or there is no such row.
    pub async fn read(&self, key: &str) -> Result<(), sqlx::Error> {
        sqlx::query("SELECT state, payload FROM small WHERE id = $1")
            .bind(key)
            .fetch_one(&self.pool)
            .await
            .map(drop)
    }
}

/// One of the completed keys.
pub fn completed(number: u64) -> String {
    format!("done-{}", number % COMPLETED)
}

/// A pool that sends no ping before it gives out a connection.
///
/// # Errors
///
/// The server cannot be reached.
pub async fn pool(url: &str, connections: u32) -> Result<PgPool, sqlx::Error> {
    PgPoolOptions::new()
        .max_connections(connections)
        .min_connections(connections)
        .test_before_acquire(false)
        .connect(url)
        .await
}

/// Totals of the server: transactions that wrote, and bytes in the log.
///
/// # Errors
///
/// The statement fails.
pub async fn counters(pool: &PgPool) -> Result<BTreeMap<&'static str, i64>, sqlx::Error> {
    let (commits, bytes) = sqlx::query_as(
        "SELECT txid_snapshot_xmax(txid_current_snapshot()), pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint",
    )
    .fetch_one(pool)
    .await?;
    Ok(BTreeMap::from([("commits", commits), ("bytes", bytes)]))
}
