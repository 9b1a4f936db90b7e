//! Properties that only the SQLite store has: its file, its tables, its errors and the cost of a transition.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use idem_runtime::error::{StoreError, StoreErrorKind};
use idem_runtime::record::{FencingToken, RecordState, Timestamp};
use idem_runtime::store::{
    ClaimOutcome, ClaimRequest, FencedWrite, Filter, PageRequest, Resolution,
};
use idem_runtime::{OnCrash, SqliteStore, Store};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, Row};
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::records::{HOUR, claim, full_text, outcome, own};

mod costs;
mod ended;

fn file(directory: &TempDir) -> PathBuf {
    directory.path().join("idem.db")
}

async fn pool(options: SqliteConnectOptions) -> SqlitePool {
    SqlitePoolOptions::new()
        .connect_with(options)
        .await
        .unwrap()
}

async fn execute(pool: &SqlitePool, statement: &str) {
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
        .execute(pool)
        .await
        .unwrap();
}

fn assert_error(error: &StoreError, kind: StoreErrorKind, says: &str) {
    assert_eq!(error.kind(), kind, "{}", full_text(error));
    assert!(error.to_string().contains(says), "{error}");
    assert!(
        std::error::Error::source(error).is_some(),
        "{error} hides what caused it"
    );
}

#[tokio::test]
async fn an_outcome_survives_closing_and_opening() {
    let directory = tempfile::tempdir().unwrap();
    let claim = claim("k");
    {
        let store = SqliteStore::open(file(&directory)).await.unwrap();
        let owner = own(&store, &claim).await;
        store.complete(&owner, &outcome(b"42")).await.unwrap();
    }
    let store = SqliteStore::open(file(&directory)).await.unwrap();
    let record = store.get(&claim.id).await.unwrap().unwrap();
    assert_eq!(record.outcome(), Some(outcome(b"42")));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_stores_open_and_migrate_one_file_concurrently() {
    let directory = tempfile::tempdir().unwrap();
    let mut opening = JoinSet::new();
    for number in 0..20 {
        let path = file(&directory);
        opening.spawn(async move {
            let store = SqliteStore::open(path).await?;
            store.migrate().await?;
            store.claim(&claim(&format!("k{number}"))).await?;
            Ok::<_, StoreError>(())
        });
    }
    for opened in opening.join_all().await {
        opened.map_err(|error| full_text(&error)).unwrap();
    }
    let store = SqliteStore::open(file(&directory)).await.unwrap();
    let page = PageRequest {
        limit: 100,
        after: None,
    };
    let listed = store.list(&Filter::default(), &page).await.unwrap();
    assert_eq!(listed.records.len(), 20);
}

const CHILD: &str = "IDEM_TESTS_SQLITE_CHILD";

/// The test starts itself ten more times: the processes open one file, which does not exist yet, and claim the same
/// keys.
#[tokio::test(flavor = "multi_thread")]
async fn ten_processes_share_one_file() {
    const KEYS: usize = 10;
    if let Ok(path) = std::env::var(CHILD) {
        let store = SqliteStore::open(path).await.unwrap();
        for number in 0..KEYS {
            let claim = claim(&format!("k{number}"));
            if let ClaimOutcome::Granted(_) = store.claim(&claim).await.unwrap() {
                println!("\ngranted k{number}");
            }
        }
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let children: Vec<_> = (0..10)
        .map(|_| {
            tokio::process::Command::new(std::env::current_exe().unwrap())
                .args([
                    "--exact",
                    "sqlite::ten_processes_share_one_file",
                    "--nocapture",
                ])
                .env(CHILD, file(&directory))
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .unwrap()
        })
        .collect();
    let mut granted = Vec::new();
    for child in children {
        let output = child.wait_with_output().await.unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        granted.extend(
            text.lines()
                .filter(|it| it.starts_with("granted"))
                .map(str::to_owned),
        );
    }
    granted.sort();
    let expected: Vec<_> = (0..KEYS)
        .map(|number| format!("granted k{number}"))
        .collect();
    assert_eq!(granted, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_concurrent_claims_of_two_pools_on_one_file_one_is_granted() {
    let directory = tempfile::tempdir().unwrap();
    let stores = [
        SqliteStore::open(file(&directory)).await.unwrap(),
        SqliteStore::open(file(&directory)).await.unwrap(),
    ];
    let mut claims = JoinSet::new();
    for key in 0..20 {
        for task in 0..8 {
            let store = stores[task % 2].clone();
            claims.spawn(async move {
                let answer = store.claim(&claim(&format!("k{key}"))).await.unwrap();
                u32::from(matches!(answer, ClaimOutcome::Granted(_)))
            });
        }
    }
    let granted: u32 = claims.join_all().await.into_iter().sum();
    assert_eq!(granted, 20);
}

#[tokio::test]
async fn a_pool_of_the_user_may_have_its_own_tables() {
    let directory = tempfile::tempdir().unwrap();
    let options = SqliteConnectOptions::new()
        .filename(file(&directory))
        .create_if_missing(true);
    let pool = pool(options).await;
    execute(
        &pool,
        "CREATE TABLE _sqlx_migrations (version INTEGER); CREATE TABLE orders (id INTEGER)",
    )
    .await;
    let store = SqliteStore::new(pool.clone());
    store.migrate().await.unwrap();
    own(&store, &claim("k")).await;

    let rows = sqlx::query("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
        .fetch_all(&pool)
        .await
        .unwrap();
    let tables: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(
        tables,
        [
            "_sqlx_migrations",
            "idem_records",
            "idem_records_audit",
            "idem_records_fencing_floor",
            "idem_records_migrations",
            "idem_records_operations",
            "idem_records_recovery",
            "idem_records_steps",
            "orders"
        ]
    );
    let versions: i64 = sqlx::query_scalar("SELECT count(*) FROM _sqlx_migrations")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(versions, 0);
}

#[tokio::test]
async fn the_error_for_a_missing_table_names_the_remedy() {
    let store = SqliteStore::new(pool(SqliteConnectOptions::new().in_memory(true)).await);
    let claim = claim("k");
    let error = store.claim(&claim).await.unwrap_err();
    assert_error(&error, StoreErrorKind::Schema, "run `migrate()`");
    assert!(!error.is_retryable());
    let error = store.purge(10, Timestamp::MAX).await.unwrap_err();
    assert_error(&error, StoreErrorKind::Schema, "run `migrate()`");
}

/// A record that one claim makes is found by the others, although each connection to such a database has a database of
/// its own.
#[tokio::test]
async fn a_database_in_memory_has_one_connection() {
    let opened = [
        SqliteStore::open(":memory:").await.unwrap(),
        SqliteStore::in_memory().await.unwrap(),
        SqliteStore::connect("sqlite::memory:").await.unwrap(),
        SqliteStore::connect("sqlite://?mode=memory").await.unwrap(),
    ];
    for store in opened {
        let options = store.pool().options();
        assert_eq!(options.get_max_connections(), 1);
        assert_eq!(options.get_idle_timeout(), None);
        assert_eq!(options.get_max_lifetime(), None);
        let claims: Vec<_> = (0..20).map(|number| claim(&format!("k{number}"))).collect();
        let mut claiming = JoinSet::new();
        for claim in [claims.clone(), claims.clone()].concat() {
            let store = store.clone();
            claiming.spawn(async move { store.claim(&claim).await.unwrap() });
        }
        claiming.join_all().await;
        let page = PageRequest {
            limit: 100,
            after: None,
        };
        let listed = store.list(&Filter::default(), &page).await.unwrap();
        assert_eq!(listed.records.len(), claims.len());
    }
}

#[tokio::test]
async fn a_pool_whose_connections_have_databases_of_their_own_is_refused() {
    for name in [
        ":memory:",
        "",
        "file::memory:",
        "file:shop?mode=memory",
        "file:",
    ] {
        let options = SqliteStore::connect_options(name);
        let several = SqlitePoolOptions::new().connect_lazy_with(options.clone());
        let error = SqliteStore::new(several).migrate().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Schema, "{name:?}");
        assert!(error.to_string().contains("in_memory"), "{error}");
        let one = SqlitePoolOptions::new().max_connections(1);
        let one = one.connect_lazy_with(options);
        SqliteStore::new(one).migrate().await.unwrap();
    }
    let shared = SqlitePoolOptions::new();
    let shared = shared.connect("sqlite::memory:").await.unwrap();
    SqliteStore::new(shared).migrate().await.unwrap();
    assert!(SqliteStore::open("").await.is_err());
}

#[tokio::test]
async fn a_url_opens_the_file_that_it_names() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(&directory);
    let url = format!("sqlite://{}", path.display());

    let error = SqliteStore::connect(&format!("{url}?mode=rw")).await;
    assert_error(
        &error.unwrap_err(),
        StoreErrorKind::Unavailable,
        "cannot be opened",
    );
    assert!(!path.exists());

    let claim = claim("k");
    let store = SqliteStore::connect(&url).await.unwrap();
    own(&store, &claim).await;
    let again = SqliteStore::connect(&format!("{url}?mode=rw"))
        .await
        .unwrap();
    assert!(again.get(&claim.id).await.unwrap().is_some());
    let durable: i64 = sqlx::query_scalar("PRAGMA synchronous")
        .fetch_one(again.pool())
        .await
        .unwrap();
    assert_eq!(durable, 2, "FULL, as `open` has it");

    for url in [
        "postgres://ann:geheim@db/shop",
        "shop.db",
        "sqlite:shop.db?mode=geheim",
    ] {
        let error = SqliteStore::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Other, "{url}");
    }
}

#[tokio::test]
async fn tables_of_a_later_release_are_not_changed() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(file(&directory)).await.unwrap();
    let pool = pool(SqliteStore::connect_options(file(&directory))).await;
    execute(
        &pool,
        "INSERT INTO idem_records_migrations (version, applied_at) VALUES (98, 0), (99, 0)",
    )
    .await;
    let error = store.migrate().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Schema);
    assert!(error.to_string().contains("version 8"), "{error}");
}

#[tokio::test]
async fn tables_of_other_names_share_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(file(&directory)).await.unwrap();
    let other = store.clone().with_table("order").unwrap();
    let error = other.claim(&claim("k")).await.unwrap_err();
    assert_error(&error, StoreErrorKind::Schema, "run `migrate()`");
    other.migrate().await.unwrap();

    own(&store, &claim("k")).await;
    assert_eq!(other.get(&claim("k").id).await.unwrap(), None);
    own(&other, &claim("k")).await;
    for name in [
        "",
        "1st",
        "a b",
        "a;b",
        "x\"",
        "sqlite_master",
        &"x".repeat(49),
    ] {
        let error = store.clone().with_table(name).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Schema, "{name:?}");
    }
}

#[tokio::test]
async fn a_read_only_file_replays_and_claims_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(file(&directory)).await.unwrap();
    let done = claim("done");
    let owner = own(&store, &done).await;
    store.complete(&owner, &outcome(b"1")).await.unwrap();

    let options = SqliteConnectOptions::new()
        .filename(file(&directory))
        .read_only(true);
    let reader = SqliteStore::new(pool(options).await);
    reader.migrate().await.unwrap();
    let answer = reader.claim(&claim("done")).await.unwrap();
    assert!(
        matches!(answer, ClaimOutcome::Existing(record) if record.outcome() == Some(outcome(b"1")))
    );
    let error = reader.claim(&claim("new")).await.unwrap_err();
    assert_error(&error, StoreErrorKind::ReadOnly, "check the permissions");
}

#[tokio::test]
async fn errors_of_opening_a_file_name_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let garbage = directory.path().join("notes.txt");
    std::fs::write(&garbage, "no database, just a text. ".repeat(500)).unwrap();
    let error = SqliteStore::open(&garbage).await.unwrap_err();
    assert_error(&error, StoreErrorKind::Corrupt, "not a SQLite database");

    let nowhere = directory.path().join("no").join("such").join("idem.db");
    let error = SqliteStore::open(nowhere).await.unwrap_err();
    assert_error(
        &error,
        StoreErrorKind::Unavailable,
        "check that its directory exists",
    );
}

#[tokio::test]
async fn a_row_that_no_store_wrote_is_an_error_and_never_a_panic() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(file(&directory)).await.unwrap();
    let pool = pool(SqliteStore::connect_options(file(&directory))).await;
    for (number, change) in [
        "state = 'done'",
        "state = 'completed', ended_at = 9000000000000000",
        "state = 'released', ended_at = 9000000000000000",
        "claim_id = x'00'",
        "claim_id = NULL",
        "fingerprint = x'01'",
        "operation = ''",
        "operation = CAST(x'fffe' AS TEXT)",
        "scope = CAST(x'fffe' AS TEXT)",
        "state = CAST(x'fffe' AS TEXT)",
        "idempotency_key = 'ä'",
        "idempotency_key = 'another'",
        "scope = 'another'",
        "attempt = 0",
        "attempt = 4294967296",
        "retention = -1, lease_until = 9000000000000000",
        "on_crash = 'explode'",
        "payload = x'00'",
        "codec = 'json/1'",
        "ended_at = 1",
    ]
    .into_iter()
    .enumerate()
    {
        let claim = claim(&format!("k{number}"));
        own(&store, &claim).await;
        let change =
            format!("UPDATE idem_records SET {change} WHERE idempotency_key = 'k{number}'");
        execute(&pool, &change).await;
        for error in [
            store.get(&claim.id).await.unwrap_err(),
            store.claim(&claim).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{change}: {error}");
            assert!(!error.is_retryable());
        }
        execute(&pool, "DELETE FROM idem_records").await;
    }
}

#[tokio::test]
async fn a_write_that_a_full_disk_refuses_is_rolled_back() {
    let directory = tempfile::tempdir().unwrap();
    SqliteStore::open(file(&directory)).await.unwrap();
    let options = SqliteStore::connect_options(file(&directory)).pragma("max_page_count", "20");
    let store = SqliteStore::new(pool(options).await);
    let claim = claim("k");
    let owner = own(&store, &claim).await;
    let error = store
        .complete(&owner, &outcome(&[7; 200_000]))
        .await
        .unwrap_err();
    assert_error(&error, StoreErrorKind::Full, "make room");

    let record = store.get(&claim.id).await.unwrap().unwrap();
    assert_eq!(record.state, RecordState::Running);
    let done = store.complete(&owner, &outcome(b"small")).await.unwrap();
    assert_eq!(done, FencedWrite::Applied);
}

/// Number of commits to the write-ahead log: each commit ends in a frame that contains the size of the database, see
/// <https://www.sqlite.org/fileformat2.html#the_write_ahead_log>.
fn commits(path: &Path) -> usize {
    const HEADER: usize = 32;
    let log = std::fs::read(path.with_extension("db-wal")).unwrap();
    let number = |at: usize| u32::from_be_bytes(log[at..at + 4].try_into().unwrap());
    let page = number(8) as usize;
    (HEADER..log.len())
        .step_by(24 + page)
        .filter(|frame| number(frame + 4) != 0)
        .count()
}

#[tokio::test]
async fn a_first_call_is_two_commits_and_a_replay_none() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(&directory);
    let store = SqliteStore::open(&path).await.unwrap();
    let claim_a = claim("a");

    let before = commits(&path);
    let owner = own(&store, &claim_a).await;
    assert_eq!(commits(&path) - before, 1, "a claim");
    store.renew(&owner, HOUR).await.unwrap();
    assert_eq!(commits(&path) - before, 2, "a renewal");
    store.claim(&claim("a")).await.unwrap();
    assert_eq!(commits(&path) - before, 2, "a duplicate of a running call");
    store.complete(&owner, &outcome(b"1")).await.unwrap();
    assert_eq!(commits(&path) - before, 3, "a completion");

    let before = commits(&path);
    store.claim(&claim("a")).await.unwrap();
    store.claim(&claim_a).await.unwrap();
    assert_eq!(commits(&path), before, "a replay");
    store.complete(&owner, &outcome(b"1")).await.unwrap();
    store.renew(&owner, HOUR).await.unwrap();
    store.release(&owner).await.unwrap();
    assert_eq!(commits(&path), before, "what was refused or done already");
    let purged = store.purge(100, Timestamp::MAX).await.unwrap();
    assert_eq!(
        (purged.removed, commits(&path)),
        (0, before),
        "an idle purge"
    );
    let record = store.get(&claim_a.id).await.unwrap().unwrap();
    store
        .resolve(&record.observation(), &Resolution::Release)
        .await
        .unwrap();
    store
        .take_over(&record.observation(), &claim("a"))
        .await
        .unwrap();
    assert_eq!(commits(&path), before, "what is too late");
}

#[tokio::test]
async fn a_replay_does_not_wait_for_a_writer() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(file(&directory)).await.unwrap();
    let owner = own(&store, &claim("done")).await;
    store.complete(&owner, &outcome(b"1")).await.unwrap();

    let options =
        SqliteStore::connect_options(file(&directory)).busy_timeout(Duration::from_millis(1));
    let pool = pool(options).await;
    let other = SqliteStore::new(pool.clone());
    let writing = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let answer = other.claim(&claim("done")).await.unwrap();
    assert!(matches!(answer, ClaimOutcome::Existing(_)));
    let error = other.claim(&claim("new")).await.unwrap_err();
    assert_error(&error, StoreErrorKind::Conflict, "try again");
    assert!(error.is_retryable());
    drop(writing);
    own(&other, &claim("new")).await;
}

#[tokio::test]
async fn a_claim_waits_for_another_writer_within_its_timeout() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(file(&directory)).await.unwrap();
    let pool = pool(SqliteStore::connect_options(file(&directory))).await;
    let writing = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let claiming = tokio::spawn(async move { own(&store, &claim("k")).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!claiming.is_finished(), "it wrote beside another writer");
    writing.rollback().await.unwrap();
    claiming.await.unwrap();
}

#[tokio::test]
async fn the_error_for_an_exhausted_pool_names_the_remedy() {
    let directory = tempfile::tempdir().unwrap();
    SqliteStore::open(file(&directory)).await.unwrap();
    let pool = SqlitePoolOptions::new()
        .max_connections(1)
        .acquire_timeout(Duration::from_secs(2))
        .connect_with(SqliteStore::connect_options(file(&directory)))
        .await
        .unwrap();
    let store = SqliteStore::new(pool.clone());
    let taken = pool.acquire().await.unwrap();
    let error = store.get(&claim("k").id).await.unwrap_err();
    assert_error(&error, StoreErrorKind::Unavailable, "more connections");
    assert!(error.is_retryable());
    drop(taken);
    assert_eq!(store.get(&claim("k").id).await.unwrap(), None);
}

/// A paused owner must not find its fencing token on another owner's record, even if its own record was deleted and the
/// clock moves back.
#[tokio::test]
async fn fencing_tokens_increase_after_rows_were_deleted_by_hand() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(file(&directory)).await.unwrap();
    let pool = pool(SqliteStore::connect_options(file(&directory))).await;
    let ahead = own(&store, &claim("k")).await.fencing_token.number() + HOUR.as_micros() as i64;
    execute(
        &pool,
        &format!("UPDATE idem_records SET fencing_token = {ahead}"),
    )
    .await;
    execute(&pool, "DELETE FROM idem_records").await;
    let next = own(&store, &claim("k")).await;
    assert!(
        next.fencing_token > FencingToken::from_number(ahead),
        "{next:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_steps_leave_no_connection_in_a_transaction() {
    let directory = tempfile::tempdir().unwrap();
    let pool = SqlitePoolOptions::new()
        .max_connections(2)
        .connect_with(SqliteStore::connect_options(file(&directory)))
        .await
        .unwrap();
    let store = SqliteStore::new(pool.clone());
    for round in 0..200_u64 {
        let brief = ClaimRequest {
            on_crash: OnCrash::Refuse,
            ..claim(&format!("k{round}"))
        };
        let dropped = async {
            store.migrate().await.unwrap();
            let owner = own(&store, &brief).await;
            store.complete(&owner, &outcome(b"1")).await.unwrap();
            store.purge(10, Timestamp::MAX).await.unwrap();
        };
        let _ = tokio::time::timeout(Duration::from_micros(round * 17 % 3000), dropped).await;
    }
    store.migrate().await.unwrap();
    // A second pool can write only if no connection of the first is inside a transaction.
    let other = SqliteStore::open(file(&directory)).await.unwrap();
    own(&other, &claim("after")).await;
    own(&store, &claim("after all")).await;
}
