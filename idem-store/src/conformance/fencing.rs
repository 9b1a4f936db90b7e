//! Cases on transitions that only the owner may make.

use super::kit::*;
use crate::record::{ClaimId, FencingToken, OnCrash, Outcome, Owner, Record, RecordState};
use crate::store::{ClaimRequest, FencedWrite, Resolution};

fn accepted(write: &str, answer: FencedWrite) -> CaseResult {
    ensure!(answer == FencedWrite::Applied, "{write} was refused");
    Ok(())
}

pub(super) async fn renew_begins_the_lease_anew(store: Subject) -> CaseResult {
    let claim = ClaimRequest {
        lease: SHORT,
        ..fresh()
    };
    let owner = store.own(&claim).await?;
    let before = store.record(&claim.id).await?;
    accepted("renew", store.renew(&owner, LONG).await?)?;
    let after = store.record(&claim.id).await?;
    ensure!(
        after.lease_until >= before.read_at.after(LONG)
            && after.lease_until <= after.read_at.after(LONG).after(store.slack()),
        "the lease of {LONG:?} runs until {:?}, read at {:?}",
        after.lease_until,
        after.read_at
    );
    let expected = Record {
        lease_until: after.lease_until,
        ..before
    };
    ensure!(same(&after, &expected), "{after:?} instead of {expected:?}");

    // A shorter lease applies as well: it begins now, and is not added to the remaining time.
    accepted("renew", store.renew(&owner, SHORT).await?)?;
    store.lapsed(&claim.id).await?;
    Ok(())
}

pub(super) async fn lapsed_owner_is_accepted(store: Subject) -> CaseResult {
    for on_crash in [OnCrash::Rerun, OnCrash::Refuse, OnCrash::Reconcile] {
        let late = store.silent(on_crash).await?.owner;
        accepted("renew", store.renew(&late, LONG).await?)?;
        let late = store.silent(on_crash).await?.owner;
        accepted("complete", store.complete(&late, &outcome()).await?)?;
        let late = store.silent(on_crash).await?.owner;
        accepted("release", store.release(&late).await?)?;
        let late = store.silent(on_crash).await?.owner;
        accepted("interrupt", store.interrupt(&late).await?)?;
    }
    Ok(())
}

pub(super) async fn stale_owner_is_refused(store: Subject) -> CaseResult {
    let silent = store.silent(OnCrash::Rerun).await?;
    let successor = other(&silent.claim);
    let taken = store.taken(&silent.observation(), &successor).await?;
    store.refuses(&silent.owner).await?;

    let successor = owned_by(&successor, &taken);
    accepted("complete", store.complete(&successor, &outcome()).await?)?;
    store.refuses(&silent.owner).await
}

pub(super) async fn fencing_token_is_compared(store: Subject) -> CaseResult {
    let owner = store.own(&fresh()).await?;
    for number in [
        owner.fencing_token.number() - 1,
        owner.fencing_token.number() + 1,
    ] {
        let stale = Owner {
            fencing_token: FencingToken::from_number(number),
            ..owner
        };
        store.refuses(&stale).await?;
    }
    accepted("complete", store.complete(&owner, &outcome()).await?)?;
    let stale = Owner {
        fencing_token: FencingToken::from_number(owner.fencing_token.number() - 1),
        ..owner
    };
    store.refuses(&stale).await
}

pub(super) async fn claim_id_is_compared(store: Subject) -> CaseResult {
    let owner = store.own(&fresh()).await?;
    let stranger = Owner {
        claim_id: ClaimId::random(),
        ..owner
    };
    store.refuses(&stranger).await?;
    accepted("complete", store.complete(&owner, &outcome()).await?)?;
    store.refuses(&stranger).await
}

pub(super) async fn released_bears_no_claim_id(store: Subject) -> CaseResult {
    let claim = fresh();
    let owner = store.own(&claim).await?;
    accepted("release", store.release(&owner).await?)?;
    let record = store.record(&claim.id).await?;
    ensure!(
        record.state == RecordState::Released && record.claim_id.is_none(),
        "released as {record:?}"
    );
    store.refuses(&owner).await
}

pub(super) async fn absent_refuses_every_owner(store: Subject) -> CaseResult {
    let nobody = Owner {
        id: fresh().id,
        claim_id: ClaimId::random(),
        fencing_token: FencingToken::from_number(1),
    };
    store.refuses(&nobody).await
}

pub(super) async fn completion_keeps_its_outcome(store: Subject) -> CaseResult {
    let outcomes = [
        Outcome::Completed(payload(b"[1]")),
        Outcome::Failed(payload(b"\"declined\"")),
        Outcome::Unrecorded,
    ];
    for outcome in outcomes {
        let claim = fresh();
        let owner = store.own(&claim).await?;
        let before = store.record(&claim.id).await?;
        accepted("complete", store.complete(&owner, &outcome).await?)?;
        let after = store.record(&claim.id).await?;
        let expected = Record {
            state: outcome.state(),
            payload: outcome.payload().cloned(),
            ended_at: after.ended_at,
            ..before.clone()
        };
        ensure!(same(&after, &expected), "{after:?} instead of {expected:?}");
        ensure!(
            after
                .ended_at
                .is_some_and(|at| before.read_at <= at && at <= after.read_at.after(store.slack())),
            "ended at {:?}, between {:?} and {:?}",
            after.ended_at,
            before.read_at,
            after.read_at
        );
    }
    Ok(())
}

pub(super) async fn repeated_completion_finds_itself(store: Subject) -> CaseResult {
    for outcome in [
        outcome(),
        Outcome::Failed(payload(b"{}")),
        Outcome::Unrecorded,
    ] {
        let claim = fresh();
        let owner = store.own(&claim).await?;
        accepted("complete", store.complete(&owner, &outcome).await?)?;
        let ended = store.record(&claim.id).await?;
        accepted("its repetition", store.complete(&owner, &outcome).await?)?;
        store.unchanged(&ended).await?;
        // The repetition is recognised by its fencing token, so its outcome cannot replace the first one.
        let otherwise = Outcome::Completed(payload(b"\"something else\""));
        accepted("its repetition", store.complete(&owner, &otherwise).await?)?;
        store.unchanged(&ended).await?;
    }
    Ok(())
}

pub(super) async fn outcome_is_immutable(store: Subject) -> CaseResult {
    for outcome in [
        outcome(),
        Outcome::Failed(payload(b"{}")),
        Outcome::Unrecorded,
    ] {
        let claim = ClaimRequest {
            lease: SHORT,
            ..fresh()
        };
        let owner = store.own(&claim).await?;
        accepted("complete", store.complete(&owner, &outcome).await?)?;
        // This holds after the end of the lease as well.
        let lease_until = store.record(&claim.id).await?.lease_until;
        let ended = store.passes(lease_until, &claim.id).await?;
        for (write, answer) in [
            ("renew", store.renew(&owner, LONG).await?),
            ("release", store.release(&owner).await?),
            ("interrupt", store.interrupt(&owner).await?),
        ] {
            ensure!(answer == FencedWrite::Fenced, "{write} was accepted");
            store.unchanged(&ended).await?;
        }
        store.denied(&claim).await?;
        store.denied(&other(&claim)).await?;
        let observed = ended.observation();
        store.not_taken(&observed, &claim).await?;
        store.not_taken(&observed, &other(&claim)).await?;
        for resolution in resolutions() {
            if resolution != Resolution::Erase {
                store.stale(&observed, &resolution).await?;
            }
        }
        store.purge(100).await?;
        store.unchanged(&ended).await?;
    }
    Ok(())
}

pub(super) async fn interrupted_accepts_its_owner(store: Subject) -> CaseResult {
    for on_crash in [OnCrash::Rerun, OnCrash::Refuse, OnCrash::Reconcile] {
        let claim = ClaimRequest {
            on_crash,
            ..fresh()
        };
        let owner = store.own(&claim).await?;
        accepted("interrupt", store.interrupt(&owner).await?)?;
        accepted("renew", store.renew(&owner, LONG).await?)?;
        let record = store.record(&claim.id).await?;
        ensure!(
            record.state == RecordState::Running && record.claim_id == Some(owner.claim_id),
            "a renewal left it as {record:?}"
        );
        accepted("interrupt", store.interrupt(&owner).await?)?;
        accepted("complete", store.complete(&owner, &outcome()).await?)?;
        let record = store.record(&claim.id).await?;
        ensure!(record.outcome() == Some(outcome()), "ended as {record:?}");

        let claim = ClaimRequest {
            on_crash,
            ..fresh()
        };
        let owner = store.own(&claim).await?;
        accepted("interrupt", store.interrupt(&owner).await?)?;
        accepted("release", store.release(&owner).await?)?;
        let record = store.record(&claim.id).await?;
        ensure!(
            record.state == RecordState::Released,
            "released as {record:?}"
        );
    }
    Ok(())
}

pub(super) async fn interruption_is_repeatable(store: Subject) -> CaseResult {
    let claim = fresh();
    let owner = store.own(&claim).await?;
    let before = store.record(&claim.id).await?;
    accepted("interrupt", store.interrupt(&owner).await?)?;
    let interrupted = store.record(&claim.id).await?;
    let expected = Record {
        state: RecordState::Interrupted,
        ..before
    };
    ensure!(
        same(&interrupted, &expected),
        "{interrupted:?} instead of {expected:?}"
    );
    accepted("its repetition", store.interrupt(&owner).await?)?;
    store.unchanged(&interrupted).await?;
    store.denied(&claim).await?;
    store.denied(&other(&claim)).await?;
    Ok(())
}
