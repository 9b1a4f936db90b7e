//! Record and effect after each way in which a body can end.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::thread;

use futures_util::FutureExt as _;
use idem_runtime::Error;
use idem_runtime::advanced::{ResultSource, with_provenance};
use idem_runtime::record::RecordState;
use idem_tests::on_stores;
use tokio::runtime::Builder;

use super::places::Orders;
use super::{Failure, Gate, Shop, Then, drop_half_way, idempotency, order, order_at_last};
use crate::records::end_lease;

on_stores! { [transactions] Shop::open:
    effect_and_record_are_committed_together,
    a_replay_runs_nothing,
    a_reused_key_is_an_error_and_changes_nothing,
    an_error_rolls_back,
    a_final_error_is_stored_without_the_effects_of_the_body,
    a_panic_rolls_back,
    a_dropped_call_rolls_back,
    a_call_that_is_dropped_after_its_runtime_rolls_back,
    an_ignored_database_error_commits_the_rest_or_nothing,
    a_call_whose_result_is_too_large_is_not_run_again,
    a_released_record_is_claimed,
    a_lapsed_record_is_taken_over,
}

/// A separate module, because the modules have the names of stores.
mod servers {
    use super::*;

    on_stores! { [transactions server] Shop::open: a_lost_connection_rolls_back }
}

async fn effect_and_record_are_committed_together<S: Orders>(shop: Arc<Shop<S>>) {
    assert_eq!(order(&shop, "a", 5, Then::Succeed).await.unwrap(), (1, 5));
    shop.assert_ordered_once("a").await;
}

async fn a_replay_runs_nothing<S: Orders>(shop: Arc<Shop<S>>) {
    order(&shop, "a", 5, Then::Succeed).await.unwrap();
    for shop in [&shop, &shop.elsewhere()] {
        let (answer, provenance) = with_provenance(order(shop, "a", 5, Then::Panic)).await;
        assert_eq!(answer.unwrap(), (1, 5));
        assert_eq!(provenance.unwrap().source, ResultSource::Replayed);
    }
    shop.assert_ordered_once("a").await;
}

async fn a_reused_key_is_an_error_and_changes_nothing<S: Orders>(shop: Arc<Shop<S>>) {
    order(&shop, "a", 5, Then::Succeed).await.unwrap();
    let error = idempotency(order(&shop, "a", 6, Then::Succeed).await);
    assert!(matches!(error, Error::KeyReused), "{error:?}");
    shop.assert_ordered_once("a").await;
}

async fn an_error_rolls_back<S: Orders>(shop: Arc<Shop<S>>) {
    let error = order(&shop, "a", 5, Then::Fail).await.unwrap_err();
    assert!(matches!(error, Failure::OutOfStock), "{error:?}");
    shop.assert_untouched("a").await;
    // As if the call had never been made: even the attempt is the first.
    assert_eq!(order(&shop, "a", 5, Then::Succeed).await.unwrap(), (1, 5));
    shop.assert_ordered_once("a").await;
}

async fn a_final_error_is_stored_without_the_effects_of_the_body<S: Orders>(shop: Arc<Shop<S>>) {
    for then in [Then::Decline, Then::Succeed] {
        let error = order(&shop, "a", 5, then).await.unwrap_err();
        assert!(
            matches!(&error, Failure::Declined(why) if why == "no money"),
            "{error:?}"
        );
    }
    assert_eq!(shop.orders("a").await, 0);
    assert_eq!(shop.record("a").await.unwrap().state, RecordState::Failed);
}

async fn a_panic_rolls_back<S: Orders>(shop: Arc<Shop<S>>) {
    let call = AssertUnwindSafe(order(&shop, "a", 5, Then::Panic));
    assert!(call.catch_unwind().await.is_err());
    assert_eq!(order_at_last(&shop, "a", 5).await, (1, 5));
    shop.assert_ordered_once("a").await;
}

async fn a_dropped_call_rolls_back<S: Orders>(shop: Arc<Shop<S>>) {
    drop_half_way(&shop, "a", 5).await;
    assert_eq!(order_at_last(&shop, "a", 5).await, (1, 5));
    shop.assert_ordered_once("a").await;
}

/// There, nothing can be spawned, and the connection is closed.
async fn a_call_that_is_dropped_after_its_runtime_rolls_back<S: Orders>(shop: Arc<Shop<S>>) {
    let elsewhere = Arc::clone(&shop);
    let dropped = tokio::task::spawn_blocking(|| {
        let dropping = thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            let (gate, then) = Gate::held();
            let mut call = Box::pin(order(&elsewhere, "a", 5, then));
            runtime.block_on(async {
                tokio::select! {
                    answer = &mut call => panic!("the gate is closed: {answer:?}"),
                    () = gate.entered() => {}
                }
            });
            drop(runtime);
            drop(call);
        });
        dropping.join().unwrap();
    });
    dropped.await.unwrap();
    assert_eq!(order_at_last(&shop, "a", 5).await, (1, 5));
    shop.assert_ordered_once("a").await;
}

async fn a_lost_connection_rolls_back<S: Orders>(shop: Arc<Shop<S>>) {
    // The body does not notice; the store does when it writes the result.
    idempotency(order(&shop, "a", 5, Then::CutOff).await);
    shop.assert_untouched("a").await;
    assert_eq!(order_at_last(&shop, "a", 5).await, (1, 5));
    shop.assert_ordered_once("a").await;
}

async fn an_ignored_database_error_commits_the_rest_or_nothing<S: Orders>(shop: Arc<Shop<S>>) {
    match order(&shop, "a", 5, Then::Swallow).await {
        // Where an error rolls back only its own statement, the rest of the body is committed.
        Ok(answer) => assert_eq!(answer, (1, 5)),
        // PostgreSQL refuses to commit such a transaction, and returns an error.
        Err(error) => {
            idempotency::<()>(Err(error));
            shop.assert_untouched("a").await;
            order(&shop, "a", 5, Then::Succeed).await.unwrap();
        }
    }
    shop.assert_ordered_once("a").await;
}

async fn a_call_whose_result_is_too_large_is_not_run_again<S: Orders>(shop: Arc<Shop<S>>) {
    assert_eq!(order(&shop, "a", 5, Then::Boast).await.unwrap(), (1, 5));
    assert_eq!(
        shop.record("a").await.unwrap().state,
        RecordState::Unrecorded
    );
    let error = idempotency(order(&shop, "a", 5, Then::Succeed).await);
    assert!(matches!(error, Error::Unrecorded), "{error:?}");
    assert_eq!(shop.orders("a").await, 1);
}

/// The function used leases before it became transactional.
async fn a_released_record_is_claimed<S: Orders>(shop: Arc<Shop<S>>) {
    let leased = super::refusals::order_leased(&shop.idem, "a", 5, true).await;
    assert!(matches!(leased, Err(Failure::OutOfStock)));
    assert_eq!(shop.record("a").await.unwrap().state, RecordState::Released);
    order(&shop, "a", 5, Then::Fail).await.unwrap_err();
    assert_eq!(shop.record("a").await.unwrap().state, RecordState::Released);
    assert_eq!(order(&shop, "a", 5, Then::Succeed).await.unwrap(), (2, 5));
    shop.assert_ordered_once("a").await;
}

async fn a_lapsed_record_is_taken_over<S: Orders>(shop: Arc<Shop<S>>) {
    let gate = Gate::new();
    tokio::select! {
        answer = super::joining::order_leased(&shop.idem, &gate, "a", 5) => panic!("its body hangs: {answer:?}"),
        () = gate.entered() => {}
    }
    end_lease(shop.idem.store(), &shop.record("a").await.unwrap())
        .await
        .unwrap();
    assert_eq!(order(&shop, "a", 5, Then::Succeed).await.unwrap(), (2, 5));
    shop.assert_ordered_once("a").await;
}
