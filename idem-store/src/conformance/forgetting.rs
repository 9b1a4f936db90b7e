//! Cases on payloads that are kept for a shorter time than their records.

use std::time::Duration;

use tokio::time::Instant;

use super::kit::*;
use crate::record::{ClaimId, FencingToken, Outcome, Owner, Record, RecordState, Timestamp};
use crate::store::{ClaimRequest, FencedWrite, Purged, Resolution, Resolved};

/// Time of a payload that is not over within a case.
const HALF: Duration = Duration::from_secs(1800);

/// Longest time for which a case purges without a look at its record: others may keep the store busy.
const A_WHILE: Duration = Duration::from_secs(2);

/// Purges until one says that nothing more is due, or for a while, and adds up the results.
async fn purge_all(store: &Subject, limit: u32, as_of: Timestamp) -> Result<Purged, String> {
    let begun = Instant::now();
    let mut total = Purged::default();
    loop {
        total.add(&store.purge_as_of(limit, as_of).await?);
        if !total.more || begun.elapsed() >= A_WHILE {
            return Ok(total);
        }
    }
}

/// Claims and completes a record, and keeps its payload for this time.
async fn completed_for(
    store: &Subject,
    claim: &ClaimRequest,
    payload_for: Duration,
) -> Result<(Owner, Record), String> {
    let owner = store.own(claim).await?;
    let written = store.complete_for(&owner, &outcome(), payload_for).await?;
    ensure!(written == FencedWrite::Applied, "its owner was refused");
    let record = store.record(&claim.id).await?;
    Ok((owner, record))
}

/// Purges until the record has no payload.
async fn dropped(store: &Subject, before: &Record) -> Result<Record, String> {
    let mut patience = Patience::new("the payload was never dropped");
    loop {
        let purged = purge_all(store, 100, Timestamp::MAX).await?;
        let record = store.record(&before.id).await?;
        if record.payload.is_none() {
            return Ok(record);
        }
        wait_after(&purged, &mut patience).await?;
    }
}

/// Waits for a purge to come to the case's record. While many others are due, that it has not come proves nothing.
async fn wait_after(purged: &Purged, patience: &mut Patience) -> CaseResult {
    let waited = patience.wait().await;
    match purged.more {
        true => waited.map_err(|seen| undecided(&seen)),
        false => waited,
    }
}

/// A record whose payload was dropped, with its claim and its owner.
async fn forgotten(store: &Subject) -> Result<(ClaimRequest, Owner, Record), String> {
    let claim = fresh();
    let (owner, record) = completed_for(store, &claim, SHORT).await?;
    let record = dropped(store, &record).await?;
    Ok((claim, owner, record))
}

pub(super) async fn payload_time_is_kept(store: Subject) -> CaseResult {
    for (outcome, payload_for) in [
        (outcome(), Some(HALF)),
        (Outcome::Failed(payload(b"\"no\"")), Some(HALF)),
        (Outcome::Unrecorded, None),
    ] {
        let claim = fresh();
        let owner = store.own(&claim).await?;
        let running = store.record(&claim.id).await?;
        let written = store.complete_for(&owner, &outcome, HALF).await?;
        ensure!(written == FencedWrite::Applied, "its owner was refused");
        let record = store.record(&claim.id).await?;
        let expected = Record {
            state: outcome.state(),
            payload: outcome.payload().cloned(),
            payload_for,
            ended_at: record.ended_at,
            ..running
        };
        ensure!(
            same(&record, &expected) && record.ended_at.is_some(),
            "{record:?} instead of {expected:?}"
        );
        for repeated in [
            store.complete_for(&owner, &outcome, 2 * HALF).await?,
            store.complete(&owner, &outcome).await?,
        ] {
            ensure!(
                repeated == FencedWrite::Applied,
                "the repetition was refused"
            );
        }
        store.unchanged(&record).await?;
    }
    let claim = fresh();
    let owner = store.own(&claim).await?;
    store.complete(&owner, &outcome()).await?;
    let record = store.record(&claim.id).await?;
    ensure!(
        record.payload_for.is_none(),
        "a completion without a time has {:?}",
        record.payload_for
    );
    Ok(())
}

pub(super) async fn completion_for_a_time_is_fenced(store: Subject) -> CaseResult {
    let claim = fresh();
    let owner = store.own(&claim).await?;
    let next = FencingToken::from_number(owner.fencing_token.number() + 1);
    let running = store.record(&claim.id).await?;
    let refused = async |owner: Owner| {
        let written = store.complete_for(&owner, &outcome(), HALF).await?;
        ensure!(written == FencedWrite::Fenced, "{owner:?} was accepted");
        CaseResult::Ok(())
    };
    refused(Owner {
        claim_id: ClaimId::random(),
        ..owner
    })
    .await?;
    refused(Owner {
        fencing_token: next,
        ..owner
    })
    .await?;
    store.unchanged(&running).await?;
    store.release(&owner).await?;
    let released = store.record(&claim.id).await?;
    refused(owner).await?;
    store.unchanged(&released).await?;
    let absent = fresh();
    refused(owned_by(
        &absent,
        &crate::store::Granted::on(&Record {
            id: absent.id,
            ..running
        }),
    ))
    .await?;
    ensure!(
        store.get(&absent.id).await?.is_none(),
        "a record came into being"
    );
    Ok(())
}

pub(super) async fn payload_is_dropped_when_its_time_is_over(store: Subject) -> CaseResult {
    // Other purges may run on the same store and come first.
    for _ in 0..40 {
        let (_, before) = completed_for(&store, &fresh(), SHORT).await?;
        let mut counted = 0;
        let mut patience = Patience::new("the payload was never dropped");
        let after = loop {
            let purged = purge_all(&store, 100, Timestamp::MAX).await?;
            counted += purged.forgotten;
            let record = store.record(&before.id).await?;
            if record.payload.is_none() {
                break record;
            }
            wait_after(&purged, &mut patience).await?;
        };
        let expected = Record {
            payload: None,
            ..before
        };
        ensure!(
            same(&after, &expected) && after.is_forgotten(),
            "{after:?} instead of {expected:?}"
        );
        if counted > 0 {
            return Ok(());
        }
    }
    Err("40 payloads were dropped, and none was counted".to_owned())
}

pub(super) async fn payload_stays_until_its_time_is_over(store: Subject) -> CaseResult {
    let (_, early) = completed_for(&store, &fresh(), HALF).await?;
    let claim = fresh();
    let owner = store.own(&claim).await?;
    store.complete(&owner, &outcome()).await?;
    let endless = store.record(&claim.id).await?;
    let (_, due) = completed_for(&store, &fresh(), SHORT).await?;
    if let Some(until) = due.payload_until() {
        store.passes(until.after(store.slack()), &due.id).await?;
    }
    let purged = store.purge_as_of(100, Timestamp::from_micros(0)).await?;
    ensure!(purged.changed() == 0, "a purge as of 1970 did {purged:?}");
    purge_all(&store, 100, Timestamp::MAX).await?;
    store.unchanged(&early).await?;
    store.unchanged(&endless).await
}

pub(super) async fn forgotten_is_never_granted(store: Subject) -> CaseResult {
    let (claim, owner, record) = forgotten(&store).await?;
    let observed = record.observation();
    store.denied(&other(&claim)).await?;
    store.denied(&claim).await?;
    store.not_taken(&observed, &other(&claim)).await?;
    for resolution in &resolutions()[..3] {
        store.stale(&observed, resolution).await?;
    }
    for repeated in [
        store.complete_for(&owner, &outcome(), HALF).await?,
        store.complete(&owner, &outcome()).await?,
    ] {
        ensure!(
            repeated == FencedWrite::Applied,
            "the repetition was refused"
        );
    }
    store.unchanged(&record).await?;
    let erased = store.resolve(&observed, &Resolution::Erase).await?;
    ensure!(erased == Resolved::Done, "it could not be erased");
    ensure!(
        store.get(&claim.id).await?.is_none(),
        "it was erased, and is there"
    );
    Ok(())
}

pub(super) async fn forgotten_expires(store: Subject) -> CaseResult {
    let brief = |times| ClaimRequest {
        lease: SHORT,
        retention: times * SHORT,
        ..fresh()
    };
    // Replaced by the next claim, whether or not a purge has dropped the payload or the record.
    let claim = brief(3);
    let owner = store.own(&claim).await?;
    if store.complete_for(&owner, &outcome(), SHORT).await? == FencedWrite::Applied {
        store.absent(&claim.id).await?;
        let next = ClaimRequest {
            lease: LONG,
            retention: LONG,
            ..other(&claim)
        };
        let owner = store.own(&next).await?;
        let running = store.record(&claim.id).await?;
        ensure!(
            running.state == RecordState::Running && running.payload_for.is_none(),
            "the next record began as {running:?}"
        );
        store.complete(&owner, &outcome()).await?;
        let completed = store.record(&claim.id).await?;
        purge_all(&store, 100, Timestamp::MAX).await?;
        store.unchanged(&completed).await?;
    }
    // Absent as well after a purge has dropped its payload.
    let claim = brief(15);
    let owner = store.own(&claim).await?;
    store.complete_for(&owner, &outcome(), SHORT).await?;
    let mut patience = Patience::new("the record never became absent");
    while store.get(&claim.id).await?.is_some() {
        purge_all(&store, 100, Timestamp::MAX).await?;
        patience.wait().await?;
    }
    store.own(&other(&claim)).await.map(drop)
}

pub(super) async fn forgetting_is_bounded(store: Subject) -> CaseResult {
    let mut told = false;
    // Other purges may run on the same store and come first.
    for _ in 0..40 {
        let mut last = None;
        for _ in 0..12 {
            last = Some(completed_for(&store, &fresh(), SHORT).await?.1);
        }
        if let Some(last) = last
            && let Some(until) = last.payload_until()
        {
            store.passes(until.after(store.slack()), &last.id).await?;
        }
        loop {
            let purged = store.purge(5).await?;
            ensure!(purged.changed() <= 5, "a purge of 5 did {purged:?}");
            told |= purged.more && purged.changed() == 5 && purged.forgotten > 0;
            if !purged.more {
                break;
            }
        }
        if told {
            return Ok(());
        }
    }
    Err("12 payloads were due, and no purge of 5 dropped 5 and said that there is more".to_owned())
}
