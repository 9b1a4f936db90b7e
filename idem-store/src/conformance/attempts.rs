//! Cases on the history of attempts.

use std::time::Duration;

use super::kit::*;
pub(super) use super::listing::list_by_owner;
use crate::key::RecordId;
use crate::record::{ClaimId, MemberDigests, OnCrash, Outcome, Owner, OwnerLabel};
use crate::store::{
    AttemptEnd, AttemptLog, Attempts, ClaimRequest, FencedWrite, Resolution, Resolved,
};

/// Attempt as the cases compare it: number, label, end.
type Told = (u32, Option<String>, Option<AttemptEnd>);

fn by(claim: &ClaimRequest, label: &str) -> ClaimRequest {
    ClaimRequest {
        claim_id: ClaimId::random(),
        owner_label: Some(OwnerLabel::lossy(label)),
        ..claim.clone()
    }
}

fn told(number: u32, label: &str, end: impl Into<Option<AttemptEnd>>) -> Told {
    (number, Some(label.to_owned()), end.into())
}

async fn read(store: &Subject, id: &RecordId) -> Result<Option<Attempts>, String> {
    let store = store.store();
    let attempts = store.attempts().ok_or("the store keeps no attempts")?;
    retrying("attempts", || attempts.attempts(id)).await
}

/// Reads the attempts of a record that must exist, and checks their times.
async fn attempts(store: &Subject, id: &RecordId) -> Result<Attempts, String> {
    let read = read(store, id).await?.ok_or("there is no record")?;
    let mut earliest = read.record.first_claimed_at;
    for attempt in &read.list {
        let ended_at = attempt.ended_at.unwrap_or(read.record.read_at);
        ensure!(
            earliest <= attempt.began_at.after(store.slack())
                && attempt.began_at <= ended_at.after(store.slack())
                && ended_at <= read.record.read_at.after(store.slack()),
            "times are out of order: {read:?}"
        );
        earliest = ended_at;
    }
    Ok(read)
}

/// Checks the attempts of a record.
async fn tells(store: &Subject, id: &RecordId, expected: &[Told]) -> CaseResult {
    let read = attempts(store, id).await?;
    let list: Vec<Told> = read
        .list
        .iter()
        .map(|it| {
            (
                it.number,
                it.owner.as_ref().map(ToString::to_string),
                it.end,
            )
        })
        .collect();
    ensure!(list == expected, "{list:?} where {expected:?} took place");
    ensure!(read.dropped == 0, "{} attempts are missing", read.dropped);
    let record = store.record(id).await?;
    ensure!(
        same(&read.record, &record),
        "{:?} was read with the attempts of {record:?}",
        read.record
    );
    Ok(())
}

pub(super) async fn owner_label_is_kept(store: Subject) -> CaseResult {
    for label in [
        "web-3/4711/2.1.0",
        " 'a\"b\\c% ",
        &"ü".repeat(60),
        "{\"a\": [1]}",
    ] {
        let claim = by(&fresh(), label);
        store.own(&claim).await?;
        tells(&store, &claim.id, &[told(1, label, None)]).await?;
    }
    let claim = fresh();
    store.own(&claim).await?;
    tells(&store, &claim.id, &[(1, None, None)]).await?;
    let none = read(&store, &fresh().id).await?;
    ensure!(none.is_none(), "there is no record, and {none:?} was read");
    Ok(())
}

pub(super) async fn repeated_claim_begins_no_attempt(store: Subject) -> CaseResult {
    let claim = ClaimRequest {
        lease: SHORT,
        on_crash: OnCrash::Reconcile,
        ..by(&fresh(), "first")
    };
    store.own(&claim).await?;
    let begun = attempts(&store, &claim.id).await?.list;
    store.lapsed(&claim.id).await?;
    store.own(&claim).await?;
    let again = attempts(&store, &claim.id).await?.list;
    ensure!(again == begun, "{begun:?} became {again:?}");

    store.lapsed(&claim.id).await?;
    let seen = store.record(&claim.id).await?.observation();
    let next = ClaimRequest {
        lease: LONG,
        ..by(&claim, "next")
    };
    store.taken(&seen, &next).await?;
    let taken = attempts(&store, &claim.id).await?.list;
    store.taken(&seen, &next).await?;
    let again = attempts(&store, &claim.id).await?.list;
    ensure!(again == taken, "{taken:?} became {again:?}");
    Ok(())
}

pub(super) async fn released_attempt_is_told(store: Subject) -> CaseResult {
    let claim = by(&fresh(), "first");
    let owner = store.own(&claim).await?;
    store.release(&owner).await?;
    let first = told(1, "first", AttemptEnd::Released);
    tells(&store, &claim.id, std::slice::from_ref(&first)).await?;
    // A repetition, whose owner no longer has the record.
    store.release(&owner).await?;
    tells(&store, &claim.id, std::slice::from_ref(&first)).await?;
    store.own(&by(&claim, "next")).await?;
    tells(&store, &claim.id, &[first, told(2, "next", None)]).await
}

pub(super) async fn lapsed_attempt_is_told(store: Subject) -> CaseResult {
    let silent = silent_by(&store, "first").await?;
    let next = by(&silent.claim, "next");
    store.taken(&silent.observation(), &next).await?;
    let expected = [told(1, "first", AttemptEnd::Lapsed), told(2, "next", None)];
    tells(&store, &next.id, &expected).await?;
    // The former owner is fenced off.
    let answer = store.release(&silent.owner).await?;
    ensure!(answer == FencedWrite::Fenced, "the former owner released");
    tells(&store, &next.id, &expected).await?;
    // A takeover that is refused.
    let third = by(&silent.claim, "third");
    store.not_taken(&silent.observation(), &third).await?;
    tells(&store, &next.id, &expected).await
}

pub(super) async fn interrupted_attempt_is_told(store: Subject) -> CaseResult {
    let claim = ClaimRequest {
        on_crash: OnCrash::Reconcile,
        ..by(&fresh(), "first")
    };
    let owner = store.own(&claim).await?;
    store.interrupt(&owner).await?;
    let interrupted = told(1, "first", AttemptEnd::Interrupted);
    tells(&store, &claim.id, std::slice::from_ref(&interrupted)).await?;
    // Its owner is alive, and the attempt goes on.
    store.renew(&owner, LONG).await?;
    tells(&store, &claim.id, &[told(1, "first", None)]).await?;
    store.interrupt(&owner).await?;
    let seen = store.record(&claim.id).await?.observation();
    store.taken(&seen, &by(&claim, "next")).await?;
    tells(&store, &claim.id, &[interrupted, told(2, "next", None)]).await
}

pub(super) async fn outcome_tells_of_the_last_attempt(store: Subject) -> CaseResult {
    for (outcome, end) in [
        (outcome(), AttemptEnd::Completed),
        (Outcome::Failed(payload(b"error")), AttemptEnd::Failed),
        (Outcome::Unrecorded, AttemptEnd::Unrecorded),
    ] {
        let claim = by(&fresh(), "first");
        let owner = store.own(&claim).await?;
        store.release(&owner).await?;
        let claim = by(&claim, "next");
        let owner = store.own(&claim).await?;
        store.complete(&owner, &outcome).await?;
        let expected = [told(1, "first", AttemptEnd::Released), told(2, "next", end)];
        tells(&store, &claim.id, &expected).await?;
        store.complete(&owner, &outcome).await?;
        tells(&store, &claim.id, &expected).await?;
    }
    Ok(())
}

pub(super) async fn resolved_attempt_is_told(store: Subject) -> CaseResult {
    for (resolution, end) in [
        (
            Resolution::Complete(outcome()),
            AttemptEnd::ResolvedCompleted,
        ),
        (
            Resolution::Complete(Outcome::Failed(payload(b"error"))),
            AttemptEnd::ResolvedFailed,
        ),
        (
            Resolution::Complete(Outcome::Unrecorded),
            AttemptEnd::ResolvedUnrecorded,
        ),
        (Resolution::Release, AttemptEnd::ResolvedReleased),
        (Resolution::Interrupt, AttemptEnd::Interrupted),
    ] {
        let silent = silent_by(&store, "first").await?;
        let observed = silent.observation();
        let answer = store.resolve(&observed, &resolution).await?;
        ensure!(answer == Resolved::Done, "{resolution:?} was refused");
        let expected = [told(1, "first", end)];
        tells(&store, &observed.id, &expected).await?;
        // A repetition finds another record than was observed.
        store.stale(&observed, &resolution).await?;
        tells(&store, &observed.id, &expected).await?;
    }
    Ok(())
}

pub(super) async fn history_ends_with_its_generation(store: Subject) -> CaseResult {
    let brief = ClaimRequest {
        retention: Duration::from_millis(1),
        ..by(&fresh(), "first")
    };
    let owner = store.own(&brief).await?;
    store.release(&owner).await?;
    store.absent(&brief.id).await?;
    let expired = read(&store, &brief.id).await?;
    ensure!(expired.is_none(), "it expired, and {expired:?} was read");
    let next = ClaimRequest {
        retention: LONG,
        ..by(&brief, "next")
    };
    store.own(&next).await?;
    tells(&store, &next.id, &[told(1, "next", None)]).await?;

    let claim = by(&fresh(), "first");
    let owner = store.own(&claim).await?;
    store.release(&owner).await?;
    let seen = store.record(&claim.id).await?.observation();
    store.resolve(&seen, &Resolution::Erase).await?;
    store.own(&by(&claim, "next")).await?;
    tells(&store, &claim.id, &[told(1, "next", None)]).await
}

pub(super) async fn history_is_bounded(store: Subject) -> CaseResult {
    const COUNT: u32 = 90;
    let claim = fresh();
    let label = "x".repeat(OwnerLabel::MAX_BYTES);
    for _ in 0..COUNT {
        let owner = store.own(&by(&claim, &label)).await?;
        store.release(&owner).await?;
    }
    let read = attempts(&store, &claim.id).await?;
    let Some((first, last)) = read.list.first().zip(read.list.last()) else {
        return Err("no attempt is left".to_owned());
    };
    ensure!(
        last.number == COUNT && read.list.len() as u32 == COUNT + 1 - first.number,
        "{} attempts, from {} to {}",
        read.list.len(),
        first.number,
        last.number
    );
    ensure!(
        read.dropped == first.number - 1,
        "{} are said to be missing before {}",
        read.dropped,
        first.number
    );
    let most = AttemptLog::MAX_BYTES / OwnerLabel::MAX_BYTES;
    ensure!(
        (30..=most).contains(&read.list.len()),
        "{} attempts are kept, where {most} is the bound",
        read.list.len()
    );
    Ok(())
}

async fn silent_by(store: &Subject, label: &str) -> Result<Silent, String> {
    let claim = ClaimRequest {
        lease: SHORT,
        on_crash: OnCrash::Reconcile,
        ..by(&fresh(), label)
    };
    let owner = store.own(&claim).await?;
    let record = store.lapsed(&claim.id).await?;
    Ok(Silent {
        claim,
        owner,
        record,
    })
}

fn with_members(claim: &ClaimRequest, members: &[u8]) -> ClaimRequest {
    ClaimRequest {
        claim_id: ClaimId::random(),
        members: MemberDigests::from_bytes(members),
        ..claim.clone()
    }
}

async fn has_members(store: &Subject, id: &RecordId, expected: &[u8]) -> CaseResult {
    let members = attempts(store, id).await?.members;
    ensure!(
        members == MemberDigests::from_bytes(expected),
        "{members:?} where {} bytes were claimed with",
        expected.len()
    );
    Ok(())
}

pub(super) async fn member_digests_are_kept(store: Subject) -> CaseResult {
    let every_byte: Vec<u8> = (0..=255).cycle().take(MemberDigests::MAX_BYTES).collect();
    for members in [&[0][..], b" '\"\\%\xff\0 ", &every_byte, &[]] {
        let claim = with_members(&fresh(), members);
        let owner = store.own(&claim).await?;
        has_members(&store, &claim.id, members).await?;
        // The claim of the next attempt writes the fingerprint again.
        store.release(&owner).await?;
        has_members(&store, &claim.id, members).await?;
        let again = with_members(&claim, b"again");
        let owner = store.own(&again).await?;
        has_members(&store, &claim.id, b"again").await?;
        store.release(&owner).await?;
        let owner = store.own(&with_members(&claim, members)).await?;
        has_members(&store, &claim.id, members).await?;
        store.complete(&owner, &outcome()).await?;
        has_members(&store, &claim.id, members).await?;
    }
    let claim = ClaimRequest {
        lease: SHORT,
        ..with_members(&fresh(), b"first")
    };
    store.own(&claim).await?;
    let seen = store.lapsed(&claim.id).await?.observation();
    store.taken(&seen, &with_members(&claim, b"next")).await?;
    has_members(&store, &claim.id, b"first").await?;

    // The next generation.
    let claim = ClaimRequest {
        lease: SHORT,
        retention: SHORT,
        on_crash: OnCrash::Rerun,
        ..with_members(&fresh(), b"first")
    };
    store.own(&claim).await?;
    store.absent(&claim.id).await?;
    let next = ClaimRequest {
        lease: LONG,
        ..with_members(&claim, &[])
    };
    store.own(&next).await?;
    has_members(&store, &claim.id, &[]).await
}

async fn note(store: &Subject, owner: &Owner, label: &str) -> Result<bool, String> {
    let store = store.store();
    let attempts = store.attempts().ok_or("the store keeps no attempts")?;
    let label = OwnerLabel::lossy(label);
    let noted = attempts.note_replay(&owner.id, owner.fencing_token, Some(&label));
    noted.await.map_err(failed("note_replay"))
}

pub(super) async fn replays_are_noted(store: Subject) -> CaseResult {
    let claim = by(&fresh(), "first");
    let owner = store.own(&claim).await?;
    ensure!(
        !note(&store, &owner, "early").await?,
        "a replay of a running record was noted"
    );
    store.release(&owner).await?;
    ensure!(
        !note(&store, &owner, "early").await?,
        "a replay of a released record was noted"
    );
    let former = owner;
    let owner = store.own(&by(&claim, "next")).await?;
    store.complete(&owner, &outcome()).await?;
    let ended = store.record(&claim.id).await?;
    ensure!(
        !note(&store, &former, "former").await?,
        "a replay of a former generation was noted"
    );
    let label = "web-1 'a\"b\\c% ü";
    ensure!(note(&store, &owner, label).await?, "no replay was noted");
    let read = attempts(&store, &claim.id).await?;
    let [replay] = &*read.replays else {
        return Err(format!("the replays are {:?}", read.replays));
    };
    ensure!(
        replay.by == Some(OwnerLabel::lossy(label)),
        "{label} replayed, and {replay:?} was noted"
    );
    ensure!(
        ended.read_at <= replay.at.after(store.slack())
            && replay.at <= read.record.read_at.after(store.slack()),
        "the time of {replay:?} is wrong: {read:?}"
    );
    // Notes leave the record and its attempts as they were.
    let expected = [
        told(1, "first", AttemptEnd::Released),
        told(2, "next", AttemptEnd::Completed),
    ];
    tells(&store, &claim.id, &expected).await?;
    let after = store.record(&claim.id).await?;
    ensure!(same(&after, &ended), "{ended:?} became {after:?}");

    let most = AttemptLog::MAX_BYTES_FOR_REPLAYS / 30;
    let mut noted = 1;
    while note(&store, &owner, "x").await? {
        noted += 1;
        ensure!(noted <= most, "{noted} replays were noted");
    }
    let read = attempts(&store, &claim.id).await?;
    ensure!(
        read.replays.len() == noted,
        "{noted} replays were noted, and {} are told",
        read.replays.len()
    );
    tells(&store, &claim.id, &expected).await?;
    let absent = Owner {
        id: fresh().id,
        ..owner
    };
    ensure!(
        !note(&store, &absent, "x").await?,
        "there is no record, and its replay was noted"
    );
    Ok(())
}
