//! The steps of a body: a finished step does not run again, and a step that may have run does not count as undone.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use idem_runtime::advanced::RunOptions;
use idem_runtime::conformance::faults::{Fault, FaultStore, Op};
use idem_runtime::error::{InvalidCall, StoreErrorKind};
use idem_runtime::policy::OnStoreError;
use idem_runtime::record::{Record, RecordState};
use idem_runtime::{
    Attempt, Call, Error, Idem, Key, MemoryStore, OnCrash, Scope, Store, idempotent,
};
use tokio::time::Instant;

use super::plain::Plain;
use super::{Failure, LEASE, TTL, call, refusal};

/// Effects in the order in which they happened.
#[derive(Debug, Clone, Default)]
struct Ledger(Arc<Mutex<Vec<&'static str>>>);

impl Ledger {
    fn enter(&self, effect: &'static str) {
        self.0.lock().unwrap().push(effect);
    }

    fn entries(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().clone()
    }

    /// Runs a step with this effect.
    async fn step(&self, attempt: &Attempt, name: &'static str) -> Result<String, Failure> {
        let step = attempt.step(name, async || {
            self.enter(name);
            Ok(format!("{name} by attempt {}", attempt.number()))
        });
        step.await
    }
}

type Faults = FaultStore<MemoryStore>;

fn faulty() -> (Idem<Faults>, Faults) {
    let faults = FaultStore::new(MemoryStore::new());
    (Idem::new(faults.clone()), faults)
}

/// Makes a call whose body gets its attempt.
async fn run<T, S>(
    idem: &Idem<S>,
    call: Call,
    body: impl AsyncFnOnce(Attempt) -> Result<T, Failure>,
) -> Result<T, Failure>
where
    T: idem_runtime::codec::StoredValue,
    S: Store + ?Sized,
{
    idem.run_with(call, RunOptions::new(), body).await
}

/// Runs a body that takes these steps and then hangs forever: a simulated crash.
async fn die_after<S: Store + ?Sized>(
    idem: &Idem<S>,
    call: Call,
    ledger: &Ledger,
    steps: &[&'static str],
) {
    let mut dying = Box::pin(run(idem, call, async |attempt| {
        for name in steps {
            ledger.step(&attempt, name).await?;
        }
        std::future::pending::<Result<(), Failure>>().await
    }));
    assert!(dying.as_mut().now_or_never().is_none());
    drop(dying);
    settle().await;
    tokio::time::advance(LEASE).await;
}

/// Lets background work finish that waits only for the store.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

async fn record<S: Store + ?Sized>(idem: &Idem<S>) -> Record {
    let none = Scope::none();
    let found = idem
        .records()
        .find_scoped("test.operation", "k", &none)
        .await;
    found.unwrap().unwrap()
}

async fn checkout(ledger: &Ledger, attempt: Attempt) -> Result<Vec<String>, Failure> {
    Ok(vec![
        ledger.step(&attempt, "reserve").await?,
        ledger.step(&attempt, "charge").await?,
        ledger.step(&attempt, "mail").await?,
    ])
}

#[tokio::test(start_paused = true)]
async fn a_body_resumes_after_its_last_finished_step() {
    let steps = ["reserve", "charge", "mail"];
    for finished in 0..=steps.len() {
        let ((idem, faults), ledger) = (faulty(), Ledger::default());
        die_after(&idem, call("k", 1), &ledger, &steps[..finished]).await;
        let results = run(&idem, call("k", 1), async |attempt| {
            checkout(&ledger, attempt).await
        });
        let results = results.await.unwrap();
        assert_eq!(ledger.entries(), steps, "each once, in order");
        for (at, result) in results.iter().enumerate() {
            let by = if at < finished { 1 } else { 2 };
            assert_eq!(*result, format!("{} by attempt {by}", steps[at]));
        }
        assert_eq!(faults.count(Op::SaveStep), 3);
        assert_eq!(faults.count(Op::SavedSteps), 1, "read once, however many");
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_attempt_and_a_body_without_steps_read_no_steps() {
    let ((idem, faults), ledger) = (faulty(), Ledger::default());
    let first = run(&idem, call("k", 1), async |it| checkout(&ledger, it).await);
    first.await.unwrap();
    assert_eq!(faults.count(Op::SavedSteps), 0);
    // Claim, three steps, completion.
    assert_eq!(faults.total(), 5);

    let (idem, faults) = faulty();
    die_after(&idem, call("k", 1), &ledger, &[]).await;
    let second = run(&idem, call("k", 1), async |_| Ok(1_u32));
    assert_eq!(second.await.unwrap(), 1);
    assert_eq!(
        (faults.count(Op::SavedSteps), faults.count(Op::SaveStep)),
        (0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_release_keeps_the_finished_steps() {
    let ((idem, _), ledger) = (faulty(), Ledger::default());
    let failed = run(&idem, call("k", 1), async |attempt| {
        ledger.step(&attempt, "reserve").await?;
        Err::<u32, _>(Failure::TimedOut)
    });
    assert!(matches!(failed.await, Err(Failure::TimedOut)));
    assert_eq!(record(&idem).await.state, RecordState::Released);

    let second = run(&idem, call("k", 1), async |it| checkout(&ledger, it).await);
    second.await.unwrap();
    assert_eq!(ledger.entries(), ["reserve", "charge", "mail"]);
}

#[tokio::test(start_paused = true)]
async fn the_error_of_a_step_is_the_bodys_and_is_not_stored() {
    let ((idem, faults), ledger) = (faulty(), Ledger::default());
    let failed = run(&idem, call("k", 1), async |attempt| {
        let declined = attempt.step("charge", async || {
            ledger.enter("declined");
            Err::<u32, _>(Failure::Declined("no funds".to_owned()))
        });
        declined.await
    });
    assert!(matches!(failed.await, Err(Failure::Declined(_))));
    assert_eq!(faults.count(Op::SaveStep), 0);
    assert_eq!(record(&idem).await.state, RecordState::Released);

    let second = run(&idem, call("k", 1), async |it| checkout(&ledger, it).await);
    second.await.unwrap();
    assert_eq!(ledger.entries(), ["declined", "reserve", "charge", "mail"]);
}

#[tokio::test(start_paused = true)]
async fn steps_may_come_in_another_order_or_be_omitted() {
    let ((idem, _), ledger) = (faulty(), Ledger::default());
    die_after(&idem, call("k", 1), &ledger, &["a", "b", "c"]).await;
    let second = run(&idem, call("k", 1), async |attempt| {
        let c = ledger.step(&attempt, "c").await?;
        let d = ledger.step(&attempt, "d").await?;
        let a = ledger.step(&attempt, "a").await?;
        Ok([c, d, a])
    });
    assert_eq!(
        second.await.unwrap(),
        ["c by attempt 1", "d by attempt 2", "a by attempt 1"]
    );
    assert_eq!(ledger.entries(), ["a", "b", "c", "d"]);
}

#[tokio::test(start_paused = true)]
async fn a_renamed_step_is_a_new_one() {
    let ((idem, _), ledger) = (faulty(), Ledger::default());
    die_after(&idem, call("k", 1), &ledger, &["charge"]).await;
    let deployed = run(&idem, call("k", 1), async |attempt| {
        ledger.step(&attempt, "charge_v2").await
    });
    assert_eq!(deployed.await.unwrap(), "charge_v2 by attempt 2");
    assert_eq!(ledger.entries(), ["charge", "charge_v2"]);
}

#[tokio::test(start_paused = true)]
async fn a_step_name_can_be_used_once_in_an_attempt() {
    let ((idem, _), ledger) = (faulty(), Ledger::default());
    let body = async |attempt: Attempt| {
        ledger.step(&attempt, "charge").await?;
        ledger.step(&attempt, "charge").await
    };
    let reused = refusal(run(&idem, call("k", 1), body).await);
    assert!(
        matches!(&reused, Error::InvalidCall(InvalidCall::StepReused(name)) if name == "charge")
    );
    assert_eq!(ledger.entries(), ["charge"], "the second did not run");
    // The error leaves nothing unknown. A later attempt gets the saved first step, and the same error.
    assert_eq!(record(&idem).await.state, RecordState::Released);
    let reused = refusal(run(&idem, call("k", 1), body).await);
    assert!(matches!(
        reused,
        Error::InvalidCall(InvalidCall::StepReused(_))
    ));
    assert_eq!(ledger.entries(), ["charge"]);
}

#[tokio::test(start_paused = true)]
async fn names_are_checked_before_anything_runs() {
    let ((idem, faults), ledger) = (faulty(), Ledger::default());
    for name in ["", "a\nb", "a\u{85}", "\0", &"x".repeat(256)] {
        let body = async |attempt: Attempt| {
            let step = attempt.step(name, async || {
                ledger.enter("ran");
                Ok::<_, Failure>(1_u32)
            });
            step.await
        };
        let error = refusal(run(&idem, call("k", 1), body).await);
        assert!(
            matches!(error, Error::InvalidCall(InvalidCall::StepName)),
            "{name:?}: {error:?}"
        );
    }
    for name in ["x", "Zahlung 1/2", &"x".repeat(255)] {
        let body = async |attempt: Attempt| {
            let step = attempt.step(name, async || Ok::<_, Failure>(1_u32));
            step.await
        };
        assert_eq!(run(&idem, call(name, 1), body).await.unwrap(), 1);
    }
    assert_eq!((ledger.entries().len(), faults.count(Op::SaveStep)), (0, 3));
}

#[tokio::test(start_paused = true)]
async fn a_step_that_could_not_be_saved_is_unknown_and_the_key_is_not_released() {
    for (on_crash, state) in [
        (OnCrash::Rerun, RecordState::Running),
        (OnCrash::Refuse, RecordState::Interrupted),
        (OnCrash::Reconcile, RecordState::Interrupted),
    ] {
        for fault in [
            Fault::FailBefore(StoreErrorKind::Unavailable),
            Fault::FailBefore(StoreErrorKind::Full),
            Fault::HangBefore,
        ] {
            let ((idem, faults), ledger) = (faulty(), Ledger::default());
            faults.always(Op::SaveStep, fault.clone());
            let began = Instant::now();
            // As if the body took the error for a proof that nothing was done.
            let handling = RunOptions::new().release_err(|_| true);
            let call = call("k", 1).on_crash(on_crash);
            let failed = idem.run_with(call, handling, async |attempt| {
                ledger.step(&attempt, "charge").await
            });
            let Error::Store(error) = refusal(failed.await) else {
                panic!("expected a store error");
            };
            assert_ne!(error.kind(), StoreErrorKind::Other);
            assert!(began.elapsed() <= idem.policy().store_patience);
            settle().await;
            assert_eq!(record(&idem).await.state, state, "{on_crash:?} {fault:?}");
            assert_eq!(ledger.entries(), ["charge"]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn under_rerun_an_unknown_step_blocks_its_key_until_the_lease_has_expired() {
    let ((idem, faults), ledger) = (faulty(), Ledger::default());
    faults.next(Op::SaveStep, Fault::FailBefore(StoreErrorKind::Full));
    let body = async |attempt| checkout(&ledger, attempt).await;
    refusal(run(&idem, call("k", 1), body).await);
    let early = refusal(run(&idem, call("k", 1), body).await);
    assert!(matches!(early, Error::InFlight { .. }));
    tokio::time::advance(LEASE).await;
    run(&idem, call("k", 1), body).await.unwrap();
    assert_eq!(ledger.entries(), ["reserve", "reserve", "charge", "mail"]);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_returns_ok_is_completed_even_with_an_unsaved_step() {
    let ((idem, faults), ledger) = (faulty(), Ledger::default());
    faults.next(Op::SaveStep, Fault::FailBefore(StoreErrorKind::Full));
    let done = run(&idem, call("k", 1), async |attempt| {
        let unsaved = ledger.step(&attempt, "log").await;
        assert!(matches!(refusal(unsaved), Error::Store(_)));
        Ok(7_u32)
    });
    assert_eq!(done.await.unwrap(), 7);
    assert_eq!(record(&idem).await.state, RecordState::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_result_that_cannot_be_stored_makes_its_step_unknown() {
    #[derive(Debug, serde::Deserialize)]
    struct Stubborn;
    impl serde::Serialize for Stubborn {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("will not be written"))
        }
    }

    let idem = Idem::builder(MemoryStore::new())
        .max_result_bytes(64)
        .build();
    let large = run(&idem, call("k", 1), async |attempt| {
        let step = attempt.step("charge", async || Ok::<_, Failure>("x".repeat(64)));
        step.await.map(|text| text.len())
    });
    assert!(matches!(refusal(large.await), Error::Unrecorded));
    assert_eq!(record(&idem).await.state, RecordState::Running);

    tokio::time::advance(LEASE).await;
    let stubborn = run(&idem, call("k", 1), async |attempt| {
        let step = attempt.step("charge", async || Ok::<_, Failure>(Stubborn));
        step.await.map(drop)
    });
    assert!(matches!(refusal(stubborn.await), Error::Unrecorded));
    assert_eq!(record(&idem).await.state, RecordState::Running);
}

#[tokio::test(start_paused = true)]
async fn a_step_that_is_dropped_half_way_is_unknown() {
    let ((idem, _), ledger) = (faulty(), Ledger::default());
    let failed = run(&idem, call("k", 1), async |attempt| {
        let hanging = attempt.step("charge", async || {
            ledger.enter("charge");
            std::future::pending::<Result<u32, Failure>>().await
        });
        let late = tokio::time::timeout(Duration::from_secs(1), hanging).await;
        late.map_err(|_| Failure::TimedOut)?
    });
    assert!(matches!(failed.await, Err(Failure::TimedOut)));
    assert_eq!(
        record(&idem).await.state,
        RecordState::Running,
        "it is unknown whether the card was charged"
    );
}

#[tokio::test(start_paused = true)]
async fn the_result_of_a_dropped_step_is_still_saved() {
    let ((idem, faults), ledger) = (faulty(), Ledger::default());
    let gate = faults.hold_before(Op::SaveStep);
    let mut dying = Box::pin(run(&idem, call("k", 1), async |attempt| {
        ledger.step(&attempt, "charge").await
    }));
    assert!(dying.as_mut().now_or_never().is_none());
    gate.reached().await;
    drop(dying);
    settle().await;
    tokio::time::advance(LEASE).await;
    let second = run(&idem, call("k", 1), async |attempt| {
        ledger.step(&attempt, "charge").await
    });
    assert_eq!(second.await.unwrap(), "charge by attempt 1");
    assert_eq!(ledger.entries(), ["charge"]);
}

#[tokio::test(start_paused = true)]
async fn a_save_is_repeated_after_a_lost_acknowledgement() {
    for lose in [FaultStore::fail_after, FaultStore::hang_after] {
        let ((idem, faults), ledger) = (faulty(), Ledger::default());
        lose(&faults, Op::SaveStep, 1);
        let done = run(&idem, call("k", 1), async |it| checkout(&ledger, it).await);
        done.await.unwrap();
        assert_eq!(ledger.entries(), ["reserve", "charge", "mail"]);
        assert_eq!(faults.count(Op::SaveStep), 4);
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_lost_its_lease_saves_no_step_and_starts_none() {
    let ((idem, _), ledger) = (faulty(), Ledger::default());
    let (rival, witness) = (idem.clone(), ledger.clone());
    // Another process on the same records: it is not part of this one's single-flight.
    let rival = Idem::new(rival.store().clone());
    let paused = run(&idem, call("k", 1), async |attempt| {
        let lost = attempt.step("charge", async || {
            ledger.enter("paused");
            // The heartbeat hangs as well until the lease has expired.
            idem.store().always(Op::Renew, Fault::HangBefore);
            tokio::time::sleep(LEASE * 2).await;
            let taken = run(&rival, call("k", 1), async |it| {
                checkout(&witness, it).await
            });
            taken.await.map(|_| 1_u32)
        });
        let lost = refusal(lost.await);
        assert!(matches!(lost, Error::LeaseLost));
        assert!(!attempt.is_live());
        let refused = refusal(ledger.step(&attempt, "mail").await);
        assert!(matches!(refused, Error::LeaseLost));
        Err::<Vec<String>, _>(lost.into())
    });
    assert!(matches!(refusal(paused.await), Error::LeaseLost));
    assert_eq!(ledger.entries(), ["paused", "reserve", "charge", "mail"]);
    assert_eq!(record(&idem).await.state, RecordState::Completed);
}

#[tokio::test(start_paused = true)]
async fn an_owner_whose_record_was_taken_over_does_not_get_the_steps_of_its_successor() {
    let ((idem, _), ledger) = (faulty(), Ledger::default());
    die_after(&idem, call("k", 1), &ledger, &[]).await;
    let rival = Idem::new(idem.store().clone());
    let witness = ledger.clone();
    let paused = run(&idem, call("k", 1), async |attempt| {
        idem.store().always(Op::Renew, Fault::HangBefore);
        tokio::time::sleep(LEASE * 2).await;
        let taken = run(&rival, call("k", 1), async |it| {
            checkout(&witness, it).await
        });
        taken.await?;
        // The first step reads the steps that earlier attempts have saved.
        ledger.step(&attempt, "reserve").await
    });
    assert!(matches!(refusal(paused.await), Error::LeaseLost));
    assert_eq!(ledger.entries(), ["reserve", "charge", "mail"]);
}

#[tokio::test(start_paused = true)]
async fn steps_may_run_concurrently() {
    let ((idem, faults), ledger) = (faulty(), Ledger::default());
    die_after(&idem, call("k", 1), &ledger, &["b"]).await;
    let both_run = tokio::sync::Barrier::new(2);
    let done = run(&idem, call("k", 1), async |attempt| {
        let step = async |name: &'static str| {
            let step = attempt.step(name, async || {
                both_run.wait().await;
                ledger.enter(name);
                Ok::<_, Failure>(name.to_owned())
            });
            step.await
        };
        let (a, b, c) = tokio::join!(step("a"), ledger.step(&attempt, "b"), step("c"));
        Ok([a?, b?, c?])
    });
    assert_eq!(done.await.unwrap(), ["a", "b by attempt 1", "c"]);
    assert_eq!(ledger.entries().len(), 3);
    assert_eq!(faults.count(Op::SavedSteps), 1, "they share the read");
}

#[tokio::test(start_paused = true)]
async fn of_two_concurrent_steps_with_one_name_one_runs() {
    let ((idem, _), ledger) = (faulty(), Ledger::default());
    let failed = run(&idem, call("k", 1), async |attempt| {
        let (one, other) = tokio::join!(
            ledger.step(&attempt, "charge"),
            ledger.step(&attempt, "charge")
        );
        assert!(one.is_ok());
        other
    });
    assert!(matches!(
        refusal(failed.await),
        Error::InvalidCall(InvalidCall::StepReused(_))
    ));
    assert_eq!(ledger.entries(), ["charge"]);
}

/// A body with steps can run on any thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_with_steps_can_be_spawned() {
    let (idem, ledger) = (super::idem(), Ledger::default());
    let witness = ledger.clone();
    let spawned = tokio::spawn(async move {
        run(&idem, call("k", 1), async |it| checkout(&witness, it).await).await
    });
    assert_eq!(spawned.await.unwrap().unwrap().len(), 3);
    assert_eq!(ledger.entries(), ["reserve", "charge", "mail"]);
}

#[tokio::test(start_paused = true)]
async fn steps_that_cannot_be_read_keep_the_body_from_running_them() {
    let ((idem, faults), ledger) = (faulty(), Ledger::default());
    die_after(&idem, call("k", 1), &ledger, &["reserve"]).await;
    faults.always(
        Op::SavedSteps,
        Fault::FailBefore(StoreErrorKind::Unavailable),
    );
    let body = async |attempt| checkout(&ledger, attempt).await;
    let error = refusal(run(&idem, call("k", 1), body).await);
    assert!(matches!(error, Error::Store(_)));
    assert_eq!(ledger.entries(), ["reserve"], "nothing ran");
    // Nothing is unknown, so the key is free.
    assert_eq!(record(&idem).await.state, RecordState::Released);
    faults.reset();
    run(&idem, call("k", 1), body).await.unwrap();
    assert_eq!(ledger.entries(), ["reserve", "charge", "mail"]);
}

#[tokio::test(start_paused = true)]
async fn a_step_with_a_result_of_another_type_is_not_run_again() {
    let ((idem, _), ledger) = (faulty(), Ledger::default());
    die_after(&idem, call("k", 1), &ledger, &["charge"]).await;
    let deployed = run(&idem, call("k", 1), async |attempt| {
        let step = attempt.step("charge", async || {
            ledger.enter("again");
            Ok::<_, Failure>(1_u32)
        });
        step.await
    });
    assert!(matches!(refusal(deployed.await), Error::Decode(_)));
    assert_eq!(ledger.entries(), ["charge"]);
}

#[tokio::test(start_paused = true)]
async fn a_new_generation_of_a_key_begins_without_steps() {
    let ((idem, _), ledger) = (faulty(), Ledger::default());
    let body = async |attempt: Attempt| {
        ledger.step(&attempt, "charge").await?;
        Err::<u32, _>(Failure::TimedOut)
    };
    let _ = run(&idem, call("k", 1), body).await;
    tokio::time::advance(TTL).await;
    let _ = run(&idem, call("k", 1), body).await;
    assert_eq!(ledger.entries(), ["charge", "charge"]);
}

#[tokio::test(start_paused = true)]
async fn without_protection_steps_run_and_are_not_saved() {
    let faults = FaultStore::new(MemoryStore::new());
    let idem = Idem::builder(faults.clone())
        .on_store_error(OnStoreError::Run)
        .build();
    let ledger = Ledger::default();
    faults.outage();
    let done = run(&idem, call("k", 1), async |attempt| {
        assert_eq!(attempt.fencing_token(), None);
        let again = checkout(&ledger, attempt.clone()).await;
        let reused = refusal(ledger.step(&attempt, "mail").await);
        assert!(matches!(
            reused,
            Error::InvalidCall(InvalidCall::StepReused(_))
        ));
        again
    });
    assert_eq!(done.await.unwrap().len(), 3);
    assert_eq!(ledger.entries(), ["reserve", "charge", "mail"]);
    assert_eq!(faults.count(Op::SaveStep), 0);
}

#[tokio::test(start_paused = true)]
async fn a_store_without_steps_is_an_error_before_the_first_step_runs() {
    let (idem, ledger) = (Idem::new(Plain::new(MemoryStore::new())), Ledger::default());
    let error = refusal(run(&idem, call("k", 1), async |it| checkout(&ledger, it).await).await);
    assert!(matches!(
        error,
        Error::InvalidCall(InvalidCall::StepsUnsupported)
    ));
    assert!(ledger.entries().is_empty());
    assert_eq!(record(&idem).await.state, RecordState::Released);
}

/// The function has an effect before its first step.
#[idempotent(key = key, ttl = "1h", name = "tests.declared-steps", store = idem, attempt = attempt, skip(ledger))]
async fn declared(
    idem: &Idem<Plain<MemoryStore>>,
    key: &str,
    ledger: &Ledger,
) -> Result<u32, Failure> {
    ledger.enter("before");
    attempt.step("charge", async || Ok(1)).await
}

#[tokio::test(start_paused = true)]
async fn on_a_store_without_steps_a_function_with_steps_is_refused_before_its_first_effect() {
    let (idem, ledger) = (Idem::new(Plain::new(MemoryStore::new())), Ledger::default());
    let by_macro = declared(&idem, "k", &ledger).await;
    let manual = run(&idem, call("k", 1).with_steps(), async |_| {
        ledger.enter("before");
        Ok(1)
    });
    for answer in [by_macro, manual.await] {
        assert!(matches!(
            refusal(answer),
            Error::InvalidCall(InvalidCall::StepsUnsupported)
        ));
    }
    assert!(ledger.entries().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_downstream_key_of_a_step_is_unique_and_equal_in_every_attempt() {
    let (idem, keys) = (super::idem(), Arc::new(Mutex::new(Vec::new())));
    for _ in 0..2 {
        let _ = run(&idem, call("k", 1), async |attempt| {
            keys.lock().unwrap().push([
                attempt.step_downstream_key("charge"),
                attempt.step_downstream_key("mail"),
                attempt.downstream_key("charge"),
            ]);
            Err::<u32, _>(Failure::TimedOut)
        })
        .await;
    }
    let keys = keys.lock().unwrap();
    assert_eq!(keys[0], keys[1]);
    let [charge, mail, service] = keys[0].each_ref().map(Key::as_str);
    assert!(charge != mail && charge != service && mail != service);
    // Frozen: a third party remembers this key, so later versions must send the same one.
    assert_eq!(charge, "060caaa8-7dc7-842e-b56b-f11e8cbd4613");
}
