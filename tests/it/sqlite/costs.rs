//! What a step costs: statements, as sqlx reports each of them, and bytes of the write-ahead log.

use std::fmt::Debug;
use std::path::Path;
use std::sync::{Arc, Mutex};

use idem_runtime::store::Claim;
use idem_runtime::{SqliteStore, Store};
use sqlx::SqlitePool;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};

use super::{execute, file, pool};
use crate::batches::{Asked, Crowd};
use crate::records::{claim, ending, own};

/// Nobody else's statements name it.
const TABLE: &str = "counted_by_a_test";

/// The statements on that table.
static STATEMENTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Hears of statements whichever thread they run on: SQLite has its own.
struct Listener;

impl<S: Subscriber> Layer<S> for Listener {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        metadata.target() == "sqlx::query"
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        event.record(&mut Statement);
    }
}

struct Statement;

impl Visit for Statement {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "db.statement" && value.contains(TABLE) {
            let is_comment = |line: &&str| line.starts_with("--") || line.is_empty();
            let text = value.trim().lines().find(|it| !is_comment(it));
            let verb = text.and_then(|it| it.split(' ').next());
            let verb = verb.unwrap_or_default().to_owned();
            STATEMENTS.lock().unwrap().push(verb);
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}

/// Which statements a step runs. Closing the pool waits for the thread that reports them.
async fn statements(path: &Path, step: impl AsyncFnOnce(SqliteStore)) -> Vec<String> {
    let pool = SqlitePool::connect_with(SqliteStore::connect_options(path))
        .await
        .unwrap();
    let store = SqliteStore::new(pool.clone()).with_table(TABLE).unwrap();
    STATEMENTS.lock().unwrap().clear();
    step(store).await;
    pool.close().await;
    std::mem::take(&mut STATEMENTS.lock().unwrap())
}

/// A claim reads first, so that a replay never waits for a writer; within the process that is no round trip.
#[tokio::test]
async fn a_replay_is_one_read_and_logs_no_byte() {
    let listener = tracing_subscriber::registry().with(Listener);
    tracing::subscriber::set_global_default(listener).expect("nobody else listens to all threads");
    let directory = tempfile::tempdir().unwrap();
    let path = file(&directory);
    // Stays open, for the log goes with the last connection.
    let store = SqliteStore::open(&path).await.unwrap();
    let store = store.with_table(TABLE).unwrap();
    store.migrate().await.unwrap();
    // Not its length alone, since the log is written from its beginning again once it was copied into the database.
    let log = || std::fs::read(path.with_extension("db-wal")).unwrap();

    let before = log();
    let first = statements(&path, async |store| {
        let owner = own(&store, &claim("k")).await;
        let claimed = log();
        store.complete(&owner, &ending(b"1")).await.unwrap();
        assert!(before != claimed && claimed != log());
    });
    assert_eq!(first.await, ["SELECT", "INSERT", "UPDATE"]);

    let before = log();
    let replay = statements(&path, async |store| {
        let answer = store.claim(&claim("k")).await.unwrap();
        assert!(
            matches!(&answer, Claim::Existing(record) if record.ending() == Some(ending(b"1"))),
            "{answer:?}"
        );
    });
    assert_eq!(replay.await, ["SELECT"]);
    assert!(log() == before, "a replay wrote to the log");
}

/// What waits for its turn to write is written with one commit.
#[tokio::test(flavor = "multi_thread")]
async fn calls_at_once_share_commits() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(file(&directory)).await.unwrap();
    let mut crowd = Crowd::gather(&store).await;
    let pool = pool(SqliteStore::connect_options(file(&directory))).await;
    // Each commit by itself writes three pages of a claim, and one of a completion.
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
