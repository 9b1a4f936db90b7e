//! A full disk: each store keeps its tables on a small in-memory file system. A write that fails returns an error that
//! names the remedy, stored outcomes are still replayed, and once there is room all calls succeed again.
//!
//! Mounting requires root and a container that allows root to mount. Where that is impossible, set
//! `IDEM_TEST_WITHOUT_MOUNT=1`; otherwise these tests fail.

use idem_runtime::error::{StoreError, StoreErrorKind};
use idem_runtime::record::RecordState;
use idem_runtime::store::{ClaimOutcome, FencedWrite};
use idem_runtime::{MySqlStore, PostgresStore, SqliteStore, Store};
use idem_servers::{Options, Server};
use idem_tests::small_disk::SmallDisk;
use idem_tests::sql::Sql;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, PgPool};

use crate::records::{claim, full_text, outcome, own};
use crate::transaction::bank::{Bank, CREDIT, DEBIT, MODES, NOTE, ON_ERROR, OnError};

fn assert_full(error: &StoreError) {
    assert_eq!(error.kind(), StoreErrorKind::Full, "{}", full_text(error));
    assert!(
        error.to_string().contains("make room"),
        "{}",
        full_text(error)
    );
    assert!(std::error::Error::source(error).is_some());
    assert!(!error.is_retryable());
}

/// Number of results that fill each disk of these tests.
const RESULTS: u32 = 100;

/// Fills the disk with results and then with claims, until neither can be written.
async fn continues_after_room_was_made(store: impl Store, make_room: impl FnOnce()) {
    // Incompressible, and different on each call.
    let result = || -> Vec<u8> { (0..100_000).map(|_| rand::random()).collect() };
    let done = own(&store, &claim("done")).await;
    store.complete(&done, &outcome(b"1")).await.unwrap();
    // Claimed before the disk fills up: a result may leave no room for the next claim.
    let mut owners = Vec::new();
    for number in 0..RESULTS {
        owners.push(own(&store, &claim(&format!("result-{number}"))).await);
    }
    let mut owners = owners.into_iter();
    let (unfinished, result, error) = loop {
        let owner = owners.next().expect("the disk is never full");
        let result = result();
        if let Err(error) = store.complete(&owner, &outcome(&result)).await {
            break (owner, result, error);
        }
    };
    assert_full(&error);
    let record = store.get(&unfinished.id).await.unwrap().unwrap();
    assert_eq!(record.state, RecordState::Running, "it is as it was");
    let mut number = 0;
    let refused = loop {
        number += 1;
        assert!(number < 100_000, "there is always room for a claim");
        let claim = claim(&format!("claim-{number}"));
        if let Err(error) = store.claim(&claim).await {
            assert_full(&error);
            break claim;
        }
    };
    let replay = store.claim(&claim("done")).await;
    let replay = replay.map_err(|it| full_text(&it)).unwrap();
    assert!(
        matches!(replay, ClaimOutcome::Existing(record) if record.outcome() == Some(outcome(b"1")))
    );

    make_room();
    let late = store.complete(&unfinished, &outcome(&result)).await;
    assert_eq!(
        late.map_err(|it| full_text(&it)).unwrap(),
        FencedWrite::Applied
    );
    let record = store.get(&unfinished.id).await.unwrap().unwrap();
    assert_eq!(record.outcome(), Some(outcome(&result)));
    let owner = own(&store, &refused).await;
    store.complete(&owner, &outcome(b"1")).await.unwrap();
}

#[tokio::test]
#[ignore = "needs root, who mounts a small disk: cargo xtask test runs it"]
async fn a_full_disk_under_sqlite() {
    let Some(disk) = SmallDisk::of("2m") else {
        return;
    };
    let store = SqliteStore::open(disk.path().join("idem.db"))
        .await
        .unwrap();
    continues_after_room_was_made(store, || disk.make_room("64m")).await;
}

/// Opens a pool of PostgreSQL whose tables are on this disk.
async fn postgres_on(server: &Server, disk: &SmallDisk) -> PgPool {
    let admin = PgPool::connect(&server.url()).await.unwrap();
    let make = format!(
        "CREATE TABLESPACE small LOCATION '{}'",
        server.inside(disk.path()).display()
    );
    sqlx::raw_sql(AssertSqlSafe(make))
        .execute(&admin)
        .await
        .unwrap();
    let options: PgConnectOptions = server.url().parse().unwrap();
    PgPoolOptions::new()
        .connect_with(options.options([("default_tablespace", "small")]))
        .await
        .unwrap()
}

#[tokio::test]
#[ignore = "needs PostgreSQL, and root, who mounts a small disk: cargo xtask test runs it"]
async fn a_full_disk_under_postgres() {
    let server = Server::postgres(&Options::fast()).unwrap();
    let Some(disk) = SmallDisk::under(&server, "2m") else {
        return;
    };
    let store = PostgresStore::new(postgres_on(&server, &disk).await);
    store.migrate().await.unwrap();
    continues_after_room_was_made(store, || disk.make_room("64m")).await;
}

#[tokio::test]
#[ignore = "needs MariaDB, and root, who mounts a small disk: cargo xtask test runs it"]
async fn a_full_disk_under_maria_db() {
    let server = Server::maria_db(&Options::fast()).unwrap();
    let Some(disk) = SmallDisk::under(&server, "4m") else {
        return;
    };
    // A database is a directory on disk.
    let database = server.directory().join("data").join("small");
    std::os::unix::fs::symlink(server.inside(disk.path()), &database).unwrap();
    let pool = MySqlPoolOptions::new()
        .connect(&server.url().replace("/mysql", "/small"))
        .await
        .unwrap();
    let store = MySqlStore::new(pool);
    store.migrate().await.unwrap();
    continues_after_room_was_made(store, || disk.make_room("64m")).await;
}

/// Number of statements that fill each disk of these tests.
const STATEMENTS: u32 = 1_000;

/// Fills the disk half way through each transfer. PostgreSQL then refuses all further statements of the transaction, so the
/// transfer is made as a whole or not at all.
async fn no_transfer_is_divided<S: Sql>(
    store: S,
    pool: S::Pool,
    [fill, clear]: [&str; 2],
    make_room: impl FnOnce(),
) {
    let bank = Bank::over(store, pool, None).await;
    let any = S::any(&bank.pool);
    any.execute("CREATE TABLE filler (it BIGINT)")
        .await
        .unwrap();
    let all = || {
        MODES
            .into_iter()
            .flat_map(|mode| ON_ERROR.map(|it| (mode, it)))
    };
    for (mode, on_error) in all() {
        let key = format!("{mode:?} {on_error:?}");
        let mut was_full = false;
        let answer = bank
            .call(mode, &key, async |tx| {
                on_error.run::<S>(tx, NOTE, &key).await?;
                on_error.run::<S>(tx, DEBIT, "left").await?;
                for _ in 0..STATEMENTS {
                    if let Err(full) = S::text(tx, fill).await {
                        was_full = true;
                        match on_error {
                            OnError::GiveBack => return Err(full.into()),
                            OnError::Repeat | OnError::Ignore => break,
                        }
                    }
                }
                on_error.run::<S>(tx, CREDIT, "right").await?;
                Ok(1)
            })
            .await;
        assert!(was_full, "{key}: {answer:?}");
        bank.assert_sum(&key).await;
        let is_done = answer.is_ok();
        assert!(!is_done || on_error != OnError::GiveBack, "{key}");
        let record = bank.record(&key).await;
        let is_completed = record.is_some_and(|it| it.state == RecordState::Completed);
        assert_eq!(is_completed, is_done, "{key}: {answer:?}");
        assert_eq!(bank.noted(&key).await, i64::from(is_done), "{key}");
        any.execute(clear).await.unwrap();
    }
    make_room();
    for (mode, on_error) in all() {
        let key = format!("{mode:?} {on_error:?}");
        let answer = bank
            .call(mode, &key, async |tx| {
                for (statement, id) in [(NOTE, &*key), (DEBIT, "left"), (CREDIT, "right")] {
                    OnError::GiveBack.run::<S>(tx, statement, id).await?;
                }
                Ok(1)
            })
            .await;
        assert_eq!(answer.unwrap(), 1, "{key}");
        assert_eq!(bank.noted(&key).await, 1, "{key}");
        bank.assert_sum(&key).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL, and root, who mounts a small disk: cargo xtask test runs it"]
async fn a_full_disk_under_postgres_divides_no_transfer() {
    let server = Server::postgres(&Options::fast()).unwrap();
    let Some(disk) = SmallDisk::under(&server, "4m") else {
        return;
    };
    let pool = postgres_on(&server, &disk).await;
    // The server frees the space of rows that were rolled back with the table. A table of numbers has no other files.
    let statements = [
        "INSERT INTO filler SELECT generate_series(1, 10000)",
        "TRUNCATE filler",
    ];
    let store = PostgresStore::new(pool.clone());
    no_transfer_is_divided(store, pool, statements, || disk.make_room("64m")).await;
}
