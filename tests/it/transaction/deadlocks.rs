//! Two transactions lock two rows in opposite order: the database rolls one of them back, and its key is free.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use idem_runtime::advanced::RunOptions;
use idem_runtime::{Call, Error};
use idem_tests::on_stores;
use tokio::sync::Barrier;

use super::places::Orders;
use super::{Failure, OPERATION, Shop};

on_stores! { [transactions server] Shop::open:
    the_victim_of_a_deadlock_is_rolled_back_with_its_claim,
    a_transaction_that_ignored_a_deadlock_is_not_committed,
}

/// Changes one row, waits for the call that changes the rows in the opposite order, and then changes the other row. The
/// body of the victim returns the database's error, or swallows it.
async fn crosswise<S: Orders>(
    shop: &Shop<S>,
    key: &str,
    rows: [&str; 2],
    together: Option<&Barrier>,
    swallow: bool,
) -> Result<u64, Failure> {
    let call = Call::new(OPERATION, key, "request", Duration::from_secs(600));
    let body = async |tx: &mut S::Connection, _| {
        S::order(tx, key, 5).await?;
        S::add(tx, rows[0]).await?;
        if let Some(together) = together {
            together.wait().await;
        }
        match S::add(tx, rows[1]).await {
            Err(error) if !swallow => Err(error.into()),
            _ => Ok(1),
        }
    };
    shop.idem
        .run_in_transaction(call, RunOptions::new(), body)
        .await
}

/// Key of the victim, and its error.
async fn deadlock<S: Orders>(shop: &Shop<S>, swallow: bool) -> (&'static str, Failure) {
    for row in ["left", "right"] {
        super::order(shop, row, 1, super::Then::Succeed)
            .await
            .unwrap();
    }
    // Without a unique index MySQL would lock all rows instead of one.
    shop.database.make_ids_unique().await;
    let together = Barrier::new(2);
    let (a, b) = join(
        crosswise(shop, "a", ["left", "right"], Some(&together), swallow),
        crosswise(shop, "b", ["right", "left"], Some(&together), swallow),
    )
    .await;
    match (a, b) {
        (Err(lost), Ok(1)) => ("a", lost),
        (Ok(1), Err(lost)) => ("b", lost),
        both => panic!("the database ends one of them: {both:?}"),
    }
}

/// Asserts that the other call is committed, and that the victim can try again.
async fn is_free<S: Orders>(shop: &Shop<S>, victim: &str) {
    shop.assert_untouched(victim).await;
    let other = if victim == "a" { "b" } else { "a" };
    shop.assert_ordered_once(other).await;
    let rows = ["left", "right"];
    let again = crosswise(shop, victim, rows, None, false).await;
    assert_eq!(again.unwrap(), 1);
    shop.assert_ordered_once(victim).await;
}

async fn the_victim_of_a_deadlock_is_rolled_back_with_its_claim<S: Orders>(shop: Arc<Shop<S>>) {
    let (victim, error) = deadlock(&shop, false).await;
    // The victim's own statement was the one that failed.
    assert!(matches!(&error, Failure::Database(_)), "{error:?}");
    is_free(&shop, victim).await;
}

/// A body that ignores the deadlock cannot commit half of its work.
async fn a_transaction_that_ignored_a_deadlock_is_not_committed<S: Orders>(shop: Arc<Shop<S>>) {
    let (victim, error) = deadlock(&shop, true).await;
    let Failure::Idempotency(error) = error else {
        panic!("{error:?}");
    };
    assert!(
        matches!(error, Error::LeaseLost | Error::Store(_)),
        "{error:?}"
    );
    is_free(&shop, victim).await;
}
