//! The server's cost of a transition: statements, rows and bytes of its logs, from its own counters.

use std::collections::BTreeMap;
use std::sync::Arc;

use idem_runtime::store::ClaimOutcome;
use idem_runtime::{MySqlStore, Store};
use idem_servers::{Options, Server};
use sqlx::mysql::{MySqlPool, MySqlPoolOptions, MySqlRow};
use sqlx::{AssertSqlSafe, Row};

use super::Database;
use crate::batches::Crowd;
use crate::records::{claim, outcome, own};

/// Statements, and rows that were changed. `Handler_write` counts attempted inserts as well.
const STEPS: &str = "'Com_select', 'Com_insert', 'Com_insert_select', 'Com_update', \
     'Com_update_multi', 'Com_delete', 'Com_begin', 'Handler_update', 'Handler_delete'";

type Counts = BTreeMap<String, u64>;

async fn counters(pool: &MySqlPool) -> Counts {
    let show = format!("SHOW SESSION STATUS WHERE Variable_name IN ({STEPS})");
    let rows = sqlx::query(AssertSqlSafe(show))
        .fetch_all(pool)
        .await
        .unwrap();
    let entry = |row: &MySqlRow| {
        let name = text(row, 0).to_ascii_lowercase();
        (name, text(row, 1).parse().unwrap())
    };
    rows.iter().map(entry).collect()
}

fn text(row: &MySqlRow, at: usize) -> String {
    String::from_utf8(row.get_unchecked::<Vec<u8>, _>(at)).unwrap()
}

/// Counters that a transition increased.
async fn spent(pool: &MySqlPool, step: impl AsyncFnOnce()) -> Vec<(String, u64)> {
    let before = counters(pool).await;
    step().await;
    let after = counters(pool).await;
    let grown = after
        .into_iter()
        .map(|(name, count)| (name.clone(), count - before[&name]));
    grown.filter(|(_, count)| *count > 0).collect()
}

fn counts(expected: &[(&str, u64)]) -> Vec<(String, u64)> {
    let owned = expected
        .iter()
        .map(|(name, count)| ((*name).to_owned(), *count));
    owned.collect()
}

async fn replay(store: &MySqlStore, key: &str) {
    let answer = store.claim(&claim(key)).await.unwrap();
    assert!(
        matches!(&answer, ClaimOutcome::Existing(record) if record.outcome() == Some(outcome(b"1"))),
        "{answer:?}"
    );
}

#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn a_first_call_is_two_statements_and_a_replay_one() {
    for database in Database::each().await {
        // One connection, since the counters belong to the session.
        let pool = database.pool(1).await;
        let store = MySqlStore::new(pool.clone());
        store.migrate().await.unwrap();
        let version: String = sqlx::query_scalar("SELECT VERSION()")
            .fetch_one(&pool)
            .await
            .unwrap();
        let first = spent(&pool, async || {
            let owner = own(&store, &claim("k")).await;
            store.complete(&owner, &outcome(b"1")).await.unwrap();
        });
        assert_eq!(
            first.await,
            counts(&[
                ("com_insert_select", 1),
                ("com_update", 1),
                ("handler_update", 1)
            ])
        );
        // MySQL returns no row when it inserts none.
        let reads: &[_] = if version.contains("MariaDB") {
            &[("com_insert_select", 1)]
        } else {
            &[("com_insert_select", 1), ("com_select", 1)]
        };
        let again = spent(&pool, async || replay(&store, "k").await);
        assert_eq!(again.await, counts(reads));
        let running = claim("running");
        own(&store, &running).await;
        let duplicate = spent(&pool, async || {
            let answer = store.claim(&claim("running")).await.unwrap();
            assert!(matches!(answer, ClaimOutcome::Existing(_)), "{answer:?}");
        });
        assert_eq!(duplicate.await, counts(reads));
        database.drop().await;
    }
}

/// Waiting requests are claimed, and completed, in one or two statements. MySQL claims one at a time.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn concurrent_calls_share_statements() {
    for database in Database::each().await {
        let pool = database.pool(1).await;
        let store = MySqlStore::new(pool.clone());
        store.migrate().await.unwrap();
        let version: String = sqlx::query_scalar("SELECT VERSION()")
            .fetch_one(&pool)
            .await
            .unwrap();
        let mut crowd = Crowd::gather(&store).await;
        let shared: Arc<dyn Store> = Arc::new(store.clone());
        let asked = [Crowd::claim, Crowd::complete];
        for (ask, name) in asked.iter().zip(["com_insert_select", "com_update_multi"]) {
            let counted = spent(&pool, async || crowd.hear(ask(&crowd, &shared)).await).await;
            let count = |name| counted.iter().find(|it| it.0 == name).map_or(0, |it| it.1);
            if version.contains("MariaDB") {
                assert!((1..20).contains(&count(name)), "{name}: {counted:?}");
                let alone = count("com_update") as i64;
                assert!(alone < crowd.size() / 2, "{counted:?}");
            }
        }
        crowd.check(&store).await;
        database.drop().await;
    }
}

/// Positions of the ends of the redo log and the binary log.
async fn ends_of_logs(pool: &MySqlPool) -> (u64, u64) {
    let redo = sqlx::query("SHOW GLOBAL STATUS LIKE 'Innodb_lsn_current'")
        .fetch_one(pool)
        .await
        .unwrap();
    let binary = sqlx::query("SHOW MASTER STATUS")
        .fetch_one(pool)
        .await
        .unwrap();
    let redo = text(&redo, 1).parse().unwrap();
    (redo, binary.get_unchecked(1))
}

/// A dedicated server without other clients, with full durability and with a binary log.
#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn a_replay_writes_no_byte_of_a_log() {
    const REPLAYS: usize = 50;
    let options = Options::durable().set("log-bin", "binary");
    let server = Server::maria_db(&options).unwrap();
    let pool = MySqlPoolOptions::new()
        .max_connections(1)
        .test_before_acquire(false)
        .connect(&server.url())
        .await
        .unwrap();
    let store = MySqlStore::new(pool.clone());
    store.migrate().await.unwrap();
    let before = ends_of_logs(&pool).await;
    let owner = own(&store, &claim("k")).await;
    let claimed = ends_of_logs(&pool).await;
    store.complete(&owner, &outcome(b"1")).await.unwrap();
    let completed = ends_of_logs(&pool).await;
    assert!(before.0 < claimed.0 && claimed.0 < completed.0);
    assert!(before.1 < claimed.1 && claimed.1 < completed.1);
    own(&store, &claim("running")).await;

    let (_, binary) = ends_of_logs(&pool).await;
    // The server cleans up for a while after writes, and logs that to its redo log. If replays wrote as well, no round
    // would ever be quiet.
    let mut quiet = false;
    for _ in 0..400 {
        let (redo, _) = ends_of_logs(&pool).await;
        for _ in 0..REPLAYS {
            replay(&store, "k").await;
            let answer = store.claim(&claim("running")).await.unwrap();
            assert!(matches!(answer, ClaimOutcome::Existing(_)), "{answer:?}");
        }
        if ends_of_logs(&pool).await.0 == redo {
            quiet = true;
            break;
        }
    }
    assert!(quiet, "replays wrote to the redo log");
    assert_eq!(ends_of_logs(&pool).await.1, binary);
}
