//! Rare cases: endless durations, bodies that act before they return a future, and keys under heavy contention.

use std::cell::RefCell;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use idem_runtime::advanced::RunOptions;
use idem_runtime::conformance::faults::{Fault, FaultStore, Gate, Op};
use idem_runtime::error::StoreErrorKind;
use idem_runtime::record::{Owner, RecordState};
use idem_runtime::store::FencedWrite;
use idem_runtime::{Error, Idem, MemoryStore, OnCrash, Purger, Scope, Store as _, TypedOperation};

use super::{Effects, Failure, LEASE, call, idem, refusal};

async fn state(idem: &Idem<FaultStore<MemoryStore>>) -> Option<RecordState> {
    let none = Scope::none();
    let record = idem
        .records()
        .find_scoped("test.operation", "k", &none)
        .await;
    record.unwrap().map(|record| record.state)
}

#[tokio::test(start_paused = true)]
async fn infinite_durations_work_with_a_failing_store() {
    let faults = FaultStore::new(MemoryStore::new());
    let endless = Idem::builder(faults.clone())
        .lease(Duration::MAX)
        .store_timeout(Duration::MAX)
        .store_patience(Duration::MAX)
        .build();
    let effects = Effects::default();

    // A claim that failed, a call with followers, a call that others wait for, and a call whose claim is released.
    faults.fail_before(Op::Claim, 1);
    let gate = faults.hold_before(Op::Claim);
    let leader = effects.run(&endless, call("k", 1));
    let follower = effects.run(&endless, call("k", 1).wait(LEASE));
    let opened = async {
        gate.reached().await;
        gate.open();
    };
    let (leader, follower, ()) = tokio::join!(leader, follower, opened);
    assert_eq!((leader.unwrap(), follower.unwrap()), (1, 1));

    let elsewhere = Idem::builder(faults.clone())
        .store_timeout(Duration::MAX)
        .build();
    let running = endless.run(call("l", 1), async || {
        let waiting = effects.run(&elsewhere, call("l", 1).wait(LEASE));
        assert!(waiting.await.is_err(), "in flight");
        Ok::<_, Failure>(effects.happen())
    });
    assert!(running.await.is_ok());

    faults.hang_after(Op::Claim, 1);
    let mut cancelled = Box::pin(effects.run(&endless, call("m", 1)));
    assert!(cancelled.as_mut().now_or_never().is_none());
    drop(cancelled);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(faults.count(Op::Release), 1);
}

#[tokio::test(start_paused = true)]
async fn an_outcome_under_an_infinite_lease_is_recorded_when_the_store_is_back() {
    let idem = Idem::new(FaultStore::new(MemoryStore::new()));
    let effects = Effects::default();
    idem.store().fail_before(Op::Complete, 3);
    let endless = call("k", 1).lease(Duration::MAX);
    assert_eq!(effects.run(&idem, endless).await.unwrap(), 1);
    assert_eq!(state(&idem).await, Some(RecordState::Completed));
}

#[tokio::test(start_paused = true)]
async fn a_purger_with_an_infinite_interval_waits() {
    let idem = idem();
    let _purger = Purger::new(&idem)
        .poll_interval(Duration::MAX)
        .start()
        .unwrap();
    tokio::task::yield_now().await;
    let alive = tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks();
    assert_eq!(alive, 1);
}

#[tokio::test(start_paused = true)]
async fn a_panic_before_the_body_returns_its_future_is_a_crash() {
    let (idem, effects) = (
        Idem::new(FaultStore::new(MemoryStore::new())),
        Effects::default(),
    );
    let eager = idem.run_with(
        call("k", 1).on_crash(OnCrash::Refuse),
        RunOptions::new(),
        |_| {
            assert_eq!(effects.happen(), 0, "a panic after the effect");
            std::future::ready(Ok::<_, Failure>(0))
        },
    );
    assert!(AssertUnwindSafe(eager).catch_unwind().await.is_err());
    tokio::task::yield_now().await;
    assert_eq!(state(&idem).await, Some(RecordState::Interrupted));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_released_its_key_is_no_longer_live() {
    let (idem, effects) = (idem(), Effects::default());
    let mut attempt_of_first = None;
    let failed = idem.run_with(call("k", 1), RunOptions::new(), async |attempt| {
        attempt_of_first = Some(attempt);
        Err::<u32, _>(Failure::TimedOut)
    });
    assert!(failed.await.is_err());
    let next = idem.run(call("k", 1), async || {
        assert!(
            !attempt_of_first.unwrap().is_live(),
            "another call owns the key"
        );
        Ok::<_, Failure>(effects.happen())
    });
    assert_eq!(next.await.unwrap(), 1);
}

/// Its error is unknown, and the record that it would interrupt was released under it.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_cannot_interrupt_its_record_is_no_longer_live() {
    let idem = idem();
    let mut attempt_of_first = None;
    let refuse = call("k", 1).on_crash(OnCrash::Refuse);
    let failed = idem.run_with(refuse, RunOptions::new(), async |attempt| {
        let record = idem.records().get(&attempt.record_id()).await?.unwrap();
        let owner = Owner {
            id: record.id,
            claim_id: record.claim_id.unwrap(),
            fencing_token: record.fencing_token,
        };
        let released = idem.store().release(&owner).await;
        assert_eq!(released.unwrap(), FencedWrite::Applied);
        assert!(attempt.is_live(), "it does not know yet");
        attempt_of_first = Some(attempt);
        Err::<u32, _>(Failure::Lost)
    });
    assert!(matches!(failed.await, Err(Failure::Lost)));
    assert!(!attempt_of_first.unwrap().is_live());
}

#[tokio::test(start_paused = true)]
async fn a_waiting_call_outlasts_any_number_of_failing_calls() {
    let store = Arc::new(MemoryStore::new());
    let one = Idem::new(store.clone());
    let two = Idem::new(FaultStore::new(store));
    let effects = Effects::default();
    // Whenever the key is free, the waiting call is held back until the other service has claimed it again.
    let others = async {
        let mut held: Option<Gate> = None;
        for _ in 0..100 {
            let gate = RefCell::new(None);
            let failed = one.run(call("k", 1), async || {
                if let Some(held) = held.take() {
                    held.open();
                }
                tokio::time::sleep(Duration::from_secs(2)).await;
                *gate.borrow_mut() = Some(two.store().hold_before(Op::Claim));
                Err::<u32, _>(Failure::TimedOut)
            });
            assert!(matches!(failed.await, Err(Failure::TimedOut)));
            let gate = gate.into_inner().unwrap();
            let held_up = tokio::time::timeout(LEASE, gate.reached()).await;
            assert!(held_up.is_ok(), "the waiting call has given up");
            held = Some(gate);
        }
        held.unwrap().open();
    };
    let patient = effects.run(&two, call("k", 1).wait(LEASE * 20));
    let ((), waited) = tokio::join!(others, patient);
    assert_eq!(waited.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_claim_with_a_permanent_error_is_not_retried_in_the_background() {
    let (idem, effects) = (
        Idem::new(FaultStore::new(MemoryStore::new())),
        Effects::default(),
    );
    for op in [Op::Claim, Op::Get] {
        idem.store()
            .always(op, Fault::FailBefore(StoreErrorKind::Schema));
    }
    let error = refusal(effects.run(&idem, call("k", 1)).await);
    assert!(matches!(error, Error::Store(_)));
    tokio::time::sleep(LEASE * 2).await;
    assert_eq!(
        idem.store().count(Op::Get),
        1,
        "the engine reads once whether the claim was granted"
    );
}

#[tokio::test(start_paused = true)]
async fn an_error_never_repeats_the_text_of_its_source() {
    struct Unspeakable;
    impl serde::Serialize for Unspeakable {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("no"))
        }
    }
    impl<'de> serde::Deserialize<'de> for Unspeakable {
        fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
            Err(serde::de::Error::custom("no"))
        }
    }
    const UNSPEAKABLE: TypedOperation<Unspeakable> = TypedOperation::new("test.operation");
    let (idem, effects) = (idem(), Effects::default());
    let _ = idem
        .run(call("k", 1).on_crash(OnCrash::Refuse), async || {
            effects.happen();
            Err::<u32, _>(Failure::Lost)
        })
        .await;
    let none = Scope::none();
    let found = idem
        .records()
        .find_scoped("test.operation", "k", &none)
        .await;
    let seen = found.unwrap().unwrap().observation();
    let error = crate::records::manually(&idem)
        .complete(UNSPEAKABLE, &seen, &Unspeakable)
        .await;
    let mut error: Option<&dyn std::error::Error> = Some(error.as_ref().unwrap_err());
    let mut said = Vec::new();
    while let Some(source) = error {
        let text = source.to_string();
        assert!(!said.contains(&text), "{text} behind {said:?}");
        said.push(text);
        error = source.source();
    }
    assert!(said.len() > 1, "{said:?}");
}

/// Three services share a store that loses answers, and each call is cancelled at a different time.
#[tokio::test(start_paused = true)]
async fn an_answer_stays_the_same_under_many_faults_and_cancellations() {
    for seed in 0..100_u32 {
        let store = Arc::new(MemoryStore::new());
        let services: Vec<_> = (0..3)
            .map(|_| Idem::new(FaultStore::new(store.clone())))
            .collect();
        let effects = Effects::default();
        let on_crash = if seed % 2 == 0 {
            OnCrash::Rerun
        } else {
            OnCrash::Refuse
        };
        let mut dice = seed.wrapping_mul(0x9e37_79b9) | 1;
        let mut roll = move |sides: u32| {
            dice ^= dice << 13;
            dice ^= dice >> 17;
            dice ^= dice << 5;
            dice % sides
        };
        for service in &services {
            for op in [Op::Claim, Op::TakeOver, Op::Complete, Op::Release, Op::Get] {
                for _ in 0..6 {
                    let fault = match roll(8) {
                        0 => Fault::FailBefore(StoreErrorKind::Unavailable),
                        1 => Fault::FailAfter(StoreErrorKind::Unavailable),
                        2 => Fault::HangAfter,
                        _ => Fault::None,
                    };
                    service.store().next(op, fault);
                }
            }
        }
        let calls = (0..12).map(|number| {
            let service = &services[number % 3];
            let (begins, lasts, cut) = (roll(20_000), roll(40_000), roll(100_000));
            let fails = roll(4) == 0;
            let ms = |ms: u32| Duration::from_millis(ms.into());
            let effects = &effects;
            async move {
                tokio::time::sleep(ms(begins)).await;
                let call = call("k", 1).on_crash(on_crash).wait(LEASE * 4);
                let handling =
                    RunOptions::new().release_err(|error| matches!(error, Failure::TimedOut));
                let run = service.run_with(call, handling, async |_| {
                    let done = (!fails).then(|| effects.happen());
                    tokio::time::sleep(ms(lasts)).await;
                    done.ok_or(Failure::TimedOut)
                });
                tokio::time::timeout(ms(cut), run).await.ok()
            }
        });
        let answers = futures_util::future::join_all(calls).await;
        tokio::time::sleep(LEASE * 4).await;
        let last = effects
            .run(&Idem::new(store), call("k", 1).on_crash(on_crash))
            .await;
        let given: Vec<u32> = answers
            .into_iter()
            .flatten()
            .filter_map(Result::ok)
            .collect();
        if let Ok(last) = last {
            assert!(
                given.iter().all(|it| *it == last),
                "seed {seed}: {given:?}, then {last}"
            );
        } else {
            assert!(given.is_empty(), "seed {seed}: {given:?}, then {last:?}");
        }
        assert!(
            on_crash == OnCrash::Rerun || effects.count() <= 1,
            "seed {seed}"
        );
    }
}
