//! `replay_err`, `release_err` and `on_store_error`: the treatment of each `Err`, and calls without a working store.

use idem_runtime::conformance::faults::Op;
use idem_runtime::record::RecordState;
use idem_runtime::{Error, idempotent};

use super::{Bank, Failure};

fn status<T: std::fmt::Debug>(result: &Result<T, Failure>) -> u16 {
    match result {
        Err(Failure::Status(status)) => *status,
        other => panic!("expected a status, got {other:?}"),
    }
}

#[idempotent(key = key, ttl = "1h", store = bank, name = "plain", skip(failure))]
async fn plain(bank: &Bank, key: &str, failure: Option<Failure>) -> Result<u32, Failure> {
    let payment = bank.pay();
    failure.map_or(Ok(payment), Err)
}

#[tokio::test(start_paused = true)]
async fn without_options_every_error_releases_the_key() {
    let bank = Bank::new();
    for failure in [Failure::TimedOut, Failure::Declined("no".to_owned())] {
        assert!(plain(&bank, "k", Some(failure)).await.is_err());
        assert_eq!(bank.record("plain", "k").await.state, RecordState::Released);
    }
    assert_eq!(plain(&bank, "k", None).await.unwrap(), 3);
    assert_eq!(bank.record("plain", "k").await.attempt, 3);
}

#[idempotent(
    key = key, ttl = "1h", store = bank, name = "replaying", skip(failure),
    replay_err = Failure::Declined(_) | Failure::Status(400..=499),
)]
async fn replaying(bank: &Bank, key: &str, failure: Option<Failure>) -> Result<u32, Failure> {
    let payment = bank.pay();
    failure.map_or(Ok(payment), Err)
}

#[tokio::test(start_paused = true)]
async fn each_alternative_of_replay_err_is_stored_and_replayed() {
    let bank = Bank::new();
    let declined = Failure::Declined("no funds".to_owned());
    assert!(replaying(&bank, "declined", Some(declined)).await.is_err());
    let again = replaying(&bank, "declined", None).await;
    assert!(matches!(again, Err(Failure::Declined(why)) if why == "no funds"));

    let refused = replaying(&bank, "status", Some(Failure::Status(404))).await;
    assert_eq!(status(&refused), 404);
    assert_eq!(status(&replaying(&bank, "status", None).await), 404);
    assert_eq!(
        bank.record("replaying", "status").await.state,
        RecordState::Failed
    );
    assert_eq!(bank.payments(), 2);

    let failed = replaying(&bank, "server", Some(Failure::Status(500))).await;
    assert_eq!(status(&failed), 500);
    assert_eq!(replaying(&bank, "server", None).await.unwrap(), 4);
}

#[idempotent(
    key = key, ttl = "1h", store = bank, name = "guarded", skip(failure), attempt = attempt,
    replay_err = Failure::Status(status) if *status < 500 && !key.starts_with("never"),
)]
async fn guarded(bank: &Bank, key: &str, failure: Option<Failure>) -> Result<u32, Failure> {
    let payment = bank.pay();
    assert_eq!(attempt.key().as_str(), key);
    failure.map_or(Ok(payment), Err)
}

#[tokio::test(start_paused = true)]
async fn a_guard_decides_by_the_error_and_the_arguments() {
    let bank = Bank::new();
    for (key, code, replayed) in [
        ("client", 404, true),
        ("server", 500, false),
        ("never", 404, false),
    ] {
        let failed = guarded(&bank, key, Some(Failure::Status(code))).await;
        assert_eq!(status(&failed), code);
        let again = guarded(&bank, key, None).await;
        assert_eq!(again.is_err(), replayed, "{key}: {again:?}");
    }
    assert_eq!(bank.payments(), 5);
}

#[idempotent(
    key = constant("k"), ttl = "1h", store = bank, name = "third", attempt = attempt,
    replay_err = Failure::TimedOut if attempt.number() >= 3,
)]
async fn gives_up(bank: &Bank) -> Result<u32, Failure> {
    assert_eq!(attempt.number(), bank.pay());
    drop(attempt);
    Err(Failure::TimedOut)
}

#[tokio::test(start_paused = true)]
async fn a_guard_sees_the_attempt_even_if_the_body_consumed_it() {
    let bank = Bank::new();
    for _ in 0..5 {
        assert!(matches!(gives_up(&bank).await, Err(Failure::TimedOut)));
    }
    assert_eq!(bank.payments(), 3);
}

#[idempotent(
    key = key, ttl = "1h", store = bank, name = "careful", skip(failure),
    on_crash = refuse,
    replay_err = Failure::Declined(_),
    release_err = Failure::TimedOut | Failure::Status(503),
)]
async fn careful(bank: &Bank, key: &str, failure: Option<Failure>) -> Result<u32, Failure> {
    let payment = bank.pay();
    failure.map_or(Ok(payment), Err)
}

#[tokio::test(start_paused = true)]
async fn under_refuse_an_error_is_final_retried_or_unknown() {
    let bank = Bank::new();
    for (failure, state) in [
        (Failure::Declined("no".to_owned()), RecordState::Failed),
        (Failure::TimedOut, RecordState::Released),
        (Failure::Status(503), RecordState::Released),
        (Failure::Status(500), RecordState::Interrupted),
    ] {
        let key = failure.to_string();
        assert!(careful(&bank, &key, Some(failure)).await.is_err());
        assert_eq!(bank.record("careful", &key).await.state, state, "{key}");
        let again = careful(&bank, &key, None).await;
        match state {
            RecordState::Failed => assert!(matches!(again, Err(Failure::Declined(_)))),
            RecordState::Interrupted => assert!(matches!(
                again,
                Err(Failure::Idempotency(Error::Interrupted))
            )),
            _ => assert!(again.is_ok()),
        }
    }
    assert_eq!(bank.payments(), 6);
}

#[idempotent(key = constant("k"), ttl = "1h", store = bank, on_store_error = run)]
async fn open(bank: &Bank) -> Result<u32, Failure> {
    Ok(bank.pay())
}

#[idempotent(key = constant("k"), ttl = "1h", store = bank)]
async fn closed(bank: &Bank) -> Result<u32, Failure> {
    Ok(bank.pay())
}

#[tokio::test(start_paused = true)]
async fn without_a_store_nothing_runs_unless_the_call_allows_it() {
    let bank = Bank::new();
    bank.store().outage();
    let refused = closed(&bank).await;
    assert!(
        matches!(refused, Err(Failure::Idempotency(Error::Store(_)))),
        "{refused:?}"
    );
    assert_eq!(bank.payments(), 0);

    for payment in 1..=2 {
        assert_eq!(open(&bank).await.unwrap(), payment, "without protection");
    }
    bank.store().reset();
    for _ in 0..2 {
        assert_eq!(open(&bank).await.unwrap(), 3, "with it again");
    }
    assert_eq!(bank.store().count(Op::Complete), 1);
}
