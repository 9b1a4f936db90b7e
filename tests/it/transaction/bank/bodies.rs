//! Bodies that end their transaction by a statement of their own.

use std::sync::Arc;
use std::time::Duration;

use idem_runtime::advanced::RunOptions;
use idem_runtime::error::{InvalidCall, StoreErrorKind};
use idem_runtime::record::RecordState;
use idem_runtime::{Call, Error, PostgresStore, Scope};
use idem_tests::sql::{AnyPool, Sql};
use idem_tests::{on_stores, places};

use super::{Bank, LEFT, MODES, Mode, NOTE, OnError, RIGHT};
use crate::transaction::Failure;

on_stores! { [transactions] Bank::open:
    a_body_that_defines_a_table_is_interrupted_if_that_commits,
    a_body_that_ends_the_transaction_is_not_acknowledged,
    an_error_of_such_a_body_is_not_stored,
}

/// Makes a call whose body defines a table between two notes.
async fn define<S: Sql>(
    bank: &Bank<S>,
    mode: Mode,
    key: &str,
    table: &str,
    fails: bool,
) -> Result<u64, Failure> {
    let define = format!("CREATE TABLE {table} (id BIGINT)");
    let body = async |tx: &mut S::Connection| {
        S::run(tx, NOTE, &[key.into()]).await?;
        S::text(tx, &define).await?;
        S::run(tx, NOTE, &[key.into()]).await?;
        match fails {
            true => Err(Failure::OutOfStock),
            false => Ok(1),
        }
    };
    bank.call(mode, key, body).await
}

async fn a_body_that_defines_a_table_is_interrupted_if_that_commits<S: Sql>(bank: Arc<Bank<S>>) {
    let commits = matches!(S::any(&bank.pool), AnyPool::MySql(_));
    for mode in MODES {
        for fails in [false, true] {
            let key = format!("{mode:?} {fails}");
            let table = format!("more_{mode:?}_{fails}");
            let answer = define(&bank, mode, &key, &table, fails).await;
            let record = bank.record(&key).await;
            if commits && mode == Mode::Step {
                assert_half_of_each_attempt(&bank, &key, fails, answer).await;
            } else if commits {
                let Err(Failure::Idempotency(error)) = answer else {
                    panic!("{key}: {answer:?}");
                };
                assert!(
                    matches!(error, Error::InvalidCall(InvalidCall::CommittedInBody)),
                    "{key}: {error:?}"
                );
                assert_eq!(record.unwrap().state, RecordState::Interrupted, "{key}");
                // On the caller's connection, the second half was committed as well.
                let halves = if mode == Mode::Tx { 1 } else { 2 };
                assert_eq!(bank.noted(&key).await, halves, "{key}");
                let again = bank.call(mode, &key, async |_| panic!("it is interrupted"));
                assert!(matches!(
                    again.await,
                    Err(Failure::Idempotency(Error::Interrupted))
                ));
            } else if fails {
                assert!(
                    matches!(answer, Err(Failure::OutOfStock)),
                    "{key}: {answer:?}"
                );
                // A leased call that failed may be made again.
                let state = (mode == Mode::Step).then_some(RecordState::Released);
                assert_eq!(record.map(|it| it.state), state, "{key}");
                assert_eq!(bank.noted(&key).await, 0, "{key}");
            } else {
                assert_eq!(answer.unwrap(), 1, "{key}");
                assert_eq!(record.unwrap().state, RecordState::Completed, "{key}");
                assert_eq!(bank.noted(&key).await, 2, "{key}");
            }
        }
    }
}

/// Asserts that each attempt of a step on MySQL and MariaDB commits what comes before the table, and is not acknowledged:
/// the step cannot tell it from a deadlock.
async fn assert_half_of_each_attempt<S: Sql>(
    bank: &Bank<S>,
    key: &str,
    fails: bool,
    mut answer: Result<u64, Failure>,
) {
    for attempt in 1..=2 {
        match &answer {
            Err(Failure::OutOfStock) if fails => {}
            Err(Failure::Idempotency(Error::Store(error))) if !fails => {
                assert_eq!(error.kind(), StoreErrorKind::Conflict, "{key}: {error}");
            }
            answer => panic!("{key}: {answer:?}"),
        }
        let record = bank.record(key).await.unwrap();
        assert_eq!(record.state, RecordState::Released, "{key}");
        assert_eq!(bank.noted(key).await, attempt, "{key}");
        if attempt == 1 {
            let table = format!("again_{fails}");
            answer = define(bank, Mode::Step, key, &table, fails).await;
        }
    }
}

/// A `ROLLBACK` of the body's own is as one of the database's.
async fn a_body_that_ends_the_transaction_is_not_acknowledged<S: Sql>(bank: Arc<Bank<S>>) {
    for mode in [Mode::Tx, Mode::Step] {
        let key = format!("{mode:?}");
        let answer = bank
            .call(mode, &key, async |tx| {
                S::run(tx, NOTE, &[key.as_str().into()]).await?;
                S::text(tx, "ROLLBACK").await?;
                let _ = S::run(tx, NOTE, &[key.as_str().into()]).await;
                Ok(1)
            })
            .await;
        if mode == Mode::Step && matches!(S::any(&bank.pool), AnyPool::Postgres(_)) {
            // PostgreSQL never does this by itself, so nothing looks for it.
            continue;
        }
        let Err(Failure::Idempotency(error)) = answer else {
            panic!("{key}: {answer:?}");
        };
        assert!(error.is_retryable(), "{key}: {error:?}");
        if matches!(S::any(&bank.pool), AnyPool::MySql(_)) {
            assert_eq!(bank.noted(&key).await, 0, "{key}");
        }
        // The connection is usable.
        for number in 0..4 {
            let after = format!("{mode:?} {number}");
            bank.transfer(mode, OnError::GiveBack, &after, [LEFT, RIGHT], None)
                .await
                .unwrap();
        }
    }
}

async fn an_error_of_such_a_body_is_not_stored<S: Sql>(bank: Arc<Bank<S>>) {
    let call = Call::new("bank.declined", "k", &1, Duration::from_secs(600));
    let options = RunOptions::new().replay_err(|error| matches!(error, Failure::Declined(_)));
    let answer = bank
        .idem
        .run_in_transaction(call, options, async |tx, _| {
            S::run(tx, NOTE, &["k".into()]).await?;
            S::text(tx, "ROLLBACK").await?;
            Err::<u64, _>(Failure::Declined("no money".to_owned()))
        })
        .await;
    let Err(Failure::Idempotency(Error::Store(error))) = answer else {
        panic!("{answer:?}");
    };
    if !matches!(S::any(&bank.pool), AnyPool::Postgres(_)) {
        assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error}");
    }
    let records = bank.idem.records();
    let scope = Scope::none();
    let found = records.find_scoped("bank.declined", "k", &scope);
    assert!(found.await.unwrap().is_none());
    assert_eq!(bank.noted("k").await, 0);
}

/// A `COMMIT` of the body's own, alone or with a transaction after it. The standard form has no record then, which would
/// show it.
#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn what_a_body_commits_is_not_repeated_on_postgres() {
    type S = PostgresStore;
    let bank = Bank::open(places::postgres()).await;
    for statements in ["COMMIT", "COMMIT; BEGIN"] {
        let answer = bank
            .call(Mode::Tx, statements, async |tx| {
                S::run(tx, NOTE, &[statements.into()]).await?;
                S::text(tx, statements).await?;
                if statements != "COMMIT" {
                    S::run(tx, NOTE, &[statements.into()]).await?;
                }
                Ok(1)
            })
            .await;
        let Err(Failure::Idempotency(error)) = answer else {
            panic!("{statements}: {answer:?}");
        };
        assert!(
            matches!(error, Error::InvalidCall(InvalidCall::CommittedInBody)),
            "{statements}: {error:?}"
        );
        let record = bank.record(statements).await.unwrap();
        assert_eq!(record.state, RecordState::Interrupted, "{statements}");
        assert_eq!(bank.noted(statements).await, 1, "{statements}");
        let again = bank.call(Mode::Tx, statements, async |_| panic!("it is interrupted"));
        assert!(matches!(
            again.await,
            Err(Failure::Idempotency(Error::Interrupted))
        ));
        // The connection is usable.
        bank.transfer(
            Mode::Tx,
            OnError::GiveBack,
            &format!("after {statements}"),
            [LEFT, RIGHT],
            None,
        )
        .await
        .unwrap();
    }
}
