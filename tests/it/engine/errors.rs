//! The three kinds of `Err`, and their meaning under each `on_crash`.

use std::time::Duration;

use idem_runtime::advanced::RunOptions;
use idem_runtime::record::RecordState;
use idem_runtime::{Call, Error, Idem, MemoryStore, OnCrash, Scope};

use super::{Effects, Failure, LEASE, call, idem, refusal};

/// Declares `Declined` final, and `TimedOut` a proof that nothing was done.
fn handling<'a>() -> RunOptions<'a, u32, Failure> {
    RunOptions::new()
        .replay_err(|error| matches!(error, Failure::Declined(_)))
        .release_err(|error| matches!(error, Failure::TimedOut))
}

async fn fail(
    idem: &Idem<MemoryStore>,
    effects: &Effects,
    call: Call,
    failure: Failure,
) -> Result<u32, Failure> {
    idem.run_with(call, handling(), async |_| {
        effects.happen();
        Err(failure)
    })
    .await
}

async fn state(idem: &Idem<MemoryStore>) -> RecordState {
    let none = Scope::none();
    let record = idem
        .records()
        .find_scoped("test.operation", "k", &none)
        .await;
    record.unwrap().unwrap().state
}

#[tokio::test(start_paused = true)]
async fn a_final_error_is_stored_and_replayed_under_every_mode() {
    for on_crash in [OnCrash::Rerun, OnCrash::Refuse, OnCrash::Reconcile] {
        let (idem, effects) = (idem(), Effects::default());
        for _ in 0..2 {
            let declined = Failure::Declined("no funds".to_owned());
            let call = call("k", 1).on_crash(on_crash);
            let result = fail(&idem, &effects, call, declined).await;
            assert!(matches!(result, Err(Failure::Declined(why)) if why == "no funds"));
        }
        assert_eq!(
            (effects.count(), state(&idem).await),
            (1, RecordState::Failed)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn under_rerun_every_other_error_releases_the_key_immediately() {
    for failure in [|| Failure::TimedOut, || Failure::Lost] {
        let (idem, effects) = (idem(), Effects::default());
        let result = fail(&idem, &effects, call("k", 1), failure()).await;
        assert!(matches!(result, Err(Failure::TimedOut | Failure::Lost)));
        assert_eq!(state(&idem).await, RecordState::Released);
        assert_eq!(effects.run(&idem, call("k", 1)).await.unwrap(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_released_key_keeps_its_attempt_number_and_its_request() {
    let (idem, effects) = (idem(), Effects::default());
    let _ = fail(&idem, &effects, call("k", 1), Failure::TimedOut).await;
    let reused = refusal(effects.run(&idem, call("k", 2)).await);
    assert!(matches!(reused, Error::KeyReused), "{reused:?}");
    let attempt = idem.run_with(call("k", 1), RunOptions::new(), async |attempt| {
        Ok::<_, Failure>(attempt.number())
    });
    assert_eq!(attempt.await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn under_refuse_and_reconcile_only_release_err_releases_the_key() {
    for on_crash in [OnCrash::Refuse, OnCrash::Reconcile] {
        let (idem, effects) = (idem(), Effects::default());
        let call = || call("k", 1).on_crash(on_crash);
        let _ = fail(&idem, &effects, call(), Failure::TimedOut).await;
        assert_eq!(state(&idem).await, RecordState::Released);

        let result = fail(&idem, &effects, call(), Failure::Lost).await;
        assert!(
            matches!(result, Err(Failure::Lost)),
            "the caller still gets its own error"
        );
        assert_eq!(state(&idem).await, RecordState::Interrupted);
        // A call that cannot reconcile is refused, every time.
        for _ in 0..2 {
            tokio::time::advance(LEASE * 10).await;
            let refused = refusal(effects.run(&idem, call()).await);
            assert!(matches!(refused, Error::Interrupted));
        }
        assert_eq!(effects.count(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn the_stored_crash_policy_decides_what_an_error_means() {
    let (idem, effects) = (idem(), Effects::default());
    let refuse = call("k", 1).on_crash(OnCrash::Refuse);
    let _ = fail(&idem, &effects, refuse, Failure::TimedOut).await;
    // The same function, now deployed without `refuse`: its errors prove nothing for this record.
    let _ = fail(&idem, &effects, call("k", 1), Failure::Lost).await;
    assert_eq!(state(&idem).await, RecordState::Interrupted);
}

#[tokio::test(start_paused = true)]
async fn a_stored_error_that_replay_err_no_longer_names_is_not_run_again() {
    let (idem, effects) = (idem(), Effects::default());
    let declined = Failure::Declined("no funds".to_owned());
    let _ = fail(&idem, &effects, call("k", 1), declined).await;
    let error = refusal(effects.run(&idem, call("k", 1)).await);
    assert!(matches!(error, Error::Decode(_)), "{error:?}");
    assert_eq!(effects.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_final_error_that_cannot_be_stored_is_not_run_again() {
    let idem = Idem::builder(MemoryStore::new())
        .max_result_bytes(8)
        .build();
    let effects = Effects::default();
    let declined = Failure::Declined("a long reason".to_owned());
    let result = fail(&idem, &effects, call("k", 1), declined).await;
    assert!(matches!(result, Err(Failure::Declined(_))));
    let error = refusal(effects.run(&idem, call("k", 1)).await);
    assert!(matches!(error, Error::Unrecorded), "{error:?}");
    assert_eq!(effects.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_released_record_expires_after_its_retention() {
    let (idem, effects) = (idem(), Effects::default());
    let _ = fail(&idem, &effects, call("k", 1), Failure::TimedOut).await;
    tokio::time::advance(super::TTL + Duration::from_secs(1)).await;
    assert!(effects.run(&idem, call("k", 2)).await.is_ok());
}
