//! Cases on records that are resolved manually, or by the answer of a reconciliation.

use std::time::Duration;

use super::kit::*;
use crate::record::{OnCrash, Outcome, Record, RecordState};
use crate::store::{ClaimOutcome, ClaimRequest, FencedWrite, Resolution, Resolved};

async fn resolved(store: &Subject, record: &Record, resolution: &Resolution) -> CaseResult {
    let answer = store.resolve(&record.observation(), resolution).await?;
    ensure!(
        answer == Resolved::Done,
        "{resolution:?} of {record:?} was refused"
    );
    Ok(())
}

/// Creates a lapsed and an interrupted record under each policy.
async fn stuck(store: &Subject) -> Result<Vec<Silent>, String> {
    let mut found = Vec::new();
    for on_crash in [OnCrash::Rerun, OnCrash::Refuse, OnCrash::Reconcile] {
        found.push(store.silent(on_crash).await?);
        let claim = ClaimRequest {
            on_crash,
            ..fresh()
        };
        let owner = store.own(&claim).await?;
        store.interrupt(&owner).await?;
        let record = store.record(&claim.id).await?;
        found.push(Silent {
            claim,
            owner,
            record,
        });
    }
    Ok(found)
}

pub(super) async fn resolved_as_done(store: Subject) -> CaseResult {
    let outcomes = [
        outcome(),
        Outcome::Failed(payload(b"\"no\"")),
        Outcome::Unrecorded,
    ];
    for (silent, outcome) in stuck(&store).await?.iter().zip(outcomes.iter().cycle()) {
        let before = &silent.record;
        resolved(&store, before, &Resolution::Complete(outcome.clone())).await?;
        let after = store.record(&before.id).await?;
        let expected = Record {
            state: outcome.state(),
            payload: outcome.payload().cloned(),
            claim_id: None,
            fencing_token: after.fencing_token,
            ended_at: after.ended_at,
            ..before.clone()
        };
        ensure!(same(&after, &expected), "{after:?} instead of {expected:?}");
        ensure!(
            after.fencing_token > before.fencing_token
                && after
                    .ended_at
                    .is_some_and(|at| at.after(store.slack()) >= before.read_at),
            "resolved as {after:?}"
        );
        store.refuses(&silent.owner).await?;
        store.denied(&other(&silent.claim)).await?;
    }
    Ok(())
}

pub(super) async fn resolved_as_not_done(store: Subject) -> CaseResult {
    for silent in stuck(&store).await? {
        let before = &silent.record;
        resolved(&store, before, &Resolution::Release).await?;
        let after = store.record(&before.id).await?;
        let expected = Record {
            state: RecordState::Released,
            claim_id: None,
            fencing_token: after.fencing_token,
            ended_at: after.ended_at,
            ..before.clone()
        };
        ensure!(same(&after, &expected), "{after:?} instead of {expected:?}");
        ensure!(
            after.fencing_token > before.fencing_token && after.ended_at.is_some(),
            "resolved as {after:?}"
        );
        store.refuses(&silent.owner).await?;
        let next = store.granted(&other(&silent.claim)).await?;
        ensure!(
            next.attempt == 2 && next.fencing_token > after.fencing_token,
            "claimed again as {next:?}"
        );
        store.refuses(&silent.owner).await?;
    }
    Ok(())
}

pub(super) async fn resolved_as_unknown(store: Subject) -> CaseResult {
    for silent in stuck(&store).await? {
        let before = &silent.record;
        resolved(&store, before, &Resolution::Interrupt).await?;
        let after = store.record(&before.id).await?;
        let expected = Record {
            state: RecordState::Interrupted,
            ..before.clone()
        };
        ensure!(same(&after, &expected), "{after:?} instead of {expected:?}");
        let done = store.complete(&silent.owner, &outcome()).await?;
        ensure!(
            done == FencedWrite::Applied,
            "its owner was refused afterwards"
        );
    }
    Ok(())
}

pub(super) async fn resolving_needs_a_silent_owner(store: Subject) -> CaseResult {
    for on_crash in [OnCrash::Rerun, OnCrash::Refuse] {
        let claim = ClaimRequest {
            on_crash,
            ..fresh()
        };
        store.own(&claim).await?;
        let observed = store.record(&claim.id).await?.observation();
        store.stays_unresolved(&observed).await?;
    }
    Ok(())
}

pub(super) async fn resolving_sees_a_heartbeat(store: Subject) -> CaseResult {
    let silent = store.silent(OnCrash::Refuse).await?;
    let observed = silent.observation();
    store.renew(&silent.owner, SHORT).await?;
    store.lapsed(&silent.claim.id).await?;
    store.stays_unresolved(&observed).await?;
    store.renew(&silent.owner, LONG).await?;
    store.stays_unresolved(&observed).await
}

pub(super) async fn resolving_sees_an_interruption(store: Subject) -> CaseResult {
    let silent = store.silent(OnCrash::Reconcile).await?;
    store.interrupt(&silent.owner).await?;
    store.stays_unresolved(&silent.observation()).await?;

    // The reverse: an observation of the interrupted record is outdated after its owner has renewed its lease and let
    // it lapse.
    let observed = store.record(&silent.claim.id).await?.observation();
    store.renew(&silent.owner, SHORT).await?;
    store.lapsed(&silent.claim.id).await?;
    store.stays_unresolved(&observed).await
}

pub(super) async fn resolving_sees_a_completion(store: Subject) -> CaseResult {
    let silent = store.silent(OnCrash::Refuse).await?;
    store.complete(&silent.owner, &outcome()).await?;
    store.stays_unresolved(&silent.observation()).await?;
    let record = store.record(&silent.claim.id).await?;
    ensure!(record.outcome() == Some(outcome()), "ended as {record:?}");

    // A late release does not change the result of a second resolution.
    let silent = store.silent(OnCrash::Refuse).await?;
    resolved(&store, &silent.record, &Resolution::Complete(outcome())).await?;
    store.stays_unresolved(&silent.observation()).await
}

pub(super) async fn resolving_compares_all_of_the_observation(store: Subject) -> CaseResult {
    for silent in stuck(&store).await? {
        for observed in near_misses(&silent.observation()) {
            store.stays_unresolved(&observed).await?;
        }
    }
    Ok(())
}

pub(super) async fn settled_is_not_resolved(store: Subject) -> CaseResult {
    for ended in [true, false] {
        let claim = fresh();
        let owner = store.own(&claim).await?;
        if ended {
            store.complete(&owner, &outcome()).await?;
        } else {
            store.release(&owner).await?;
        }
        let record = store.record(&claim.id).await?;
        for resolution in resolutions() {
            if resolution != Resolution::Erase {
                store.stale(&record.observation(), &resolution).await?;
            }
        }
        for observed in near_misses(&record.observation()) {
            if observed != record.observation() {
                store.stale(&observed, &Resolution::Erase).await?;
            }
        }
    }
    Ok(())
}

pub(super) async fn correction_replaces_the_outcome(store: Subject) -> CaseResult {
    let outcomes = [
        Outcome::Completed(payload(b"{\"done\":\"late\"}")),
        Outcome::Failed(payload(b"\"no\"")),
        Outcome::Unrecorded,
    ];
    for (silent, outcome) in stuck(&store).await?.iter().zip(outcomes.iter().cycle()) {
        let by_hand = Resolution::Complete(self::outcome());
        resolved(&store, &silent.record, &by_hand).await?;
        let before = store.record(&silent.claim.id).await?;
        resolved(&store, &before, &Resolution::Correct(outcome.clone())).await?;
        let after = store.record(&before.id).await?;
        let expected = Record {
            state: outcome.state(),
            payload: outcome.payload().cloned(),
            fencing_token: after.fencing_token,
            ..before.clone()
        };
        ensure!(same(&after, &expected), "{after:?} instead of {expected:?}");
        ensure!(
            after.fencing_token > before.fencing_token,
            "corrected as {after:?}"
        );
        let again = Resolution::Correct(self::outcome());
        store.stale(&before.observation(), &again).await?;
        store.refuses(&silent.owner).await?;
        store.denied(&other(&silent.claim)).await?;
        resolved(&store, &after, &again).await?;
    }
    Ok(())
}

pub(super) async fn only_what_no_owner_ended_is_corrected(store: Subject) -> CaseResult {
    let correction = Resolution::Correct(outcome());
    let mut observed = Vec::new();
    for outcome in [
        outcome(),
        Outcome::Failed(payload(b"\"no\"")),
        Outcome::Unrecorded,
    ] {
        let claim = fresh();
        let owner = store.own(&claim).await?;
        store.complete(&owner, &outcome).await?;
        observed.push(store.record(&claim.id).await?.observation());
    }
    let released = fresh();
    let owner = store.own(&released).await?;
    store.release(&owner).await?;
    let running = fresh();
    store.own(&running).await?;
    for claim in [released, running] {
        observed.push(store.record(&claim.id).await?.observation());
    }
    let open = stuck(&store).await?;
    observed.extend(open.iter().map(Silent::observation));
    for observed in observed {
        store.stale(&observed, &correction).await?;
    }
    for silent in open {
        resolved(
            &store,
            &silent.record,
            &Resolution::Complete(Outcome::Unrecorded),
        )
        .await?;
        let seen = store.record(&silent.claim.id).await?.observation();
        for missed in near_misses(&seen) {
            if missed != seen {
                store.stale(&missed, &correction).await?;
            }
        }
    }
    Ok(())
}

pub(super) async fn erased_is_absent(store: Subject) -> CaseResult {
    let mut settled = stuck(&store).await?;
    for outcome in [
        Some(outcome()),
        Some(Outcome::Failed(payload(b"{}"))),
        Some(Outcome::Unrecorded),
        None,
    ] {
        let claim = fresh();
        let owner = store.own(&claim).await?;
        match &outcome {
            Some(outcome) => store.complete(&owner, outcome).await?,
            None => store.release(&owner).await?,
        };
        let record = store.record(&claim.id).await?;
        settled.push(Silent {
            claim,
            owner,
            record,
        });
    }
    for gone in settled {
        resolved(&store, &gone.record, &Resolution::Erase).await?;
        let left = store.get(&gone.claim.id).await?;
        ensure!(left.is_none(), "erased and still there: {left:?}");
        store.refuses(&gone.owner).await?;
        let anew = store.granted(&other(&gone.claim)).await?;
        ensure!(
            anew.attempt == 1 && anew.fencing_token > gone.record.fencing_token,
            "{anew:?} after {:?}",
            gone.record
        );
    }
    Ok(())
}

pub(super) async fn resolving_nothing(store: Subject) -> CaseResult {
    let silent = store.silent(OnCrash::Rerun).await?;
    resolved(&store, &silent.record, &Resolution::Erase).await?;
    for resolution in resolutions() {
        let answer = store.resolve(&silent.observation(), &resolution).await?;
        ensure!(answer == Resolved::Stale, "{resolution:?} took effect");
        let left = store.get(&silent.claim.id).await?;
        ensure!(left.is_none(), "a record came into being: {left:?}");
    }
    Ok(())
}

pub(super) async fn resolving_against_takeover(store: Subject) -> CaseResult {
    for _ in 0..10 {
        let silent = store.silent(OnCrash::Reconcile).await?;
        let observed = silent.observation();
        let effects = concurrently(8, |number| {
            // A lease of zero length: the record has lapsed immediately after the takeover.
            let claim = ClaimRequest {
                lease: Duration::ZERO,
                ..other(&silent.claim)
            };
            let store = store.clone();
            async move {
                Ok(if number % 2 == 0 {
                    let answer = store.resolve(&observed, &Resolution::Release).await?;
                    answer == Resolved::Done
                } else {
                    let answer = store.take_over(&observed, &claim).await?;
                    matches!(answer, ClaimOutcome::Granted(_))
                })
            }
        })
        .await?;
        let effective = effects.into_iter().filter(|effect| *effect).count();
        ensure!(effective == 1, "{effective} of 8 took effect");
    }
    Ok(())
}
