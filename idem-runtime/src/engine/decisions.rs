//! Decisions of a call, as functions without I/O.
//!
//! The transitions of `idem_store::store::transitions` say what a store does. These functions say what a call does next.
//! Together they are the protocol, and `tests/explore` searches the states that they can reach.

use std::time::Duration;

use crate::record::{ClaimId, FencingToken, OnCrash, Owner, Record, RecordState};
use crate::store::FencedWrite;

/// Next action of a call that found a record without an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnExisting {
    /// The owner's lease is valid: wait for it.
    Wait,
    /// The owner is gone, and the body may run again: take the record over.
    TakeOver,
    /// Ask `reconcile` what became of the owner's attempt.
    Reconcile,
    /// The owner is gone, and it is unknown what it did: mark the record INTERRUPTED.
    Interrupt,
    /// It is unknown what an earlier owner did: refuse the call.
    Refuse,
    /// The record is free: claim it. With true, its digest was signed with another secret, and the claim needs it.
    Claim(IsOtherDigest),
    /// No store writes such a record.
    Corrupt,
}

/// True if the stored digest of an equal request differs from the call's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IsOtherDigest(pub(super) bool);

/// Abilities of a call that decide what it does about a crashed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Abilities {
    /// The call can run `reconcile`.
    pub(super) reconciles: bool,
    /// The call is part of its caller's transaction.
    pub(super) joins: bool,
}

/// Decides what a call does about a record without an outcome, after it has compared the fingerprints.
pub(super) fn on_existing(
    record: &Record,
    is_other_digest: IsOtherDigest,
    abilities: Abilities,
) -> OnExisting {
    match (record.state, record.on_crash) {
        (RecordState::Running, _) if !record.is_lapsed() => OnExisting::Wait,
        (RecordState::Running, OnCrash::Rerun) => OnExisting::TakeOver,
        (RecordState::Running | RecordState::Interrupted, OnCrash::Reconcile)
            if abilities.reconciles =>
        {
            OnExisting::Reconcile
        }
        // Interrupting the record would wait for the caller's own transaction, which may have locked it. The next
        // call outside of a transaction interrupts it.
        (RecordState::Running, _) if abilities.joins => OnExisting::Refuse,
        (RecordState::Running, _) => OnExisting::Interrupt,
        (RecordState::Released, _) => OnExisting::Claim(is_other_digest),
        (RecordState::Interrupted, _) => OnExisting::Refuse,
        (RecordState::Completed | RecordState::Failed | RecordState::Unrecorded, _) => {
            OnExisting::Corrupt
        }
    }
}

/// True if the outcome of a record is no longer replayed, although the record is still there: its work is done, and is not
/// done again. `replay_for` is the time for which the call replays outcomes, if that is shorter than the retention.
///
/// The record's own time decides if it has one: a later call, or a purge in the meantime, makes no difference.
pub(super) fn is_past_replay(record: &Record, replay_for: Option<Duration>) -> bool {
    let age = record
        .ended_at
        .map(|ended_at| record.read_at.since(ended_at));
    record.is_forgotten()
        || record.state.is_ended()
            && age.is_some_and(|age| is_over(age, record.payload_for, replay_for))
}

/// As [`is_past_replay`], for an outcome of this age.
pub(super) fn is_over(
    age: Duration,
    payload_for: Option<Duration>,
    replay_for: Option<Duration>,
) -> bool {
    payload_for.or(replay_for).is_some_and(|limit| limit <= age)
}

/// State of a record for a reader that does not call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadState {
    /// There is no outcome, and the key is free.
    Absent,
    /// The owner's lease is valid.
    Running,
    /// The owner is gone, and the body may run again.
    Lapsed,
    /// It is unknown what the owner did.
    Interrupted,
    /// The record has ended, and its outcome is no longer replayed.
    Expired,
    /// The record has ended, and its outcome is replayed.
    Ended,
}

/// Decides what a record says to a reader, after the fingerprints were compared.
pub(super) fn on_read(record: &Record) -> ReadState {
    if record.is_expired() {
        return ReadState::Absent;
    }
    match (record.state, record.on_crash) {
        (RecordState::Running, _) if !record.is_lapsed() => ReadState::Running,
        (RecordState::Running, OnCrash::Rerun) => ReadState::Lapsed,
        (RecordState::Running | RecordState::Interrupted, _) => ReadState::Interrupted,
        (RecordState::Released, _) => ReadState::Absent,
        (RecordState::Completed | RecordState::Failed | RecordState::Unrecorded, _) => {
            match is_past_replay(record, None) {
                true => ReadState::Expired,
                false => ReadState::Ended,
            }
        }
    }
}

/// Next action of a call that polls a record that another owner has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnPoll {
    /// The owner still runs: poll again.
    Wait,
    /// The record looks free, or is the call's own: claim.
    Claim,
    /// The record has an outcome, or its owner is gone.
    Look,
}

/// Decides what a call does after it has read the record that it waits for.
pub(super) fn on_poll(record: &Record, own: ClaimId) -> OnPoll {
    if record.state == RecordState::Running && record.claim_id == Some(own) {
        // A claim that this call had given up on was granted after all: claiming again finds it.
        return OnPoll::Claim;
    }
    if record.has_live_owner() {
        return OnPoll::Wait;
    }
    if record.is_expired() || record.state == RecordState::Released {
        return OnPoll::Claim;
    }
    OnPoll::Look
}

/// Use of a record at the time when an unanswered claim of it gets its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClaimUse {
    /// The body runs under this fencing token.
    Uses(FencingToken),
    /// The body runs without protection. A granted claim is left to its lease, so that no duplicate runs concurrently.
    Leaves,
}

impl ClaimUse {
    /// True if a claim with this fencing token is in use, or is to be left to its lease.
    pub(super) fn covers(&self, granted: FencingToken) -> bool {
        match self {
            Self::Uses(used) => *used == granted,
            Self::Leaves => true,
        }
    }
}

/// Progress of a body when its future is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyStage {
    /// The body was never polled: nothing can have happened.
    NotPolled,
    /// The body may have done anything.
    Started,
    /// The outcome is being settled, or there is no record to settle.
    Ended,
}

/// Write that settles an attempt without an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unfinished {
    /// Nothing was done: the key is free again.
    Release,
    /// The effect of the body is unknown.
    Interrupt,
    /// The record stays as after a crash of the process.
    Leave,
}

/// Decides how to settle the record of a body that was dropped.
pub(super) fn on_drop(stage: BodyStage, on_crash: OnCrash) -> Unfinished {
    match (stage, on_crash) {
        // Under `rerun` the record stays as it is until its lease lapses, as after a crash of the process: work
        // that the body began may still be running elsewhere.
        (BodyStage::Ended, _) | (BodyStage::Started, OnCrash::Rerun) => Unfinished::Leave,
        (BodyStage::NotPolled, _) => Unfinished::Release,
        (BodyStage::Started, OnCrash::Refuse | OnCrash::Reconcile) => Unfinished::Interrupt,
    }
}

/// Decides how to settle the record of a body that returned an error that is not stored. `is_harmless` is true if the
/// error proves that nothing was done.
pub(super) fn on_error(is_harmless: bool, on_crash: OnCrash) -> Unfinished {
    match (is_harmless, on_crash) {
        (true, _) => Unfinished::Release,
        (false, OnCrash::Rerun) => Unfinished::Leave,
        (false, OnCrash::Refuse | OnCrash::Reconcile) => Unfinished::Interrupt,
    }
}

/// Answer to a caller whose body ended with an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OwnAnswer {
    /// The result of its body.
    Own,
    /// The result of its body, which is not recorded yet.
    OwnUnrecorded,
    /// The stored outcome of the call that took over.
    Stored,
    /// None: another call may have taken over.
    LeaseLost,
}

/// Decides what a caller gets after its outcome was written. `written` is `None` if the store has not answered in time.
pub(super) fn own_answer(written: Option<FencedWrite>, is_live: bool) -> OwnAnswer {
    match written {
        Some(FencedWrite::Applied) => OwnAnswer::Own,
        Some(FencedWrite::Fenced) => OwnAnswer::Stored,
        None if is_live => OwnAnswer::OwnUnrecorded,
        None => OwnAnswer::LeaseLost,
    }
}

/// The fencing token of an abandoned claim, by which it is released. None if the claim does not have the record: it may
/// still arrive.
pub(super) fn abandoned_token(record: Option<&Record>, abandoned: ClaimId) -> Option<FencingToken> {
    let record = record?;
    let is_granted = record.state == RecordState::Running && record.claim_id == Some(abandoned);
    is_granted.then_some(record.fencing_token)
}

/// True if a transaction whose commit was not acknowledged has ended its record. A store that inserts the record with its
/// outcome may have given it a higher fencing token.
pub(super) fn was_committed(record: &Record, owner: &Owner) -> bool {
    record.state.is_ended() && record.claim_id == Some(owner.claim_id)
}

/// True if a transaction that is not committed has its record in the store without an outcome: a statement of its body
/// committed it half way.
pub(super) fn was_committed_early(record: &Record, owner: &Owner) -> bool {
    let has_no_outcome = matches!(
        record.state,
        RecordState::Running | RecordState::Interrupted
    );
    has_no_outcome && record.claim_id == Some(owner.claim_id)
}

#[cfg(test)]
mod tests {
    use idem_store::key::{Identity, Key, Operation, RecordId, Scope};

    use super::*;
    use crate::record::{Digest, Payload, Timestamp};

    const OWN: ClaimId = ClaimId::from_bytes([1; 16]);
    const OTHER: ClaimId = ClaimId::from_bytes([2; 16]);
    const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);
    const MINUTE: Duration = Duration::from_secs(60);

    /// A record of the claim `OWN`, whose lease is valid for a minute, with a retention of a minute.
    fn record(state: RecordState, on_crash: OnCrash) -> Record {
        let identity = Identity {
            scope: Scope::none(),
            operation: Operation::new("payments.charge").unwrap(),
            key: Key::new("order-1").unwrap(),
        };
        Record {
            id: RecordId::of(&identity),
            identity,
            fingerprint: Digest::new(1, [0; 4], &[0; 32]),
            state,
            payload: None,
            claim_id: Some(OWN),
            fencing_token: FencingToken::from_number(1),
            attempt: 1,
            lease_until: NOW.after(MINUTE),
            retention: MINUTE,
            on_crash,
            payload_for: None,
            first_claimed_at: NOW,
            ended_at: (state.is_ended() || state == RecordState::Released).then_some(NOW),
            read_at: NOW,
        }
    }

    fn later(mut record: Record, time: Duration) -> Record {
        record.read_at = NOW.after(time);
        record
    }

    /// Next action of a call that found a lapsed record.
    fn on_lapsed(on_crash: OnCrash, reconciles: bool, joins: bool) -> OnExisting {
        let lapsed = later(record(RecordState::Running, on_crash), MINUTE);
        let abilities = Abilities { reconciles, joins };
        on_existing(&lapsed, IsOtherDigest(false), abilities)
    }

    #[test]
    fn a_call_interrupts_a_lapsed_record_unless_its_caller_may_have_locked_it() {
        let on_lapsed = |joins| on_lapsed(OnCrash::Refuse, false, joins);
        assert_eq!(on_lapsed(false), OnExisting::Interrupt);
        assert_eq!(on_lapsed(true), OnExisting::Refuse);
    }

    #[test]
    fn only_a_call_that_can_reconcile_does_so() {
        let on_lapsed = |reconciles| on_lapsed(OnCrash::Reconcile, reconciles, false);
        assert_eq!(on_lapsed(false), OnExisting::Interrupt);
        assert_eq!(on_lapsed(true), OnExisting::Reconcile);
    }

    #[test]
    fn a_poll_claims_what_is_free_or_its_own_and_looks_at_what_has_ended() {
        let polled = |record| on_poll(&record, OTHER);
        let running = record(RecordState::Running, OnCrash::Rerun);
        assert_eq!(polled(running.clone()), OnPoll::Wait);
        assert_eq!(on_poll(&running, OWN), OnPoll::Claim);
        assert_eq!(polled(later(running.clone(), MINUTE)), OnPoll::Look);
        assert_eq!(polled(later(running, 2 * MINUTE)), OnPoll::Claim);
        let released = record(RecordState::Released, OnCrash::Rerun);
        assert_eq!(polled(released), OnPoll::Claim);
        let completed = record(RecordState::Completed, OnCrash::Rerun);
        assert_eq!(polled(completed.clone()), OnPoll::Look);
        assert_eq!(polled(later(completed, MINUTE)), OnPoll::Claim);
    }

    #[test]
    fn an_outcome_is_replayed_until_its_own_time_or_that_of_the_call_is_over() {
        let payload = Payload {
            codec: "json/1".into(),
            bytes: (*b"1").into(),
        };
        let ended = |payload_for: Option<Duration>, age: Duration| {
            let mut record = later(record(RecordState::Completed, OnCrash::Rerun), age);
            record.payload = Some(payload.clone());
            record.payload_for = payload_for;
            record
        };
        let (second, instant) = (Duration::from_secs(1), Duration::from_micros(1));
        for (own, of_call, limit) in [
            (None, Some(second), second),
            (Some(second), None, second),
            (Some(second), Some(2 * second), second),
            (Some(2 * second), Some(second), 2 * second),
        ] {
            assert!(!is_past_replay(&ended(own, limit - instant), of_call));
            assert!(is_past_replay(&ended(own, limit), of_call));
        }
        assert!(!is_past_replay(&ended(None, 9 * MINUTE), None));
        // A clock that went back after a purge does not make the payload come back.
        let forgotten = Record {
            payload: None,
            ..ended(Some(MINUTE), Duration::ZERO)
        };
        assert!(is_past_replay(&forgotten, None));
        // Without the time, no store has dropped it: such a record is corrupt.
        let corrupt = Record {
            payload_for: None,
            ..forgotten
        };
        assert!(!is_past_replay(&corrupt, None));
        for state in [RecordState::Running, RecordState::Released] {
            let record = later(record(state, OnCrash::Rerun), 9 * MINUTE);
            assert!(!is_past_replay(&record, Some(second)));
        }
    }

    #[test]
    fn a_reader_learns_what_the_next_call_would() {
        let read = |state, on_crash, age| on_read(&later(record(state, on_crash), age));
        let now = Duration::ZERO;
        for on_crash in [OnCrash::Rerun, OnCrash::Refuse, OnCrash::Reconcile] {
            let read = |state, age| read(state, on_crash, age);
            assert_eq!(read(RecordState::Running, now), ReadState::Running);
            assert_eq!(read(RecordState::Interrupted, now), ReadState::Interrupted);
            assert_eq!(read(RecordState::Released, now), ReadState::Absent);
            for ended in [
                RecordState::Completed,
                RecordState::Failed,
                RecordState::Unrecorded,
            ] {
                assert_eq!(read(ended, now), ReadState::Ended);
                assert_eq!(read(ended, MINUTE), ReadState::Absent);
            }
            let lapsed = read(RecordState::Running, MINUTE);
            let is_free = on_crash == OnCrash::Rerun;
            assert_eq!(lapsed == ReadState::Lapsed, is_free);
            assert_eq!(lapsed == ReadState::Interrupted, !is_free);
        }
        let expired = read(RecordState::Running, OnCrash::Rerun, 2 * MINUTE);
        assert_eq!(expired, ReadState::Absent);
    }

    #[test]
    fn an_abandoned_claim_is_released_only_while_it_has_the_record() {
        let running = record(RecordState::Running, OnCrash::Rerun);
        let released = record(RecordState::Released, OnCrash::Rerun);
        let granted = Some(running.fencing_token);
        assert_eq!(abandoned_token(Some(&running), OWN), granted);
        assert_eq!(abandoned_token(Some(&running), OTHER), None);
        assert_eq!(abandoned_token(Some(&released), OWN), None);
        assert_eq!(abandoned_token(None, OWN), None);
    }

    #[test]
    fn a_commit_took_effect_if_the_record_has_an_outcome_of_its_owner() {
        let completed = record(RecordState::Completed, OnCrash::Rerun);
        let owner = |claim_id| Owner {
            id: completed.id,
            claim_id,
            fencing_token: completed.fencing_token,
        };
        assert!(was_committed(&completed, &owner(OWN)));
        assert!(!was_committed(&completed, &owner(OTHER)));
        let running = record(RecordState::Running, OnCrash::Rerun);
        assert!(!was_committed(&running, &owner(OWN)));
    }
}
