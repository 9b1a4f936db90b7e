//! Transactions that many calls join.

use std::time::Duration;

use idem_runtime::advanced::RunOptions;
use idem_runtime::{Call, Error, Idem, PostgresStore, SqliteStore};
use idem_tests::places;
use idem_tests::sql::Sql;
use sqlx::{PgConnection, PgPool};

use super::Failure;

async fn number(connection: &mut PgConnection, query: &'static str) -> i64 {
    sqlx::query_scalar(query)
        .fetch_one(connection)
        .await
        .unwrap()
}

async fn join<S: Sql>(
    idem: &Idem<S>,
    tx: &mut S::Connection,
    key: &str,
    request: u32,
    fails: bool,
) -> Result<u64, Failure> {
    let call = Call::new("wide", key, &request, Duration::from_secs(600));
    let body = async |_: &mut S::Connection, _| match fails {
        true => Err(Failure::OutOfStock),
        false => Ok(7),
    };
    idem.join_transaction(tx, call, RunOptions::new(), body)
        .await
}

/// Makes a first call.
async fn order<S: Sql>(idem: &Idem<S>, tx: &mut S::Connection, key: &str) {
    assert_eq!(join::<S>(idem, tx, key, 1, false).await.unwrap(), 7);
}

/// Makes calls that are rolled back to their savepoints: replays, refusals and failures.
async fn keep_nothing<S: Sql>(idem: &Idem<S>, tx: &mut S::Connection, done: &str, calls: i64) {
    for call in 0..calls {
        order::<S>(idem, tx, done).await;
        let reused = join::<S>(idem, tx, done, 2, false).await;
        assert!(
            matches!(reused, Err(Failure::Idempotency(Error::KeyReused))),
            "{reused:?}"
        );
        let failed = join::<S>(idem, tx, &format!("failed {call}"), 1, true).await;
        assert!(matches!(failed, Err(Failure::OutOfStock)), "{failed:?}");
    }
}

/// Savepoints of the calls do not nest, and their locks do not fill the server's table.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn what_a_joined_call_leaves_in_the_transaction_is_bounded() {
    const CALLS: i64 = 300;
    type S = PostgresStore;
    let pool: PgPool = places::postgres().home().await.unwrap();
    let store = PostgresStore::new(pool.clone());
    store.migrate().await.unwrap();
    let idem = Idem::new(store);
    let mut outer = pool.begin().await.unwrap();
    // Each subtransaction has a memory context of this name.
    const LEVELS: &str =
        "SELECT count(*) FROM pg_backend_memory_contexts WHERE name = 'CurTransactionContext'";
    const LOCKS: &str =
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
    order::<S>(&idem, &mut outer, "first").await;
    let levels = number(&mut outer, LEVELS).await;
    assert_eq!(number(&mut outer, LOCKS).await, 1);
    keep_nothing::<S>(&idem, &mut outer, "first", CALLS).await;
    assert_eq!(number(&mut outer, LEVELS).await, levels);
    assert_eq!(number(&mut outer, LOCKS).await, 1);
    for call in 0..CALLS {
        order::<S>(&idem, &mut outer, &call.to_string()).await;
    }
    assert_eq!(number(&mut outer, LEVELS).await, levels);
    assert_eq!(number(&mut outer, LOCKS).await, 256);
    keep_nothing::<S>(&idem, &mut outer, "first", CALLS).await;
    assert_eq!(number(&mut outer, LEVELS).await, levels);
    assert_eq!(number(&mut outer, LOCKS).await, 256);

    // A savepoint of the caller that is rolled back takes its calls along, and they may be made again.
    {
        use sqlx::Connection as _;
        let mut inner = outer.begin().await.unwrap();
        order::<S>(&idem, &mut inner, "inner").await;
        inner.rollback().await.unwrap();
    }
    order::<S>(&idem, &mut outer, "inner").await;
    outer.commit().await.unwrap();
    let completed = "SELECT count(*) FROM idem_records WHERE state = 'completed'";
    let mut connection = pool.acquire().await.unwrap();
    assert_eq!(number(&mut connection, completed).await, CALLS + 2);

    // The next transaction on the connection counts anew.
    drop(connection);
    let mut next = pool.begin().await.unwrap();
    order::<S>(&idem, &mut next, "next").await;
    assert_eq!(number(&mut next, LOCKS).await, 1);
    next.commit().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_joined_call_leaves_no_savepoint_on_sqlite() {
    type S = SqliteStore;
    let place = places::sqlite();
    let pool = place.home().await.unwrap();
    let store = S::over(&pool);
    store.create_tables().await.unwrap();
    let idem = Idem::new(store);
    let mut outer = pool.begin().await.unwrap();
    for round in 0..2 {
        if round == 0 {
            order::<S>(&idem, &mut outer, "first").await;
        } else {
            keep_nothing::<S>(&idem, &mut outer, "first", 3).await;
        }
        let left = S::text(&mut outer, "ROLLBACK TO _sqlx_savepoint_1").await;
        let left = left.unwrap_err().to_string();
        assert!(left.contains("no such savepoint"), "{round}: {left}");
    }
    outer.commit().await.unwrap();
    let records = S::number(&pool, "SELECT count(*) FROM idem_records", &[]).await;
    assert_eq!(records.unwrap(), 1);
}
