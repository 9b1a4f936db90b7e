//! Transitions of one record, as functions without I/O.
//!
//! They are for stores that write a whole entry at once: under a lock, or by compare-and-swap on its revision. Such a
//! store
//!
//! 1. reads the entry, and sets [`Record::read_at`] to the time of the store's clock,
//! 2. treats an [expired](Record::is_expired) record as absent,
//! 3. applies the transition to the record,
//! 4. writes the record, if the entry has not changed since it was read. Otherwise it begins again.
//!
//! A store that reads its clock exactly passes the record. `idem_store::cas` does all of this for backends
//! with revisions.
//!
//! # Clocks that are not exact
//!
//! A store that knows its time only as an interval ([`Now`]) sets [`Record::read_at`] to the *earliest* now, and passes
//! the record with the latest one ([`At::new`]). A lease has lapsed and a record has expired only if the earliest now is past
//! the end. Leases, retention and fencing tokens begin at the latest now. So neither a lease nor a retention is ever shorter
//! than it was asked for. No transition depends on the proof that a lease is still valid: while that is uncertain, the lease
//! counts as valid. See [`clock`](crate::clock).
//!
//! A transition that the contract of [`Store`](crate::Store#contract) forbids changes nothing, and its result says so.

use std::time::Duration;

use crate::clock::Now;
use crate::record::{
    FencingToken, Observation, OnCrash, Outcome, Owner, Record, RecordState, Timestamp,
};
use crate::store::{
    ClaimOutcome, ClaimRequest, FencedWrite, Granted, Purged, Resolution, Resolved,
};

/// A record at a time: [`Record::read_at`] is the earliest now, and this adds the latest one.
#[derive(Debug)]
pub struct At<'a> {
    record: &'a mut Record,
    latest: Timestamp,
}

impl<'a> At<'a> {
    /// A record that was read at the earliest now of this interval, which sets its [`Record::read_at`].
    pub fn new(record: &'a mut Record, now: Now) -> Self {
        record.read_at = now.earliest;
        Self {
            record,
            latest: now.latest,
        }
    }
}

/// A record at the time at which it was read, by a clock that the store reads exactly.
impl<'a> From<&'a mut Record> for At<'a> {
    fn from(record: &'a mut Record) -> Self {
        Self {
            latest: record.read_at,
            record,
        }
    }
}

/// Creates the record of a first claim. `previous` is the highest fencing token that the key may have had: that of the
/// expired record in its place, or the highest of all deleted records.
pub fn begin(claim: &ClaimRequest, previous: Option<FencingToken>, now: impl Into<Now>) -> Record {
    let Now { earliest, latest } = now.into();
    Record {
        id: claim.id,
        identity: claim.identity.clone(),
        fingerprint: claim.fingerprint,
        state: RecordState::Running,
        payload: None,
        claim_id: Some(claim.claim_id),
        fencing_token: FencingToken::next(previous, latest),
        attempt: 1,
        lease_until: latest.after(claim.lease),
        retention: claim.retention,
        payload_for: None,
        on_crash: claim.on_crash,
        first_claimed_at: earliest,
        ended_at: None,
        read_at: earliest,
    }
}

/// Claims an existing record, as [`Store::claim`](crate::Store::claim) does: if the record
/// [allows it](ClaimRequest::may_claim).
pub fn claim<'a>(record: impl Into<At<'a>>, claim: &ClaimRequest) -> ClaimOutcome {
    let at = record.into();
    match claim.may_claim(at.record) {
        true => grant(at, claim),
        false => ClaimOutcome::Existing(Box::new(at.record.clone())),
    }
}

/// Takes over an existing record, as [`Store::take_over`](crate::Store::take_over) does: if the record
/// [allows it](ClaimRequest::may_take_over).
pub fn take_over<'a>(
    record: impl Into<At<'a>>,
    observed: &Observation,
    claim: &ClaimRequest,
) -> ClaimOutcome {
    let at = record.into();
    match claim.may_take_over(observed, at.record) {
        true => grant(at, claim),
        false => ClaimOutcome::Existing(Box::new(at.record.clone())),
    }
}

/// Grants a repeated claim with the same fencing token, and any other claim as the next attempt.
fn grant(At { record, latest }: At<'_>, claim: &ClaimRequest) -> ClaimOutcome {
    if !claim.is_repeated_on(record) {
        record.state = RecordState::Running;
        record.claim_id = Some(claim.claim_id);
        record.fencing_token = FencingToken::next(Some(record.fencing_token), latest);
        record.attempt = record.attempt.saturating_add(1);
        record.ended_at = None;
    }
    record.retention = claim.retention;
    record.lease_until = latest.after(claim.lease);
    ClaimOutcome::Granted(Granted::on(record))
}

/// Renews the lease, as [`Store::renew`](crate::Store::renew) does.
pub fn renew<'a>(record: impl Into<At<'a>>, owner: &Owner, lease: Duration) -> FencedWrite {
    write(record.into(), owner, |record, latest| {
        record.state = RecordState::Running;
        record.lease_until = latest.after(lease);
    })
}

/// Ends the record, as [`Store::complete`](crate::Store::complete) does.
pub fn complete<'a>(record: impl Into<At<'a>>, owner: &Owner, outcome: &Outcome) -> FencedWrite {
    let at = record.into();
    if at.record.state.is_ended() && owner.owns(at.record) {
        return FencedWrite::Applied;
    }
    write(at, owner, |record, latest| end(record, outcome, latest))
}

/// Ends the record, as [`ForgettingStore::complete_for`](crate::store::ForgettingStore::complete_for) does.
pub fn complete_for<'a>(
    record: impl Into<At<'a>>,
    owner: &Owner,
    outcome: &Outcome,
    payload_for: Duration,
) -> FencedWrite {
    let at = record.into();
    if at.record.state.is_ended() && owner.owns(at.record) {
        return FencedWrite::Applied;
    }
    write(at, owner, |record, latest| {
        end(record, outcome, latest);
        record.payload_for = outcome.payload().map(|_| payload_for);
    })
}

/// Releases the claim, as [`Store::release`](crate::Store::release) does.
pub fn release<'a>(record: impl Into<At<'a>>, owner: &Owner) -> FencedWrite {
    write(record.into(), owner, give_back)
}

/// Marks the record INTERRUPTED, as [`Store::interrupt`](crate::Store::interrupt) does.
pub fn interrupt<'a>(record: impl Into<At<'a>>, owner: &Owner) -> FencedWrite {
    write(record.into(), owner, |record, _| {
        record.state = RecordState::Interrupted;
    })
}

/// Resolves the record, as [`Store::resolve`](crate::Store::resolve) does. After [`Resolution::Erase`] the record is
/// unchanged: if the result is [`Resolved::Done`], the store deletes it.
pub fn resolve<'a>(
    record: impl Into<At<'a>>,
    observed: &Observation,
    resolution: &Resolution,
) -> Resolved {
    let At { record, latest } = record.into();
    let may = match resolution {
        Resolution::Erase => !record.has_live_owner(),
        Resolution::Correct(_) => record.was_resolved(),
        Resolution::Complete(_) | Resolution::Release | Resolution::Interrupt => record.is_stuck(),
    };
    if !may || record.observation() != *observed {
        return Resolved::Stale;
    }
    match resolution {
        Resolution::Complete(outcome) => {
            end(record, outcome, latest);
            fence_off(record, latest);
        }
        Resolution::Release => {
            give_back(record, latest);
            fence_off(record, latest);
        }
        Resolution::Interrupt => record.state = RecordState::Interrupted,
        Resolution::Erase => {}
        Resolution::Correct(outcome) => {
            record.state = outcome.state();
            record.payload = outcome.payload().cloned();
            fence_off(record, latest);
        }
    }
    Resolved::Done
}

/// Effect of a purge on a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purge {
    /// The record is not due. It is unchanged.
    NotDue,
    /// The record became INTERRUPTED: its owner is gone, and it is unknown whether the body took effect.
    Interrupted,
    /// The time of the record's payload is over: the record has lost it.
    Forgotten,
    /// The record has expired. It is unchanged, and the store deletes it.
    Expired,
}

impl Purged {
    /// Counts the effect of a purge on this record, after it was written or deleted.
    pub fn count(&mut self, purge: Purge, record: &Record) {
        match purge {
            Purge::NotDue => {}
            Purge::Interrupted => self.interrupted += 1,
            Purge::Forgotten => self.forgotten += 1,
            Purge::Expired => {
                self.removed += 1;
                self.abandoned += u64::from(record.state == RecordState::Running);
            }
        }
    }
}

/// Purges one record, as [`Store::purge`](crate::Store::purge) does. The record may have expired.
///
/// Here the caller sets [`Record::read_at`] to the earlier of the `as_of` of the purge and the time of the store's clock,
/// the earliest one that it may show.
pub fn purge(record: &mut Record) -> Purge {
    if record.is_expired() {
        return Purge::Expired;
    }
    let is_over = record
        .payload_until()
        .is_some_and(|at| at <= record.read_at);
    if is_over && record.payload.take().is_some() {
        return Purge::Forgotten;
    }
    let is_unknown = record.state == RecordState::Running
        && record.on_crash != OnCrash::Rerun
        && record.lease_until.after(record.retention) <= record.read_at;
    if !is_unknown {
        return Purge::NotDue;
    }
    record.state = RecordState::Interrupted;
    Purge::Interrupted
}

/// Applies a write that only the owner may make.
fn write(
    At { record, latest }: At<'_>,
    owner: &Owner,
    apply: impl FnOnce(&mut Record, Timestamp),
) -> FencedWrite {
    if !owner.may_write(record) {
        return FencedWrite::Fenced;
    }
    apply(record, latest);
    FencedWrite::Applied
}

fn end(record: &mut Record, outcome: &Outcome, latest: Timestamp) {
    record.state = outcome.state();
    record.payload = outcome.payload().cloned();
    record.ended_at = Some(latest);
}

fn give_back(record: &mut Record, latest: Timestamp) {
    record.state = RecordState::Released;
    record.claim_id = None;
    record.ended_at = Some(latest);
}

/// An owner that was only paused must not overwrite what an operator has decided.
fn fence_off(record: &mut Record, latest: Timestamp) {
    record.claim_id = None;
    record.fencing_token = FencingToken::next(Some(record.fencing_token), latest);
}
