//! Transactions that SQLite ends by itself, on connections of the store and of the application.

use futures_util::FutureExt as _;
use idem_runtime::error::StoreErrorKind;
use idem_runtime::{Error, SqliteStore};
use sqlx::sqlite::{SqliteConnection, SqlitePool, SqlitePoolOptions};
use tempfile::TempDir;

use super::{execute, file};
use crate::transaction::Failure;
use crate::transaction::bank::{Bank, CREDIT, DEBIT, MODES, Mode, NOTE, OnError};

/// Cause for which SQLite rolls a transaction back.
#[derive(Debug, Clone, Copy)]
enum Cause {
    Full,
    /// A statement that writes is interrupted, which SQLite treats as an input or output error of the disk.
    Interrupt,
    Raise,
    OnConflict,
}

const CAUSES: [Cause; 4] = [
    Cause::Full,
    Cause::Interrupt,
    Cause::Raise,
    Cause::OnConflict,
];

impl Cause {
    async fn strike(self, tx: &mut SqliteConnection) {
        let statement = match self {
            // The limit belongs to the connection, and is never below the present size.
            Self::Full => {
                "PRAGMA max_page_count = 1; INSERT INTO filler VALUES (randomblob(300000)); \
                 INSERT INTO filler VALUES (randomblob(300000))"
            }
            Self::Interrupt => {
                // Preparing the statement takes fewer operations, and its rows have no end.
                let mut handle = tx.lock_handle().await.unwrap();
                handle.set_progress_handler(100_000, || false);
                "INSERT INTO filler WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
            }
            Self::Raise => "INSERT INTO poison VALUES (1)",
            Self::OnConflict => "INSERT OR ROLLBACK INTO accounts VALUES ('left', 0)",
        };
        let struck = sqlx::raw_sql(statement).execute(&mut *tx).await;
        struck.unwrap_err();
        tx.lock_handle().await.unwrap().remove_progress_handler();
        sqlx::raw_sql("PRAGMA max_page_count = 1000000")
            .execute(tx)
            .await
            .unwrap();
    }
}

/// A bank whose pool has one connection: each call has to leave it usable.
async fn bank(directory: &TempDir, is_the_stores: bool) -> Bank<SqliteStore> {
    let store = if is_the_stores {
        let store = SqliteStore::in_memory().await.unwrap();
        assert_eq!(store.pool().options().get_max_connections(), 1);
        store
    } else {
        let options = SqliteStore::connect_options(file(directory));
        let pool = SqlitePoolOptions::new().max_connections(1);
        SqliteStore::new(pool.connect_with(options).await.unwrap())
    };
    let pool: SqlitePool = store.pool().clone();
    let bank = Bank::over(store, pool, None).await;
    for statement in [
        "CREATE TABLE filler (it BLOB)",
        "CREATE TABLE poison (it INTEGER)",
        "CREATE TRIGGER poisonous BEFORE INSERT ON poison BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
    ] {
        execute(&bank.pool, statement).await;
    }
    bank
}

async fn number(pool: &SqlitePool, statement: &'static str) -> i64 {
    sqlx::query_scalar(statement).fetch_one(pool).await.unwrap()
}

async fn ordinary(bank: &Bank<SqliteStore>, mode: Mode, key: &str) {
    let done = bank
        .call(mode, key, async |tx| {
            OnError::GiveBack
                .run::<SqliteStore>(tx, DEBIT, "left")
                .await?;
            OnError::GiveBack
                .run::<SqliteStore>(tx, CREDIT, "right")
                .await?;
            Ok(1)
        })
        .await;
    assert_eq!(done.unwrap(), 1, "{key}");
}

#[tokio::test]
async fn a_body_that_goes_on_is_not_acknowledged_and_leaves_the_connection_usable() {
    for is_the_stores in [true, false] {
        for cause in CAUSES {
            for mode in MODES {
                let directory = tempfile::tempdir().unwrap();
                let bank = bank(&directory, is_the_stores).await;
                let what = format!("{is_the_stores} {cause:?} {mode:?}");
                let answer = bank
                    .call(mode, "k", async |tx| {
                        OnError::GiveBack
                            .run::<SqliteStore>(tx, DEBIT, "left")
                            .await?;
                        cause.strike(tx).await;
                        let _ = OnError::Repeat
                            .run::<SqliteStore>(tx, CREDIT, "right")
                            .await;
                        let _ = OnError::Repeat.run::<SqliteStore>(tx, NOTE, "k").await;
                        Ok(1)
                    })
                    .await;
                let Err(Failure::Idempotency(Error::Store(error))) = answer else {
                    panic!("{what}: {answer:?}");
                };
                assert_eq!(error.kind(), StoreErrorKind::Conflict, "{what}: {error}");
                if is_the_stores && mode != Mode::Join {
                    let sum = number(&bank.pool, "SELECT sum(balance) FROM accounts").await;
                    assert_eq!(sum, 2000, "{what}");
                    let noted = number(&bank.pool, "SELECT count(*) FROM transfers").await;
                    assert_eq!(noted, 0, "{what}");
                }
                let ended = number(
                    &bank.pool,
                    "SELECT count(*) FROM idem_records WHERE state = 'completed'",
                )
                .await;
                assert_eq!(ended, 0, "{what}");
                for mode in MODES {
                    for again in 0..2 {
                        ordinary(&bank, mode, &format!("{mode:?} {again}")).await;
                    }
                }
                ordinary(&bank, mode, "k").await;
            }
        }
    }
}

#[tokio::test]
async fn a_body_that_is_dropped_leaves_the_connection_usable() {
    for is_the_stores in [true, false] {
        for cause in CAUSES {
            for mode in [Mode::Tx, Mode::Step] {
                let directory = tempfile::tempdir().unwrap();
                let bank = bank(&directory, is_the_stores).await;
                let (struck, is_struck) = tokio::sync::oneshot::channel();
                let mut call = Box::pin(bank.call(mode, "k", async |tx| {
                    cause.strike(tx).await;
                    struck.send(()).unwrap();
                    std::future::pending().await
                }));
                tokio::select! {
                    answer = &mut call => panic!("its body hangs: {answer:?}"),
                    done = is_struck => done.unwrap(),
                }
                assert!(call.as_mut().now_or_never().is_none());
                drop(call);
                for mode in MODES {
                    for again in 0..2 {
                        ordinary(&bank, mode, &format!("{mode:?} {again}")).await;
                    }
                }
            }
        }
    }
}

/// The caller that ignores the error of its joined call can roll back, but not commit what follows.
#[tokio::test]
async fn a_caller_that_goes_on_cannot_commit() {
    for cause in CAUSES {
        for commits in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let bank = bank(&directory, false).await;
            let mut outer = bank.pool.begin().await.unwrap();
            let call = idem_runtime::Call::new("bank.join", "k", &1, super::HOUR);
            let options = idem_runtime::advanced::RunOptions::new();
            let joined = bank
                .idem
                .join_transaction(&mut outer, call, options, async |tx, _| {
                    cause.strike(tx).await;
                    Ok::<_, Failure>(1)
                });
            joined.await.unwrap_err();
            let after = OnError::GiveBack
                .run::<SqliteStore>(&mut outer, NOTE, "after")
                .await;
            after.unwrap();
            if commits {
                outer.commit().await.unwrap_err();
            } else {
                outer.rollback().await.unwrap();
            }
            let noted = number(&bank.pool, "SELECT count(*) FROM transfers").await;
            assert_eq!(noted, 0, "{cause:?} {commits}");
            for mode in MODES {
                ordinary(&bank, mode, &format!("{mode:?}")).await;
            }
        }
    }
}

/// An ordinary call of a caller whose transaction SQLite had ended before is refused.
#[tokio::test]
async fn a_transaction_that_was_ended_before_is_not_joined() {
    for cause in CAUSES {
        let directory = tempfile::tempdir().unwrap();
        let bank = bank(&directory, false).await;
        let mut outer = bank.pool.begin().await.unwrap();
        cause.strike(&mut outer).await;
        let call = idem_runtime::Call::new("bank.join", "k", &1, super::HOUR);
        let options = idem_runtime::advanced::RunOptions::new();
        let joined = bank.idem.join_transaction(
            &mut outer,
            call,
            options,
            async |_, _| -> Result<u64, Failure> { panic!("there is no transaction") },
        );
        let joined = joined.await;
        let Err(Failure::Idempotency(Error::Store(error))) = joined else {
            panic!("{cause:?}: {joined:?}");
        };
        assert_eq!(error.kind(), StoreErrorKind::Conflict, "{cause:?}: {error}");
        outer.commit().await.unwrap_err();
        let records = number(&bank.pool, "SELECT count(*) FROM idem_records").await;
        assert_eq!(records, 0, "{cause:?}");
        ordinary(&bank, Mode::Join, "after").await;
    }
}
