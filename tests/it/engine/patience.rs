//! How long calls wait for the store, and what they ask it meanwhile.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use idem_runtime::advanced::RunOptions;
use idem_runtime::conformance::faults::{Fault, FaultStore, Op};
use idem_runtime::error::StoreErrorKind;
use idem_runtime::record::RecordState;
use idem_runtime::{Error, Idem, MemoryStore};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Effects, Failure, LEASE, call, refusal};

fn service() -> Idem<FaultStore<MemoryStore>> {
    Idem::new(FaultStore::new(MemoryStore::new()))
}

async fn state(idem: &Idem<FaultStore<MemoryStore>>) -> Option<RecordState> {
    let found = idem.records().find("test.operation", "k").await;
    found.unwrap().map(|record| record.state)
}

/// Only a store that refuses the result for good is told that the work was done without one.
#[tokio::test(start_paused = true)]
async fn a_result_outlasts_a_store_that_is_only_unreachable() {
    let (idem, effects) = (service(), Effects::default());
    let unavailable = Fault::FailBefore(StoreErrorKind::Unavailable);
    idem.store().always(Op::Complete, unavailable.clone());
    assert_eq!(effects.run(&idem, call("k", 1)).await.unwrap(), 1);
    tokio::time::sleep(idem.policy().store_patience).await;
    // From now on every second write succeeds.
    idem.store().reset();
    idem.store().next(Op::Complete, unavailable);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(state(&idem).await, Some(RecordState::Completed));
    assert_eq!(effects.run(&idem, call("k", 1)).await.unwrap(), 1);
}

/// With less than half a second of the lease left, only the store can say which call's result counts.
#[tokio::test(start_paused = true)]
async fn a_call_at_the_end_of_its_lease_waits_for_the_stores_answer() {
    for (left, waits) in [(400, true), (600, false)] {
        let (idem, effects) = (service(), Effects::default());
        let gate = idem.store().hold_before(Op::Complete);
        let ended = Notify::new();
        let mut call = Box::pin(idem.run(call("k", 1), async || {
            tokio::time::advance(LEASE - Duration::from_millis(left)).await;
            ended.notify_one();
            Ok::<_, Failure>(effects.happen())
        }));
        let a_second_later = async {
            ended.notified().await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
        let early = tokio::select! {
            result = &mut call => Some(result),
            () = a_second_later => None,
        };
        assert_eq!(early.is_none(), waits, "{left} ms left: {early:?}");
        gate.open();
        if waits {
            assert_eq!(call.await.unwrap(), 1);
            assert_eq!(state(&idem).await, Some(RecordState::Completed));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_leaves_time_for_another() {
    let store = FaultStore::new(MemoryStore::new());
    let idem = Idem::builder(store).store_timeout(2 * LEASE).build();
    let result = idem.run_with(call("k", 1), RunOptions::new(), async |attempt| {
        idem.store().hang_before(Op::Renew, 1);
        tokio::time::sleep(LEASE + Duration::from_secs(1)).await;
        assert!(attempt.is_live(), "renewed at the second try");
        assert!(idem.store().count(Op::Renew) >= 2);
        Ok::<_, Failure>(())
    });
    result.await.unwrap();
}

/// Other processes claim the record and crash, each time before this call can take it over.
#[tokio::test(start_paused = true)]
async fn a_call_gives_up_on_a_record_that_changes_under_each_of_its_claims() {
    let store = Arc::new(MemoryStore::new());
    let rivals = Idem::new(store.clone());
    let (idem, effects) = (Idem::new(FaultStore::new(store)), Effects::default());
    let crash = async || {
        let call = call("k", 1).lease(Duration::from_millis(1));
        let rival = rivals.run(call, async || -> Result<u32, Failure> {
            std::future::pending().await
        });
        assert!(rival.now_or_never().is_none());
        tokio::time::advance(Duration::from_millis(2)).await;
    };
    crash().await;
    let mut held = idem.store().hold_before(Op::TakeOver);
    let rivalry = async {
        loop {
            held.reached().await;
            crash().await;
            let next = idem.store().hold_before(Op::TakeOver);
            held.open();
            held = next;
        }
    };
    let refused = tokio::select! {
        refused = effects.run(&idem, call("k", 1)) => refused,
        () = rivalry => unreachable!("it has no end"),
    };
    let Error::Store(error) = refusal(refused) else {
        panic!("expected a store error");
    };
    assert_eq!(error.kind(), StoreErrorKind::Conflict);
    assert_eq!(idem.store().count(Op::TakeOver), 65);
    assert_eq!(effects.count(), 0);
}

/// A waiting call reads the record from time to time. An outcome that has expired by then is no outcome.
#[tokio::test(start_paused = true)]
async fn a_waiting_call_does_not_replay_an_outcome_that_has_expired() {
    let store = Arc::new(MemoryStore::new());
    let (one, two) = (Idem::new(store.clone()), Idem::new(store));
    let effects = Effects::default();
    let brief = idem_runtime::Call::new("test.operation", "k", &1_u64, Duration::from_millis(1));
    let first = one.run(brief, async || {
        tokio::time::sleep(Duration::from_millis(4_321)).await;
        Ok::<_, Failure>(effects.happen())
    });
    let waiting = async {
        tokio::task::yield_now().await;
        let started = Instant::now();
        let value = effects.run(&two, call("k", 1).wait(LEASE)).await;
        (value, started.elapsed())
    };
    let (first, (second, waited)) = tokio::join!(first, waiting);
    assert_eq!((first.unwrap(), second.unwrap()), (1, 2));
    assert!(waited < Duration::from_secs(6), "{waited:?}");
}

/// Reads and manual changes end at the time limit of the handle, not at that of another one.
#[tokio::test(start_paused = true)]
async fn an_operators_read_ends_at_the_time_limit_of_the_handle() {
    let limit = Duration::from_millis(70);
    let store = FaultStore::new(MemoryStore::new());
    let idem = Idem::builder(store).store_timeout(limit).build();
    idem.store().hang_before(Op::Get, 1);
    let began = Instant::now();
    let found = idem.records().find("test.operation", "k").await;
    assert!(matches!(found, Err(Error::Store(error)) if error.kind() == StoreErrorKind::Timeout));
    assert_eq!(began.elapsed(), limit);
}

/// A caller that waits for another process asks again only if the store may answer then.
#[tokio::test(start_paused = true)]
async fn a_waiting_call_is_told_of_an_error_that_will_not_pass() {
    let shared = Arc::new(MemoryStore::new());
    let owner = Idem::new(Arc::clone(&shared));
    let waiting = Idem::new(FaultStore::new(shared));
    let (effects, ended) = (Effects::default(), Notify::new());
    let running = owner.run(call("k", 1), async || {
        ended.notified().await;
        Ok::<_, Failure>(effects.happen())
    });
    let refused = async {
        waiting
            .store()
            .next(Op::Get, Fault::FailBefore(StoreErrorKind::Denied));
        let patient = call("k", 1).wait(LEASE);
        let answer = effects.run(&waiting, patient).await;
        ended.notify_one();
        answer
    };
    let (ran, refused) = tokio::join!(running, refused);
    assert_eq!(ran.unwrap(), 1);
    let Error::Store(error) = refusal(refused) else {
        panic!("the call must not wait any longer");
    };
    assert_eq!(error.kind(), StoreErrorKind::Denied);
    assert_eq!(waiting.store().count(Op::Get), 1);
}
