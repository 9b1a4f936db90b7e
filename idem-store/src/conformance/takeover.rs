//! Cases on takeovers: only of a record that equals the observation, and only if its policy allows it.

use std::time::Duration;

use tokio::time::Instant;

use super::kit::*;
use crate::record::{Observation, OnCrash, RecordState};
use crate::store::{ClaimOutcome, ClaimRequest, FencedWrite, Resolution, Resolved};

pub(super) async fn takeover_needs_a_lapsed_lease(store: Subject) -> CaseResult {
    let claim = fresh();
    store.own(&claim).await?;
    let observed = store.record(&claim.id).await?.observation();
    store.not_taken(&observed, &other(&claim)).await?;
    Ok(())
}

/// Counts by the clock of the callers, whose bodies a short lease would let run twice. The rounds begin at other moments of
/// a second, so that a clock in whole seconds ends some of the leases early.
pub(super) async fn lease_is_not_cut_short(store: Subject) -> CaseResult {
    const LEASE: Duration = Duration::from_millis(700);
    concurrently(4, |round| {
        let store = store.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(250) * round as u32).await;
            let is_renewed = round % 2 == 1;
            let claim = ClaimRequest {
                lease: if is_renewed { LONG } else { LEASE },
                ..fresh()
            };
            let mut sent = Instant::now();
            let owner = store.own(&claim).await?;
            if is_renewed {
                sent = Instant::now();
                let renewed = store.renew(&owner, LEASE).await?;
                ensure!(renewed == FencedWrite::Applied, "the renewal was refused");
            }
            let successor = other(&claim);
            let mut patience = Patience::new("the lease never ran out");
            loop {
                let observed = store.record(&claim.id).await?.observation();
                let answer = store.take_over(&observed, &successor).await?;
                let lasted = sent.elapsed();
                if let ClaimOutcome::Granted(_) = answer {
                    ensure!(
                        lasted >= shortened(LEASE),
                        "a lease of {LEASE:?} was taken over {lasted:?} after it was asked for"
                    );
                    return Ok(());
                }
                patience.wait().await?;
            }
        }
    })
    .await?;
    Ok(())
}

pub(super) async fn takeover_begins_the_next_attempt(store: Subject) -> CaseResult {
    let silent = store.silent(OnCrash::Reconcile).await?;
    let successor = ClaimRequest {
        retention: Duration::from_secs(1800),
        on_crash: OnCrash::Refuse,
        ..other(&silent.claim)
    };
    let successor = ClaimRequest {
        lease: LONG,
        ..successor
    };
    let taken = store.taken(&silent.observation(), &successor).await?;
    ensure!(
        taken.fencing_token > silent.record.fencing_token
            && taken.attempt == 2
            && taken.on_crash == OnCrash::Reconcile
            && taken.first_claimed_at == silent.record.first_claimed_at,
        "{taken:?} after {:?}",
        silent.record
    );
    let record = store.record(&successor.id).await?;
    ensure!(
        record.state == RecordState::Running
            && record.claim_id == Some(successor.claim_id)
            && record.fencing_token == taken.fencing_token
            && record.attempt == 2
            && record.lease_until >= silent.record.read_at.after(LONG)
            && record.retention == successor.retention
            && record.on_crash == OnCrash::Reconcile
            && record.first_claimed_at == silent.record.first_claimed_at,
        "taken over as {record:?}"
    );
    Ok(())
}

pub(super) async fn takeover_is_won_once(store: Subject) -> CaseResult {
    for _ in 0..3 {
        let silent = store.silent(OnCrash::Rerun).await?;
        let observed = silent.observation();
        let answers = concurrently(32, |_| {
            // Leases of zero length: the next caller must not take over a claim that it has not observed.
            let claim = ClaimRequest {
                lease: Duration::ZERO,
                ..other(&silent.claim)
            };
            let store = store.clone();
            async move { store.take_over(&observed, &claim).await }
        })
        .await?;
        let winners = answers
            .iter()
            .filter(|answer| matches!(answer, ClaimOutcome::Granted(_)))
            .count();
        ensure!(winners == 1, "{winners} of 32 takeovers were granted");
    }
    Ok(())
}

pub(super) async fn takeover_sees_a_heartbeat(store: Subject) -> CaseResult {
    let silent = store.silent(OnCrash::Rerun).await?;
    let observed = silent.observation();
    store.renew(&silent.owner, SHORT).await?;
    store.lapsed(&silent.claim.id).await?;
    store.not_taken(&observed, &other(&silent.claim)).await?;
    store.renew(&silent.owner, LONG).await?;
    store.not_taken(&observed, &other(&silent.claim)).await?;
    Ok(())
}

pub(super) async fn takeover_sees_an_interruption(store: Subject) -> CaseResult {
    let silent = store.silent(OnCrash::Reconcile).await?;
    let observed = silent.observation();
    store.interrupt(&silent.owner).await?;
    store.not_taken(&observed, &other(&silent.claim)).await?;
    Ok(())
}

pub(super) async fn takeover_compares_all_of_the_observation(store: Subject) -> CaseResult {
    let silent = store.silent(OnCrash::Rerun).await?;
    for observed in near_misses(&silent.observation()) {
        store.not_taken(&observed, &other(&silent.claim)).await?;
    }
    // If the record itself had prevented the takeover, the exact observation would fail as well.
    let taken = other(&silent.claim);
    store.taken(&silent.observation(), &taken).await?;
    Ok(())
}

pub(super) async fn takeover_of_interrupted(store: Subject) -> CaseResult {
    for on_crash in [OnCrash::Rerun, OnCrash::Reconcile] {
        let claim = ClaimRequest {
            on_crash,
            ..fresh()
        };
        let owner = store.own(&claim).await?;
        store.interrupt(&owner).await?;
        let interrupted = store.record(&claim.id).await?;
        let successor = other(&claim);
        let taken = store.taken(&interrupted.observation(), &successor).await?;
        ensure!(
            taken.fencing_token > owner.fencing_token && taken.attempt == 2,
            "taken over as {taken:?} after {owner:?}"
        );
        let record = store.record(&claim.id).await?;
        ensure!(
            record.state == RecordState::Running,
            "taken over as {record:?}"
        );
        store.refuses(&owner).await?;
    }
    Ok(())
}

pub(super) async fn takeover_of_refuse_is_refused(store: Subject) -> CaseResult {
    let silent = store.silent(OnCrash::Refuse).await?;
    // The policy of the record decides, not that of the later caller.
    let successor = ClaimRequest {
        on_crash: OnCrash::Rerun,
        ..other(&silent.claim)
    };
    store.not_taken(&silent.observation(), &successor).await?;
    store.interrupt(&silent.owner).await?;
    let observed = store.record(&silent.claim.id).await?.observation();
    store.not_taken(&observed, &successor).await?;
    let done = store.complete(&silent.owner, &outcome()).await?;
    ensure!(
        done == FencedWrite::Applied,
        "its owner was refused afterwards"
    );
    Ok(())
}

pub(super) async fn takeover_compares_the_fingerprint(store: Subject) -> CaseResult {
    let silent = store.silent(OnCrash::Rerun).await?;
    let reused = ClaimRequest {
        fingerprint: digest(2),
        ..other(&silent.claim)
    };
    store.not_taken(&silent.observation(), &reused).await?;
    Ok(())
}

pub(super) async fn repeated_takeover_keeps_its_fencing_token(store: Subject) -> CaseResult {
    let silent = store.silent(OnCrash::Rerun).await?;
    let successor = ClaimRequest {
        lease: SHORT,
        ..other(&silent.claim)
    };
    let first = store.taken(&silent.observation(), &successor).await?;
    let lapsed = store.lapsed(&successor.id).await?;
    let again = ClaimRequest {
        lease: LONG,
        ..successor.clone()
    };
    let second = store.taken(&silent.observation(), &again).await?;
    ensure!(first == second, "{second:?} instead of {first:?}");
    let record = store.record(&successor.id).await?;
    ensure!(
        record.lease_until >= lapsed.read_at.after(LONG),
        "the lease was not begun anew: {record:?}"
    );
    // A claim finds the same result.
    let third = store.granted(&successor).await?;
    ensure!(first == third, "{third:?} instead of {first:?}");
    Ok(())
}

pub(super) async fn delayed_takeover_is_refused(store: Subject) -> CaseResult {
    let silent = store.silent(OnCrash::Rerun).await?;
    let second = ClaimRequest {
        lease: SHORT,
        ..other(&silent.claim)
    };
    store.taken(&silent.observation(), &second).await?;
    let observed = store.lapsed(&second.id).await?.observation();
    let third = ClaimRequest {
        lease: SHORT,
        ..other(&silent.claim)
    };
    store.taken(&observed, &third).await?;
    store.lapsed(&third.id).await?;
    store.not_taken(&silent.observation(), &second).await?;
    store.not_taken(&observed, &second).await?;
    Ok(())
}

pub(super) async fn takeover_of_nothing_claims(store: Subject) -> CaseResult {
    let silent = store.silent(OnCrash::Rerun).await?;
    let observed = silent.observation();
    let erased = store.resolve(&observed, &Resolution::Erase).await?;
    ensure!(erased == Resolved::Done, "a lapsed record was not erased");
    let successor = ClaimRequest {
        lease: LONG,
        ..other(&silent.claim)
    };
    let granted = store.taken(&observed, &successor).await?;
    ensure!(
        granted.attempt == 1 && granted.fencing_token > silent.owner.fencing_token,
        "{granted:?} after {:?}",
        silent.owner
    );
    store.refuses(&silent.owner).await?;

    // A record that has expired is absent as well.
    let claim = ClaimRequest {
        lease: SHORT,
        retention: SHORT,
        ..fresh()
    };
    let granted = store.granted(&claim).await?;
    let owner = owned_by(&claim, &granted);
    let observed = Observation {
        id: claim.id,
        state: RecordState::Running,
        claim_id: Some(claim.claim_id),
        fencing_token: granted.fencing_token,
        lease_until: granted.first_claimed_at.after(claim.lease),
    };
    store.absent(&claim.id).await?;
    let granted = store.taken(&observed, &other(&claim)).await?;
    ensure!(
        granted.attempt == 1 && granted.fencing_token > owner.fencing_token,
        "{granted:?} after {owner:?}"
    );
    Ok(())
}

pub(super) async fn takeover_of_settled_is_refused(store: Subject) -> CaseResult {
    let silent = store.silent(OnCrash::Rerun).await?;
    store.release(&silent.owner).await?;
    let observed = store.record(&silent.claim.id).await?.observation();
    store.not_taken(&observed, &other(&silent.claim)).await?;
    store
        .not_taken(&silent.observation(), &other(&silent.claim))
        .await?;

    let silent = store.silent(OnCrash::Rerun).await?;
    store.complete(&silent.owner, &outcome()).await?;
    let observed = store.record(&silent.claim.id).await?.observation();
    store.not_taken(&observed, &other(&silent.claim)).await?;
    store.not_taken(&observed, &silent.claim).await?;
    Ok(())
}
