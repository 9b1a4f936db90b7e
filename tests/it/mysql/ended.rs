//! Settings under which the server rolls a whole transaction back, and the session goes on.

use idem_runtime::error::StoreErrorKind;
use idem_runtime::{Error, MySqlStore};
use idem_servers::{Options, Server};
use sqlx::Connection as _;
use sqlx::mysql::{MySqlConnection, MySqlPool};

use crate::transaction::Failure;
use crate::transaction::bank::{Bank, CREDIT, DEBIT, MODES, Mode, NOTE, ON_ERROR, OnError};

/// Cause for which the server rolls a transaction back.
#[derive(Debug, Clone, Copy)]
enum Cause {
    /// Another transaction holds a row for longer than the session waits.
    LockWait,
    /// Another transaction has changed a row that this one has read.
    Snapshot,
}

impl Cause {
    /// Moves 1, and is rolled back half way. Returns an error unless the body goes on.
    async fn transfer(
        self,
        tx: &mut MySqlConnection,
        on_error: OnError,
        key: &str,
        url: &str,
    ) -> Result<u64, Failure> {
        on_error.run::<MySqlStore>(tx, NOTE, key).await?;
        text(tx, "SELECT * FROM accounts").await;
        on_error.run::<MySqlStore>(tx, DEBIT, "left").await?;
        let mut other = MySqlConnection::connect(url).await?;
        match self {
            Self::LockWait => {
                text(&mut other, "BEGIN").await;
                text(
                    &mut other,
                    "SELECT * FROM accounts WHERE id = 'right' FOR UPDATE",
                )
                .await;
            }
            Self::Snapshot => {
                for statement in [CREDIT, DEBIT] {
                    give_back(&mut other, statement, "right").await?;
                }
            }
        }
        let struck = give_back(tx, CREDIT, "right").await.unwrap_err();
        text(&mut other, "ROLLBACK").await;
        match on_error {
            OnError::GiveBack => return Err(struck.into()),
            OnError::Ignore => {}
            OnError::Repeat => on_error.run::<MySqlStore>(tx, CREDIT, "right").await?,
        }
        Ok(1)
    }
}

async fn text(connection: &mut MySqlConnection, statement: &'static str) {
    let done = sqlx::raw_sql(statement).execute(connection).await;
    done.unwrap();
}

async fn give_back(
    connection: &mut MySqlConnection,
    statement: &str,
    id: &str,
) -> Result<(), sqlx::Error> {
    OnError::GiveBack
        .run::<MySqlStore>(connection, statement, id)
        .await
}

/// Asserts that no transfer is divided on this server, in any kind of transaction and whatever its body does.
async fn assert_whole(server: &Server, cause: Cause) {
    let admin = MySqlPool::connect(&server.url()).await.unwrap();
    super::execute(&admin, "CREATE DATABASE shop").await;
    let url = server.url().replace("/mysql", "/shop");
    let pool = MySqlPool::connect(&url).await.unwrap();
    let bank = Bank::over(MySqlStore::new(pool.clone()), pool, None).await;
    for mode in MODES {
        for on_error in ON_ERROR {
            let key = format!("{mode:?} {on_error:?}");
            if mode == Mode::Join && on_error != OnError::GiveBack {
                assert_refused(&bank, cause, on_error, &key, &url).await;
            } else {
                let answer = bank
                    .call(mode, &key, async |tx| {
                        cause.transfer(tx, on_error, &key, &url).await
                    })
                    .await;
                match answer {
                    Err(Failure::Idempotency(error)) => {
                        assert!(error.is_retryable(), "{key}: {error:?}");
                    }
                    Err(Failure::Database(_)) => {}
                    answer => panic!("{key}: {answer:?}"),
                }
                bank.assert_sum(&key).await;
            }
            assert_eq!(bank.noted(&key).await, 0, "{key}");
            // The key is free.
            let again = bank
                .call(mode, &key, async |tx| {
                    give_back(tx, NOTE, &key).await?;
                    give_back(tx, DEBIT, "left").await?;
                    give_back(tx, CREDIT, "right").await?;
                    Ok(1)
                })
                .await;
            assert_eq!(again.unwrap(), 1, "{key}");
            assert_eq!(bank.noted(&key).await, 1, "{key}");
            bank.assert_sum(&key).await;
        }
    }
}

/// A caller whose body goes on after the server has ended the transaction gets a conflict, and its connection refuses
/// writes. What the body has done meanwhile is committed.
async fn assert_refused(
    bank: &Bank<MySqlStore>,
    cause: Cause,
    on_error: OnError,
    key: &str,
    url: &str,
) {
    let mut outer = bank.pool.begin().await.unwrap();
    let answer = bank
        .join(&mut outer, key, async |tx| {
            cause.transfer(tx, on_error, key, url).await
        })
        .await;
    let Err(Failure::Idempotency(Error::Store(error))) = answer else {
        panic!("{key}: {answer:?}");
    };
    assert_eq!(error.kind(), StoreErrorKind::Conflict, "{key}: {error}");
    for _ in 0..3 {
        give_back(&mut outer, NOTE, key).await.unwrap_err();
    }
    // Only the record can be protected, and what the caller writes from now on.
    let _ = outer.commit().await;
    assert!(bank.record(key).await.is_none(), "{key}");
    super::execute(&bank.pool, "UPDATE accounts SET balance = 1000").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MySQL or MariaDB: cargo xtask test runs it"]
async fn a_lock_time_out_that_rolls_the_transaction_back_divides_no_transfer() {
    let options = Options::fast()
        .set("innodb_rollback_on_timeout", "ON")
        .set("innodb_lock_wait_timeout", "1");
    let mut servers = vec![Server::maria_db(&options).unwrap()];
    servers.extend(Server::installed_my_sql(&options).unwrap());
    for server in &servers {
        assert_whole(server, Cause::LockWait).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn snapshot_isolation_divides_no_transfer() {
    let options = Options::fast().set("innodb_snapshot_isolation", "ON");
    let server = Server::maria_db(&options).unwrap();
    assert_whole(&server, Cause::Snapshot).await;
}
