//! A store that claims and settles without waiting, and fails: the engine sends the claim or the outcome again.

use idem_runtime::conformance::faults::{Fault, FaultStore, Op};
use idem_runtime::error::StoreErrorKind;
use idem_runtime::record::{Record, RecordState};
use idem_runtime::{Idem, MemoryStore};
use tokio::time::Instant;

use super::plain::Plain;
use super::{Effects, Failure, LEASE, call};

const FAULTS: [Fault; 5] = [
    Fault::FailBefore(StoreErrorKind::Unavailable),
    Fault::FailAfter(StoreErrorKind::Unavailable),
    Fault::Panic,
    Fault::HangBefore,
    Fault::HangAfter,
];

fn faulty() -> (
    Idem<Plain<FaultStore<MemoryStore>>>,
    FaultStore<MemoryStore>,
) {
    let faults = FaultStore::new(MemoryStore::new());
    (Idem::new(Plain::immediate(faults.clone())), faults)
}

async fn record(faults: &FaultStore<MemoryStore>) -> Record {
    let idem = Idem::new(faults.clone());
    let found = idem.records().find("test.operation", "k").await;
    found.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_claim_without_an_answer_is_repeated() {
    for fault in FAULTS {
        let ((idem, faults), effects) = (faulty(), Effects::default());
        faults.next(Op::Claim, fault.clone());
        assert_eq!(effects.run(&idem, call("k", 1)).await.unwrap(), 1);
        assert_eq!(record(&faults).await.attempt, 1, "{fault:?}");
        assert_eq!(faults.count(Op::Claim), 2, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_outcome_without_an_answer_is_written_again() {
    for fault in FAULTS {
        let ((idem, faults), effects) = (faulty(), Effects::default());
        faults.next(Op::Complete, fault.clone());
        assert_eq!(effects.run(&idem, call("k", 1)).await.unwrap(), 1);
        assert_eq!(
            record(&faults).await.state,
            RecordState::Completed,
            "{fault:?}"
        );
        assert_eq!(faults.count(Op::Complete), 2, "{fault:?}");
        assert_eq!(effects.run(&idem, call("k", 1)).await.unwrap(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_lost_its_lease_gets_the_outcome_of_the_other_call() {
    let ((idem, faults), effects) = (faulty(), Effects::default());
    let other = Idem::new(Plain::immediate(faults));
    let body = async || {
        let first = effects.happen();
        tokio::time::advance(LEASE).await;
        assert_eq!(effects.run(&other, call("k", 1)).await.unwrap(), 2);
        Ok::<_, Failure>(first)
    };
    assert_eq!(idem.run(call("k", 1), body).await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_running_call_is_waited_for() {
    let ((idem, faults), effects) = (faulty(), Effects::default());
    let other = Idem::new(Plain::immediate(faults.clone()));
    let begun = Instant::now();
    let slow = idem.run(call("k", 1), async || {
        tokio::time::sleep(LEASE / 2).await;
        Ok::<_, Failure>(effects.happen())
    });
    let waiting = effects.run(&other, call("k", 1).wait(LEASE));
    let (first, waited) = tokio::join!(slow, waiting);
    assert_eq!((first.unwrap(), waited.unwrap()), (1, 1));
    assert!(begun.elapsed() < LEASE);
    assert_eq!(faults.count(Op::Claim), 2, "the waiting call reads");
}
