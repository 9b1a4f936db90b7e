//! Calls in a body that would wait for the transaction of that body: they are refused.

use std::sync::Arc;
use std::time::Duration;

use idem_runtime::advanced::RunOptions;
use idem_runtime::error::InvalidCall;
use idem_runtime::{Call, Error, Idem, MemoryStore, Store, idempotent};
use idem_tests::on_stores;

use super::places::Orders;
use super::{Failure, OPERATION, Shop};

on_stores! { [transactions] Shop::open:
    a_leased_call_in_the_body_is_refused,
    another_transaction_in_the_body_is_refused,
    a_call_on_another_store_in_the_body_is_allowed,
    a_call_in_the_body_does_not_join_with_the_same_key,
    options_for_crashes_are_refused,
}

/// Makes an order without a transaction.
#[idempotent(key = key, ttl = "1h", name = OPERATION, store = idem, skip(fail))]
pub(super) async fn order_leased<S: Store>(
    idem: &Idem<S>,
    key: &str,
    amount: i64,
    fail: bool,
) -> Result<(u32, i64, String), Failure> {
    if fail {
        return Err(Failure::OutOfStock);
    }
    Ok((1, amount, String::new()))
}

fn call(key: &str) -> Call {
    Call::new("outer", key, "request", Duration::from_secs(60))
}

fn assert_inside<T: std::fmt::Debug>(answer: Result<T, Failure>) {
    let error = super::idempotency(answer);
    assert!(
        matches!(error, Error::InvalidCall(InvalidCall::InsideTransaction)),
        "{error:?}"
    );
}

async fn a_leased_call_in_the_body_is_refused<S: Orders>(shop: Arc<Shop<S>>) {
    let answer: Result<u64, Failure> = shop
        .idem
        .run_in_transaction(call("a"), RunOptions::new(), async |_, _| {
            assert_inside(order_leased(&shop.idem, "b", 5, false).await);
            // The refusal applies after the first poll too.
            tokio::task::yield_now().await;
            assert_inside(order_leased(&shop.idem.clone(), "b", 5, false).await);
            Ok(1)
        })
        .await;
    assert_eq!(answer.unwrap(), 1);
    // Outside of the body the call is allowed, also on the same thread while a body waits.
    order_leased(&shop.idem, "b", 5, false).await.unwrap();
}

async fn another_transaction_in_the_body_is_refused<S: Orders>(shop: Arc<Shop<S>>) {
    let answer: Result<u64, Failure> = shop
        .idem
        .run_in_transaction(call("a"), RunOptions::new(), async |_, _| {
            assert_inside(super::order(&shop, "b", 5, super::Then::Succeed).await);
            Err(Failure::OutOfStock)
        })
        .await;
    assert!(matches!(answer, Err(Failure::OutOfStock)));
    shop.assert_untouched("b").await;
}

async fn a_call_on_another_store_in_the_body_is_allowed<S: Orders>(shop: Arc<Shop<S>>) {
    let other = Idem::new(MemoryStore::new());
    let answer: Result<i64, Failure> = shop
        .idem
        .run_in_transaction(call("a"), RunOptions::new(), async |_, _| {
            let (_, amount, _) = order_leased(&other, "b", 5, false).await?;
            Ok(amount)
        })
        .await;
    assert_eq!(answer.unwrap(), 5);
}

/// Neither on the same handle, which refuses it, nor on another one. There the database may find it only when the outer call
/// ends, and nothing is left.
async fn a_call_in_the_body_does_not_join_with_the_same_key<S: Orders>(shop: Arc<Shop<S>>) {
    for (key, inner) in [("a", Arc::clone(&shop)), ("b", shop.elsewhere())] {
        let options = RunOptions::new();
        let body = async |tx: &mut S::Connection, _| {
            S::order(tx, key, 5).await?;
            let nested = async |tx: &mut S::Connection, _| {
                S::order(tx, key, 5).await?;
                Ok::<u64, Failure>(2)
            };
            let nested = inner
                .idem
                .join_transaction(tx, call(key), RunOptions::new(), nested);
            let nested = nested.await;
            let is_refused = matches!(
                nested,
                Err(Failure::Idempotency(Error::InvalidCall(
                    InvalidCall::OwnKey
                )))
            );
            assert_eq!(is_refused, key == "a", "{nested:?}");
            Ok::<u64, Failure>(1)
        };
        let answer = shop.idem.run_in_transaction(call(key), options, body).await;
        assert!(answer.is_ok() || key == "b", "{answer:?}");
        assert_eq!(
            shop.orders(key).await,
            i64::from(answer.is_ok()),
            "{answer:?}"
        );
    }
}

async fn options_for_crashes_are_refused<S: Orders>(shop: Arc<Shop<S>>) {
    let handlings: [(Call, RunOptions<'_, u64, Failure>); 5] = [
        (call("a").lease(Duration::from_secs(60)), RunOptions::new()),
        (
            call("a").on_crash(idem_runtime::OnCrash::Refuse),
            RunOptions::new(),
        ),
        (call("a").run_on_store_error(), RunOptions::new()),
        (call("a"), RunOptions::new().release_err(|_| true)),
        (
            call("a"),
            RunOptions::new().reconcile(async |_| Ok(idem_runtime::Reconciled::Unknown)),
        ),
    ];
    for (call, handling) in handlings {
        let answer = shop
            .idem
            .run_in_transaction(call, handling, async |_, _| Ok(1))
            .await;
        let error = super::idempotency(answer);
        assert!(
            matches!(error, Error::InvalidCall(InvalidCall::NotTransactional(_))),
            "{error:?}"
        );
    }
}
