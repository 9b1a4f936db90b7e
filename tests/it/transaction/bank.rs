//! A bank: two accounts whose sum never changes. A transfer that is acknowledged happened once, and one that is refused did
//! not happen, whatever its body does after the database has ended the transaction by itself.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use idem_runtime::advanced::RunOptions;
use idem_runtime::error::StoreErrorKind;
use idem_runtime::record::{Record, RecordState};
use idem_runtime::{Call, Error, Idem, PostgresStore, Scope};
use idem_tests::on_stores;
use idem_tests::places::{self, Files, Place};
use idem_tests::sql::{AnyPool, Sql};
use sqlx::Connection as _;
use tokio::sync::Barrier;

use super::Failure;

mod bodies;

on_stores! { [transactions server] Bank::open:
    the_victim_of_a_deadlock_moves_nothing,
    transfers_in_both_directions_keep_the_sum,
    a_caller_that_ignores_a_deadlock_commits_nothing_later,
}

const OPERATION: &str = "bank.transfer";
const LEFT: &str = "left";
const RIGHT: &str = "right";

pub(crate) struct Bank<S: Sql> {
    pub(crate) idem: Idem<S>,
    pub(crate) pool: S::Pool,
    _files: Option<Files>,
}

/// Kind of transaction in which a transfer is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Tx,
    Step,
    Join,
}

/// Behaviour of a body after the error of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnError {
    Repeat,
    Ignore,
    GiveBack,
}

pub(crate) const MODES: [Mode; 3] = [Mode::Tx, Mode::Step, Mode::Join];
pub(crate) const ON_ERROR: [OnError; 3] = [OnError::Repeat, OnError::Ignore, OnError::GiveBack];

impl OnError {
    /// Runs a statement of a body.
    pub(crate) async fn run<S: Sql>(
        self,
        tx: &mut S::Connection,
        statement: &str,
        id: &str,
    ) -> Result<(), sqlx::Error> {
        let mut tries = 1;
        loop {
            match (S::run(tx, statement, &[id.into()]).await, self) {
                (Err(_), Self::Repeat) if tries < 5 => tries += 1,
                (Err(_), Self::Ignore) => return Ok(()),
                (done, _) => return done,
            }
        }
    }
}

pub(crate) const DEBIT: &str = "UPDATE accounts SET balance = balance - 1 WHERE id = ?";
pub(crate) const CREDIT: &str = "UPDATE accounts SET balance = balance + 1 WHERE id = ?";
pub(crate) const NOTE: &str = "INSERT INTO transfers (id) VALUES (?)";

impl<S: Sql> Bank<S> {
    async fn open(place: Place<S>) -> Arc<Self> {
        let pool = place.home().await.unwrap();
        let store = S::over(&pool);
        Arc::new(Self::over(store, pool, Some(place.files())).await)
    }

    pub(crate) async fn over(store: S, pool: S::Pool, files: Option<Files>) -> Self {
        store.create_tables().await.unwrap();
        let any = S::any(&pool);
        for statement in [
            "CREATE TABLE accounts (id VARCHAR(10) NOT NULL PRIMARY KEY, balance BIGINT NOT NULL)",
            "INSERT INTO accounts (id, balance) VALUES ('left', 1000), ('right', 1000)",
            "CREATE TABLE transfers (id VARCHAR(40) NOT NULL)",
        ] {
            any.execute(statement).await.unwrap();
        }
        Self {
            idem: Idem::new(store),
            pool,
            _files: files,
        }
    }

    /// Makes a call whose body works in a transaction. A caller that joins commits if the call is acknowledged.
    pub(crate) async fn call(
        &self,
        mode: Mode,
        key: &str,
        body: impl AsyncFnOnce(&mut S::Connection) -> Result<u64, Failure>,
    ) -> Result<u64, Failure> {
        let call = Call::new(OPERATION, key, &1, Duration::from_secs(600));
        let options = RunOptions::new();
        match mode {
            Mode::Tx => {
                let body = async |tx: &mut S::Connection, _| body(tx).await;
                self.idem.run_in_transaction(call, options, body).await
            }
            Mode::Step => {
                let call = call.lease(Duration::from_secs(600));
                let body = async |attempt: idem_runtime::Attempt| {
                    attempt.step_tx(&self.idem, "move", body).await
                };
                self.idem.run_with(call, options, body).await
            }
            Mode::Join => {
                let mut outer = S::begin_outer(&self.pool).await?;
                match self.join(S::connection(&mut outer), key, body).await {
                    Ok(value) => {
                        S::commit_outer(outer).await?;
                        Ok(value)
                    }
                    Err(error) => {
                        // The connection may be in a transaction that was ended by the database.
                        let _ = S::rollback_outer(outer).await;
                        Err(error)
                    }
                }
            }
        }
    }

    /// Makes a call whose body works in a transaction of the caller.
    pub(crate) async fn join(
        &self,
        tx: &mut S::Connection,
        key: &str,
        body: impl AsyncFnOnce(&mut S::Connection) -> Result<u64, Failure>,
    ) -> Result<u64, Failure> {
        let call = Call::new(OPERATION, key, &1, Duration::from_secs(600));
        let body = async |tx: &mut S::Connection, _| body(tx).await;
        let joined = self
            .idem
            .join_transaction(tx, call, RunOptions::new(), body);
        joined.await
    }

    /// Moves 1, and notes it. Waits for another transfer between its two accounts.
    async fn transfer(
        &self,
        mode: Mode,
        on_error: OnError,
        key: &str,
        [from, to]: [&str; 2],
        together: Option<&Barrier>,
    ) -> Result<u64, Failure> {
        let body = async |tx: &mut S::Connection| {
            on_error.run::<S>(tx, NOTE, key).await?;
            on_error.run::<S>(tx, DEBIT, from).await?;
            if let Some(together) = together {
                together.wait().await;
            }
            on_error.run::<S>(tx, CREDIT, to).await?;
            Ok(1)
        };
        self.call(mode, key, body).await
    }

    /// Makes a transfer, and repeats it until it is acknowledged.
    pub(crate) async fn at_last(&self, mode: Mode, on_error: OnError, key: &str, way: [&str; 2]) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        while let Err(error) = self.transfer(mode, on_error, key, way, None).await {
            assert!(
                tokio::time::Instant::now() < deadline,
                "{mode:?} {on_error:?}: {error:?}"
            );
            tokio::task::yield_now().await;
        }
    }

    /// Reads a number on a connection that the store never had.
    pub(crate) async fn number(&self, statement: &str) -> i64 {
        let pool = S::pool(&S::options(&self.pool), 1, true);
        let number = S::number(&pool, statement, &[]).await.unwrap();
        S::close(pool).await;
        number
    }

    pub(crate) async fn balance(&self, id: &str) -> i64 {
        self.number(&format!("SELECT balance FROM accounts WHERE id = '{id}'"))
            .await
    }

    pub(crate) async fn noted(&self, key: &str) -> i64 {
        self.number(&format!(
            "SELECT count(*) FROM transfers WHERE id = '{key}'"
        ))
        .await
    }

    pub(crate) async fn record(&self, key: &str) -> Option<Record> {
        let records = self.idem.records();
        let found = records.find_scoped(OPERATION, key, &Scope::none()).await;
        found.unwrap()
    }

    /// Asserts that no money was made or lost.
    pub(crate) async fn assert_sum(&self, what: &str) {
        let sum = self.balance(LEFT).await + self.balance(RIGHT).await;
        assert_eq!(sum, 2000, "{what}");
    }
}

/// True if the database keeps statements of a body that follow the end of a caller's transaction.
fn commits_the_rest<S: Sql>(bank: &Bank<S>, mode: Mode, on_error: OnError) -> bool {
    let is_mysql = matches!(S::any(&bank.pool), AnyPool::MySql(_));
    is_mysql && mode == Mode::Join && on_error != OnError::GiveBack
}

/// Two transfers lock the accounts in opposite order, and the database ends one of them.
async fn the_victim_of_a_deadlock_moves_nothing<S: Sql>(bank: Arc<Bank<S>>) {
    for mode in MODES {
        for on_error in ON_ERROR {
            let what = format!("{mode:?} {on_error:?}");
            let before = (bank.balance(LEFT).await, bank.balance(RIGHT).await);
            let together = Barrier::new(2);
            let keys = [format!("{what} a"), format!("{what} b")];
            let (a, b) = futures_util::future::join(
                bank.transfer(mode, on_error, &keys[0], [LEFT, RIGHT], Some(&together)),
                bank.transfer(mode, on_error, &keys[1], [RIGHT, LEFT], Some(&together)),
            )
            .await;
            let victim = match (&a, &b) {
                (Err(_), Ok(1)) => 0,
                (Ok(1), Err(_)) => 1,
                both => panic!("{what}: the database ends one of them: {both:?}"),
            };
            // PostgreSQL says that the body has ignored an error.
            if !matches!(S::any(&bank.pool), AnyPool::Postgres(_))
                && let [Err(Failure::Idempotency(error)), _] | [_, Err(Failure::Idempotency(error))] =
                    [&a, &b]
            {
                assert!(error.is_retryable(), "{what}: {error:?}");
            }
            if commits_the_rest(&bank, mode, on_error) {
                // Only the record can be protected.
                assert!(bank.record(&keys[victim]).await.is_none(), "{what}");
                bank.number("SELECT count(*) FROM accounts").await;
                let repair = format!(
                    "UPDATE accounts SET balance = CASE id WHEN 'left' THEN {} ELSE {} END",
                    before.0, before.1
                );
                S::any(&bank.pool).execute(&repair).await.unwrap();
                continue;
            }
            bank.assert_sum(&what).await;
            assert_eq!(bank.noted(&keys[victim]).await, 0, "{what}");
            assert_eq!(bank.noted(&keys[1 - victim]).await, 1, "{what}");
            // The key is free.
            let way = [[LEFT, RIGHT], [RIGHT, LEFT]][victim];
            bank.transfer(mode, on_error, &keys[victim], way, None)
                .await
                .unwrap();
            assert_eq!(bank.noted(&keys[victim]).await, 1, "{what}");
            bank.assert_sum(&what).await;
            let after = (bank.balance(LEFT).await, bank.balance(RIGHT).await);
            assert_eq!(after, before, "{what}: one in each direction");
        }
    }
}

async fn transfers_in_both_directions_keep_the_sum<S: Sql>(bank: Arc<Bank<S>>) {
    const WORKERS: usize = 4;
    // PostgreSQL looks for a deadlock after a second only.
    let each = match S::any(&bank.pool) {
        AnyPool::Postgres(_) => 1,
        _ => 3,
    };
    for mode in MODES {
        for on_error in ON_ERROR {
            if commits_the_rest(&bank, mode, on_error) {
                continue;
            }
            let what = format!("{mode:?} {on_error:?}");
            let worker = async |number: usize| {
                let way = [[LEFT, RIGHT], [RIGHT, LEFT]][number % 2];
                for transfer in 0..each {
                    let key = format!("{what} {number} {transfer}");
                    bank.at_last(mode, on_error, &key, way).await;
                }
            };
            join_all((0..WORKERS).map(worker)).await;
            bank.assert_sum(&what).await;
            assert_eq!(bank.balance(LEFT).await, 1000, "{what}");
            for number in 0..WORKERS {
                for transfer in 0..each {
                    let key = format!("{what} {number} {transfer}");
                    assert_eq!(bank.noted(&key).await, 1, "{key}");
                    let record = bank.record(&key).await.unwrap();
                    assert_eq!(record.state, RecordState::Completed, "{key}");
                }
            }
        }
    }
}

/// The caller whose joined call was the victim goes on, and commits.
async fn a_caller_that_ignores_a_deadlock_commits_nothing_later<S: Sql>(bank: Arc<Bank<S>>) {
    for on_error in ON_ERROR {
        let what = format!("{on_error:?}");
        let together = Barrier::new(2);
        let careless = async |key: &str, [from, to]: [&str; 2]| {
            let note = |when: &str| format!("{what} {key} {when}");
            let mut outer = S::begin_outer(&bank.pool).await.unwrap();
            let tx = S::connection(&mut outer);
            S::run(tx, NOTE, &[note("before").as_str().into()])
                .await
                .unwrap();
            let call = Call::new(OPERATION, &note("call"), &1, Duration::from_secs(600));
            let body = async |tx: &mut S::Connection, _| {
                on_error.run::<S>(tx, DEBIT, from).await?;
                together.wait().await;
                on_error.run::<S>(tx, CREDIT, to).await?;
                Ok::<_, Failure>(1)
            };
            let joined = bank
                .idem
                .join_transaction(tx, call, RunOptions::new(), body);
            let is_victim = joined.await.is_err();
            for _ in 0..3 {
                let _ = S::run(tx, NOTE, &[note("after").as_str().into()]).await;
            }
            // It is an error on some databases, and commits nothing on the others.
            let _ = S::commit_outer(outer).await;
            (is_victim, note("before"), note("after"))
        };
        let (a, b) =
            futures_util::future::join(careless("a", [LEFT, RIGHT]), careless("b", [RIGHT, LEFT]))
                .await;
        assert_ne!(a.0, b.0, "{what}: one of them is the victim");
        for (is_victim, before, after) in [a, b] {
            // On PostgreSQL the joined call was rolled back to its savepoint, and the transaction goes on.
            let goes_on = !is_victim || matches!(S::any(&bank.pool), AnyPool::Postgres(_));
            let (once, thrice) = if goes_on { (1, 3) } else { (0, 0) };
            assert_eq!(bank.noted(&before).await, once, "{before}");
            assert_eq!(bank.noted(&after).await, thrice, "{after}");
        }
        // The connections of the pool begin and commit as always.
        for number in 0..4 {
            let key = format!("{what} {number}");
            bank.transfer(Mode::Join, OnError::GiveBack, &key, [LEFT, RIGHT], None)
                .await
                .unwrap();
            assert_eq!(bank.noted(&key).await, 1);
        }
    }
}

/// sqlx rolls the whole transaction back if a nested `begin` is dropped while it is sent.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_savepoint_that_the_body_drops_half_way_takes_no_half_along() {
    let bank = Bank::open(places::postgres()).await;
    for mode in MODES {
        let key = format!("{mode:?}");
        let answer = bank
            .call(mode, &key, async |tx| {
                PostgresStore::run(tx, NOTE, &[key.as_str().into()]).await?;
                // The server may answer within the first poll, but not always.
                while let Some(nested) = tx.begin().now_or_never() {
                    nested?.commit().await?;
                }
                PostgresStore::run(tx, NOTE, &[key.as_str().into()]).await?;
                Ok(1)
            })
            .await;
        let Err(Failure::Idempotency(Error::Store(error))) = answer else {
            panic!("{key}: {answer:?}");
        };
        assert_eq!(error.kind(), StoreErrorKind::Conflict, "{key}");
        // The second half has committed by itself.
        assert_eq!(bank.noted(&key).await, 1, "{key}");
        if mode != Mode::Step {
            assert!(bank.record(&key).await.is_none(), "{key}");
        }
    }
}
