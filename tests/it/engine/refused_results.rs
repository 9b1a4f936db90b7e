//! A store that refuses results for good, for example because it is full: the work is not done again.

use std::time::Duration;

use idem_runtime::advanced::RunOptions;
use idem_runtime::conformance::faults::{FaultStore, Op};
use idem_runtime::error::StoreErrorKind;
use idem_runtime::record::RecordState;
use idem_runtime::{Error, Idem, MemoryStore, OnCrash};
use tokio::time::Instant;

use super::{Effects, Failure, call, refusal};

/// From the shortest lease of practical use to the default.
const LEASES: [u64; 5] = [1, 2, 5, 10, 30];
const PATIENCES: [u64; 3] = [1, 6, 60];

fn idem(kind: StoreErrorKind, patience: Duration) -> (Idem<FaultStore<MemoryStore>>, Effects) {
    let store = FaultStore::new(MemoryStore::new());
    store.refuse_results(kind);
    let builder = Idem::builder(store).store_patience(patience);
    (builder.build(), Effects::default())
}

async fn state(idem: &Idem<FaultStore<MemoryStore>>) -> RecordState {
    let record = idem.records().find("test.operation", "k").await.unwrap();
    record.unwrap().state
}

#[tokio::test(start_paused = true)]
async fn the_work_is_done_once_whatever_the_lease() {
    for kind in [StoreErrorKind::Full, StoreErrorKind::TooLarge] {
        for on_crash in [OnCrash::Rerun, OnCrash::Refuse] {
            for (lease, patience) in LEASES
                .into_iter()
                .flat_map(|lease| PATIENCES.map(|patience| (lease, patience)))
            {
                let lease = Duration::from_secs(lease);
                let case = format!("{kind:?}, {on_crash:?}, {lease:?}, patience {patience} s");
                let (idem, effects) = idem(kind, Duration::from_secs(patience));
                let call = || call("k", 1).lease(lease).on_crash(on_crash);
                assert_eq!(effects.run(&idem, call()).await.unwrap(), 1, "{case}");
                for _ in 0..2 {
                    tokio::time::sleep(lease + Duration::from_secs(1)).await;
                    assert_eq!(state(&idem).await, RecordState::Unrecorded, "{case}");
                    let again = refusal(effects.run(&idem, call()).await);
                    assert!(matches!(again, Error::Unrecorded), "{case}: {again:?}");
                }
                assert_eq!(effects.count(), 1, "{case}");
            }
        }
    }
}

/// The first of the two waits for a store that may have room again; the other cannot succeed.
#[tokio::test(start_paused = true)]
async fn a_result_that_is_too_large_costs_its_caller_no_time() {
    let patience = Duration::from_secs(6);
    for (kind, waits) in [
        (StoreErrorKind::Full, true),
        (StoreErrorKind::TooLarge, false),
    ] {
        let (idem, effects) = idem(kind, patience);
        let begin = Instant::now();
        assert_eq!(effects.run(&idem, call("k", 1)).await.unwrap(), 1);
        assert_eq!(begin.elapsed() >= patience, waits, "{kind:?}");
        assert!(begin.elapsed() < patience + Duration::from_secs(1));
    }
}

/// The caller's future is dropped while the result is refused.
#[tokio::test(start_paused = true)]
async fn the_work_of_a_caller_that_left_is_done_once() {
    let lease = Duration::from_secs(2);
    let (idem, effects) = idem(StoreErrorKind::Full, Duration::from_secs(6));
    let call = || call("k", 1).lease(lease);
    let left = tokio::time::timeout(lease / 4, effects.run(&idem, call()));
    assert!(left.await.is_err(), "the store refuses the result");
    tokio::time::sleep(lease * 2).await;
    let again = refusal(effects.run(&idem, call()).await);
    assert!(matches!(again, Error::Unrecorded), "{again:?}");
    assert_eq!(effects.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn finished_steps_and_their_owner_run_once() {
    let lease = Duration::from_secs(2);
    let (idem, effects) = idem(StoreErrorKind::Full, Duration::from_secs(6));
    let run = async || {
        let call = call("k", 1).lease(lease);
        idem.run_with(call, RunOptions::new(), async |attempt| {
            let step = attempt.step("reserve", async || Ok::<_, Failure>(effects.happen()));
            step.await
        })
        .await
    };
    assert_eq!(run().await.unwrap(), 1);
    tokio::time::sleep(lease * 2).await;
    assert!(matches!(refusal(run().await), Error::Unrecorded));
    assert_eq!(effects.count(), 1);
}

/// The store has room again before the time for the result is over.
#[tokio::test(start_paused = true)]
async fn a_store_that_gets_room_in_time_keeps_the_result() {
    let lease = Duration::from_secs(10);
    let (idem, effects) = idem(StoreErrorKind::Full, Duration::from_secs(6));
    let running = effects.run(&idem, call("k", 1).lease(lease));
    let room = async {
        tokio::time::sleep(lease / 4).await;
        idem.store().reset();
    };
    let (value, ()) = tokio::join!(running, room);
    assert_eq!(value.unwrap(), 1);
    assert_eq!(state(&idem).await, RecordState::Completed);
    assert_eq!(effects.run(&idem, call("k", 1)).await.unwrap(), 1);
    assert!(idem.store().count(Op::Complete) >= 1);
}
