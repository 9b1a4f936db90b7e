//! The background task that deletes expired records.

use std::time::Duration;

use idem_runtime::conformance::faults::{Fault, FaultStore, Gate, Op};
use idem_runtime::error::StoreErrorKind;
use idem_runtime::{Idem, MemoryStore, Purger};

use super::{Effects, TTL, call, idem};

mod jumps;

const INTERVAL: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn the_purger_removes_expired_records_until_it_is_dropped() {
    let (idem, effects) = (idem(), Effects::default());
    let purger = Purger::new(&idem).poll_interval(INTERVAL).start().unwrap();
    effects.run(&idem, call("k", 1)).await.unwrap();
    assert_eq!(idem.store().len(), 1);
    tokio::time::sleep(TTL + Duration::from_secs(120)).await;
    assert_eq!(idem.store().len(), 0);

    drop(purger);
    effects.run(&idem, call("k", 1)).await.unwrap();
    tokio::time::sleep(TTL + Duration::from_secs(120)).await;
    assert_eq!(idem.store().len(), 1, "stopped when it was dropped");
}

#[tokio::test(start_paused = true)]
async fn stopping_the_purger_ends_the_current_batch() {
    let idem = Idem::new(FaultStore::new(MemoryStore::new()));
    let gate = Gate::new();
    idem.store().next(Op::Purge, Fault::HoldAfter(gate.clone()));
    let purger = Purger::new(&idem).start().unwrap();
    gate.reached().await;
    let mut stopping = Box::pin(purger.stop());
    assert!(futures_util::poll!(stopping.as_mut()).is_pending());
    gate.open();
    stopping.await;
    tokio::time::sleep(10 * INTERVAL).await;
    assert_eq!(idem.store().count(Op::Purge), 1);
}

/// Otherwise a store with a single writer would serve nobody else while many records are due.
#[tokio::test(start_paused = true)]
async fn a_purger_pauses_as_long_as_a_batch_took() {
    let idem = Idem::new(FaultStore::new(MemoryStore::new()));
    let effects = Effects::default();
    for number in 0..1_500 {
        let call = call(&number.to_string(), 1);
        effects.run(&idem, call).await.unwrap();
    }
    tokio::time::sleep(TTL).await;
    let (gate, took) = (Gate::new(), Duration::from_millis(300));
    idem.store().next(Op::Purge, Fault::HoldAfter(gate.clone()));
    let _purger = Purger::new(&idem).poll_interval(INTERVAL).start().unwrap();
    gate.reached().await;
    tokio::time::sleep(took).await;
    gate.open();
    tokio::time::sleep(took - Duration::from_millis(10)).await;
    assert_eq!(idem.store().count(Op::Purge), 1);
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(idem.store().count(Op::Purge), 2);
    assert_eq!(idem.store().inner().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_purger_outlives_a_store_that_fails_hangs_or_panics() {
    let idem = Idem::new(FaultStore::new(MemoryStore::new()));
    Effects::default().run(&idem, call("k", 1)).await.unwrap();
    tokio::time::sleep(TTL).await;
    for fault in [
        Fault::FailBefore(StoreErrorKind::Unavailable),
        Fault::HangBefore,
        Fault::Panic,
    ] {
        idem.store().next(Op::Purge, fault);
    }
    let purger = Purger::new(&idem).poll_interval(INTERVAL).start().unwrap();
    // Retried with back-off, not an interval later: the first purge is within the first two intervals.
    tokio::time::sleep(2 * INTERVAL + Duration::from_secs(5)).await;
    assert!(idem.store().count(Op::Purge) >= 4);
    assert_eq!(idem.store().inner().len(), 0);
    purger.stop().await;
}

/// Another try does not create missing tables.
#[tokio::test(start_paused = true)]
async fn a_failure_that_needs_an_operator_is_tried_again_an_interval_later() {
    let idem = Idem::new(FaultStore::new(MemoryStore::new()));
    Effects::default().run(&idem, call("k", 1)).await.unwrap();
    tokio::time::sleep(TTL).await;
    for _ in 0..3 {
        let missing = Fault::FailBefore(StoreErrorKind::Schema);
        idem.store().next(Op::Purge, missing);
    }
    let _purger = Purger::new(&idem).poll_interval(INTERVAL).start().unwrap();
    // The first purge is within the first two intervals, and each further one an interval later.
    tokio::time::sleep(2 * INTERVAL).await;
    assert!((1..=2).contains(&idem.store().count(Op::Purge)));
    tokio::time::sleep(3 * INTERVAL).await;
    assert!((4..=5).contains(&idem.store().count(Op::Purge)));
    assert_eq!(idem.store().inner().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_detached_purger_is_not_stopped() {
    let (idem, effects) = (idem(), Effects::default());
    Purger::new(&idem).start().unwrap().detach();
    effects.run(&idem, call("k", 1)).await.unwrap();
    tokio::time::sleep(TTL + 3 * INTERVAL).await;
    assert_eq!(idem.store().len(), 0);
}
