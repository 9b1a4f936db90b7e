//! Storage of steps in the SQL stores: rows that are deleted with their record, and a table that an upgrade adds.

use std::time::Duration;

use idem_runtime::record::{Owner, Payload};
use idem_runtime::store::{ClaimRequest, FencedWrite, Resolution, Resolved};
use idem_runtime::{MySqlStore, PostgresStore, SqliteStore, Store, StoreError};
use idem_tests::backends;
use sqlx::{AssertSqlSafe, Executor};

use crate::records::{HOUR, claim, outcome, own};

/// Lease and retention of a record that expires soon, but not before its steps are saved on a slow machine.
const MOMENT: Duration = Duration::from_millis(200);

/// A store with its own tables, and direct access to them.
pub(crate) trait Tables: Store + Sized {
    async fn here() -> (Self, Self::Pool);
    type Pool;
    async fn migrated(&self) -> Result<(), StoreError>;
    async fn execute(pool: &Self::Pool, statement: &str);
    /// Number of rows in the table of steps.
    async fn rows(pool: &Self::Pool) -> i64;
}

macro_rules! tables {
    ($store:ty, $pool:ty, $open:expr) => {
        impl Tables for $store {
            type Pool = $pool;

            async fn here() -> (Self, $pool) {
                let pool: $pool = $open.await;
                let store = <$store>::new(pool.clone());
                store.migrate().await.unwrap();
                (store, pool)
            }

            async fn migrated(&self) -> Result<(), StoreError> {
                self.migrate().await
            }

            async fn execute(pool: &$pool, statement: &str) {
                let statement = AssertSqlSafe(statement.to_owned());
                pool.execute(statement).await.unwrap();
            }

            async fn rows(pool: &$pool) -> i64 {
                let count = "SELECT count(*) FROM idem_records_steps";
                sqlx::query_scalar(count).fetch_one(pool).await.unwrap()
            }
        }
    };
}

tables!(SqliteStore, sqlx::SqlitePool, async {
    let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1);
    // Foreign keys are a setting of each connection, and an application may have turned them off.
    let options = SqliteStore::connect_options(":memory:").foreign_keys(false);
    pool.connect_with(options).await.unwrap()
});
tables!(PostgresStore, sqlx::PgPool, async {
    backends::postgres().await.unwrap()
});
tables!(MySqlStore, sqlx::MySqlPool, async {
    backends::mariadb().await.unwrap()
});

async fn save(store: &impl Store, owner: &Owner, name: &str) {
    let payload = Payload {
        codec: "json/1".into(),
        bytes: name.as_bytes().into(),
    };
    let steps = store.steps().unwrap();
    let saved = steps.save_step(owner, name, &payload).await;
    assert_eq!(saved.unwrap(), FencedWrite::Applied);
}

/// Creates a record with two steps.
async fn with_steps(store: &impl Store, claim: &ClaimRequest) -> Owner {
    let owner = own(store, claim).await;
    save(store, &owner, "reserve").await;
    save(store, &owner, "charge").await;
    owner
}

async fn absent(store: &impl Store, claim: &ClaimRequest) {
    for _ in 0..2000 {
        if store.get(&claim.id).await.unwrap().is_none() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the record never expired");
}

async fn rows_are_deleted_with_their_record<S: Tables>() {
    let (store, pool) = S::here().await;
    let purged = ClaimRequest {
        lease: MOMENT,
        retention: MOMENT,
        ..claim("purged")
    };
    with_steps(&store, &purged).await;
    let erased = with_steps(&store, &claim("erased")).await;
    with_steps(&store, &claim("by-hand")).await;
    let running = with_steps(&store, &claim("running")).await;
    assert_eq!(S::rows(&pool).await, 8);

    absent(&store, &purged).await;
    assert_eq!(store.purge(100).await.unwrap().removed, 1);
    assert_eq!(S::rows(&pool).await, 6);

    store.complete(&erased, &outcome(b"1")).await.unwrap();
    let seen = store.get(&erased.id).await.unwrap().unwrap().observation();
    let resolved = store.resolve(&seen, &Resolution::Erase).await;
    assert_eq!(resolved.unwrap(), Resolved::Done);
    assert_eq!(S::rows(&pool).await, 4);

    S::execute(
        &pool,
        "DELETE FROM idem_records WHERE idempotency_key = 'by-hand'",
    )
    .await;
    assert_eq!(S::rows(&pool).await, 2);
    let steps = store.steps().unwrap().saved_steps(&running).await.unwrap();
    assert_eq!(steps.unwrap().len(), 2);
}

/// A key that is used repeatedly and never purged does not accumulate rows.
async fn the_next_generation_overwrites_the_rows_of_the_last<S: Tables>() {
    let (store, pool) = S::here().await;
    for _ in 0..3 {
        let short = ClaimRequest {
            retention: MOMENT,
            lease: HOUR,
            ..claim("again")
        };
        let owner = with_steps(&store, &short).await;
        assert_eq!(S::rows(&pool).await, 2);
        store.complete(&owner, &outcome(b"1")).await.unwrap();
        absent(&store, &short).await;
    }
}

/// Applies a migration again that a crash interrupted, with a record in the tables. Only MySQL can leave such tables,
/// because it commits each statement, but the migrations of every database can be repeated.
async fn migrating_again_adds_a_missing_table<S: Tables>() {
    let (store, pool) = S::here().await;
    let owner = own(&store, &claim("before")).await;
    S::execute(&pool, "DROP TABLE idem_records_steps").await;
    S::execute(&pool, "DELETE FROM idem_records_migrations").await;
    // The application of the previous version still runs.
    store.complete(&owner, &outcome(b"1")).await.unwrap();

    store.migrated().await.unwrap();
    store.migrated().await.unwrap();
    with_steps(&store, &claim("after")).await;
    assert_eq!(S::rows(&pool).await, 2);
}

macro_rules! on_each {
    ($($test:ident),*) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $test() {
                super::$test::<super::SqliteStore>().await;
            })*
        }

        mod postgres {
            $(#[tokio::test]
            #[ignore = "needs PostgreSQL: cargo xtask test runs it"]
            async fn $test() {
                super::$test::<super::PostgresStore>().await;
            })*
        }

        mod mysql {
            $(#[tokio::test]
            #[ignore = "needs MySQL or MariaDB: cargo xtask test runs it"]
            async fn $test() {
                super::$test::<super::MySqlStore>().await;
            })*
        }
    };
}

on_each!(
    rows_are_deleted_with_their_record,
    the_next_generation_overwrites_the_rows_of_the_last,
    migrating_again_adds_a_missing_table
);
