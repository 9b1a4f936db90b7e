//! Keys whose owner panicked, was cancelled, was paused, or crashed.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use idem_runtime::advanced::RunOptions;
use idem_runtime::record::{Record, RecordState, Timestamp};
use idem_runtime::store::{Filter, ListedRecord, PageRequest, Resolved};
use idem_runtime::{Attempt, Call, Error, Idem, MemoryStore, OnCrash, Reconciled, Scope};
use tokio::sync::oneshot;

use super::{Effects, Failure, LEASE, OPERATION, TTL, call, idem, refusal};

/// Runs a body that has its effect and then hangs forever, and drops it: a simulated crash.
async fn die(idem: &Idem<MemoryStore>, effects: &Effects, call: Call) {
    let mut body = Box::pin(idem.run(call, async || -> Result<u32, Failure> {
        effects.happen();
        std::future::pending().await
    }));
    assert!(body.as_mut().now_or_never().is_none());
    drop(body);
    // Lets the guard's background work run.
    tokio::task::yield_now().await;
}

async fn record(idem: &Idem<MemoryStore>) -> Record {
    let none = Scope::none();
    let record = idem
        .records()
        .find_scoped("test.operation", "k", &none)
        .await;
    record.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn rerun_runs_again_after_the_lease_has_expired_and_not_before() {
    let (idem, effects) = (idem(), Effects::default());
    die(&idem, &effects, call("k", 1)).await;
    let early = refusal(effects.run(&idem, call("k", 1)).await);
    let Error::InFlight { retry_after } = early else {
        panic!("expected in flight, got {early:?}");
    };
    assert!(retry_after > Duration::ZERO && retry_after <= Duration::from_secs(1));

    tokio::time::advance(LEASE).await;
    assert_eq!(effects.run(&idem, call("k", 1)).await.unwrap(), 2);
    assert_eq!(record(&idem).await.attempt, 2);
}

#[tokio::test(start_paused = true)]
async fn a_lapsed_key_is_not_taken_over_by_another_request() {
    let (idem, effects) = (idem(), Effects::default());
    die(&idem, &effects, call("k", 1)).await;
    tokio::time::advance(LEASE).await;
    let reused = refusal(effects.run(&idem, call("k", 2)).await);
    assert!(matches!(reused, Error::KeyReused));
    assert_eq!(effects.run(&idem, call("k", 1)).await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_panic_counts_as_a_crash() {
    for (on_crash, state) in [
        (OnCrash::Rerun, RecordState::Running),
        (OnCrash::Refuse, RecordState::Interrupted),
        (OnCrash::Reconcile, RecordState::Interrupted),
    ] {
        let idem = idem();
        let call = call("k", 1).on_crash(on_crash);
        let body = idem.run(call, async || -> Result<u32, Failure> { panic!("bug") });
        assert!(AssertUnwindSafe(body).catch_unwind().await.is_err());
        tokio::task::yield_now().await;
        assert_eq!(record(&idem).await.state, state);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_call_stays_interrupted_until_an_operator_completes_it() {
    let (idem, effects) = (idem(), Effects::default());
    let refuse = || call("k", 1).on_crash(OnCrash::Refuse);
    die(&idem, &effects, refuse()).await;
    // Long after lease and retention, and through a purge.
    tokio::time::advance(TTL * 10).await;
    idem.store_purge().await;
    let refused = refusal(effects.run(&idem, refuse()).await);
    assert!(matches!(refused, Error::Interrupted));

    let filter = Filter {
        state: Some(RecordState::Interrupted),
        operation: Some("test.operation".to_owned()),
        older_than: Some(TTL),
        ..Filter::default()
    };
    let page = PageRequest {
        limit: 10,
        after: None,
    };
    let listed = idem.records().list(&filter, &page).await.unwrap();
    let [ListedRecord { record: seen, .. }] = &*listed.records else {
        panic!("expected one interrupted record, got {listed:?}");
    };
    let settled = crate::records::manually(&idem)
        .complete(OPERATION, &seen.observation(), &77)
        .await;
    assert_eq!(settled.unwrap(), Resolved::Done);
    assert_eq!(effects.run(&idem, refuse()).await.unwrap(), 77);
    assert_eq!(effects.count(), 1);
    let again = crate::records::manually(&idem)
        .release(&seen.observation())
        .await;
    assert_eq!(again.unwrap(), Resolved::Stale, "an outcome is immutable");
}

#[tokio::test(start_paused = true)]
async fn an_operator_can_release_fail_or_erase_an_interrupted_record() {
    let refuse = || call("k", 1).on_crash(OnCrash::Refuse);

    let (idem, effects) = (idem(), Effects::default());
    die(&idem, &effects, refuse()).await;
    let seen = record(&idem).await.observation();
    assert_eq!(
        crate::records::manually(&idem)
            .release(&seen)
            .await
            .unwrap(),
        Resolved::Done
    );
    assert_eq!(effects.run(&idem, refuse()).await.unwrap(), 2);

    let idem = super::idem();
    die(&idem, &effects, refuse()).await;
    let seen = record(&idem).await.observation();
    let why = Failure::Declined("by hand".to_owned());
    assert_eq!(
        crate::records::manually(&idem)
            .fail(OPERATION, &seen, &why)
            .await
            .unwrap(),
        Resolved::Done
    );
    let handling = RunOptions::new().replay_err(|_| true);
    let replayed = idem.run_with(refuse(), handling, async |_| Ok(effects.happen()));
    assert!(matches!(replayed.await, Err(Failure::Declined(why)) if why == "by hand"));

    let idem = super::idem();
    die(&idem, &effects, refuse()).await;
    let seen = record(&idem).await.observation();
    assert_eq!(
        crate::records::manually(&idem).erase(&seen).await.unwrap(),
        Resolved::Done
    );
    let other_request = call("k", 2).on_crash(OnCrash::Refuse);
    assert!(effects.run(&idem, other_request).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_record_whose_owner_is_alive_cannot_be_resolved() {
    let (idem, effects) = (idem(), Effects::default());
    idem.run(call("k", 1), async || {
        let seen = record(&idem).await.observation();
        let change = crate::records::manual_change();
        let records = idem.records().by(&change);
        assert_eq!(records.release(&seen).await?, Resolved::Stale);
        assert_eq!(records.erase(&seen).await?, Resolved::Stale);
        assert_eq!(
            records.complete(OPERATION, &seen, &9_u32).await?,
            Resolved::Stale
        );
        Ok::<_, Failure>(effects.happen())
    })
    .await
    .unwrap();
}

#[tokio::test(start_paused = true)]
async fn expired_records_are_purged_manually() {
    let (idem, effects) = (idem(), Effects::default());
    let change = crate::records::manual_change();
    assert_eq!(effects.run(&idem, call("k", 1)).await.unwrap(), 1);
    assert_eq!(
        idem.records().by(&change).purge(10).await.unwrap().removed,
        0
    );
    tokio::time::advance(2 * TTL).await;
    assert_eq!(
        idem.records().by(&change).purge(10).await.unwrap().removed,
        1
    );
}

/// Calls a function under `reconcile` that returns this answer. Returns the number of its calls too.
async fn reconcile(
    idem: &Idem<MemoryStore>,
    effects: &Effects,
    answer: Result<Reconciled<u32>, Failure>,
) -> (Result<u32, Failure>, Vec<u32>) {
    let mut answer = Some(answer);
    let mut asked = Vec::new();
    let handling = RunOptions::new().reconcile(|attempt: Attempt| {
        asked.push(attempt.number());
        std::future::ready(answer.take().expect("asked once"))
    });
    let result = idem
        .run_with(call("k", 1), handling, async |_| Ok(effects.happen()))
        .await;
    (result, asked)
}

#[tokio::test(start_paused = true)]
async fn reconcile_is_asked_only_when_needed() {
    let (idem, effects) = (idem(), Effects::default());
    for _ in 0..2 {
        let (result, asked) = reconcile(&idem, &effects, Ok(Reconciled::Unknown)).await;
        assert_eq!((result.unwrap(), asked), (1, vec![]));
    }
}

#[tokio::test(start_paused = true)]
async fn reconcile_done_stores_the_value_and_runs_nothing() {
    let (idem, effects) = (idem(), Effects::default());
    die(&idem, &effects, call("k", 1).on_crash(OnCrash::Reconcile)).await;
    let (result, asked) = reconcile(&idem, &effects, Ok(Reconciled::Done(50))).await;
    assert_eq!((result.unwrap(), asked), (50, vec![1]));
    let (result, asked) = reconcile(&idem, &effects, Ok(Reconciled::NotDone)).await;
    assert_eq!((result.unwrap(), asked), (50, vec![]));
    assert_eq!(effects.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn reconcile_not_done_runs_the_body_as_the_next_attempt() {
    let (idem, effects) = (idem(), Effects::default());
    die(&idem, &effects, call("k", 1).on_crash(OnCrash::Reconcile)).await;
    let (result, asked) = reconcile(&idem, &effects, Ok(Reconciled::NotDone)).await;
    assert_eq!((result.unwrap(), asked), (2, vec![1]));
    assert_eq!(record(&idem).await.attempt, 2);
}

#[tokio::test(start_paused = true)]
async fn reconcile_unknown_is_interrupted_and_the_next_call_asks_again() {
    let (idem, effects) = (idem(), Effects::default());
    die(&idem, &effects, call("k", 1).on_crash(OnCrash::Reconcile)).await;
    let (result, asked) = reconcile(&idem, &effects, Ok(Reconciled::Unknown)).await;
    assert!(matches!(refusal(result), Error::Interrupted));
    assert_eq!(
        (asked, record(&idem).await.state),
        (vec![1], RecordState::Interrupted)
    );
    let (result, asked) = reconcile(&idem, &effects, Err(Failure::Lost)).await;
    assert!(
        matches!(result, Err(Failure::Lost)),
        "its own error goes to the caller"
    );
    assert_eq!(asked, [1]);
    let (result, asked) = reconcile(&idem, &effects, Ok(Reconciled::Done(50))).await;
    assert_eq!((result.unwrap(), asked), (50, vec![1]));
}

#[tokio::test(start_paused = true)]
async fn one_reconciliation_serves_all_duplicates_of_a_process() {
    let (idem, effects) = (idem(), Effects::default());
    let reconcile = || call("k", 1).on_crash(OnCrash::Reconcile);
    die(&idem, &effects, reconcile()).await;
    let asked = std::sync::atomic::AtomicU32::new(0);
    let run = |wait| {
        let handling = RunOptions::new().reconcile(|_| {
            asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            async {
                tokio::time::sleep(Duration::from_secs(5)).await;
                Ok(Reconciled::Done(50))
            }
        });
        idem.run_with(reconcile().wait(wait), handling, async |_| {
            Ok(effects.happen())
        })
    };
    let (first, impatient, patient) =
        tokio::join!(run(Duration::ZERO), run(Duration::ZERO), run(LEASE));
    assert_eq!(first.unwrap(), 50);
    assert!(matches!(refusal(impatient), Error::InFlight { .. }));
    assert_eq!(patient.unwrap(), 50);
    assert_eq!(asked.into_inner(), 1);
    assert_eq!(effects.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn reconcile_is_never_asked_about_another_request() {
    let (idem, effects) = (idem(), Effects::default());
    die(&idem, &effects, call("k", 2).on_crash(OnCrash::Reconcile)).await;
    tokio::time::advance(LEASE).await;
    let (result, asked) = reconcile(&idem, &effects, Ok(Reconciled::NotDone)).await;
    assert!(matches!(refusal(result), Error::KeyReused));
    assert!(asked.is_empty());
}

#[tokio::test(start_paused = true)]
async fn dropping_a_call_whose_body_was_never_polled_releases_the_key() {
    for on_crash in [OnCrash::Rerun, OnCrash::Refuse] {
        let (idem, effects) = (idem(), Effects::default());
        // The body is a future that is created and never polled, because its caller stops at that point.
        let (stop, stopped) = oneshot::channel::<()>();
        {
            let call = call("k", 1).on_crash(on_crash);
            let claim = idem.run(call, async || {
                let _ = stop.send(());
                Ok::<_, Failure>(effects.happen())
            });
            drop(claim);
        }
        assert!(stopped.await.is_err(), "the body was dropped unpolled");
        assert_eq!(effects.run(&idem, call("k", 1)).await.unwrap(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn heartbeats_renew_the_lease_of_a_long_body() {
    let (idem, effects) = (idem(), Effects::default());
    let long = idem.run(call("k", 1), async || {
        tokio::time::sleep(LEASE * 10).await;
        Ok::<_, Failure>(effects.happen())
    });
    let duplicate = async {
        for _ in 0..9 {
            tokio::time::sleep(LEASE).await;
            let busy = refusal(effects.run(&idem, call("k", 1)).await);
            assert!(matches!(busy, Error::InFlight { .. }), "{busy:?}");
        }
    };
    let (first, ()) = tokio::join!(long, duplicate);
    assert_eq!((first.unwrap(), effects.count()), (1, 1));
}

/// Two services on one store: each may take the other for crashed when it is only slow.
struct Pair {
    slow: Idem<std::sync::Arc<MemoryStore>>,
    other: Idem<std::sync::Arc<MemoryStore>>,
}

impl Pair {
    fn new() -> Self {
        let store = std::sync::Arc::new(MemoryStore::new());
        Self {
            slow: Idem::new(store.clone()),
            other: Idem::new(store),
        }
    }
}

/// Body that blocks its thread past its lease, so that no heartbeat of its task runs, as in a process under SIGSTOP.
async fn paused_past_the_lease(attempt: &Attempt) {
    tokio::time::advance(LEASE + Duration::from_secs(1)).await;
    assert!(!attempt.is_live());
}

#[tokio::test(start_paused = true)]
async fn a_paused_owner_is_accepted_if_its_record_was_not_taken_over() {
    let (pair, effects) = (Pair::new(), Effects::default());
    let result = pair
        .slow
        .run_with(call("k", 1), RunOptions::new(), async |attempt| {
            paused_past_the_lease(&attempt).await;
            Ok::<_, Failure>(effects.happen())
        })
        .await;
    assert_eq!(result.unwrap(), 1);
    assert_eq!(effects.run(&pair.other, call("k", 1)).await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_owner_whose_record_was_taken_over_gets_the_stored_result() {
    let (pair, effects) = (Pair::new(), Effects::default());
    let result = pair
        .slow
        .run_with(call("k", 1), RunOptions::new(), async |attempt| {
            let own = effects.happen();
            paused_past_the_lease(&attempt).await;
            assert_eq!(effects.run(&pair.other, call("k", 1)).await?, 2);
            Ok::<_, Failure>(own)
        })
        .await;
    assert_eq!(result.unwrap(), 2, "all callers get one and the same");
}

#[tokio::test(start_paused = true)]
async fn an_owner_whose_record_was_taken_over_by_a_running_call_lost_its_lease() {
    let (pair, effects) = (Pair::new(), Effects::default());
    let overtaker = std::cell::RefCell::new(None);
    let result = pair
        .slow
        .run_with(call("k", 1), RunOptions::new(), async |attempt| {
            paused_past_the_lease(&attempt).await;
            let mut running = Box::pin(pair.other.run(call("k", 1), async || {
                std::future::pending::<()>().await;
                Ok::<_, Failure>(0)
            }));
            assert!(running.as_mut().now_or_never().is_none());
            *overtaker.borrow_mut() = Some(running);
            let lost = attempt.renew().await;
            assert!(matches!(lost, Err(Error::LeaseLost)));
            Ok::<_, Failure>(effects.happen())
        })
        .await;
    assert!(matches!(refusal(result), Error::LeaseLost));
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_lost_its_record_does_not_get_the_outcome_of_another_request() {
    let (pair, effects) = (Pair::new(), Effects::default());
    let result = pair
        .slow
        .run_with(call("k", 1), RunOptions::new(), async |attempt| {
            let own = effects.happen();
            paused_past_the_lease(&attempt).await;
            // The record has expired, so the key is free for any request.
            tokio::time::advance(TTL).await;
            assert_eq!(effects.run(&pair.other, call("k", 2)).await?, 2);
            Ok::<_, Failure>(own)
        })
        .await;
    assert!(matches!(refusal(result), Error::LeaseLost));
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_record_refuses_another_request_as_a_reused_key() {
    let (idem, effects) = (idem(), Effects::default());
    die(&idem, &effects, call("k", 1).on_crash(OnCrash::Refuse)).await;
    assert_eq!(record(&idem).await.state, RecordState::Interrupted);
    let other = effects.run(&idem, call("k", 2)).await;
    assert!(matches!(refusal(other), Error::KeyReused));
    assert_eq!(effects.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_owner_under_refuse_may_complete_an_unresolved_record() {
    let (pair, effects) = (Pair::new(), Effects::default());
    let refuse = || call("k", 1).on_crash(OnCrash::Refuse);
    let result = pair
        .slow
        .run_with(refuse(), RunOptions::new(), async |attempt| {
            paused_past_the_lease(&attempt).await;
            let interrupted = refusal(effects.run(&pair.other, refuse()).await);
            assert!(matches!(interrupted, Error::Interrupted));
            Ok::<_, Failure>(effects.happen())
        })
        .await;
    assert_eq!(result.unwrap(), 1);
    assert_eq!(effects.run(&pair.other, refuse()).await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_owner_whose_record_was_resolved_gets_the_operators_outcome() {
    let (pair, effects) = (Pair::new(), Effects::default());
    let refuse = || call("k", 1).on_crash(OnCrash::Refuse);
    let result = pair
        .slow
        .run_with(refuse(), RunOptions::new(), async |attempt| {
            paused_past_the_lease(&attempt).await;
            let records = pair.other.records();
            let seen = records.get(&attempt.record_id()).await?.unwrap();
            let settled = crate::records::manually(&pair.other)
                .complete(OPERATION, &seen.observation(), &77)
                .await?;
            assert_eq!(settled, Resolved::Done);
            Ok::<_, Failure>(effects.happen())
        })
        .await;
    assert_eq!(result.unwrap(), 77);
}

#[tokio::test(start_paused = true)]
async fn fencing_tokens_increase_with_attempts_purges_and_erasures() {
    let idem = idem();
    let mut last = 0;
    for round in 0..4 {
        let fencing_token = idem.run_with(call("k", 1), RunOptions::new(), async |attempt| {
            let fencing_token = attempt.fencing_token().unwrap();
            // One attempt fails, so that the next attempt belongs to the same record.
            if round % 2 == 0 {
                assert!(fencing_token > last);
                last = fencing_token;
                return Err(Failure::TimedOut);
            }
            Ok(fencing_token)
        });
        if let Ok(fencing_token) = fencing_token.await {
            assert!(fencing_token > last);
            last = fencing_token;
            tokio::time::advance(TTL + Duration::from_secs(1)).await;
            idem.store_purge().await;
        }
    }
}

/// Purges all expired records.
trait StorePurge {
    async fn store_purge(&self);
}

impl StorePurge for Idem<MemoryStore> {
    async fn store_purge(&self) {
        use idem_runtime::Store;
        while self.store().purge(100, Timestamp::MAX).await.unwrap().more {}
    }
}
