//! Annotated functions that call each other and themselves: each call has its own record, attempt and provenance.

use idem_runtime::advanced::{Provenance, ResultSource, with_provenance};
use idem_runtime::error::InvalidCall;
use idem_runtime::record::RecordState;
use idem_runtime::{Error, idempotent};

use super::{Bank, Failure};

#[idempotent(key = format!("{from}"), ttl = "1h", store = bank, name = "countdown")]
async fn countdown(bank: &Bank, from: u32) -> Result<Vec<u32>, Error> {
    bank.pay();
    let mut list = match from {
        0 => vec![],
        _ => Box::pin(countdown(bank, from - 1)).await?,
    };
    list.push(from);
    Ok(list)
}

#[tokio::test(start_paused = true)]
async fn a_function_may_call_itself() {
    let bank = Bank::new();
    assert_eq!(countdown(&bank, 3).await.unwrap(), [0, 1, 2, 3]);
    assert_eq!((bank.payments(), bank.all().await.len()), (4, 4));
    assert_eq!(countdown(&bank, 5).await.unwrap(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(bank.payments(), 6, "the first four are replayed");
}

#[idempotent(key = constant("same"), ttl = "1h", store = bank, name = "itself")]
async fn calls_itself(bank: &Bank, depth: u32) -> Result<u32, Error> {
    Box::pin(calls_itself(bank, depth)).await
}

#[tokio::test(start_paused = true)]
async fn a_call_inside_of_itself_is_refused_and_not_a_deadlock() {
    let bank = Bank::new();
    let result = calls_itself(&bank, 1).await;
    let is_refused = matches!(result, Err(Error::InvalidCall(InvalidCall::OwnKey)));
    assert!(is_refused, "{result:?}");
}

#[idempotent(
    key = key, ttl = "1h", store = bank, name = "outer", attempt = attempt, skip(fails),
    on_crash = refuse, release_err = Failure::TimedOut,
)]
async fn outer(bank: &Bank, key: &str, fails: bool) -> Result<String, Failure> {
    let (inner, provenance) = with_provenance(inner(bank, key)).await;
    let inner = inner?;
    let Provenance { source, .. } = provenance.expect("there was a call");
    if fails {
        return Err(Failure::TimedOut);
    }
    Ok(format!("outer {}, {inner}, {source:?}", attempt.number()))
}

#[idempotent(key = key, ttl = "1h", store = bank, name = "inner", attempt = attempt)]
async fn inner(bank: &Bank, key: &str) -> Result<String, Failure> {
    Ok(format!("inner {} of {}", attempt.number(), bank.pay()))
}

#[tokio::test(start_paused = true)]
async fn each_call_has_its_own_record_attempt_settings_and_provenance() {
    let bank = Bank::new();
    let (failed, provenance) = with_provenance(outer(&bank, "k", true)).await;
    assert!(matches!(failed, Err(Failure::TimedOut)));
    assert_eq!(provenance.unwrap().source, ResultSource::Executed);
    assert_eq!(bank.record("outer", "k").await.state, RecordState::Released);
    assert_eq!(
        bank.record("inner", "k").await.state,
        RecordState::Completed
    );

    let (text, provenance) = with_provenance(outer(&bank, "k", false)).await;
    assert_eq!(text.unwrap(), "outer 2, inner 1 of 1, Replayed");
    let provenance = provenance.unwrap();
    assert_eq!(provenance.source, ResultSource::Executed);
    assert_eq!(provenance.attempt, 2);

    let (text, provenance) = with_provenance(outer(&bank, "k", false)).await;
    assert_eq!(text.unwrap(), "outer 2, inner 1 of 1, Replayed");
    assert_eq!(provenance.unwrap().source, ResultSource::Replayed);
    let (outer, inner) = (
        bank.record("outer", "k").await,
        bank.record("inner", "k").await,
    );
    assert_ne!(outer.on_crash, inner.on_crash);
}

#[idempotent(key = constant("k"), ttl = "1h", store = bank, name = "fan out")]
async fn fan_out(bank: &Bank) -> Result<u32, Failure> {
    let (one, two, three) = tokio::join!(inner(bank, "1"), inner(bank, "2"), inner(bank, "3"));
    Ok([one?, two?, three?].len() as u32)
}

#[tokio::test(start_paused = true)]
async fn a_body_may_make_many_concurrent_calls() {
    let bank = Bank::new();
    for _ in 0..2 {
        assert_eq!(fan_out(&bank).await.unwrap(), 3);
    }
    assert_eq!((bank.payments(), bank.all().await.len()), (3, 4));
}
