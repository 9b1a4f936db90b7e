//! Transactions that other code has left open on connections of the shared pool: nothing is acknowledged in one, and nothing
//! is read in one that is out of date or not committed.

use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use idem_runtime::advanced::RunOptions;
use idem_runtime::record::RecordState;
use idem_runtime::{Attempt, Call, Error, Idem, OnCrash, Scope};
use idem_tests::places::{self, Place};
use idem_tests::sql::Sql;
use tokio::sync::Barrier;

mod reads;
mod writes;

const OPERATION: &str = "shop.foreign";

fn call(key: &str) -> Call {
    Call::new(OPERATION, key, &1, crate::records::HOUR).on_crash(OnCrash::Refuse)
}

async fn is_completed<S: Sql>(elsewhere: &Idem<S>, key: &str) -> bool {
    let records = elsewhere.records();
    let found = records.find_scoped(OPERATION, key, &Scope::none()).await;
    found
        .unwrap()
        .is_some_and(|record| record.state == RecordState::Completed)
}

/// Leaves a transaction open on connections of the pool, which these statements begin. sqlx does not know of it. One that
/// was left open before is rolled back.
async fn leave<S: Sql>(pool: &S::Pool, connections: usize, statements: &str) {
    let together = Barrier::new(connections);
    let leave = async || {
        let mut lent = S::acquire(pool).await.unwrap();
        let statements = format!("ROLLBACK; {statements}");
        S::text(S::lent(&mut lent), &statements).await.unwrap();
        together.wait().await;
    };
    join_all((0..connections).map(|_| leave())).await;
}

/// Leaves a transaction open on connections of the pool. sqlx does not know of it.
async fn leave_open<S: Sql>(pool: &S::Pool, connections: usize, fails: bool) {
    let together = Barrier::new(connections);
    let leave = async || {
        let mut lent = S::acquire(pool).await.unwrap();
        let begun = S::text(S::lent(&mut lent), "BEGIN").await;
        // A transaction that has failed may be open already.
        assert!(begun.is_ok() || fails, "{begun:?}");
        if fails {
            S::text(S::lent(&mut lent), "SELECT nothing")
                .await
                .unwrap_err();
        }
        together.wait().await;
    };
    join_all((0..connections).map(|_| leave())).await;
}

/// What a call says is true for others, and remains when the process ends.
async fn nothing_is_acknowledged_in_them<S: Sql>(place: Place<S>) {
    const CONNECTIONS: usize = 4;
    const ROUNDS: usize = 3;
    const CALLS: usize = 4;
    let home = place.home().await.unwrap();
    let elsewhere = Idem::new(S::over(&home));
    elsewhere.store().create_tables().await.unwrap();
    for (left_open, fails, is_text) in [
        (CONNECTIONS - 1, false, false),
        (CONNECTIONS, false, false),
        (CONNECTIONS, true, false),
        (CONNECTIONS, false, true),
    ] {
        let pool = S::pool(&S::options(&home), CONNECTIONS as u32, true);
        let store = match is_text {
            true => S::over(&pool).unprepared(),
            false => S::over(&pool),
        };
        let idem = Idem::new(store);
        let bodies = AtomicU32::new(0);
        let key = |round, number| format!("{left_open} {fails} {is_text} {round} {number}");
        for round in 0..ROUNDS {
            leave_open::<S>(&pool, left_open, fails).await;
            // Concurrent calls share batches, and one has steps.
            let run = async |number: usize| {
                let key = key(round, number);
                let body = async |attempt: Attempt| {
                    bodies.fetch_add(1, Ordering::SeqCst);
                    if number == 0 {
                        attempt.step("one", async || Ok::<_, Error>(1)).await?;
                        leave_open::<S>(&pool, 1, fails).await;
                        attempt.step("two", async || Ok::<_, Error>(2)).await?;
                        leave_open::<S>(&pool, CONNECTIONS / 2, fails).await;
                        attempt
                            .step_tx(&idem, "three", async |_| Ok::<_, Error>(3))
                            .await?;
                    }
                    attempt.renew().await?;
                    Ok::<_, Error>(7)
                };
                let answer = idem.run_with(call(&key), RunOptions::new(), body).await;
                assert_eq!(answer.unwrap(), 7, "{key}");
                assert!(is_completed(&elsewhere, &key).await, "{key}");
            };
            join_all((0..CALLS).map(run)).await;
        }
        assert_eq!(bodies.load(Ordering::SeqCst) as usize, ROUNDS * CALLS);
        // As when the process ends: what was never committed is rolled back.
        S::close(pool).await;
        for round in 0..ROUNDS {
            for number in 0..CALLS {
                let key = key(round, number);
                assert!(is_completed(&elsewhere, &key).await, "{key}");
            }
        }
    }
}

/// The application drops futures of `begin` on the shared pool. sqlx counts a transaction only after the server's answer.
async fn a_begin_that_is_dropped_takes_no_call_along<S: Sql>(place: Place<S>) {
    let home = place.home().await.unwrap();
    let elsewhere = Idem::new(S::over(&home));
    elsewhere.store().create_tables().await.unwrap();
    let pool = S::pool(&S::options(&home), 2, true);
    let idem = Idem::new(S::over(&pool));
    for round in 0..20 {
        for polls in 1..6 {
            let mut begin = Box::pin(S::begin_outer(&pool));
            for _ in 0..polls {
                if begin.as_mut().now_or_never().is_some() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        let key = round.to_string();
        let answer = idem.run(call(&key), async || Ok::<_, Error>(7)).await;
        assert_eq!(answer.unwrap(), 7);
        assert!(is_completed(&elsewhere, &key).await, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn postgres_acknowledges_nothing_in_them() {
    nothing_is_acknowledged_in_them(places::postgres()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn on_postgres_a_dropped_begin_takes_no_call_along() {
    a_begin_that_is_dropped_takes_no_call_along(places::postgres()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn mariadb_acknowledges_nothing_in_them() {
    nothing_is_acknowledged_in_them(places::mariadb()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn on_mariadb_a_dropped_begin_takes_no_call_along() {
    a_begin_that_is_dropped_takes_no_call_along(places::mariadb()).await;
}
