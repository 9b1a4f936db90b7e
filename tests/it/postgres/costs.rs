//! The server's cost of a transition: statements, rows, log and scans, from the server's own statistics.

use futures_util::future::join_all;
use idem_runtime::record::Timestamp;
use idem_runtime::store::{ClaimOutcome, Resolution};
use idem_runtime::{Call, Error, Idem, Key, PostgresStore, Store};
use idem_tests::until;
use sqlx::{ConnectOptions, Connection};

use super::{Database, execute, number};
use crate::records::{HOUR, claim, outcome, own};

/// Waits until every connection to the database is closed: the statistics have a connection's counts for certain once
/// it is closed.
async fn wait_for_statistics(database: &Database) {
    let open = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}'",
        database.name
    );
    until(async || number(&database.server, &open).await == 0).await;
}

/// Number of transactions that ended in the database, once every connection to it is closed. Each statement of the
/// store is one transaction.
async fn transactions(database: &Database) -> i64 {
    wait_for_statistics(database).await;
    let ended = format!(
        "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = '{}'",
        database.name
    );
    number(&database.server, &ended).await
}

#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_first_call_is_two_statements_and_a_replay_one_that_writes_nothing() {
    const CALLS: i64 = 300;
    /// Upper bound of the server's own transactions in the database, such as a vacuum.
    const OTHERS: i64 = 100;
    let database = Database::new().await;
    let store = database.store().await;
    store.clone().migrate().await.unwrap();
    drop(store);
    let run = async |calls: i64, first: bool| {
        let pool = database.pool(1).await;
        let store = PostgresStore::new(pool.clone());
        for call in 0..calls {
            let claim = claim(&format!("k{call}"));
            if first {
                let owner = own(&store, &claim).await;
                store.complete(&owner, &outcome(b"1")).await.unwrap();
            } else {
                let answer = store.claim(&claim).await.unwrap();
                assert!(matches!(answer, ClaimOutcome::Existing(_)));
            }
        }
        pool.close().await;
        transactions(&database).await
    };
    // The connections of the pool that created the tables would close only later.
    execute(
        &database.server,
        &format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'",
            database.name
        ),
    )
    .await;
    let before = run(0, true).await;
    let called = run(CALLS, true).await;
    let spent = called - before;
    assert!((2 * CALLS..2 * CALLS + OTHERS).contains(&spent), "{spent}");
    let spent = run(CALLS, false).await - called;
    assert!((CALLS..CALLS + OTHERS).contains(&spent), "{spent}");

    let pool = database.pool(1).await;
    let statistics = "FROM pg_stat_user_tables WHERE relname = 'idem_records'";
    for (expected, column) in [
        (CALLS, "n_tup_ins"),
        (CALLS, "n_tup_upd"),
        (0, "n_tup_del"),
        // A completion moves no row to another page and writes no index entry.
        (CALLS, "n_tup_hot_upd"),
    ] {
        let counted = number(&pool, &format!("SELECT {column} {statistics}")).await;
        if column == "n_tup_hot_upd" {
            assert!(counted >= expected * 98 / 100, "{column}: {counted}");
        } else {
            assert_eq!(counted, expected, "{column}");
        }
    }

    // The server's own processes write to the log too, so the test looks for one quiet round; a replay that wrote would
    // leave none.
    let store = PostgresStore::new(pool.clone());
    let written = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint";
    let mut quiet = false;
    for _ in 0..2_000 {
        let before = number(&pool, written).await;
        store.claim(&claim("k1")).await.unwrap();
        if number(&pool, written).await == before {
            quiet = true;
            break;
        }
    }
    assert!(quiet, "each replay wrote to the log");
    let before = number(&pool, written).await;
    own(&store, &claim("new")).await;
    assert!(number(&pool, written).await > before);
    database.drop().await;
}

/// Concurrent calls share statements and commits: a batch with a key for each item costs a few single calls.
#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_batch_of_a_hundred_items_has_the_commits_of_three_calls() {
    const BATCHES: i64 = 100;
    const ITEMS: usize = 100;
    /// Upper bound of the server's own transactions in the database, such as a vacuum.
    const OTHERS: i64 = 100;
    let database = Database::new().await;
    let run = async |batches: i64, items: usize| {
        let pool = database.pool(8).await;
        let store = PostgresStore::new(pool.clone());
        store.migrate().await.unwrap();
        let idem = Idem::new(store);
        for batch in 0..batches {
            let calls = (0..items).map(|item| {
                let key = Key::derive([format!("{items}-{batch}"), item.to_string()]);
                let call = Call::new("invoices.send", &key, &item, HOUR);
                let idem = &idem;
                async move { idem.run(call, async || Ok::<_, Error>(item)).await }
            });
            let sent = join_all(calls).await;
            let sent: Vec<_> = sent.into_iter().map(Result::unwrap).collect();
            assert_eq!(sent, (0..items).collect::<Vec<_>>());
        }
        pool.close().await;
        transactions(&database).await
    };
    let before = run(0, 0).await;
    let one = run(BATCHES, 1).await;
    let all = run(BATCHES, ITEMS).await;
    let (one, all) = (one - before, all - one);
    println!("{BATCHES} single calls: {one} commits, {BATCHES} batches of {ITEMS}: {all}");
    assert!(
        all <= 3 * one + OTHERS,
        "{all} commits, and {one} for one item"
    );
    database.drop().await;
}

/// With a few thousand rows, only listings scan the whole table.
#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn no_transition_reads_the_whole_table() {
    let database = Database::new().await;
    let pool = database.pool(1).await;
    let store = PostgresStore::new(pool.clone());
    store.migrate().await.unwrap();
    own(&store, &claim("k")).await;
    execute(
        &pool,
        "INSERT INTO idem_records SELECT sha256(n::text::bytea), scope, operation, n::text, fingerprint, state, claim_id, \
         fencing_token, attempt, lease_until, retention, on_crash, codec, payload, first_claimed_at, ended_at, purge_after \
         FROM idem_records, generate_series(1, 20000) n; \
         UPDATE idem_records SET state = 'completed', codec = 'json/1', payload = '', ended_at = 1, purge_after = 1 \
         WHERE idempotency_key IN ('1', '2', '3'); ANALYZE idem_records",
    )
    .await;
    pool.close().await;
    let scans = async || {
        wait_for_statistics(&database).await;
        let mut looking = database.options.clone().connect().await.unwrap();
        let scans = "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'idem_records'";
        let scans: i64 = sqlx::query_scalar(scans)
            .fetch_one(&mut looking)
            .await
            .unwrap();
        looking.close().await.unwrap();
        scans
    };
    let before = scans().await;

    let pool = database.pool(1).await;
    let store = PostgresStore::new(pool.clone());
    assert_eq!(store.purge(2, Timestamp::MAX).await.unwrap().removed, 2);
    assert_eq!(store.purge(2, Timestamp::MAX).await.unwrap().removed, 1);
    assert_eq!(store.purge(2, Timestamp::MAX).await.unwrap().removed, 0);
    let owner = own(&store, &claim("new")).await;
    store.renew(&owner, HOUR).await.unwrap();
    store.release(&owner).await.unwrap();
    let owner = own(&store, &claim("new")).await;
    store.interrupt(&owner).await.unwrap();
    let seen = store.get(&owner.id).await.unwrap().unwrap().observation();
    store.take_over(&seen, &claim("new")).await.unwrap();
    store.resolve(&seen, &Resolution::Release).await.unwrap();
    let owner = own(&store, &claim("other")).await;
    store.complete(&owner, &outcome(b"1")).await.unwrap();
    store.claim(&claim("other")).await.unwrap();
    pool.close().await;
    assert_eq!(scans().await, before);
    database.drop().await;
}
