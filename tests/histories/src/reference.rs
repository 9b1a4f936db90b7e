//! The reference: what a store keeps for one record, and its sequential behaviour at a known time. It applies the
//! reference transitions of `idem-store`.

use std::collections::BTreeMap;
use std::time::Duration;

use idem_reference::Transitions;
use idem_store::RecordState;
use idem_store::record::{FencingToken, Observation, Owner, Payload, Record, Timestamp};
use idem_store::store::transitions::Purge;
use idem_store::store::{
    ClaimOutcome, ClaimRequest, FencedWrite, Granted, Purged, RecoveryInput, Resolution, Resolved,
    SavedStep,
};

use crate::request::{Answer, Request};

/// Time of the last read of a record that is at rest.
const AT_REST: Timestamp = Timestamp::from_micros(0);

/// Everything that a store keeps for one record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cell {
    /// The record, which may have expired.
    pub record: Option<Record>,
    /// Highest fencing token of a deleted record in this place.
    pub floor: Option<FencingToken>,
    /// Saved steps by name.
    pub steps: BTreeMap<String, Payload>,
    /// Recovery input.
    pub input: Option<Input>,
}

/// Saved recovery input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// Time of the first claim of its generation.
    pub first_claimed_at: Timestamp,
    /// True if the input belongs to the current generation of the record.
    pub is_current: bool,
    /// The saved value.
    pub payload: Payload,
    /// Number of recoveries begun with it.
    pub recoveries: u32,
    /// Time from which it is due.
    pub due_at: Timestamp,
}

impl Cell {
    /// Executes a request at this time of the store's clock.
    pub fn execute(&mut self, request: &Request, now: Timestamp) -> Answer {
        self.execute_by(Transitions::default(), request, now)
    }

    /// Executes a request by these transitions.
    pub fn execute_by(&mut self, by: Transitions, request: &Request, now: Timestamp) -> Answer {
        if let Some(record) = &mut self.record {
            record.read_at = now;
        }
        let answer = self.answer(by, request, now);
        if let Some(record) = &mut self.record {
            record.read_at = AT_REST;
        }
        answer
    }

    fn answer(&mut self, by: Transitions, request: &Request, now: Timestamp) -> Answer {
        match request {
            Request::Claim(claim) => Answer::Claim(self.claim(by, claim, now)),
            Request::TakeOver(observed, claim) => {
                Answer::Claim(self.take_over(by, observed, claim, now))
            }
            Request::Resolve(observed, resolution) => {
                Answer::Resolved(self.resolve(by, observed, resolution))
            }
            Request::Get(_) => Answer::Record(self.live(by).cloned().map(Box::new)),
            Request::List(filter) => {
                let listed = self.live(by).filter(|record| filter.matches(record));
                Answer::Record(listed.cloned().map(Box::new))
            }
            Request::Purge(_) | Request::PurgeAll => Answer::Purged(self.purge(by)),
            Request::SavedSteps(owner) => Answer::Steps(self.saved_steps(by, owner)),
            Request::Due(_) => Answer::Input(self.due(now)),
            Request::BeginRecovery(seen, pause) => {
                Answer::Resolved(self.begin_recovery(by, seen, now.after(*pause)))
            }
            Request::Postpone(seen, pause) => {
                Answer::Resolved(self.postpone(seen, now.after(*pause)))
            }
            Request::Forget(seen) => Answer::Resolved(self.forget(seen)),
            _ => Answer::Write(self.write(by, request)),
        }
    }

    /// The record, unless it has expired.
    fn live(&self, by: Transitions) -> Option<&Record> {
        self.record.as_ref().filter(|record| !by.is_expired(record))
    }

    /// Returns true if a claim would begin a new generation at this time.
    pub fn is_vacant(&self, now: Timestamp) -> bool {
        let Some(mut record) = self.record.clone() else {
            return true;
        };
        record.read_at = now;
        record.is_expired()
    }

    fn claim(&mut self, by: Transitions, claim: &ClaimRequest, now: Timestamp) -> ClaimOutcome {
        if let Some(record) = self.record.as_mut().filter(|record| !by.is_expired(record)) {
            return by.claim(record, claim);
        }
        let expired = self.record.as_ref().map(|record| record.fencing_token);
        let record = by.begin(claim, self.floor.max(expired), now);
        let granted = Granted::on(&record);
        self.record = Some(record);
        by.end_steps(&mut self.steps);
        if let Some(input) = &mut self.input {
            input.is_current = false;
        }
        ClaimOutcome::Granted(granted)
    }

    fn take_over(
        &mut self,
        by: Transitions,
        observed: &Observation,
        claim: &ClaimRequest,
        now: Timestamp,
    ) -> ClaimOutcome {
        match self.record.as_mut().filter(|record| !by.is_expired(record)) {
            Some(record) => by.take_over(record, observed, claim),
            None => self.claim(by, claim, now),
        }
    }

    fn resolve(
        &mut self,
        by: Transitions,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Resolved {
        let Some(record) = self.record.as_mut().filter(|record| !by.is_expired(record)) else {
            return Resolved::Stale;
        };
        let resolved = by.resolve(record, observed, resolution);
        if resolved == Resolved::Done && *resolution == Resolution::Erase {
            self.delete(by);
        }
        resolved
    }

    fn purge(&mut self, by: Transitions) -> Purged {
        let mut purged = Purged::default();
        let Some(record) = &mut self.record else {
            return purged;
        };
        let purge = by.purge(record);
        purged.count(purge, record);
        if purge == Purge::Expired {
            self.delete(by);
        }
        purged
    }

    fn delete(&mut self, by: Transitions) {
        let token = self.record.take().map(|record| record.fencing_token);
        by.end_steps(&mut self.steps);
        *self = Self {
            floor: self.floor.max(token),
            steps: std::mem::take(&mut self.steps),
            ..Self::default()
        };
    }

    fn write(&mut self, by: Transitions, request: &Request) -> FencedWrite {
        let Some(record) = self.record.as_mut().filter(|record| !by.is_expired(record)) else {
            return FencedWrite::Fenced;
        };
        match request {
            Request::Renew(owner, lease) => by.renew(record, owner, *lease),
            Request::Complete(owner, outcome) => by.complete(record, owner, outcome),
            Request::Release(owner) => by.release(record, owner),
            Request::Interrupt(owner) => by.interrupt(record, owner),
            Request::SaveStep(owner, name, payload) if owner.may_write(record) => {
                by.save_step(&mut self.steps, name, payload);
                FencedWrite::Applied
            }
            Request::SaveInput(owner, payload, lease) if owner.may_write(record) => {
                self.save_input(payload, *lease);
                FencedWrite::Applied
            }
            _ => FencedWrite::Fenced,
        }
    }

    fn saved_steps(&self, by: Transitions, owner: &Owner) -> Option<Vec<SavedStep>> {
        self.live(by).filter(|record| owner.may_write(record))?;
        let steps = self.steps.iter().map(|(name, payload)| SavedStep {
            name: name.clone(),
            payload: payload.clone(),
        });
        Some(steps.collect())
    }

    fn save_input(&mut self, payload: &Payload, lease: Duration) {
        let Some(record) = &self.record else { return };
        let earlier = self.input.take().filter(|input| input.is_current);
        let due_at = record.read_at.after(lease);
        self.input = Some(Input {
            first_claimed_at: record.first_claimed_at,
            is_current: true,
            payload: payload.clone(),
            recoveries: earlier.as_ref().map_or(0, |input| input.recoveries),
            due_at: earlier.map_or(due_at, |input| input.due_at.max(due_at)),
        });
    }

    fn due(&self, now: Timestamp) -> Option<RecoveryInput> {
        let record = self.record.as_ref()?;
        let input = self.input.as_ref().filter(|input| input.due_at <= now)?;
        Some(RecoveryInput {
            id: record.id,
            first_claimed_at: input.first_claimed_at,
            payload: input.payload.clone(),
            recoveries: input.recoveries,
            due_at: input.due_at,
        })
    }

    fn begin_recovery(
        &mut self,
        by: Transitions,
        seen: &RecoveryInput,
        due_at: Timestamp,
    ) -> Resolved {
        let input = self.input.as_mut();
        match input.filter(|input| by.may_recover(input.is_as(seen))) {
            Some(input) => {
                input.due_at = due_at;
                input.recoveries += 1;
                Resolved::Done
            }
            None => Resolved::Stale,
        }
    }

    fn postpone(&mut self, seen: &RecoveryInput, due_at: Timestamp) -> Resolved {
        match self.input.as_mut().filter(|input| input.is_as(seen)) {
            Some(input) => {
                input.due_at = due_at;
                Resolved::Done
            }
            None => Resolved::Stale,
        }
    }

    fn forget(&mut self, seen: &RecoveryInput) -> Resolved {
        match self.input.take_if(|input| input.is_as(seen)) {
            Some(_) => Resolved::Done,
            None => Resolved::Stale,
        }
    }

    /// Returns true if the recovery input belongs to a generation that has ended, so that the store may have dropped it.
    pub fn input_may_be_gone(&self, now: Timestamp) -> bool {
        let is_current = self.input.as_ref().is_none_or(|input| input.is_current);
        !is_current || self.is_vacant(now)
    }

    /// State of the record, if it is there.
    pub fn state(&self) -> Option<RecordState> {
        self.record.as_ref().map(|record| record.state)
    }
}

impl Input {
    /// Returns true if the input has not changed since it was read.
    fn is_as(&self, seen: &RecoveryInput) -> bool {
        self.first_claimed_at == seen.first_claimed_at
            && self.recoveries == seen.recoveries
            && self.due_at == seen.due_at
    }
}
