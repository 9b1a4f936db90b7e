//! A purge of a large table while claims continue: it works in bounded batches, and no claim waits for all of them.
//!
//! The ordinary run has a table of [`RECORDS`]; `IDEM_TEST_PURGED_RECORDS=1000000` makes it a million:
//! `IDEM_TEST_PURGED_RECORDS=1000000 cargo xtask servers -- cargo test -p idem-tests --test it -- --include-ignored
//! purging::`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use idem_runtime::record::{RecordState, Timestamp};
use idem_runtime::store::{ClaimOutcome, ClaimRequest, FencedWrite};
use idem_runtime::{MySqlStore, PostgresStore, SqliteStore, Store};
use idem_tests::backends;
use sqlx::{AssertSqlSafe, MySqlPool, PgPool, SqlitePool};
use tokio::task::JoinSet;

use crate::records::{claim, full_text, outcome, own};

mod as_of;

/// Default number of expired records.
const RECORDS: u64 = 50_000;
const VARIABLE: &str = "IDEM_TEST_PURGED_RECORDS";
/// Number of records that the purge examines and keeps; they come first.
const ALIVE: u64 = 1_500;
const BATCH: u32 = 1_000;
const OWNERS: u64 = 4;

fn expired_records() -> u64 {
    match std::env::var(VARIABLE) {
        Ok(number) => number.parse().expect(VARIABLE),
        Err(_) => RECORDS,
    }
}

/// Columns of a record, in the order of [`copies`].
const COPIED: &str = "id, scope, operation, idempotency_key, fingerprint, state, claim_id, fencing_token, attempt, \
                      lease_until, retention, on_crash, codec, payload, first_claimed_at, ended_at, purge_after";

/// Columns of a copy of a record: `n` is its number, in the order of the claims, and `id` an expression for its 32
/// bytes.
fn copies(id: &str, n_as_text: &str, blob: &str) -> String {
    format!(
        "{id}, scope, operation, {n_as_text}, fingerprint, 'completed', claim_id, fencing_token, attempt, 1, \
         CASE WHEN n > {ALIVE} THEN 1 ELSE retention END, on_crash, 'json/1', {blob}, 1, \
         CASE WHEN n > {ALIVE} THEN 1 ELSE fencing_token END, n"
    )
}

/// Purges in eight tasks at once, as processes would. Returns the number of records that they removed together.
pub(crate) async fn purge_at_once<S: Store + Clone + 'static>(store: &S) -> u64 {
    let purging: JoinSet<u64> = (0..8)
        .map(|_| {
            let store = store.clone();
            async move {
                let mut removed = 0;
                loop {
                    let purged = store.purge(50, Timestamp::MAX).await.unwrap();
                    removed += purged.removed;
                    if !purged.more {
                        return removed;
                    }
                }
            }
        })
        .collect();
    purging.join_all().await.into_iter().sum()
}

/// Purges all expired records while owners claim and complete. Before the purge only the record `held` exists.
async fn purges_during_claims<S: Store + Clone + 'static>(store: S, expired: u64) {
    let batches = Arc::new(AtomicU64::new(0));
    let is_purging = Arc::new(AtomicBool::new(true));
    let mut owners = JoinSet::new();
    for owner in 0..OWNERS {
        let (store, batches) = (store.clone(), Arc::clone(&batches));
        let is_purging = Arc::clone(&is_purging);
        owners.spawn(async move {
            let mut calls = Calls::default();
            while is_purging.load(Ordering::SeqCst) {
                let began = batches.load(Ordering::SeqCst);
                let claim = claim(&format!("new-{owner}-{}", calls.made));
                call(&store, &claim).await;
                let spanned = batches.load(Ordering::SeqCst) - began;
                calls.made += 1;
                calls.longest = calls.longest.max(spanned);
            }
            calls
        });
    }

    let (mut removed, mut more) = (0, true);
    while more {
        let purged = store
            .purge(BATCH, Timestamp::MAX)
            .await
            .map_err(|it| full_text(&it))
            .unwrap();
        assert!(purged.removed <= u64::from(BATCH), "{purged:?}");
        assert_eq!((purged.abandoned, purged.interrupted), (0, 0), "{purged:?}");
        removed += purged.removed;
        more = purged.more;
        batches.fetch_add(1, Ordering::SeqCst);
    }
    is_purging.store(false, Ordering::SeqCst);
    let all = batches.load(Ordering::SeqCst);
    let (mut made, mut longest) = (0, 0);
    for calls in owners.join_all().await {
        assert!(calls.made > 1, "an owner waited for the whole purge");
        assert!(calls.longest < all / 4, "{calls:?} in {all} batches");
        made += calls.made;
        longest = calls.longest.max(longest);
    }
    println!(
        "{made} calls while {removed} records went in {all} batches, none longer than {longest} of them"
    );

    assert_eq!(removed, expired, "what had expired, and nothing else");
    assert!(all >= expired / u64::from(BATCH), "{all} batches");
    let idle = store.purge(BATCH, Timestamp::MAX).await.unwrap();
    assert_eq!((idle.removed, idle.more), (0, false));
    let held = store.get(&claim("held").id).await.unwrap().unwrap();
    assert_eq!(held.state, RecordState::Running);
}

/// Calls of one owner during the purge.
#[derive(Debug, Default)]
struct Calls {
    made: u64,
    /// The most batches that ended during one call.
    longest: u64,
}

/// Makes a whole call: claim, duplicate, completion, replay.
async fn call(store: &impl Store, claim: &ClaimRequest) {
    let owner = own(store, claim).await;
    let done = store.complete(&owner, &outcome(b"1")).await;
    assert_eq!(
        done.map_err(|it| full_text(&it)).unwrap(),
        FencedWrite::Applied
    );
    let again = ClaimRequest {
        claim_id: idem_runtime::record::ClaimId::random(),
        ..claim.clone()
    };
    let answer = store
        .claim(&again)
        .await
        .map_err(|it| full_text(&it))
        .unwrap();
    assert!(matches!(answer, ClaimOutcome::Existing(_)), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_large_table_is_purged_in_postgres() {
    let pool: PgPool = backends::postgres().await.unwrap();
    let store = PostgresStore::new(pool.clone());
    store.migrate().await.unwrap();
    own(&store, &claim("held")).await;
    let expired = expired_records();
    let columns = copies("sha256(n::text::bytea)", "n::text", "'\\x00'");
    let fill = format!(
        "INSERT INTO idem_records ({COPIED}) SELECT {columns} FROM idem_records, generate_series(1, {}) n",
        expired + ALIVE
    );
    sqlx::query(AssertSqlSafe(fill))
        .execute(&pool)
        .await
        .unwrap();
    purges_during_claims(store, expired).await;
    let left = "SELECT count(*) FROM idem_records WHERE idempotency_key ~ '^[0-9]+$'";
    let left: i64 = sqlx::query_scalar(left).fetch_one(&pool).await.unwrap();
    assert_eq!(left.cast_unsigned(), ALIVE);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn a_large_table_is_purged_in_maria_db() {
    a_large_table_is_purged_in(backends::mariadb().await.unwrap()).await;
}

mod mysql {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "needs MySQL: cargo xtask test runs it"]
    async fn a_large_table_is_purged() {
        a_large_table_is_purged_in(backends::mysql().await.unwrap()).await;
    }
}

/// In MariaDB or MySQL.
async fn a_large_table_is_purged_in(pool: MySqlPool) {
    let store = MySqlStore::new(pool.clone());
    store.migrate().await.unwrap();
    own(&store, &claim("held")).await;
    let expired = expired_records();
    let columns = copies("UNHEX(SHA2(n, 256))", "n", "x'00'");
    let numbers: Vec<u64> = (1..=expired + ALIVE).collect();
    let fill = format!(
        "INSERT INTO idem_records ({COPIED}) SELECT {columns}
         FROM idem_records, JSON_TABLE(?, '$[*]' COLUMNS (n BIGINT PATH '$')) AS numbers"
    );
    sqlx::query(AssertSqlSafe(fill))
        .bind(serde_json::to_string(&numbers).unwrap())
        .execute(&pool)
        .await
        .unwrap();
    purges_during_claims(store, expired).await;
    let left = "SELECT count(*) FROM idem_records WHERE idempotency_key REGEXP '^[0-9]+$'";
    let left: i64 = sqlx::query_scalar(left).fetch_one(&pool).await.unwrap();
    assert_eq!(left.cast_unsigned(), ALIVE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_table_is_purged_in_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("idem.db");
    let store = SqliteStore::open(&path).await.unwrap();
    let pool = SqlitePool::connect_with(SqliteStore::connect_options(&path))
        .await
        .unwrap();
    own(&store, &claim("held")).await;
    let expired = expired_records();
    // SQLite has no hash function: the number itself, spread over the key space as a hash would be.
    let id = "CAST(printf('%032d', n * 7919 % 10000019) AS BLOB)";
    let columns = copies(id, "CAST(n AS TEXT)", "x'00'");
    let fill = format!(
        "WITH RECURSIVE numbers AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM numbers WHERE n < {}) \
         INSERT INTO idem_records ({COPIED}) SELECT {columns} FROM idem_records, numbers",
        expired + ALIVE
    );
    sqlx::query(AssertSqlSafe(fill))
        .execute(&pool)
        .await
        .unwrap();
    purges_during_claims(store, expired).await;
    let left = "SELECT count(*) FROM idem_records WHERE idempotency_key NOT LIKE '%e%'";
    let left: i64 = sqlx::query_scalar(left).fetch_one(&pool).await.unwrap();
    assert_eq!(left.cast_unsigned(), ALIVE);
}
