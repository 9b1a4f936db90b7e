//! `step_tx`: a step of a leased call whose effect and record are committed together.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use idem_runtime::advanced::RunOptions;
use idem_runtime::error::InvalidCall;
use idem_runtime::record::{Owner, RecordState};
use idem_runtime::store::FencedWrite;
use idem_runtime::{Attempt, Call, Error, idempotent};
use idem_tests::on_stores;

use super::places::Orders;
use super::refusals::order_leased;
use super::{Failure, Gate, OPERATION, Shop, idempotency};

on_stores! { [transactions] Shop::open:
    a_step_that_is_committed_is_not_run_again,
    an_annotated_call_can_use_transactional_steps_in_tasks,
    a_step_that_fails_is_rolled_back_and_may_run_again,
    a_panic_rolls_the_step_back,
    a_dropped_step_is_rolled_back_and_may_run_again,
    a_step_of_a_lost_record_is_rolled_back,
    a_result_that_cannot_be_stored_rolls_the_step_back,
    another_handle_is_refused,
    calls_that_could_wait_for_the_step_are_refused,
    a_transactional_call_has_no_transactional_steps,
    names_are_shared_with_steps_outside_of_transactions,
}

mod lost_meanwhile {
    use super::*;

    on_stores! { [transactions server] Shop::open:
        a_step_that_lost_its_record_while_it_ran_is_rolled_back,
    }

    async fn a_step_that_lost_its_record_while_it_ran_is_rolled_back<S: Orders>(
        shop: Arc<Shop<S>>,
    ) {
        let answer = shop
            .run("a", async |attempt| {
                let step = attempt.step_tx(&shop.idem, "order", async |tx| {
                    S::order(tx, "a", 5).await?;
                    shop.take_away("a").await;
                    Ok::<_, Failure>(1)
                });
                step.await
            })
            .await;
        assert!(matches!(idempotency(answer), Error::LeaseLost));
        assert_eq!(shop.orders("a").await, 0);
    }
}

fn call(key: &str) -> Call {
    // A call that waited for a lease in these tests would never return.
    Call::new(OPERATION, key, &5, Duration::from_secs(600)).lease(Duration::from_secs(600))
}

impl<S: Orders> Shop<S> {
    async fn run(
        &self,
        key: &str,
        body: impl AsyncFnOnce(Attempt) -> Result<u64, Failure>,
    ) -> Result<u64, Failure> {
        self.idem.run_with(call(key), RunOptions::new(), body).await
    }

    /// Runs the usual step.
    async fn step(&self, attempt: &Attempt, key: &str) -> Result<u64, Failure> {
        let step = attempt.step_tx(&self.idem, "order", async |tx| {
            S::order(tx, key, 5).await?;
            Ok(7)
        });
        step.await
    }

    /// Releases the record with the owner's tokens. The owner does not know.
    async fn take_away(&self, key: &str) {
        let record = self.record(key).await.unwrap();
        let owner = Owner {
            id: record.id,
            claim_id: record.claim_id.unwrap(),
            fencing_token: record.fencing_token,
        };
        let released = self.idem.store().release(&owner).await;
        assert_eq!(released.unwrap(), FencedWrite::Applied);
    }
}

async fn a_step_that_is_committed_is_not_run_again<S: Orders>(shop: Arc<Shop<S>>) {
    let failed = shop.run("a", async |attempt| {
        assert_eq!(shop.step(&attempt, "a").await?, 7);
        // The step is committed before the call ends.
        assert_eq!(shop.orders("a").await, 1);
        Err(Failure::OutOfStock)
    });
    assert!(matches!(failed.await, Err(Failure::OutOfStock)));

    let again = shop.run("a", async |attempt| {
        assert_eq!(attempt.number(), 2);
        let step = attempt.step_tx(&shop.idem, "order", async |_| -> Result<u64, Failure> {
            panic!("it is done")
        });
        step.await
    });
    assert_eq!(again.await.unwrap(), 7);
    shop.assert_ordered_once("a").await;
}

#[idempotent(key = key, ttl = "1h", name = "shop.checkout", store = shop.idem, attempt = attempt, skip(shop))]
async fn checkout<S: Orders>(shop: Arc<Shop<S>>, key: String) -> Result<u64, Failure> {
    let number = attempt
        .step_tx(&shop.idem, "order", async |tx: &mut S::Connection| {
            S::order(tx, &key, 5).await?;
            S::order(&mut *tx, &key, 6).await?;
            Ok::<_, Failure>(7)
        })
        .await?;
    attempt.step("mail", async || Ok(number + 1)).await
}

async fn an_annotated_call_can_use_transactional_steps_in_tasks<S: Orders>(shop: Arc<Shop<S>>) {
    for _ in 0..2 {
        let task = tokio::spawn(checkout(Arc::clone(&shop), "a".to_owned()));
        assert_eq!(task.await.unwrap().unwrap(), 8);
    }
    assert_eq!(shop.orders("a").await, 2);
}

async fn a_step_that_fails_is_rolled_back_and_may_run_again<S: Orders>(shop: Arc<Shop<S>>) {
    let answer = shop.run("a", async |attempt| {
        let failed = attempt.step_tx(&shop.idem, "order", async |tx| {
            S::order(tx, "a", 5).await?;
            Err::<u64, _>(Failure::OutOfStock)
        });
        assert!(matches!(failed.await, Err(Failure::OutOfStock)));
        assert_eq!(shop.orders("a").await, 0);
        // A statement that the database rejects rolls the step back, too.
        let refused = attempt.step_tx(&shop.idem, "order", async |tx| {
            S::order(tx, "a", 5).await?;
            S::order_nothing(tx).await?;
            Ok::<u64, Failure>(1)
        });
        assert!(matches!(refused.await, Err(Failure::Database(_))));
        shop.step(&attempt, "a").await
    });
    assert_eq!(answer.await.unwrap(), 7);
    shop.assert_ordered_once("a").await;
}

async fn a_panic_rolls_the_step_back<S: Orders>(shop: Arc<Shop<S>>) {
    let answer = shop.run("a", async |attempt| {
        let step = attempt.step_tx(&shop.idem, "order", async |tx| -> Result<u64, Failure> {
            S::order(tx, "a", 5).await?;
            panic!("as asked")
        });
        AssertUnwindSafe(step).catch_unwind().await.unwrap_err();
        Err(Failure::OutOfStock)
    });
    assert!(matches!(answer.await, Err(Failure::OutOfStock)));
    shop.is_free_and_orders("a").await;
}

async fn a_dropped_step_is_rolled_back_and_may_run_again<S: Orders>(shop: Arc<Shop<S>>) {
    let gate = Gate::new();
    let answer = shop.run("a", async |attempt| {
        let step = attempt.step_tx(&shop.idem, "order", async |tx| {
            S::order(tx, "a", 5).await?;
            gate.pass().await;
            Ok::<u64, Failure>(1)
        });
        tokio::select! {
            _ = step => panic!("the gate is closed"),
            () = gate.entered() => {}
        }
        Err(Failure::OutOfStock)
    });
    assert!(matches!(answer.await, Err(Failure::OutOfStock)));
    shop.is_free_and_orders("a").await;
}

impl<S: Orders> Shop<S> {
    /// Asserts that nothing is unknown: the next call need not wait for the lease.
    async fn is_free_and_orders(&self, key: &str) {
        assert_eq!(self.record(key).await.unwrap().state, RecordState::Released);
        let again = self.run(key, async |attempt| self.step(&attempt, key).await);
        assert_eq!(again.await.unwrap(), 7);
        self.assert_ordered_once(key).await;
    }
}

async fn a_step_of_a_lost_record_is_rolled_back<S: Orders>(shop: Arc<Shop<S>>) {
    let answer = shop.run("a", async |attempt| {
        shop.take_away("a").await;
        let lost = shop.step(&attempt, "a").await;
        assert!(!attempt.is_live());
        lost
    });
    assert!(matches!(idempotency(answer.await), Error::LeaseLost));
    assert_eq!(shop.orders("a").await, 0);
    let again = shop.run("a", async |attempt| shop.step(&attempt, "a").await);
    assert_eq!(again.await.unwrap(), 7);
    shop.assert_ordered_once("a").await;
}

async fn a_result_that_cannot_be_stored_rolls_the_step_back<S: Orders>(shop: Arc<Shop<S>>) {
    let answer = shop.run("a", async |attempt| {
        let step = attempt.step_tx(&shop.idem, "order", async |tx| {
            S::order(tx, "a", 5).await?;
            Ok::<_, Failure>("x".repeat(2 << 20))
        });
        let error = idempotency(step.await);
        assert!(
            matches!(&error, Error::InvalidCall(InvalidCall::StepResult { step, .. }) if step == "order"),
            "{error:?}"
        );
        assert_eq!(shop.orders("a").await, 0);
        shop.step(&attempt, "a").await
    });
    assert_eq!(answer.await.unwrap(), 7);
    shop.assert_ordered_once("a").await;
}

async fn another_handle_is_refused<S: Orders>(shop: Arc<Shop<S>>) {
    let elsewhere = shop.elsewhere();
    let answer = shop.run("a", async |attempt| {
        let error = idempotency(elsewhere.step(&attempt, "a").await);
        assert!(
            matches!(error, Error::InvalidCall(InvalidCall::OtherStore)),
            "{error:?}"
        );
        let clone = shop.idem.clone();
        let step = attempt.step_tx(&clone, "order", async |tx| {
            S::order(tx, "a", 5).await?;
            Ok::<_, Failure>(7)
        });
        step.await
    });
    assert_eq!(answer.await.unwrap(), 7);
    shop.assert_ordered_once("a").await;
}

fn assert_inside<T: std::fmt::Debug>(answer: Result<T, Error>) {
    let error = answer.unwrap_err();
    assert!(
        matches!(error, Error::InvalidCall(InvalidCall::InsideTransaction)),
        "{error:?}"
    );
}

async fn calls_that_could_wait_for_the_step_are_refused<S: Orders>(shop: Arc<Shop<S>>) {
    let answer = shop.run("a", async |attempt| {
        let step = attempt.step_tx(&shop.idem, "order", async |tx| {
            S::order(tx, "a", 5).await?;
            let leased = order_leased(&shop.idem, "b", 5, false).await;
            assert_inside(leased.map_err(|error| idempotency::<()>(Err(error))));
            assert_inside(attempt.step("mail", async || Ok(1)).await);
            let inner = attempt.step_tx(&shop.idem, "inner", async |_| Ok::<_, Error>(1));
            assert_inside(inner.await);
            assert_inside(attempt.renew().await);
            Ok::<u64, Failure>(7)
        });
        let value = step.await?;
        // After the step, all of them are allowed.
        attempt.renew().await?;
        attempt.step("mail", async || Ok(value)).await
    });
    assert_eq!(answer.await.unwrap(), 7);
    shop.assert_ordered_once("a").await;
    assert_eq!(shop.orders("b").await, 0);
}

async fn a_transactional_call_has_no_transactional_steps<S: Orders>(shop: Arc<Shop<S>>) {
    let call = Call::new(OPERATION, "a", &5, Duration::from_secs(600));
    let body = async |_: &mut S::Connection, attempt: Attempt| shop.step(&attempt, "a").await;
    let answer = shop.idem.run_in_transaction(call, RunOptions::new(), body);
    let error = idempotency(answer.await);
    assert!(
        matches!(
            error,
            Error::InvalidCall(InvalidCall::NotTransactional("step_tx"))
        ),
        "{error:?}"
    );
    shop.assert_untouched("a").await;
}

async fn names_are_shared_with_steps_outside_of_transactions<S: Orders>(shop: Arc<Shop<S>>) {
    let answer = shop.run("a", async |attempt| {
        attempt
            .step("order", async || Ok::<u64, Failure>(7))
            .await?;
        let error = idempotency(shop.step(&attempt, "a").await);
        assert!(
            matches!(error, Error::InvalidCall(InvalidCall::StepReused(_))),
            "{error:?}"
        );
        Err(Failure::OutOfStock)
    });
    assert!(matches!(answer.await, Err(Failure::OutOfStock)));
    // A step with a transaction gets the value that a step without one has saved.
    let again = shop.run("a", async |attempt| shop.step(&attempt, "a").await);
    assert_eq!(again.await.unwrap(), 7);
    assert_eq!(shop.orders("a").await, 0);
}
