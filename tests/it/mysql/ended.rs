//! Settings under which the server rolls a whole transaction back, and the session goes on.

use idem_runtime::MySqlStore;
use idem_servers::{Options, Server};
use sqlx::Connection as _;
use sqlx::mysql::{MySqlConnection, MySqlPool};

use crate::transaction::Failure;
use crate::transaction::bank::{Bank, CREDIT, DEBIT, Mode, NOTE, ON_ERROR, OnError};

async fn bank(options: Options) -> (Server, String, Bank<MySqlStore>) {
    let server = Server::maria_db(&options).unwrap();
    let admin = MySqlPool::connect(&server.url()).await.unwrap();
    super::execute(&admin, "CREATE DATABASE shop").await;
    let url = server.url().replace("/mysql", "/shop");
    let pool = MySqlPool::connect(&url).await.unwrap();
    let bank = Bank::over(MySqlStore::new(pool.clone()), pool, None).await;
    (server, url, bank)
}

/// Asserts that a refused transfer left nothing, and that its key is free.
async fn assert_undone(
    bank: &Bank<MySqlStore>,
    key: &str,
    mode: Mode,
    answer: Result<u64, Failure>,
) {
    match answer {
        Err(Failure::Idempotency(error)) => assert!(error.is_retryable(), "{key}: {error:?}"),
        Err(Failure::Database(_)) => {}
        answer => panic!("{key}: {answer:?}"),
    }
    bank.assert_sum(key).await;
    assert_eq!(bank.noted(key).await, 0, "{key}");
    let again = bank
        .call(mode, key, async |tx| {
            OnError::GiveBack.run::<MySqlStore>(tx, NOTE, key).await?;
            OnError::GiveBack
                .run::<MySqlStore>(tx, DEBIT, "left")
                .await?;
            OnError::GiveBack
                .run::<MySqlStore>(tx, CREDIT, "right")
                .await?;
            Ok(1)
        })
        .await;
    assert_eq!(again.unwrap(), 1, "{key}");
    assert_eq!(bank.noted(key).await, 1, "{key}");
    bank.assert_sum(key).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn a_lock_time_out_that_rolls_the_transaction_back_divides_no_transfer() {
    let options = Options::fast()
        .set("innodb_rollback_on_timeout", "ON")
        .set("innodb_lock_wait_timeout", "1");
    let (_server, url, bank) = bank(options).await;
    for mode in [Mode::Tx, Mode::Step] {
        for on_error in ON_ERROR {
            let key = format!("{mode:?} {on_error:?}");
            let mut other = MySqlConnection::connect(&url).await.unwrap();
            let mut holding = other.begin().await.unwrap();
            sqlx::raw_sql("SELECT * FROM accounts WHERE id = 'right' FOR UPDATE")
                .execute(&mut *holding)
                .await
                .unwrap();
            let answer = bank
                .call(mode, &key, async |tx| {
                    on_error.run::<MySqlStore>(tx, NOTE, &key).await?;
                    on_error.run::<MySqlStore>(tx, DEBIT, "left").await?;
                    let first = OnError::GiveBack
                        .run::<MySqlStore>(tx, CREDIT, "right")
                        .await;
                    let timed_out = first.unwrap_err();
                    holding.rollback().await.unwrap();
                    match on_error {
                        OnError::GiveBack => return Err(timed_out.into()),
                        OnError::Ignore => {}
                        OnError::Repeat => on_error.run::<MySqlStore>(tx, CREDIT, "right").await?,
                    }
                    Ok(1)
                })
                .await;
            assert_undone(&bank, &key, mode, answer).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn snapshot_isolation_divides_no_transfer() {
    let options = Options::fast().set("innodb_snapshot_isolation", "ON");
    let (_server, url, bank) = bank(options).await;
    for mode in [Mode::Tx, Mode::Step] {
        for on_error in ON_ERROR {
            let key = format!("{mode:?} {on_error:?}");
            let answer = bank
                .call(mode, &key, async |tx| {
                    on_error.run::<MySqlStore>(tx, NOTE, &key).await?;
                    sqlx::raw_sql("SELECT * FROM accounts")
                        .execute(&mut *tx)
                        .await?;
                    on_error.run::<MySqlStore>(tx, DEBIT, "left").await?;
                    // Another transaction changes the account that this one has read.
                    let mut other = MySqlConnection::connect(&url).await.unwrap();
                    for (statement, id) in [(CREDIT, "right"), (DEBIT, "right")] {
                        OnError::GiveBack
                            .run::<MySqlStore>(&mut other, statement, id)
                            .await
                            .unwrap();
                    }
                    let first = OnError::GiveBack
                        .run::<MySqlStore>(tx, CREDIT, "right")
                        .await;
                    let changed = first.unwrap_err();
                    match on_error {
                        OnError::GiveBack => return Err(changed.into()),
                        OnError::Ignore => {}
                        OnError::Repeat => on_error.run::<MySqlStore>(tx, CREDIT, "right").await?,
                    }
                    Ok(1)
                })
                .await;
            assert_undone(&bank, &key, mode, answer).await;
        }
    }
}
