//! Transactions that many calls join.

use std::time::Duration;

use idem_runtime::advanced::RunOptions;
use idem_runtime::{Call, Error, Idem, PostgresStore};
use idem_tests::places;
use sqlx::{PgConnection, PgPool};

async fn number(connection: &mut PgConnection, query: &'static str) -> i64 {
    sqlx::query_scalar(query)
        .fetch_one(connection)
        .await
        .unwrap()
}

async fn join(idem: &Idem<PostgresStore>, tx: &mut PgConnection, key: &str) -> Result<u64, Error> {
    let call = Call::new("wide", key, &1, Duration::from_secs(600));
    let body = async |_: &mut PgConnection, _| Ok::<_, Error>(7);
    idem.join_transaction(tx, call, RunOptions::new(), body)
        .await
}

/// Savepoints of the calls do not nest, and their locks do not fill the server's table.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn what_a_joined_call_leaves_in_the_transaction_is_bounded() {
    const CALLS: i64 = 300;
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
    join(&idem, &mut outer, "first").await.unwrap();
    let levels = number(&mut outer, LEVELS).await;
    assert_eq!(number(&mut outer, LOCKS).await, 1);
    for call in 0..CALLS {
        join(&idem, &mut outer, &call.to_string()).await.unwrap();
    }
    assert_eq!(number(&mut outer, LEVELS).await, levels);
    assert_eq!(number(&mut outer, LOCKS).await, 256);

    // A savepoint of the caller that is rolled back takes its calls along, and they may be made again.
    {
        use sqlx::Connection as _;
        let mut inner = outer.begin().await.unwrap();
        join(&idem, &mut inner, "inner").await.unwrap();
        inner.rollback().await.unwrap();
    }
    join(&idem, &mut outer, "inner").await.unwrap();
    outer.commit().await.unwrap();
    let completed = "SELECT count(*) FROM idem_records WHERE state = 'completed'";
    let mut connection = pool.acquire().await.unwrap();
    assert_eq!(number(&mut connection, completed).await, CALLS + 2);

    // The next transaction on the connection counts anew.
    drop(connection);
    let mut next = pool.begin().await.unwrap();
    join(&idem, &mut next, "next").await.unwrap();
    assert_eq!(number(&mut next, LOCKS).await, 1);
    next.commit().await.unwrap();
}
