//! Counts in the server's `pg_stat_statements` for a store: statements, rows, and bytes of the log.

use std::sync::Arc;

use idem_runtime::store::ClaimOutcome;
use idem_runtime::{PostgresStore, Store};
use idem_servers::{Options, Server};
use sqlx::postgres::{PgPool, PgPoolOptions};

use super::{execute, number, until};
use crate::batches::Crowd;
use crate::records::{claim, outcome, own};

/// A transition: how often it ran, the rows that it returned or changed, and the log records and bytes that it wrote.
type Counted = (String, i64, i64, i64, i64);

/// Counts for statements on the store's tables since the last reset.
async fn counted(looking: &PgPool) -> Vec<Counted> {
    sqlx::query_as(
        "SELECT CASE WHEN query LIKE '%idem_records_begin%' THEN 'claim' \
           WHEN query LIKE 'UPDATE%' THEN 'complete' ELSE query END AS step, \
           calls, rows, wal_records, wal_bytes::bigint \
         FROM pg_stat_statements WHERE query LIKE '%\"idem_records\"%' ORDER BY step",
    )
    .fetch_all(looking)
    .await
    .unwrap()
}

#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_first_call_is_two_statements_and_a_replay_one_that_logs_no_byte() {
    const CALLS: i64 = 200;
    // A dedicated server: the counters belong to the whole server, and an autovacuum would add writes.
    let options = Options::durable()
        .set("shared_preload_libraries", "pg_stat_statements")
        .set("pg_stat_statements.track_utility", "off")
        .set("autovacuum", "off");
    let server = Server::postgres(&options).unwrap();
    let connect = async || {
        PgPoolOptions::new()
            .max_connections(1)
            .test_before_acquire(false)
            .connect(&server.url())
            .await
            .unwrap()
    };
    let looking = connect().await;
    execute(&looking, "CREATE EXTENSION pg_stat_statements").await;
    let store = PostgresStore::new(connect().await);
    store.migrate().await.unwrap();
    execute(&looking, "SELECT pg_stat_statements_reset()").await;

    for call in 0..CALLS {
        let owner = own(&store, &claim(&format!("k{call}"))).await;
        store.complete(&owner, &outcome(b"1")).await.unwrap();
    }
    let first = counted(&looking).await;
    let steps: Vec<_> = first
        .iter()
        .map(|(step, calls, rows, ..)| (step.as_str(), *calls, *rows))
        .collect();
    assert_eq!(
        steps,
        [("claim", CALLS, CALLS), ("complete", CALLS, CALLS)],
        "{first:?}"
    );
    assert!(first.iter().all(|(.., bytes)| *bytes > 0), "{first:?}");

    // The first read of a page prunes the dead rows that updates left on it, and logs that. A vacuum prunes all pages.
    execute(&looking, "VACUUM (FREEZE) idem_records").await;
    own(&store, &claim("running")).await;
    execute(&looking, "VACUUM (FREEZE) idem_records").await;
    execute(&looking, "SELECT pg_stat_statements_reset()").await;
    for call in 0..CALLS {
        let answer = store.claim(&claim(&format!("k{call}"))).await.unwrap();
        assert!(
            matches!(&answer, ClaimOutcome::Existing(record) if record.outcome() == Some(outcome(b"1"))),
            "{answer:?}"
        );
        let answer = store.claim(&claim("running")).await.unwrap();
        assert!(matches!(answer, ClaimOutcome::Existing(_)), "{answer:?}");
    }
    // Each statement returned its row.
    let replays = ("claim".to_owned(), 2 * CALLS, 2 * CALLS, 0, 0);
    assert_eq!(counted(&looking).await, [replays]);
}

/// Waiting requests are claimed, and completed, in one or two statements.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn concurrent_calls_share_statements() {
    let options = Options::fast()
        .set("shared_preload_libraries", "pg_stat_statements")
        .set("pg_stat_statements.track_utility", "off");
    let server = Server::postgres(&options).unwrap();
    let looking = PgPool::connect(&server.url()).await.unwrap();
    execute(&looking, "CREATE EXTENSION pg_stat_statements").await;
    let store = PostgresStore::connect(&server.url()).await.unwrap();
    store.migrate().await.unwrap();
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%unnest%'";
    let counted =
        "SELECT sum(calls)::bigint FROM pg_stat_statements WHERE query LIKE '%\"idem_records\"%'";

    let mut crowd = Crowd::gather(&store).await;
    let shared: Arc<dyn Store> = Arc::new(store.clone());
    for step in [Crowd::claim, Crowd::complete] {
        let mut lock = looking.begin().await.unwrap();
        sqlx::query("LOCK TABLE idem_records IN ACCESS EXCLUSIVE MODE")
            .execute(&mut *lock)
            .await
            .unwrap();
        execute(&looking, "SELECT pg_stat_statements_reset()").await;
        let asked = step(&crowd, &shared);
        until(async || number(&looking, waiting).await > 0).await;
        lock.commit().await.unwrap();
        crowd.hear(asked).await;
        let statements = number(&looking, counted).await;
        // Existing records are claimed by separate statements, and refusals are read again.
        assert!(statements < crowd.size() / 2, "{statements} statements");
    }
    crowd.check(&store).await;
}
