//! The cost of a transition: statements, as sqlx reports them, and bytes of the write-ahead log.

use std::path::Path;
use std::sync::Arc;

use idem_runtime::store::ClaimOutcome;
use idem_runtime::{SqliteStore, Store};
use idem_tests::statements::Statements;
use sqlx::SqlitePool;

use super::{execute, file, pool};
use crate::batches::{Asked, Crowd};
use crate::records::{claim, outcome, own};

/// No other test's statements name this table.
const TABLE: &str = "counted_by_a_test";

/// Verbs of the statements that a transition runs. Closing the pool waits for the thread that reports them.
async fn verbs(
    heard: &Statements,
    path: &Path,
    step: impl AsyncFnOnce(SqliteStore),
) -> Vec<String> {
    let pool = SqlitePool::connect_with(SqliteStore::connect_options(path))
        .await
        .unwrap();
    let store = SqliteStore::new(pool.clone()).with_table(TABLE).unwrap();
    step(store).await;
    pool.close().await;
    heard.take_verbs()
}

/// A claim reads first, so that a replay never waits for a writer; within the process a read needs no round trip.
#[tokio::test]
async fn a_replay_is_one_read_and_logs_no_byte() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(&directory);
    // Stays open, because closing the last connection deletes the log.
    let store = SqliteStore::open(&path).await.unwrap();
    let store = store.with_table(TABLE).unwrap();
    store.migrate().await.unwrap();
    // Comparing the length is not enough: after a checkpoint the log is overwritten from its start.
    let log = || std::fs::read(path.with_extension("db-wal")).unwrap();

    let heard = Statements::hear(TABLE);
    let before = log();
    let first = verbs(&heard, &path, async |store| {
        let owner = own(&store, &claim("k")).await;
        let claimed = log();
        store.complete(&owner, &outcome(b"1")).await.unwrap();
        assert!(before != claimed && claimed != log());
    });
    assert_eq!(first.await, ["SELECT", "INSERT", "UPDATE"]);

    let before = log();
    let replay = verbs(&heard, &path, async |store| {
        let answer = store.claim(&claim("k")).await.unwrap();
        assert!(
            matches!(&answer, ClaimOutcome::Existing(record) if record.outcome() == Some(outcome(b"1"))),
            "{answer:?}"
        );
    });
    assert_eq!(replay.await, ["SELECT"]);
    assert!(log() == before, "a replay wrote to the log");
}

/// Requests that wait for the write lock share one commit.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_calls_share_commits() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(file(&directory)).await.unwrap();
    let mut crowd = Crowd::gather(&store).await;
    let pool = pool(SqliteStore::connect_options(file(&directory))).await;
    // On its own, the commit of a claim writes three pages, and that of a completion one.
    let shared: Arc<dyn Store> = Arc::new(store.clone());
    for (at_most, step) in [
        (2, Crowd::claim as fn(&Crowd, &Arc<dyn Store>) -> Asked),
        (1, Crowd::complete),
    ] {
        execute(&pool, "PRAGMA wal_checkpoint(TRUNCATE)").await;
        crowd.hear(step(&crowd, &shared)).await;
        let (_, frames, _): (i64, i64, i64) = sqlx::query_as("PRAGMA wal_checkpoint(PASSIVE)")
            .fetch_one(&pool)
            .await
            .unwrap();
        assert!(frames < at_most * crowd.size(), "{frames} pages");
    }
    crowd.check(&store).await;
}
