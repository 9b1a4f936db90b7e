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
//! A transition that the contract of [`Store`](crate::Store#contract) forbids changes nothing, and its result says so.

use std::time::Duration;

use crate::record::{FencingToken, Observation, OnCrash, Outcome, Owner, Record, State, Timestamp};
use crate::store::{
    ClaimOutcome, ClaimRequest, FencedWrite, Granted, Purged, Resolution, Resolved,
};

/// Creates the record of a first claim. `previous` is the highest fencing token that the key may have had: that of the
/// expired record in its place, or the highest of all deleted records.
pub fn begin(claim: &ClaimRequest, previous: Option<FencingToken>, now: Timestamp) -> Record {
    Record {
        id: claim.id,
        identity: claim.identity.clone(),
        fingerprint: claim.fingerprint,
        state: State::Running,
        payload: None,
        claim_id: Some(claim.claim_id),
        fencing_token: FencingToken::next(previous, now),
        attempt: 1,
        lease_until: now.after(claim.lease),
        retention: claim.retention,
        on_crash: claim.on_crash,
        first_claimed_at: now,
        ended_at: None,
        read_at: now,
    }
}

/// Claims an existing record, as [`Store::claim`](crate::Store::claim) does: if the record
/// [allows it](ClaimRequest::may_claim).
pub fn claim(record: &mut Record, claim: &ClaimRequest) -> ClaimOutcome {
    match claim.may_claim(record) {
        true => grant(record, claim),
        false => ClaimOutcome::Existing(Box::new(record.clone())),
    }
}

/// Takes over an existing record, as [`Store::take_over`](crate::Store::take_over) does: if the record
/// [allows it](ClaimRequest::may_take_over).
pub fn take_over(
    record: &mut Record,
    observed: &Observation,
    claim: &ClaimRequest,
) -> ClaimOutcome {
    match claim.may_take_over(observed, record) {
        true => grant(record, claim),
        false => ClaimOutcome::Existing(Box::new(record.clone())),
    }
}

/// Grants a repeated claim with the same fencing token, and any other claim as the next attempt.
fn grant(record: &mut Record, claim: &ClaimRequest) -> ClaimOutcome {
    if !claim.is_repeated_on(record) {
        record.state = State::Running;
        record.claim_id = Some(claim.claim_id);
        record.fencing_token = FencingToken::next(Some(record.fencing_token), record.read_at);
        record.attempt = record.attempt.saturating_add(1);
        record.ended_at = None;
    }
    record.retention = claim.retention;
    record.lease_until = record.read_at.after(claim.lease);
    ClaimOutcome::Granted(Granted::on(record))
}

/// Renews the lease, as [`Store::renew`](crate::Store::renew) does.
pub fn renew(record: &mut Record, owner: &Owner, lease: Duration) -> FencedWrite {
    write(record, owner, |record| {
        record.state = State::Running;
        record.lease_until = record.read_at.after(lease);
    })
}

/// Ends the record, as [`Store::complete`](crate::Store::complete) does.
pub fn complete(record: &mut Record, owner: &Owner, outcome: &Outcome) -> FencedWrite {
    if record.state.is_ended() && owner.owns(record) {
        return FencedWrite::Applied;
    }
    write(record, owner, |record| end(record, outcome))
}

/// Releases the claim, as [`Store::release`](crate::Store::release) does.
pub fn release(record: &mut Record, owner: &Owner) -> FencedWrite {
    write(record, owner, give_back)
}

/// Marks the record INTERRUPTED, as [`Store::interrupt`](crate::Store::interrupt) does.
pub fn interrupt(record: &mut Record, owner: &Owner) -> FencedWrite {
    write(record, owner, |record| record.state = State::Interrupted)
}

/// Resolves the record, as [`Store::resolve`](crate::Store::resolve) does. After [`Resolution::Erase`] the record is
/// unchanged: if the result is [`Resolved::Done`], the store deletes it.
pub fn resolve(record: &mut Record, observed: &Observation, resolution: &Resolution) -> Resolved {
    let may = match resolution {
        Resolution::Erase => record.state != State::Running || record.is_lapsed(),
        _ => record.is_unsettled(),
    };
    if !may || record.observation() != *observed {
        return Resolved::Stale;
    }
    match resolution {
        Resolution::Complete(outcome) => {
            end(record, outcome);
            fence_off(record);
        }
        Resolution::Release => {
            give_back(record);
            fence_off(record);
        }
        Resolution::Interrupt => record.state = State::Interrupted,
        Resolution::Erase => {}
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
    /// The record has expired. It is unchanged, and the store deletes it.
    Expired,
}

impl Purged {
    /// Counts the effect of a purge on this record, after it was written or deleted.
    pub fn count(&mut self, purge: Purge, record: &Record) {
        match purge {
            Purge::NotDue => {}
            Purge::Interrupted => self.interrupted += 1,
            Purge::Expired => {
                self.removed += 1;
                self.abandoned += u64::from(record.state == State::Running);
            }
        }
    }
}

/// Purges one record, as [`Store::purge`](crate::Store::purge) does. The record may have expired.
///
/// Here the caller sets [`Record::read_at`] to the earlier of the `as_of` of the purge and the time of the store's clock.
pub fn purge(record: &mut Record) -> Purge {
    if record.is_expired() {
        return Purge::Expired;
    }
    let is_unknown = record.state == State::Running
        && record.on_crash != OnCrash::Rerun
        && record.lease_until.after(record.retention) <= record.read_at;
    if !is_unknown {
        return Purge::NotDue;
    }
    record.state = State::Interrupted;
    Purge::Interrupted
}

/// Applies a write that only the owner may make.
fn write(record: &mut Record, owner: &Owner, apply: impl FnOnce(&mut Record)) -> FencedWrite {
    if !owner.may_write(record) {
        return FencedWrite::Fenced;
    }
    apply(record);
    FencedWrite::Applied
}

fn end(record: &mut Record, outcome: &Outcome) {
    record.state = outcome.state();
    record.payload = outcome.payload().cloned();
    record.ended_at = Some(record.read_at);
}

fn give_back(record: &mut Record) {
    record.state = State::Released;
    record.claim_id = None;
    record.ended_at = Some(record.read_at);
}

/// An owner that was only paused must not overwrite what an operator has decided.
fn fence_off(record: &mut Record) {
    record.claim_id = None;
    record.fencing_token = FencingToken::next(Some(record.fencing_token), record.read_at);
}
