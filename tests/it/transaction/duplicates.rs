//! Duplicates that arrive while the first call is in its transaction.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::join_all;
use idem_runtime::advanced::{ResultSource, with_provenance};
use idem_runtime::record::{RecordState, Timestamp};
use idem_runtime::{Call, Error};
use idem_tests::on_stores;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::places::Orders;
use super::refusals::order_leased;
use super::{Failure, Gate, Shop, Then, idempotency, order, order_waiting};

const LONG: Duration = Duration::from_secs(60);

on_stores! { [transactions] Shop::open:
    fifty_concurrent_calls_have_one_effect,
    fifty_concurrent_calls_through_separate_handles_have_one_effect,
    a_duplicate_gets_in_flight_immediately,
    a_duplicate_waits_for_the_commit,
    a_duplicate_runs_if_the_first_is_rolled_back,
    another_request_with_the_key_is_refused,
}

mod servers {
    use super::*;

    on_stores! { [transactions server] Shop::open:
        another_process_gets_in_flight_immediately,
        another_process_waits_for_the_commit,
        another_process_runs_if_the_first_is_rolled_back,
        calls_with_other_keys_run_concurrently,
        a_concurrent_purge_does_not_block_claims,
        a_leased_call_waits_for_the_commit,
        a_leased_call_runs_if_the_transaction_is_rolled_back,
    }
}

async fn fifty_concurrent_calls_have_one_effect<S: Orders>(shop: Arc<Shop<S>>) {
    fifty(&shop, Arc::clone).await;
}

async fn fifty_concurrent_calls_through_separate_handles_have_one_effect<S: Orders>(
    shop: Arc<Shop<S>>,
) {
    fifty(&shop, |shop| shop.elsewhere()).await;
}

async fn fifty<S: Orders>(shop: &Arc<Shop<S>>, copy: impl Fn(&Arc<Shop<S>>) -> Arc<Shop<S>>) {
    let together = Arc::new(Barrier::new(50));
    let mut calls = JoinSet::new();
    for _ in 0..50 {
        let (shop, together) = (copy(shop), Arc::clone(&together));
        calls.spawn(async move {
            together.wait().await;
            let call = order_waiting(&shop, "a", 5, Then::Succeed, LONG);
            with_provenance(call).await
        });
    }
    let mut executed = 0;
    for (answer, provenance) in calls.join_all().await {
        assert_eq!(answer.unwrap(), (1, 5, String::new()));
        executed += u32::from(provenance.unwrap().source == ResultSource::Executed);
    }
    assert_eq!(executed, 1);
    shop.assert_ordered_once("a").await;
}

/// Starts a first call, and holds it in its body.
async fn held<S: Orders>(
    shop: &Arc<Shop<S>>,
    then: impl FnOnce(Arc<Gate>) -> Then,
) -> (Arc<Gate>, JoinSet<Result<(u32, i64), Failure>>) {
    let gate = Gate::new();
    let mut calls = JoinSet::new();
    let (shop, then) = (Arc::clone(shop), then(Arc::clone(&gate)));
    calls.spawn(async move { order(&shop, "a", 5, then).await });
    gate.entered().await;
    (gate, calls)
}

/// Number of times that a call of another handle is woken before it certainly waits: more often than by a claim.
const WAKES: usize = 40;

/// Makes a call that waits. The first call ends only after that.
async fn wait_for<S: Orders>(
    first: &Arc<Shop<S>>,
    shop: &Arc<Shop<S>>,
    gate: &Gate,
) -> (Result<(u32, i64, String), Failure>, ResultSource) {
    let mut waiting = Box::pin(with_provenance(order_waiting(
        shop,
        "a",
        5,
        Then::Succeed,
        LONG,
    )));
    let mut wakes = 0;
    let woken = std::future::poll_fn(|cx| {
        let answer = waiting.as_mut().poll(cx);
        assert!(answer.is_pending(), "the first call holds the record");
        wakes += 1;
        match wakes == WAKES {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    });
    match Arc::ptr_eq(first, shop) {
        // In one handle the call joins the first one, which alone wakes it.
        true => drop(tokio::time::timeout(Duration::from_millis(300), woken).await),
        false => woken.await,
    }
    gate.open();
    let (answer, provenance) = waiting.await;
    (answer, provenance.unwrap().source)
}

fn assert_in_flight<T: std::fmt::Debug>(answer: Result<T, Failure>) {
    let error = idempotency(answer);
    assert!(matches!(error, Error::InFlight { .. }), "{error:?}");
}

async fn told_at_once<S: Orders>(first: &Arc<Shop<S>>, second: &Arc<Shop<S>>) {
    let (gate, calls) = held(first, Then::Meet).await;
    // If this call waited, it would hang: the gate opens only after it.
    assert_in_flight(order(second, "a", 5, Then::Succeed).await);
    gate.open();
    assert_eq!(calls.join_all().await.remove(0).unwrap(), (1, 5));
    assert_eq!(order(second, "a", 5, Then::Panic).await.unwrap(), (1, 5));
    first.assert_ordered_once("a").await;
}

async fn waits_for_the_commit<S: Orders>(first: &Arc<Shop<S>>, second: &Arc<Shop<S>>) {
    let (gate, calls) = held(first, Then::Meet).await;
    let (answer, source) = wait_for(first, second, &gate).await;
    assert_eq!(answer.unwrap(), (1, 5, String::new()));
    assert_eq!(source, ResultSource::Waited);
    assert_eq!(calls.join_all().await.remove(0).unwrap(), (1, 5));
    first.assert_ordered_once("a").await;
}

async fn goes_on_after_a_rollback<S: Orders>(first: &Arc<Shop<S>>, second: &Arc<Shop<S>>) {
    let (gate, calls) = held(first, Then::MeetAndFail).await;
    let (answer, source) = wait_for(first, second, &gate).await;
    assert_eq!(answer.unwrap(), (1, 5, String::new()));
    assert_eq!(source, ResultSource::Executed);
    calls.join_all().await.remove(0).unwrap_err();
    first.assert_ordered_once("a").await;
}

async fn a_duplicate_gets_in_flight_immediately<S: Orders>(shop: Arc<Shop<S>>) {
    told_at_once(&shop, &shop).await;
}

async fn another_process_gets_in_flight_immediately<S: Orders>(shop: Arc<Shop<S>>) {
    told_at_once(&shop, &shop.elsewhere()).await;
}

async fn a_duplicate_waits_for_the_commit<S: Orders>(shop: Arc<Shop<S>>) {
    waits_for_the_commit(&shop, &shop).await;
}

async fn another_process_waits_for_the_commit<S: Orders>(shop: Arc<Shop<S>>) {
    waits_for_the_commit(&shop, &shop.elsewhere()).await;
}

async fn a_duplicate_runs_if_the_first_is_rolled_back<S: Orders>(shop: Arc<Shop<S>>) {
    goes_on_after_a_rollback(&shop, &shop).await;
}

async fn another_process_runs_if_the_first_is_rolled_back<S: Orders>(shop: Arc<Shop<S>>) {
    goes_on_after_a_rollback(&shop, &shop.elsewhere()).await;
}

async fn another_request_with_the_key_is_refused<S: Orders>(shop: Arc<Shop<S>>) {
    let (gate, calls) = held(&shop, Then::Meet).await;
    let error = idempotency(order(&shop, "a", 6, Then::Succeed).await);
    assert!(matches!(error, Error::KeyReused), "{error:?}");
    gate.open();
    calls.join_all().await.remove(0).unwrap();
}

/// Makes leased calls with the key of a transactional call in its body, and with other keys. Only those wait for it.
async fn leased_calls_wait<S: Orders>(shop: &Arc<Shop<S>>, then: fn(Arc<Gate>) -> Then) {
    const OTHERS: usize = 20;
    let (gate, calls) = held(shop, then).await;
    // On the same handle, a duplicate without a wait gets `InFlight`.
    let elsewhere = [shop.elsewhere(), shop.elsewhere()];
    let mut duplicates = JoinSet::new();
    for shop in &elsewhere {
        let idem = shop.idem.clone();
        let call = async move { with_provenance(order_leased(&idem, "a", 5, false)).await };
        duplicates.spawn(call);
    }
    let other = |number: usize| {
        let shop = &elsewhere[number % 2];
        async move { order_leased(&shop.idem, &format!("other {number}"), 5, false).await }
    };
    for answer in join_all((0..OTHERS).map(other)).await {
        answer.unwrap();
    }
    // Long enough for a claim that waits for nothing.
    tokio::time::timeout(Duration::from_millis(300), duplicates.join_next())
        .await
        .expect_err("the transaction holds the record");
    gate.open();
    let runs = calls.join_all().await.remove(0).is_err();
    let mut executed = 0;
    for (answer, provenance) in duplicates.join_all().await {
        match answer {
            Ok(answer) => assert_eq!(answer, (1, 5, String::new())),
            // The other one runs at this moment.
            Err(_) => assert_in_flight(answer),
        }
        executed += usize::from(provenance.is_some_and(|it| it.source == ResultSource::Executed));
    }
    assert_eq!(executed, usize::from(runs));
    assert_eq!(shop.orders("a").await, i64::from(!runs));
    assert_eq!(
        shop.record("a").await.unwrap().state,
        RecordState::Completed
    );
}

async fn a_leased_call_waits_for_the_commit<S: Orders>(shop: Arc<Shop<S>>) {
    leased_calls_wait(&shop, Then::Meet).await;
}

async fn a_leased_call_runs_if_the_transaction_is_rolled_back<S: Orders>(shop: Arc<Shop<S>>) {
    leased_calls_wait(&shop, Then::MeetAndFail).await;
}

/// A transaction that locks one record locks no other.
async fn calls_with_other_keys_run_concurrently<S: Orders>(shop: Arc<Shop<S>>) {
    let (gate, calls) = held(&shop, Then::Meet).await;
    for key in ["b", "c", "d", "e", "f", "g", "h", "i"] {
        order(&shop, key, 5, Then::Succeed).await.unwrap();
        order(&shop.elsewhere(), key, 5, Then::Panic).await.unwrap();
    }
    gate.open();
    calls.join_all().await.remove(0).unwrap();
}

/// A purge may have to wait for the transaction; claims must not have to wait for the purge.
async fn a_concurrent_purge_does_not_block_claims<S: Orders>(shop: Arc<Shop<S>>) {
    // An expired record is due in the purge.
    let run = async |call| shop.idem.run(call, async || Ok::<_, Error>(())).await;
    run(Call::new("shop.other", "expired", &(), LONG))
        .await
        .unwrap();
    S::any(&shop.database.pool).expire("expired").await.unwrap();
    let (gate, calls) = held(&shop, Then::Meet).await;
    let purging = tokio::spawn({
        let shop = Arc::clone(&shop);
        async move {
            while !matches!(shop.idem.store().purge(10, Timestamp::MAX).await, Ok(purged) if purged.removed > 0)
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    });
    // Long enough for the purge to finish, or to wait for its lock.
    tokio::time::sleep(Duration::from_millis(300)).await;
    run(Call::new("shop.other", "leased", &(), LONG))
        .await
        .unwrap();
    order(&shop, "b", 5, Then::Succeed).await.unwrap();
    gate.open();
    calls.join_all().await.remove(0).unwrap();
    tokio::time::timeout(LONG, purging).await.unwrap().unwrap();
}
