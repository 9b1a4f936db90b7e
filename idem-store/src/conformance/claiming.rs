//! Cases on claims: which claims are granted, and when a record counts as absent.

use std::time::Duration;

use tokio::time::Instant;

use super::kit::*;
use crate::key::RecordId;
use crate::record::{OnCrash, Owner, Record, RecordState};
use crate::store::{ClaimOutcome, ClaimRequest, FencedWrite, Granted, Resolution, Resolved};

pub(super) async fn claim_is_exclusive(store: Subject) -> CaseResult {
    for _ in 0..3 {
        let first = fresh();
        let answers = concurrently(64, |_| {
            let (store, claim) = (store.clone(), other(&first));
            async move { Ok((claim.claim_id, store.claim(&claim).await?)) }
        })
        .await?;
        let winners = granted_of(&answers);
        ensure!(
            winners.len() == 1,
            "{} of 64 claims were granted",
            winners.len()
        );
        let (claim_id, fencing_token) = winners[0];
        for (_, answer) in &answers {
            if let ClaimOutcome::Existing(record) = answer {
                ensure!(
                    record.state == RecordState::Running
                        && record.claim_id == Some(claim_id)
                        && record.fencing_token == fencing_token,
                    "a loser was told {record:?} where {claim_id:?} won"
                );
            }
        }
    }
    Ok(())
}

fn granted_of<T: Copy>(answers: &[(T, ClaimOutcome)]) -> Vec<(T, crate::record::FencingToken)> {
    answers
        .iter()
        .filter_map(|(who, answer)| match answer {
            ClaimOutcome::Granted(granted) => Some((*who, granted.fencing_token)),
            ClaimOutcome::Existing(_) => None,
        })
        .collect()
}

pub(super) async fn claim_keeps_what_it_was_given(store: Subject) -> CaseResult {
    for on_crash in [OnCrash::Rerun, OnCrash::Refuse, OnCrash::Reconcile] {
        let claim = ClaimRequest {
            lease: Duration::from_millis(1_234_567),
            retention: Duration::from_millis(7_654_321),
            on_crash,
            ..fresh()
        };
        let granted = store.granted(&claim).await?;
        let record = store.record(&claim.id).await?;
        let begun = granted.first_claimed_at;
        ensure!(
            record.lease_until >= begun.after(claim.lease)
                && record.lease_until <= begun.after(claim.lease).after(store.slack()),
            "claimed at {begun:?}, the lease of {:?} runs until {:?}",
            claim.lease,
            record.lease_until
        );
        let expected = Record {
            id: claim.id,
            identity: claim.identity.clone(),
            fingerprint: claim.fingerprint,
            state: RecordState::Running,
            payload: None,
            claim_id: Some(claim.claim_id),
            fencing_token: granted.fencing_token,
            attempt: 1,
            lease_until: record.lease_until,
            retention: claim.retention,
            on_crash,
            payload_for: None,
            first_claimed_at: granted.first_claimed_at,
            ended_at: None,
            read_at: record.read_at,
        };
        ensure!(record == expected, "{record:?} instead of {expected:?}");
        ensure!(
            granted.attempt == 1 && granted.on_crash == on_crash,
            "the owner was told {granted:?}"
        );
        ensure!(
            record.read_at >= record.first_claimed_at,
            "it was read at {:?}, before its claim",
            record.read_at
        );
    }
    Ok(())
}

pub(super) async fn claim_of_a_running_record_writes_nothing(store: Subject) -> CaseResult {
    let claim = fresh();
    store.own(&claim).await?;
    store.denied(&other(&claim)).await?;
    let stranger = ClaimRequest {
        fingerprint: digest(2),
        lease: SHORT,
        retention: SHORT,
        on_crash: OnCrash::Refuse,
        ..other(&claim)
    };
    store.denied(&stranger).await?;
    Ok(())
}

pub(super) async fn repeated_claim_keeps_its_fencing_token(store: Subject) -> CaseResult {
    let claim = ClaimRequest {
        lease: SHORT,
        ..fresh()
    };
    let first = store.granted(&claim).await?;
    let lapsed = store.lapsed(&claim.id).await?;
    let again = ClaimRequest {
        lease: LONG,
        ..claim.clone()
    };
    let second = store.granted(&again).await?;
    ensure!(first == second, "{second:?} instead of {first:?}");
    let record = store.record(&claim.id).await?;
    ensure!(
        record.lease_until >= lapsed.read_at.after(LONG),
        "the lease was not begun anew: {record:?}"
    );
    let renewed = store.renew(&owned_by(&claim, &second), LONG).await?;
    ensure!(
        renewed == FencedWrite::Applied,
        "the owner was refused afterwards"
    );
    Ok(())
}

pub(super) async fn repeated_claim_sets_the_retention(store: Subject) -> CaseResult {
    for (first, then) in [(LONG, SHORT), (SHORT, LONG)] {
        let claim = ClaimRequest {
            retention: first,
            ..fresh()
        };
        store.granted(&claim).await?;
        let again = ClaimRequest {
            retention: then,
            ..claim.clone()
        };
        let granted = store.granted(&again).await?;
        let record = store.record(&claim.id).await?;
        ensure!(
            record.retention == then,
            "the retention is not {then:?}: {record:?}"
        );
        let completed = store
            .complete(&owned_by(&claim, &granted), &outcome())
            .await?;
        if then == SHORT {
            // A slow store may answer after the expiry. Without the completion, the long lease would keep the record.
            store.absent(&claim.id).await?;
        } else {
            ensure!(
                completed == FencedWrite::Applied,
                "the owner was refused afterwards"
            );
            let record = store.record(&claim.id).await?;
            let expires_at = record.expires_at();
            ensure!(
                expires_at >= Some(record.read_at.after(LONG / 2)),
                "the record expires too early: {record:?}"
            );
        }
    }
    Ok(())
}

pub(super) async fn repeated_claims_at_once_are_one(store: Subject) -> CaseResult {
    let claim = fresh();
    let answers = concurrently(16, |_| {
        let (store, claim) = (store.clone(), claim.clone());
        async move { store.granted(&claim).await }
    })
    .await?;
    ensure!(
        answers.iter().all(|granted| *granted == answers[0]),
        "one claim was granted as {answers:?}"
    );
    Ok(())
}

pub(super) async fn repeated_claim_compares_the_fingerprint(store: Subject) -> CaseResult {
    let claim = fresh();
    store.own(&claim).await?;
    let reused = ClaimRequest {
        fingerprint: digest(2),
        ..claim.clone()
    };
    store.denied(&reused).await?;
    Ok(())
}

pub(super) async fn claim_never_takes_over(store: Subject) -> CaseResult {
    for on_crash in [OnCrash::Rerun, OnCrash::Refuse, OnCrash::Reconcile] {
        let silent = store.silent(on_crash).await?;
        let record = store.denied(&other(&silent.claim)).await?;
        ensure!(
            record.is_lapsed(),
            "it does not show that the lease is over: {record:?}"
        );
    }
    Ok(())
}

pub(super) async fn delayed_claim_revives_no_lost_claim(store: Subject) -> CaseResult {
    let silent = store.silent(OnCrash::Rerun).await?;
    let successor = other(&silent.claim);
    let taken = store.taken(&silent.observation(), &successor).await?;
    store.denied(&silent.claim).await?;

    // After the release by its successor, the late claim may begin its own attempt, but the old fencing token stays
    // invalid.
    store.release(&owned_by(&successor, &taken)).await?;
    let late = store.granted(&silent.claim).await?;
    ensure!(
        late.fencing_token > taken.fencing_token && late.attempt == 3,
        "the late claim was granted as {late:?} after {taken:?}"
    );
    store.refuses(&silent.owner).await
}

pub(super) async fn released_is_claimed_again(store: Subject) -> CaseResult {
    let first = ClaimRequest {
        on_crash: OnCrash::Reconcile,
        ..fresh()
    };
    let granted = store.granted(&first).await?;
    store.release(&owned_by(&first, &granted)).await?;
    let released = store.record(&first.id).await?;
    ensure!(
        released.state == RecordState::Released
            && released.claim_id.is_none()
            && released.payload.is_none()
            && released.attempt == 1
            && released.fencing_token == granted.fencing_token
            && released.on_crash == OnCrash::Reconcile
            && released.first_claimed_at == granted.first_claimed_at
            && released
                .ended_at
                .is_some_and(|at| at <= released.read_at.after(store.slack())),
        "released as {released:?}"
    );

    let second = ClaimRequest {
        lease: Duration::from_secs(7200),
        retention: Duration::from_secs(1800),
        on_crash: OnCrash::Refuse,
        ..other(&first)
    };
    let again = store.granted(&second).await?;
    ensure!(
        again.fencing_token > granted.fencing_token
            && again.attempt == 2
            && again.on_crash == OnCrash::Reconcile
            && again.first_claimed_at == granted.first_claimed_at,
        "{again:?} after {granted:?}"
    );
    let record = store.record(&first.id).await?;
    ensure!(
        record.state == RecordState::Running
            && record.claim_id == Some(second.claim_id)
            && record.fencing_token == again.fencing_token
            && record.attempt == 2
            && record.retention == second.retention
            && record.lease_until > record.read_at.after(LONG)
            && record.on_crash == OnCrash::Reconcile
            && record.ended_at.is_none(),
        "claimed again as {record:?}"
    );
    Ok(())
}

pub(super) async fn released_is_claimed_once(store: Subject) -> CaseResult {
    let first = fresh();
    let owner = store.own(&first).await?;
    store.release(&owner).await?;
    let answers = concurrently(32, |_| {
        let (store, claim) = (store.clone(), other(&first));
        async move { Ok((claim.claim_id, store.claim(&claim).await?)) }
    })
    .await?;
    let winners = granted_of(&answers);
    ensure!(
        winners.len() == 1,
        "{} of 32 claims were granted",
        winners.len()
    );
    Ok(())
}

pub(super) async fn released_compares_the_fingerprint(store: Subject) -> CaseResult {
    let first = fresh();
    let owner = store.own(&first).await?;
    store.release(&owner).await?;
    let reused = ClaimRequest {
        fingerprint: digest(2),
        ..other(&first)
    };
    store.denied(&reused).await?;
    Ok(())
}

pub(super) async fn ended_is_never_granted(store: Subject) -> CaseResult {
    let claim = fresh();
    let owner = store.own(&claim).await?;
    store.complete(&owner, &outcome()).await?;
    let again = other(&claim);
    for late in [&claim, &again] {
        let record = store.denied(late).await?;
        ensure!(
            record.outcome() == Some(outcome()),
            "replayed as {record:?}"
        );
    }
    let reused = ClaimRequest {
        fingerprint: digest(2),
        ..other(&claim)
    };
    store.denied(&reused).await?;
    Ok(())
}

pub(super) async fn expired_outcome_is_absent(store: Subject) -> CaseResult {
    let claim = ClaimRequest {
        retention: SHORT,
        on_crash: OnCrash::Refuse,
        ..fresh()
    };
    let owner = store.own(&claim).await?;
    store.complete(&owner, &outcome()).await?;
    store.absent(&claim.id).await?;
    store.refuses(&owner).await?;
    begins_anew(&store, &claim, &owner).await
}

pub(super) async fn abandoned_run_is_absent(store: Subject) -> CaseResult {
    let claim = ClaimRequest {
        lease: SHORT,
        retention: SHORT,
        ..fresh()
    };
    let owner = store.own(&claim).await?;
    store.absent(&claim.id).await?;
    store.refuses(&owner).await?;
    begins_anew(&store, &claim, &owner).await?;

    // This holds for a repetition of the same claim as well.
    let claim = ClaimRequest {
        lease: SHORT,
        retention: SHORT,
        ..fresh()
    };
    let owner = store.own(&claim).await?;
    store.absent(&claim.id).await?;
    let again = store.granted(&claim).await?;
    ensure!(
        again.fencing_token > owner.fencing_token && again.attempt == 1,
        "the repeated claim of an absent record was granted as {again:?}"
    );
    Ok(())
}

/// A claim of an expired record begins a new generation. Only the fencing tokens continue to increase.
async fn begins_anew(store: &Subject, expired: &ClaimRequest, owner: &Owner) -> CaseResult {
    let anew = ClaimRequest {
        fingerprint: digest(9),
        lease: LONG,
        retention: LONG,
        on_crash: OnCrash::Reconcile,
        ..other(expired)
    };
    let granted = store.granted(&anew).await?;
    let record = store.record(&anew.id).await?;
    ensure!(
        granted.attempt == 1
            && granted.on_crash == OnCrash::Reconcile
            && granted.fencing_token > owner.fencing_token
            && record.state == RecordState::Running
            && record.fingerprint == anew.fingerprint
            && record.claim_id == Some(anew.claim_id)
            && record.payload.is_none()
            && record.ended_at.is_none()
            && record.on_crash == OnCrash::Reconcile
            && record.retention == LONG
            && record.first_claimed_at == granted.first_claimed_at
            // A store may have repeated the claim by itself, which renews the lease.
            && record.lease_until >= granted.first_claimed_at.after(LONG)
            && record.lease_until <= record.read_at.after(LONG).after(store.slack()),
        "{granted:?}, stored as {record:?}"
    );
    store.refuses(owner).await
}

pub(super) async fn unknown_outcome_never_expires(store: Subject) -> CaseResult {
    for on_crash in [OnCrash::Refuse, OnCrash::Reconcile] {
        let claim = ClaimRequest {
            lease: SHORT,
            retention: SHORT,
            on_crash,
            ..fresh()
        };
        let granted = store.granted(&claim).await?;
        let owner = owned_by(&claim, &granted);
        let over = granted
            .first_claimed_at
            .after(SHORT * 3)
            .after(store.slack());
        store.passes(over, &claim.id).await?;
        let answer = store.claim(&other(&claim)).await?;
        ensure!(
            matches!(answer, ClaimOutcome::Existing(_)),
            "under {on_crash:?} it was granted anew"
        );
        let done = store.complete(&owner, &outcome()).await?;
        // A store that repeats a completion because it got no answer in time may find that the outcome has expired.
        ensure!(
            done == FencedWrite::Applied || store.get(&claim.id).await?.is_none(),
            "under {on_crash:?} its owner was refused"
        );
    }
    Ok(())
}

pub(super) async fn fencing_tokens_never_go_back(store: Subject) -> CaseResult {
    let claim = ClaimRequest {
        lease: Duration::ZERO,
        retention: LONG,
        ..fresh()
    };
    let mut last = store.own(&claim).await?.fencing_token;
    let mut next = |how: &str, claim: &ClaimRequest, granted: Granted| {
        let owner = owned_by(claim, &granted);
        ensure!(
            owner.fencing_token > last,
            "{:?} followed {last:?} after {how}",
            owner.fencing_token
        );
        last = owner.fencing_token;
        Ok::<_, String>(owner)
    };
    // Without lease and retention, all of this may happen within one tick of the clock. By an uncertain clock it takes
    // longer, because a lease of zero has lapsed only when that is certain.
    let begun = Instant::now();
    for _ in 0..20 {
        if begun.elapsed() > Duration::from_secs(10) {
            break;
        }
        let observed = store.lapsed(&claim.id).await?.observation();
        let successor = other(&claim);
        let granted = store.taken(&observed, &successor).await?;
        let owner = next("a takeover", &successor, granted)?;

        store.release(&owner).await?;
        let successor = other(&claim);
        let granted = store.granted(&successor).await?;
        next("a release", &successor, granted)?;

        let observed = store.lapsed(&claim.id).await?.observation();
        let erased = store.resolve(&observed, &Resolution::Erase).await?;
        ensure!(erased == Resolved::Done, "a lapsed record was not erased");
        let forgetful = ClaimRequest {
            retention: Duration::ZERO,
            ..other(&claim)
        };
        let granted = store.granted(&forgetful).await?;
        next("an erasure", &forgetful, granted)?;

        // Lease and retention end immediately.
        store.absent(&claim.id).await?;
        let granted = store.granted(&forgetful).await?;
        next("an expiry", &forgetful, granted)?;
        store.absent(&claim.id).await?;
        // Whether purges come to an end is for other cases to say.
        while store.purge(1000).await?.more && begun.elapsed() < Duration::from_secs(10) {}
        let successor = other(&claim);
        let granted = store.granted(&successor).await?;
        next("a purge", &successor, granted)?;
    }
    Ok(())
}

pub(super) async fn fencing_token_is_at_least_the_clock(store: Subject) -> CaseResult {
    let mut ids: Vec<RecordId> = Vec::new();
    for _ in 0..3 {
        let claim = fresh();
        let granted = store.granted(&claim).await?;
        ensure!(
            granted.fencing_token.number() >= granted.first_claimed_at.as_micros(),
            "{granted:?}"
        );
        ids.push(claim.id);
    }
    for id in ids {
        let record = store.record(&id).await?;
        ensure!(
            record.fencing_token.number() >= record.first_claimed_at.as_micros(),
            "{record:?}"
        );
    }
    Ok(())
}
