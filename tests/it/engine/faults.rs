//! Stores that fail or hang, before or after they have acted, at each store operation of a call.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use idem_runtime::advanced::RunOptions;
use idem_runtime::conformance::faults::{Fault, FaultStore, Gate, Op};
use idem_runtime::error::StoreErrorKind;
use idem_runtime::policy::OnStoreError;
use idem_runtime::record::{Record, RecordState};
use idem_runtime::{Error, Idem, MemoryStore, OnCrash};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Effects, Failure, LEASE, call, refusal};

type Faults = FaultStore<MemoryStore>;

fn faulty() -> (Idem<Faults>, Faults) {
    let faults = FaultStore::new(MemoryStore::new());
    (Idem::new(faults.clone()), faults)
}

/// Another service on the same records, with a working store.
fn healthy(faults: &Faults) -> Idem<Arc<dyn idem_runtime::Store>> {
    Idem::new(Arc::new(FaultStore::clone(faults)) as Arc<dyn idem_runtime::Store>)
}

async fn record(faults: &Faults) -> Option<Record> {
    let call = Idem::new(faults.clone());
    let found = call.records().find("test.operation", "k").await;
    found.unwrap()
}

/// Lets background work finish that waits only for the store.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_repeated_after_a_lost_acknowledgement() {
    for lose in [FaultStore::fail_after, FaultStore::hang_after] {
        let ((idem, faults), effects) = (faulty(), Effects::default());
        lose(&faults, Op::Claim, 1);
        assert_eq!(effects.run(&idem, call("k", 1)).await.unwrap(), 1);
        assert_eq!(
            record(&faults).await.unwrap().attempt,
            1,
            "one claim, not two"
        );
        assert_eq!(faults.count(Op::Claim), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_takeover_is_repeated_after_a_lost_acknowledgement() {
    let ((idem, faults), effects) = (faulty(), Effects::default());
    let mut dead = Box::pin(idem.run(call("k", 1), async || -> Result<u32, Failure> {
        std::future::pending().await
    }));
    assert!(dead.as_mut().now_or_never().is_none());
    drop(dead);
    tokio::time::advance(LEASE).await;
    faults.fail_after(Op::TakeOver, 2);
    assert_eq!(effects.run(&idem, call("k", 1)).await.unwrap(), 1);
    assert_eq!(record(&faults).await.unwrap().attempt, 2);
}

#[tokio::test(start_paused = true)]
async fn without_a_claim_nothing_runs() {
    let ((idem, faults), effects) = (faulty(), Effects::default());
    faults.outage();
    let started = Instant::now();
    let Error::Store(error) = refusal(effects.run(&idem, call("k", 1)).await) else {
        panic!("expected a store error");
    };
    assert_eq!(
        (error.kind(), effects.count()),
        (StoreErrorKind::Unavailable, 0)
    );
    assert!(started.elapsed() <= idem.policy().store_patience);

    // Retries do not help against an error that is not transient.
    faults.reset();
    faults.next(Op::Claim, Fault::FailBefore(StoreErrorKind::Schema));
    let Error::Store(error) = refusal(effects.run(&idem, call("k", 1)).await) else {
        panic!("expected a store error");
    };
    assert_eq!(
        (error.kind(), faults.count(Op::Claim)),
        (StoreErrorKind::Schema, 1)
    );
    assert!(
        effects.run(&idem, call("k", 1)).await.is_ok(),
        "the key is free"
    );
}

#[tokio::test(start_paused = true)]
async fn a_hanging_store_is_a_timeout_and_its_late_claim_is_released() {
    for on_crash in [OnCrash::Rerun, OnCrash::Refuse] {
        let ((idem, faults), effects) = (faulty(), Effects::default());
        faults.always(Op::Claim, Fault::HangAfter);
        let call = || call("k", 1).on_crash(on_crash);
        let Error::Store(error) = refusal(effects.run(&idem, call()).await) else {
            panic!("expected a store error");
        };
        assert_eq!(error.kind(), StoreErrorKind::Timeout);
        assert!(error.is_retryable());
        tokio::time::sleep(idem.policy().store_timeout).await;
        assert_eq!(record(&faults).await.unwrap().state, RecordState::Released);
        faults.reset();
        assert_eq!(effects.run(&idem, call()).await.unwrap(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_cancelled_while_it_claims_releases_its_claim() {
    let ((idem, faults), effects) = (faulty(), Effects::default());
    faults.hang_after(Op::Claim, 1);
    let mut cancelled = Box::pin(effects.run(&idem, call("k", 1).on_crash(OnCrash::Refuse)));
    assert!(cancelled.as_mut().now_or_never().is_none());
    assert_eq!(record(&faults).await.unwrap().state, RecordState::Running);
    drop(cancelled);
    tokio::time::sleep(idem.policy().store_timeout).await;
    assert_eq!(record(&faults).await.unwrap().state, RecordState::Released);
    assert_eq!(effects.run(&idem, call("k", 1)).await.unwrap(), 1);
}

/// The read that looks for the claim must not overtake it: the claim takes effect after its caller was dropped.
#[tokio::test(start_paused = true)]
async fn a_claim_that_takes_effect_after_its_caller_left_is_released() {
    for late in [Duration::ZERO, Duration::from_secs(1), LEASE / 2] {
        let ((idem, faults), effects) = (faulty(), Effects::default());
        let gate = faults.hold_before(Op::Claim);
        let call = || call("k", 1).on_crash(OnCrash::Refuse);
        let mut cancelled = Box::pin(effects.run(&idem, call()));
        assert!(cancelled.as_mut().now_or_never().is_none());
        drop(cancelled);
        tokio::time::sleep(late).await;
        assert_eq!(record(&faults).await.map(|it| it.state), None);
        gate.open();
        settle().await;
        assert_eq!(record(&faults).await.unwrap().state, RecordState::Released);
        assert_eq!(effects.run(&idem, call()).await.unwrap(), 1);
    }
}

/// The claim takes effect, its answer is lost, and the store fails for longer than the lease.
#[tokio::test(start_paused = true)]
async fn an_abandoned_claim_is_released_after_an_outage_longer_than_its_lease() {
    let ((idem, faults), effects) = (faulty(), Effects::default());
    let _never_opened = faults.hold_after(Op::Claim);
    let call = || call("k", 1).on_crash(OnCrash::Refuse);
    let mut cancelled = Box::pin(effects.run(&idem, call()));
    assert!(cancelled.as_mut().now_or_never().is_none());
    drop(cancelled);
    for op in [Op::Get, Op::Release] {
        faults.always(op, Fault::FailBefore(StoreErrorKind::Unavailable));
    }
    tokio::time::sleep(LEASE * 3 / 2).await;
    for op in [Op::Get, Op::Release] {
        faults.always(op, Fault::None);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(record(&faults).await.unwrap().state, RecordState::Released);
    assert_eq!(effects.run(&idem, call()).await.unwrap(), 1);
}

/// A claim request times out. The next request is granted, its call ends and releases the key, and only then is the
/// first request granted.
#[tokio::test(start_paused = true)]
async fn a_late_claim_that_is_granted_after_its_call_ended_is_released() {
    let ((idem, faults), effects) = (faulty(), Effects::default());
    let gate = faults.hold_before(Op::Claim);
    let failed = idem.run(call("k", 1), async || Err::<u32, _>(Failure::TimedOut));
    assert!(matches!(failed.await, Err(Failure::TimedOut)));
    assert_eq!(record(&faults).await.unwrap().state, RecordState::Released);
    gate.open();
    settle().await;
    assert_eq!(faults.count(Op::Release), 2);
    assert_eq!(record(&faults).await.unwrap().state, RecordState::Released);
    assert_eq!(effects.run(&idem, call("k", 1)).await.unwrap(), 1);
}

/// The body runs under the second request. The late answer to the first must not release the record.
#[tokio::test(start_paused = true)]
async fn a_late_claim_that_is_granted_while_the_body_runs_releases_nothing() {
    let ((idem, faults), effects) = (faulty(), Effects::default());
    let gate = faults.hold_before(Op::Claim);
    let result = idem.run(call("k", 1), async || {
        gate.open();
        settle().await;
        assert_eq!(record(&faults).await.unwrap().state, RecordState::Running);
        Ok::<_, Failure>(effects.happen())
    });
    assert_eq!(result.await.unwrap(), 1);
    assert_eq!(faults.count(Op::Release), 0);
}

/// A call waits for another process, and a claim request that it had given up is granted the key.
#[tokio::test(start_paused = true)]
async fn a_late_claim_that_is_granted_while_its_call_waits_is_used() {
    let ((idem, faults), effects) = (faulty(), Effects::default());
    let other = healthy(&faults);
    let (leave, left) = tokio::sync::oneshot::channel::<()>();
    let running = other.run(call("k", 1), async || {
        let _ = left.await;
        Err::<u32, _>(Failure::TimedOut)
    });
    let story = async {
        tokio::task::yield_now().await;
        // Given a claim request that takes too long, and a second one that finds the other call.
        let gate = faults.hold_before(Op::Claim);
        let waiting = effects.run(&idem, call("k", 1).wait(LEASE * 4));
        let opened = async {
            tokio::time::sleep(idem.policy().store_timeout * 2).await;
            // When the other call ends, and the first request takes effect before any other claim.
            let reads = faults.hold_before(Op::Get);
            reads.reached().await;
            leave.send(()).unwrap();
            settle().await;
            gate.open();
            settle().await;
            reads.open();
            Instant::now()
        };
        tokio::join!(waiting, opened)
    };
    let (failed, (waited, opened_at)) = tokio::join!(running, story);
    assert!(failed.is_err());
    assert_eq!(waited.unwrap(), 1);
    assert!(
        opened_at.elapsed() < LEASE / 2,
        "the call waits for its own claim"
    );
}

/// After a short wait, calls of one process that share the key of an abandoned claim ask the store themselves.
#[tokio::test(start_paused = true)]
async fn a_hanging_claim_whose_caller_left_does_not_block_its_key() {
    let ((idem, faults), effects) = (faulty(), Effects::default());
    faults.hang_before(Op::Claim, 1);
    let mut cancelled = Box::pin(effects.run(&idem, call("k", 1)));
    assert!(cancelled.as_mut().now_or_never().is_none());
    drop(cancelled);
    let started = Instant::now();
    assert_eq!(effects.run(&idem, call("k", 1)).await.unwrap(), 1);
    assert!(started.elapsed() < Duration::from_millis(500));
}

#[tokio::test(start_paused = true)]
async fn the_cleanup_of_failed_calls_rarely_reads_an_unreachable_store() {
    let ((idem, faults), effects) = (faulty(), Effects::default());
    faults.outage();
    let mut calls = JoinSet::new();
    for number in 0..500 {
        let (idem, effects) = (idem.clone(), effects.clone());
        calls.spawn(async move { effects.run(&idem, call(&number.to_string(), 1)).await });
    }
    for result in calls.join_all().await {
        assert!(matches!(refusal(result), Error::Store(_)));
    }
    let claims = faults.count(Op::Claim);
    let seconds = 2 * LEASE.as_secs();
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    assert_eq!(faults.count(Op::Claim), claims);
    let reads = faults.count(Op::Get);
    assert!(
        (1..=12 * seconds).contains(&reads),
        "{reads} reads for 500 failed calls"
    );
    assert_eq!(faults.count(Op::Release), 0);
}

/// A panic in a driver is a store error: the caller's task continues.
#[tokio::test(start_paused = true)]
async fn a_store_that_panics_is_an_error() {
    let ((idem, faults), effects) = (faulty(), Effects::default());
    faults.next(Op::Claim, Fault::Panic);
    assert_eq!(
        effects.run(&idem, call("k", 1)).await.unwrap(),
        1,
        "tried again"
    );
    faults.always(Op::Claim, Fault::Panic);
    let Error::Store(error) = refusal(effects.run(&idem, call("l", 1)).await) else {
        panic!("expected a store error");
    };
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert_eq!(effects.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn failing_open_is_an_opt_in_of_the_call_or_of_the_handle() {
    let ((idem, faults), effects) = (faulty(), Effects::default());
    faults.outage();
    let call = || call("k", 1);
    let unprotected = idem.run_with(call().run_on_store_error(), RunOptions::new(), async |it| {
        assert_eq!(it.fencing_token(), None);
        assert!(!it.is_live());
        assert!(matches!(it.renew().await, Err(Error::LeaseLost)));
        Ok::<_, Failure>(effects.happen())
    });
    assert_eq!(unprotected.await.unwrap(), 1);

    let open = Idem::builder(faults.clone())
        .on_store_error(OnStoreError::Run)
        .build();
    assert_eq!(effects.run(&open, call()).await.unwrap(), 2);
    assert!(matches!(
        refusal(effects.run(&idem, call()).await),
        Error::Store(_)
    ));
}

/// A conflict comes from a store that answers, and shows that others use the key.
#[tokio::test(start_paused = true)]
async fn no_body_runs_without_protection_because_of_conflicts() {
    let ((idem, faults), effects) = (faulty(), Effects::default());
    faults.always(Op::Claim, Fault::FailBefore(StoreErrorKind::Conflict));
    let refused = refusal(effects.run(&idem, call("k", 1).run_on_store_error()).await);
    assert!(
        matches!(&refused, Error::Store(error) if error.kind() == StoreErrorKind::Conflict),
        "{refused:?}"
    );
    assert_eq!(effects.count(), 0);
}

/// A release would free the key while the body runs.
#[tokio::test(start_paused = true)]
async fn a_claim_that_is_granted_to_a_body_without_protection_is_left_to_its_lease() {
    let ((idem, faults), effects) = (faulty(), Effects::default());
    let gate = Gate::new();
    faults.always(Op::Claim, Fault::HoldBefore(gate.clone()));
    let unprotected = idem.run(call("k", 1).run_on_store_error(), async || {
        assert!(record(&faults).await.is_none(), "no claim has arrived");
        gate.open();
        Ok::<_, Failure>(effects.happen())
    });
    assert_eq!(unprotected.await.unwrap(), 1);
    tokio::time::sleep(LEASE / 2).await;
    assert_eq!(record(&faults).await.unwrap().state, RecordState::Running);
    assert_eq!(faults.count(Op::Release), 0);
}

#[tokio::test(start_paused = true)]
async fn a_completion_is_repeated_after_a_lost_acknowledgement() {
    for lose in [FaultStore::fail_after, FaultStore::hang_after] {
        let ((idem, faults), effects) = (faulty(), Effects::default());
        lose(&faults, Op::Complete, 1);
        assert_eq!(effects.run(&idem, call("k", 1)).await.unwrap(), 1);
        assert_eq!(record(&faults).await.unwrap().state, RecordState::Completed);
        assert_eq!(effects.run(&idem, call("k", 1)).await.unwrap(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_completion_is_retried_in_the_background_during_an_outage() {
    let ((idem, faults), effects) = (faulty(), Effects::default());
    faults.always(Op::Complete, Fault::FailBefore(StoreErrorKind::Unavailable));
    let started = Instant::now();
    assert_eq!(
        effects.run(&idem, call("k", 1)).await.unwrap(),
        1,
        "its own value"
    );
    let patience = idem.policy().store_patience;
    assert!(started.elapsed() <= patience, "while its lease still held");
    assert_eq!(record(&faults).await.unwrap().state, RecordState::Running);

    tokio::time::sleep(Duration::from_secs(10)).await;
    faults.reset();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(record(&faults).await.unwrap().state, RecordState::Completed);
    assert_eq!(effects.run(&idem, call("k", 1)).await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_result_that_the_store_always_refuses_is_unrecorded_and_not_run_again() {
    let ((idem, faults), effects) = (faulty(), Effects::default());
    let patience = idem.policy().store_patience;
    // A full disk: the store refuses every write with a result, for longer than any caller waits.
    let refused = Fault::FailBefore(StoreErrorKind::Full);
    faults.always(Op::Complete, refused.clone());
    assert_eq!(effects.run(&idem, call("k", 1)).await.unwrap(), 1);
    tokio::time::sleep(patience).await;
    // From now on each round tries to store the result, and then that there is none; only the second write is small
    // enough.
    faults.reset();
    faults.next(Op::Complete, refused);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(
        record(&faults).await.unwrap().state,
        RecordState::Unrecorded
    );
    let again = refusal(effects.run(&idem, call("k", 1)).await);
    assert!(matches!(again, Error::Unrecorded), "{again:?}");
    assert_eq!(effects.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_not_given_a_result_that_may_be_unrecorded() {
    let ((idem, faults), effects) = (faulty(), Effects::default());
    let patience = idem.policy().store_patience;
    let refused = Fault::FailBefore(StoreErrorKind::Full);
    faults.always(Op::Complete, refused.clone());
    assert_eq!(effects.run(&idem, call("k", 1)).await.unwrap(), 1);
    tokio::time::sleep(patience).await;
    // The store refuses the result once more, and records that there is none. The acknowledgement of that is lost. It
    // then takes the result for a repetition.
    faults.reset();
    faults.next(Op::Complete, refused);
    faults.fail_after(Op::Complete, 1);
    let waiter = effects.run(&idem, call("k", 1).wait(LEASE));
    let waiter = refusal(waiter.await);
    assert!(matches!(waiter, Error::Unrecorded), "{waiter:?}");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(faults.count(Op::Complete), 3);
    assert_eq!(
        record(&faults).await.unwrap().state,
        RecordState::Unrecorded
    );
    assert_eq!(effects.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn failing_open_stops_at_a_record_that_cannot_be_read() {
    let ((idem, faults), effects) = (faulty(), Effects::default());
    faults.next(Op::Claim, Fault::FailBefore(StoreErrorKind::Corrupt));
    let refused = refusal(effects.run(&idem, call("k", 1).run_on_store_error()).await);
    assert!(matches!(refused, Error::Store(_)), "{refused:?}");
    assert_eq!(effects.count(), 0, "the key was used");
}

#[tokio::test(start_paused = true)]
async fn an_unrecorded_value_is_not_returned_after_the_lease() {
    let ((idem, faults), effects) = (faulty(), Effects::default());
    faults.always(Op::Complete, Fault::HangBefore);
    let lost = idem.run(call("k", 1), async || {
        // As in a process that was paused: no heartbeat runs.
        tokio::time::advance(LEASE + Duration::from_secs(1)).await;
        Ok::<_, Failure>(effects.happen())
    });
    assert!(matches!(refusal(lost.await), Error::LeaseLost));
}

#[tokio::test(start_paused = true)]
async fn a_caller_waits_for_the_store_no_longer_than_its_lease() {
    let store = Arc::new(FaultStore::new(MemoryStore::new()));
    let patience = 10 * LEASE;
    let builder = Idem::builder(store.clone()).store_patience(patience);
    let (idem, effects) = (builder.build(), Effects::default());
    for fault in [
        Fault::FailBefore(StoreErrorKind::Unavailable),
        Fault::HangBefore,
    ] {
        for op in [Op::Complete, Op::Renew] {
            store.always(op, fault.clone());
        }
        let key = format!("{fault:?}");
        let started = Instant::now();
        let value = effects.run(&idem, call(&key, 1)).await;
        assert!(started.elapsed() < LEASE, "{:?}", started.elapsed());
        assert_eq!(value.unwrap(), effects.count(), "its own value");
        store.reset();
    }
}

#[tokio::test(start_paused = true)]
async fn a_completion_may_be_acknowledged_after_the_lease() {
    let ((idem, faults), effects) = (faulty(), Effects::default());
    let gate = faults.hold_before(Op::Complete);
    let nearly_over = idem.run(call("k", 1), async || {
        tokio::time::advance(LEASE - Duration::from_millis(100)).await;
        Ok::<_, Failure>(effects.happen())
    });
    let opened = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        gate.open();
    };
    let (result, ()) = tokio::join!(nearly_over, opened);
    assert_eq!(
        result.unwrap(),
        1,
        "a lapsed lease alone does not refuse its owner"
    );
    assert_eq!(record(&faults).await.unwrap().state, RecordState::Completed);
}

#[tokio::test(start_paused = true)]
async fn the_result_of_a_call_dropped_at_completion_is_stored() {
    for cut in [FaultStore::hang_before, FaultStore::hang_after] {
        let ((idem, faults), effects) = (faulty(), Effects::default());
        cut(&faults, Op::Complete, 1);
        let mut cancelled = Box::pin(effects.run(&idem, call("k", 1)));
        assert!(cancelled.as_mut().now_or_never().is_none());
        assert_eq!(
            effects.count(),
            1,
            "the body is over, the completion is under way"
        );
        drop(cancelled);
        settle().await;
        assert_eq!(record(&faults).await.unwrap().state, RecordState::Completed);
        assert_eq!(effects.run(&idem, call("k", 1)).await.unwrap(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_completion_after_a_takeover_returns_the_stored_result() {
    let ((slow, faults), effects) = (faulty(), Effects::default());
    let other = healthy(&faults);
    let result = slow.run(call("k", 1), async || {
        let own = effects.happen();
        tokio::time::advance(LEASE).await;
        effects.run(&other, call("k", 1)).await?;
        faults.fail_before(Op::Complete, 1);
        Ok::<_, Failure>(own)
    });
    assert_eq!(result.await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_failed_release_is_retried_without_delay_for_the_caller() {
    let ((idem, faults), effects) = (faulty(), Effects::default());
    faults.fail_before(Op::Release, 3);
    let failed = idem.run(call("k", 1), async || Err::<u32, _>(Failure::TimedOut));
    let started = Instant::now();
    assert!(matches!(failed.await, Err(Failure::TimedOut)));
    assert_eq!(started.elapsed(), Duration::ZERO);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(effects.run(&idem, call("k", 1)).await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_heartbeat_is_retried() {
    let ((idem, faults), effects) = (faulty(), Effects::default());
    let result = idem.run_with(call("k", 1), RunOptions::new(), async |attempt| {
        faults.fail_before(Op::Renew, 2);
        tokio::time::sleep(LEASE - Duration::from_secs(1)).await;
        assert!(attempt.is_live(), "renewed at the third try");
        faults.always(Op::Renew, Fault::FailBefore(StoreErrorKind::Unavailable));
        tokio::time::sleep(LEASE * 2).await;
        assert!(
            !attempt.is_live(),
            "nothing was acknowledged for the length of a lease"
        );
        faults.reset();
        tokio::time::sleep(LEASE).await;
        assert!(
            attempt.is_live(),
            "the record was not taken over, so this call still owns it"
        );
        Ok::<_, Failure>(effects.happen())
    });
    assert_eq!(result.await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_renewed_lease_counts_from_the_sending_of_the_heartbeat() {
    let ((idem, faults), _) = (faulty(), Effects::default());
    let result = idem.run_with(call("k", 1), RunOptions::new(), async |attempt| {
        // Sent at a third of the lease and acknowledged two seconds later: the renewed lease counts from the sending.
        let gate = faults.hold_after(Op::Renew);
        tokio::time::sleep(LEASE / 3 + Duration::from_secs(2)).await;
        faults.always(Op::Renew, Fault::FailBefore(StoreErrorKind::Unavailable));
        gate.open();
        tokio::time::sleep(LEASE - Duration::from_secs(3)).await;
        assert!(attempt.is_live());
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!attempt.is_live());
        Ok::<_, Failure>(())
    });
    let _ = result.await;
}

#[tokio::test(start_paused = true)]
async fn polling_survives_failed_reads() {
    let ((one, faults), effects) = (faulty(), Effects::default());
    let two = healthy(&faults);
    let first = one.run(call("k", 1), async || {
        tokio::time::sleep(Duration::from_secs(3)).await;
        Ok::<_, Failure>(effects.happen())
    });
    let waiting = async {
        tokio::task::yield_now().await;
        faults.fail_before(Op::Get, 3);
        effects.run(&two, call("k", 1).wait(LEASE)).await
    };
    let (first, second) = tokio::join!(first, waiting);
    assert_eq!((first.unwrap(), second.unwrap()), (1, 1));
}
