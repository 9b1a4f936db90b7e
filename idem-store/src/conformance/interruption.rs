//! Cases on lost answers, and on futures that are dropped half way.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use super::faults::{self, FaultStore, Op};
use super::kit::*;
use crate::error::StoreError;
use crate::record::{OnCrash, RecordState};
use crate::store::{ClaimOutcome, ClaimRequest, FencedWrite, Store};

/// Maximum number of polls before a future is dropped. A call of a store that talks to another thread or machine needs
/// a handful.
pub(super) const POLLS: u32 = 12;

/// Polls the future up to this many times, whenever it wakes its task, and then drops it.
pub(super) async fn dropped_after<T>(polls: u32, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Checks that the planned fault hid this answer. A retryable error of the store itself proves nothing: the transition may
/// have taken effect or not.
pub(super) fn is_lost<T>(call: &'static str, answer: Result<T, StoreError>) -> CaseResult {
    match answer {
        Ok(_) => Err("the fault was lost".to_owned()),
        Err(error) if faults::is_planned(&error) => Ok(()),
        Err(error) => Err(failed(call)(error)),
    }
}

pub(super) async fn lost_answer_of_a_claim(store: Subject) -> CaseResult {
    let faults = FaultStore::new(store.store());
    let claim = fresh();
    faults.fail_before(Op::Claim, 1);
    is_lost("claim", faults.claim(&claim).await)?;
    let none = store.get(&claim.id).await?;
    ensure!(none.is_none(), "there is {none:?} before any claim");

    faults.fail_after(Op::Claim, 1);
    is_lost("claim", faults.claim(&claim).await)?;
    let record = store.record(&claim.id).await?;
    ensure!(
        record.state == RecordState::Running && record.claim_id == Some(claim.claim_id),
        "claimed as {record:?}"
    );
    let granted = store.granted(&claim).await?;
    ensure!(
        granted.fencing_token == record.fencing_token && granted.attempt == 1,
        "{granted:?} repeats {record:?}"
    );
    Ok(())
}

pub(super) async fn lost_answer_of_a_takeover(store: Subject) -> CaseResult {
    let faults = FaultStore::new(store.store());
    let silent = store.silent(OnCrash::Rerun).await?;
    let successor = other(&silent.claim);
    faults.fail_after(Op::TakeOver, 1);
    let lost = faults.take_over(&silent.observation(), &successor).await;
    is_lost("take_over", lost)?;
    let record = store.record(&successor.id).await?;
    let granted = store.taken(&silent.observation(), &successor).await?;
    ensure!(
        granted.fencing_token == record.fencing_token && granted.attempt == 2,
        "{granted:?} repeats {record:?}"
    );
    store.refuses(&silent.owner).await
}

pub(super) async fn lost_answer_of_a_completion(store: Subject) -> CaseResult {
    let faults = FaultStore::new(store.store());
    let claim = fresh();
    let owner = store.own(&claim).await?;
    faults.fail_after(Op::Complete, 1);
    let lost = faults.complete(&owner, &outcome()).await;
    is_lost("complete", lost)?;
    let ended = store.record(&claim.id).await?;
    let repeated = store.complete(&owner, &outcome()).await?;
    ensure!(
        repeated == FencedWrite::Applied,
        "the repeated completion was refused"
    );
    store.unchanged(&ended).await?;
    // Other callers get the outcome, but do not own the record.
    let record = store.denied(&other(&claim)).await?;
    ensure!(record.outcome() == Some(outcome()), "ended as {record:?}");
    Ok(())
}

pub(super) async fn dropped_claim(store: Subject) -> CaseResult {
    for polls in (0..=POLLS).chain(0..=POLLS) {
        let claim = fresh();
        let inner = store.store();
        let answer = dropped_after(polls, inner.claim(&claim)).await;
        if let Some(record) = store.get(&claim.id).await? {
            ensure!(
                record.state == RecordState::Running
                    && record.claim_id == Some(claim.claim_id)
                    && record.attempt == 1,
                "dropped after {polls} polls, it left {record:?}"
            );
        } else {
            ensure!(
                !matches!(answer, Some(Ok(ClaimOutcome::Granted(_)))),
                "a granted claim left nothing"
            );
        }
        let granted = store.granted(&claim).await?;
        ensure!(
            granted.attempt == 1,
            "repeated after {polls} polls, it was granted as {granted:?}"
        );
    }
    Ok(())
}

pub(super) async fn dropped_takeover(store: Subject) -> CaseResult {
    let mut silent = store.silent(OnCrash::Rerun).await?;
    for polls in 0..=POLLS {
        let mut observed = silent.observation();
        let successor = ClaimRequest {
            lease: SHORT,
            ..other(&silent.claim)
        };
        let inner = store.store();
        dropped_after(polls, inner.take_over(&observed, &successor)).await;
        let granted = loop {
            match store.take_over(&observed, &successor).await? {
                ClaimOutcome::Granted(granted) => break granted,
                // A call that was dropped in the round before may arrive only now, and renew that lease.
                ClaimOutcome::Existing(record)
                    if record.claim_id == Some(silent.owner.claim_id) =>
                {
                    observed = store.lapsed(&record.id).await?.observation();
                }
                ClaimOutcome::Existing(record) => return Err(format!("{record:?} is in the way")),
            }
        };
        ensure!(
            granted.attempt == silent.record.attempt + 1,
            "repeated after {polls} polls, it was granted as {granted:?} after {:?}",
            silent.record
        );
        // The record may still change: a call that was dropped may arrive now, and renew this lease.
        let former = store.renew(&silent.owner, LONG).await?;
        ensure!(
            former == FencedWrite::Fenced,
            "its former owner was accepted"
        );
        silent = Silent {
            owner: owned_by(&successor, &granted),
            record: store.lapsed(&successor.id).await?,
            claim: successor,
        };
    }
    Ok(())
}

pub(super) async fn dropped_completion(store: Subject) -> CaseResult {
    for polls in 0..=POLLS {
        let claim = fresh();
        let owner = store.own(&claim).await?;
        let (inner, outcome) = (store.store(), outcome());
        dropped_after(polls, inner.complete(&owner, &outcome)).await;
        let record = store.record(&claim.id).await?;
        ensure!(
            record.state == RecordState::Running && record.payload.is_none()
                || record.outcome().as_ref() == Some(&outcome),
            "dropped after {polls} polls, it left {record:?}"
        );
        let repeated = store.complete(&owner, &outcome).await?;
        ensure!(
            repeated == FencedWrite::Applied,
            "repeated after {polls} polls, it was refused"
        );
        let record = store.record(&claim.id).await?;
        ensure!(
            record.outcome().as_ref() == Some(&outcome),
            "ended as {record:?}"
        );
    }
    Ok(())
}
