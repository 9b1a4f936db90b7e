//! `tx` that names an argument: the call becomes part of the caller's transaction.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use idem_runtime::advanced::RunOptions;
use idem_runtime::error::{InvalidCall, StoreErrorKind};
use idem_runtime::record::{Record, RecordState};
use idem_runtime::store::{Resolved, TransactionalStore};
use idem_runtime::{Attempt, Call, Error, Idem, MySqlStore, idempotent};
use idem_tests::sql::Sql as _;
use idem_tests::{on_stores, places};

use super::places::{Database, Orders};
use crate::records::HOUR;

use super::{Failure, Gate, OPERATION, Shop, Then, behave, idempotency, order, order_waiting};
use crate::records::end_lease;

on_stores! { [transactions] Shop::open:
    the_caller_commits_the_effect_and_the_record,
    the_callers_rollback_removes_the_record,
    an_error_rolls_back_only_the_call,
    a_final_error_is_stored_with_the_callers_commit,
    a_dropped_call_is_rolled_back_before_the_connection_is_used_again,
    a_duplicate_in_the_same_transaction_is_replayed,
    a_duplicate_gets_no_uncommitted_outcome,
    a_connection_without_a_transaction_is_refused,
    a_lapsed_record_is_taken_over,
    a_call_that_is_dropped_at_any_poll_leaves_the_transaction_usable,
    a_call_in_the_body_may_join,
    a_call_that_failed_may_be_made_again_in_the_same_transaction,
    a_crashed_call_is_reported_although_the_transaction_is_open,
}

#[idempotent(key = key, ttl = "1h", name = OPERATION, store = idem, tx = tx, attempt = attempt,
             skip(idem, then), replay_err = Failure::Declined(_))]
async fn order_on<S: Orders>(
    idem: &Idem<S>,
    tx: &mut S::Connection,
    key: &str,
    amount: i64,
    then: Then,
) -> Result<(u32, i64, String), Failure> {
    S::order(tx, key, amount).await?;
    behave::<S>(tx, &attempt, amount, then).await
}

#[idempotent(key = key, ttl = "1h", name = OPERATION, store = idem, lease = "1h", on_crash = refuse, skip(idem, gate))]
async fn order_once<S: Orders>(
    idem: &Idem<S>,
    gate: &Gate,
    key: &str,
    amount: i64,
) -> Result<(u32, i64, String), Failure> {
    gate.pass().await;
    Ok((0, amount, String::new()))
}

#[idempotent(key = key, ttl = "1h", name = OPERATION, store = idem, lease = "1h", skip(idem, gate))]
pub(super) async fn order_leased<S: Orders>(
    idem: &Idem<S>,
    gate: &Gate,
    key: &str,
    amount: i64,
) -> Result<(u32, i64, String), Failure> {
    gate.pass().await;
    Ok((0, amount, String::new()))
}

async fn join<S: Orders>(
    shop: &Shop<S>,
    outer: &mut S::Outer,
    key: &str,
    then: Then,
) -> Result<i64, Failure> {
    let tx = S::connection(outer);
    let answer = order_on::<S>(&shop.idem, tx, key, 5, then).await;
    answer.map(|(_, amount, _)| amount)
}

async fn the_caller_commits_the_effect_and_the_record<S: Orders>(shop: Arc<Shop<S>>) {
    let mut outer = shop.database.begin().await;
    S::order(S::connection(&mut outer), "before", 1)
        .await
        .unwrap();
    assert_eq!(
        join(&shop, &mut outer, "a", Then::Succeed).await.unwrap(),
        5
    );
    assert_eq!(
        join(&shop, &mut outer, "b", Then::Succeed).await.unwrap(),
        5
    );
    shop.assert_untouched("a").await;
    S::commit_outer(outer).await.unwrap();
    shop.assert_ordered_once("a").await;
    shop.assert_ordered_once("b").await;
    assert_eq!(shop.orders("before").await, 1);
    assert_eq!(order(&shop, "a", 5, Then::Panic).await.unwrap(), (1, 5));
}

async fn the_callers_rollback_removes_the_record<S: Orders>(shop: Arc<Shop<S>>) {
    let mut outer = shop.database.begin().await;
    join(&shop, &mut outer, "a", Then::Succeed).await.unwrap();
    S::rollback_outer(outer).await.unwrap();
    shop.assert_untouched("a").await;
    assert_eq!(order(&shop, "a", 5, Then::Succeed).await.unwrap(), (1, 5));
    shop.assert_ordered_once("a").await;
}

async fn an_error_rolls_back_only_the_call<S: Orders>(shop: Arc<Shop<S>>) {
    let mut outer = shop.database.begin().await;
    S::order(S::connection(&mut outer), "before", 1)
        .await
        .unwrap();
    join(&shop, &mut outer, "a", Then::Fail).await.unwrap_err();
    S::order(S::connection(&mut outer), "after", 1)
        .await
        .unwrap();
    S::commit_outer(outer).await.unwrap();
    shop.assert_untouched("a").await;
    assert_eq!(
        (shop.orders("before").await, shop.orders("after").await),
        (1, 1)
    );
}

async fn a_final_error_is_stored_with_the_callers_commit<S: Orders>(shop: Arc<Shop<S>>) {
    let mut outer = shop.database.begin().await;
    S::order(S::connection(&mut outer), "before", 1)
        .await
        .unwrap();
    let error = join(&shop, &mut outer, "a", Then::Decline)
        .await
        .unwrap_err();
    assert!(matches!(error, Failure::Declined(_)), "{error:?}");
    S::commit_outer(outer).await.unwrap();
    assert_eq!(
        (shop.orders("a").await, shop.orders("before").await),
        (0, 1)
    );
    assert_eq!(shop.record("a").await.unwrap().state, RecordState::Failed);
}

async fn a_dropped_call_is_rolled_back_before_the_connection_is_used_again<S: Orders>(
    shop: Arc<Shop<S>>,
) {
    let mut outer = shop.database.begin().await;
    S::order(S::connection(&mut outer), "before", 1)
        .await
        .unwrap();
    {
        let (gate, then) = Gate::held();
        let mut call = Box::pin(join(&shop, &mut outer, "a", then));
        tokio::select! {
            answer = &mut call => panic!("its body hangs: {answer:?}"),
            () = gate.entered() => {}
        }
        assert!(call.as_mut().now_or_never().is_none());
    }
    S::order(S::connection(&mut outer), "after", 1)
        .await
        .unwrap();
    S::commit_outer(outer).await.unwrap();
    shop.assert_untouched("a").await;
    assert_eq!(
        (shop.orders("before").await, shop.orders("after").await),
        (1, 1)
    );
}

async fn a_duplicate_in_the_same_transaction_is_replayed<S: Orders>(shop: Arc<Shop<S>>) {
    let mut outer = shop.database.begin().await;
    for then in [Then::Succeed, Then::Panic] {
        assert_eq!(join(&shop, &mut outer, "a", then).await.unwrap(), 5);
    }
    S::commit_outer(outer).await.unwrap();
    shop.assert_ordered_once("a").await;
}

/// A waiting call in this process may get the value only once the caller has committed, and the caller never does.
async fn a_duplicate_gets_no_uncommitted_outcome<S: Orders>(shop: Arc<Shop<S>>) {
    let mut outer = shop.database.begin().await;
    let (gate, then) = Gate::held();
    let duplicate = || order_waiting(&shop, "a", 5, Then::Succeed, Duration::from_secs(20));
    let mut first = Box::pin(duplicate());
    {
        let joined = join(&shop, &mut outer, "a", then);
        tokio::pin!(joined);
        tokio::select! {
            answer = &mut joined => panic!("it is held: {answer:?}"),
            () = gate.entered() => {}
        }
        // The joined call is the leader, and the duplicate waits for it.
        assert!(first.as_mut().now_or_never().is_none());
        gate.open();
        assert_eq!(joined.await.unwrap(), 5);
    }
    // A duplicate that had been told would be ready. This one asks the store.
    assert!(first.as_mut().now_or_never().is_none());
    drop(first);
    let mut second = Box::pin(duplicate());
    loop {
        let mut again = Box::pin(join(&shop, &mut outer, "a", Then::Panic));
        // The server may answer at once. Then nobody can wait for the call, and it is made again.
        let Some(answer) = again.as_mut().now_or_never() else {
            assert!(second.as_mut().now_or_never().is_none());
            // A later call of the transaction reads the outcome in it, and must not share it either.
            assert_eq!(again.await.unwrap(), 5);
            break;
        };
        assert_eq!(answer.unwrap(), 5);
    }
    assert!(second.as_mut().now_or_never().is_none());
    S::rollback_outer(outer).await.unwrap();
    let (attempt, amount, _) = second.await.unwrap();
    assert_eq!((attempt, amount), (1, 5));
    shop.assert_ordered_once("a").await;
}

/// The call would commit a transaction that was begun with SQL text, because sqlx does not know of it.
async fn a_connection_without_a_transaction_is_refused<S: Orders>(shop: Arc<Shop<S>>) {
    let mut own = S::acquire(&shop.database.pool).await.unwrap();
    for begun_by_text in [false, true] {
        let tx = S::lent(&mut own);
        if begun_by_text {
            S::text(tx, "BEGIN").await.unwrap();
            S::order(tx, "before", 1).await.unwrap();
        }
        let refused = order_on::<S>(&shop.idem, tx, "a", 5, Then::Panic).await;
        let error = idempotency(refused);
        assert!(
            matches!(error, Error::InvalidCall(InvalidCall::NoTransaction)),
            "{error:?}"
        );
        if begun_by_text {
            S::text(tx, "ROLLBACK").await.unwrap();
        }
        shop.assert_untouched("a").await;
        assert_eq!(shop.orders("before").await, 0);
    }
}

/// The record of a leased call that crashed is taken over, although the transaction locks the record before it knows
/// that the record has lapsed.
async fn a_lapsed_record_is_taken_over<S: Orders>(shop: Arc<Shop<S>>) {
    let gate = Gate::new();
    let mut died =
        std::mem::ManuallyDrop::new(Box::pin(order_leased::<S>(&shop.idem, &gate, "a", 5)));
    tokio::select! {
        answer = died.as_mut() => panic!("its body hangs: {answer:?}"),
        () = gate.entered() => {}
    }
    end_lease(shop.idem.store(), &shop.record("a").await.unwrap())
        .await
        .unwrap();
    let shop = shop.elsewhere();
    let mut outer = shop.database.begin().await;
    assert_eq!(
        join(&shop, &mut outer, "a", Then::Succeed).await.unwrap(),
        5
    );
    S::commit_outer(outer).await.unwrap();
    shop.assert_ordered_once("a").await;
}

/// A call may be dropped at any moment: the caller's changes before and after it are committed together.
async fn a_call_that_is_dropped_at_any_poll_leaves_the_transaction_usable<S: Orders>(
    shop: Arc<Shop<S>>,
) {
    let mut dropped = 0;
    // Cold connections too: the first use of a statement, which prepares it, takes more round trips. On a busy machine
    // an answer may be there at the next poll, so there are more rounds if they drop few calls.
    let mut round = 0;
    while round < 3 || dropped <= 5 {
        for polls in 0.. {
            let key = format!("{round}-{polls}");
            let (before, after) = (format!("before {key}"), format!("after {key}"));
            let mut outer = shop.database.begin().await;
            S::order(S::connection(&mut outer), &before, 1)
                .await
                .unwrap();
            let answer = {
                let mut call = Box::pin(join(&shop, &mut outer, &key, Then::Succeed));
                poll_times(&mut call, polls).await
            };
            S::order(S::connection(&mut outer), &after, 1)
                .await
                .unwrap();
            S::commit_outer(outer).await.unwrap();
            assert_eq!(
                (shop.orders(&before).await, shop.orders(&after).await),
                (1, 1),
                "{key}"
            );
            match answer {
                Some(answer) => {
                    answer.unwrap();
                    shop.assert_ordered_once(&key).await;
                    break;
                }
                None => dropped += 1,
            }
            // Dropped at its very end, the call either has its effect or has none.
            match shop.orders(&key).await {
                0 => shop.assert_untouched(&key).await,
                _ => shop.assert_ordered_once(&key).await,
            }
        }
        round += 1;
    }
}

/// Polls a future this many times, each time when it has been woken.
async fn poll_times<F: Future + Unpin>(future: &mut F, polls: u32) -> Option<F::Output> {
    let mut left = polls;
    std::future::poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match Pin::new(&mut *future).poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Makes an order and its parts, all or nothing.
#[idempotent(key = key, ttl = "1h", name = "shop.basket", store = shop.idem, tx = tx, skip(shop, then))]
async fn basket<S: Orders>(shop: &Shop<S>, key: &str, then: Then) -> Result<i64, Failure> {
    let mut sum = 0;
    for part in ["a", "b"] {
        sum += order_on::<S>(&shop.idem, tx, part, 5, Then::Succeed)
            .await?
            .1;
    }
    // A call that does not join would wait for this very transaction.
    let error = idempotency(order(shop, "c", 5, Then::Succeed).await);
    assert!(matches!(error, Error::InvalidCall(_)), "{error:?}");
    match then {
        Then::Fail => Err(Failure::OutOfStock),
        _ => Ok(sum),
    }
}

async fn a_call_in_the_body_may_join<S: Orders>(shop: Arc<Shop<S>>) {
    basket(&shop, "k", Then::Fail).await.unwrap_err();
    shop.assert_untouched("a").await;
    assert_eq!(basket(&shop, "k", Then::Succeed).await.unwrap(), 10);
    shop.assert_ordered_once("a").await;
    shop.assert_ordered_once("b").await;
}

#[expect(dead_code, reason = "it only has to compile")]
fn the_future_of_a_generic_call_is_send<S: TransactionalStore>(
    idem: &Idem<S>,
    connection: &mut S::Connection,
) {
    #[idempotent(key = key, ttl = "1h", name = "nothing", store = idem, tx = tx)]
    async fn nothing<S: TransactionalStore>(
        idem: &Idem<S>,
        tx: &mut S::Connection,
        key: &str,
    ) -> Result<(), Error> {
        let _ = tx;
        tokio::task::yield_now().await;
        Ok(())
    }
    fn is_send(_: impl Send) {}
    is_send(nothing(idem, connection, "a"));
}

/// Makes a call under `refuse` whose owner crashes.
async fn die<S: Orders>(shop: &Shop<S>) -> Record {
    let gate = Gate::new();
    // A process that crashes releases nothing, so the guard of this call must not either.
    let mut died =
        std::mem::ManuallyDrop::new(Box::pin(order_once::<S>(&shop.idem, &gate, "a", 5)));
    tokio::select! {
        answer = died.as_mut() => panic!("its body hangs: {answer:?}"),
        () = gate.entered() => {}
    }
    end_lease(shop.idem.store(), &shop.record("a").await.unwrap())
        .await
        .unwrap();
    shop.record("a").await.unwrap()
}

async fn a_call_that_failed_may_be_made_again_in_the_same_transaction<S: Orders>(
    shop: Arc<Shop<S>>,
) {
    let died = die(&shop).await;
    let released = crate::records::manually(&shop.idem)
        .release(&died.observation())
        .await;
    assert_eq!(released.unwrap(), Resolved::Done);
    let shop = shop.elsewhere();
    let mut outer = shop.database.begin().await;
    let failed = join(&shop, &mut outer, "a", Then::Fail).await;
    assert!(matches!(failed, Err(Failure::OutOfStock)), "{failed:?}");
    assert_eq!(
        join(&shop, &mut outer, "a", Then::Succeed).await.unwrap(),
        5
    );
    S::commit_outer(outer).await.unwrap();
    shop.assert_ordered_once("a").await;
}

/// A write to the record would wait for the caller's own transaction.
async fn a_crashed_call_is_reported_although_the_transaction_is_open<S: Orders>(
    shop: Arc<Shop<S>>,
) {
    die(&shop).await;
    let elsewhere = shop.elsewhere();
    let mut outer = shop.database.begin().await;
    S::order(S::connection(&mut outer), "before", 1)
        .await
        .unwrap();
    let error = idempotency(join(&elsewhere, &mut outer, "a", Then::Panic).await);
    assert!(matches!(error, Error::Interrupted), "{error:?}");
    S::commit_outer(outer).await.unwrap();
    assert_eq!(shop.orders("before").await, 1);
}

/// Every connection may be in a transaction that a call joins.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MySQL or MariaDB: cargo xtask test runs it"]
async fn on_mysql_the_callers_connection_may_be_the_last_one() {
    let place = Database::open(places::mariadb()).await;
    let one = sqlx::mysql::MySqlPoolOptions::new()
        .max_connections(1)
        .connect_with(MySqlStore::options(&place.pool))
        .await
        .unwrap();
    let idem = Idem::new(MySqlStore::new(one.clone()));
    idem.store().migrate().await.unwrap();
    let database = Database {
        pool: one,
        _files: None,
    };
    let shop = Shop { idem, database };
    let mut outer = shop.database.begin().await;
    assert_eq!(
        join(&shop, &mut outer, "a", Then::Succeed).await.unwrap(),
        5
    );
    MySqlStore::commit_outer(outer).await.unwrap();
    shop.assert_ordered_once("a").await;
}

/// The server has ended the caller's transaction, and the call is dropped before it can notice that. The caller's next
/// statement tells, and later calls on the connection make it refuse writes.
async fn a_call_is_dropped_after_the_transaction_has_ended<S: Orders>(shop: Arc<Shop<S>>) {
    let mut outer = shop.database.begin().await;
    S::order(S::connection(&mut outer), "before", 1)
        .await
        .unwrap();
    let (gate, ended) = (Gate::new(), Call::new(OPERATION, "a", &5, HOUR));
    let body = async |tx: &mut S::Connection, _: Attempt| -> Result<i64, Failure> {
        S::order(tx, "a", 5).await?;
        // As after a deadlock: the driver does not know of it.
        S::text(tx, "ROLLBACK").await?;
        gate.pass().await;
        Ok(5)
    };
    let tx = S::connection(&mut outer);
    let mut joined = Box::pin(
        shop.idem
            .join_transaction(tx, ended, RunOptions::new(), body),
    );
    tokio::select! {
        answer = &mut joined => panic!("its body hangs: {answer:?}"),
        () = gate.entered() => {}
    }
    drop(joined);
    let told = S::order(S::connection(&mut outer), "after", 1).await;
    assert!(told.is_err());
    let error = idempotency(join(&shop, &mut outer, "b", Then::Succeed).await);
    assert!(
        matches!(&error, Error::Store(it) if it.kind() == StoreErrorKind::Conflict),
        "{error:?}"
    );
    S::order(S::connection(&mut outer), "later", 1)
        .await
        .unwrap_err();
    // The caller's end of the transaction ends that, too.
    S::rollback_outer(outer).await.unwrap();
    for key in ["before", "a", "after", "b", "later"] {
        shop.assert_untouched(key).await;
    }
    order(&shop, "a", 5, Then::Succeed).await.unwrap();
    shop.assert_ordered_once("a").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn on_mariadb_a_call_is_dropped_after_the_transaction_has_ended() {
    let shop = Shop::open(places::mariadb()).await;
    a_call_is_dropped_after_the_transaction_has_ended(shop).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MySQL: cargo xtask test runs it"]
async fn on_mysql_a_call_is_dropped_after_the_transaction_has_ended() {
    let shop = Shop::open(places::mysql()).await;
    a_call_is_dropped_after_the_transaction_has_ended(shop).await;
}
