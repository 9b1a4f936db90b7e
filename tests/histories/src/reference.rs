//! The reference: what a store keeps for one record, and its sequential behaviour at a known time. It applies the
//! reference transitions of `idem-store`.

use std::collections::BTreeMap;
use std::time::Duration;

use idem_store::State;
use idem_store::record::{FencingToken, Observation, Owner, Payload, Record, Timestamp};
use idem_store::store::transitions::{self, Purge};
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
        if let Some(record) = &mut self.record {
            record.read_at = now;
        }
        let answer = self.answer(request, now);
        if let Some(record) = &mut self.record {
            record.read_at = AT_REST;
        }
        answer
    }

    fn answer(&mut self, request: &Request, now: Timestamp) -> Answer {
        match request {
            Request::Claim(claim) => Answer::Claim(self.claim(claim, now)),
            Request::TakeOver(observed, claim) => {
                Answer::Claim(self.take_over(observed, claim, now))
            }
            Request::Resolve(observed, resolution) => {
                Answer::Resolved(self.resolve(observed, resolution))
            }
            Request::Get(_) => Answer::Record(self.live().cloned().map(Box::new)),
            Request::List(filter) => {
                let listed = self.live().filter(|record| filter.matches(record));
                Answer::Record(listed.cloned().map(Box::new))
            }
            Request::Purge(_) | Request::PurgeAll => Answer::Purged(self.purge()),
            Request::SavedSteps(owner) => Answer::Steps(self.saved_steps(owner)),
            Request::Due(_) => Answer::Input(self.due(now)),
            Request::BeginRecovery(seen, by) => {
                Answer::Resolved(self.postpone(seen, now.after(*by), 1))
            }
            Request::Postpone(seen, by) => Answer::Resolved(self.postpone(seen, now.after(*by), 0)),
            Request::Forget(seen) => Answer::Resolved(self.forget(seen)),
            _ => Answer::Write(self.write(request)),
        }
    }

    /// The record, unless it has expired.
    fn live(&self) -> Option<&Record> {
        self.record.as_ref().filter(|record| !record.is_expired())
    }

    /// Returns true if a claim would begin a new generation at this time.
    pub fn is_vacant(&self, now: Timestamp) -> bool {
        let Some(mut record) = self.record.clone() else {
            return true;
        };
        record.read_at = now;
        record.is_expired()
    }

    fn claim(&mut self, claim: &ClaimRequest, now: Timestamp) -> ClaimOutcome {
        if let Some(record) = self.record.as_mut().filter(|record| !record.is_expired()) {
            return transitions::claim(record, claim);
        }
        let expired = self.record.as_ref().map(|record| record.fencing_token);
        let record = transitions::begin(claim, self.floor.max(expired), now);
        let granted = Granted::on(&record);
        self.record = Some(record);
        self.steps.clear();
        if let Some(input) = &mut self.input {
            input.is_current = false;
        }
        ClaimOutcome::Granted(granted)
    }

    fn take_over(
        &mut self,
        observed: &Observation,
        claim: &ClaimRequest,
        now: Timestamp,
    ) -> ClaimOutcome {
        match self.record.as_mut().filter(|record| !record.is_expired()) {
            Some(record) => transitions::take_over(record, observed, claim),
            None => self.claim(claim, now),
        }
    }

    fn resolve(&mut self, observed: &Observation, resolution: &Resolution) -> Resolved {
        let Some(record) = self.record.as_mut().filter(|record| !record.is_expired()) else {
            return Resolved::Stale;
        };
        let resolved = transitions::resolve(record, observed, resolution);
        if resolved == Resolved::Done && *resolution == Resolution::Erase {
            self.delete();
        }
        resolved
    }

    fn purge(&mut self) -> Purged {
        let mut purged = Purged::default();
        let Some(record) = &mut self.record else {
            return purged;
        };
        let purge = transitions::purge(record);
        purged.count(purge, record);
        if purge == Purge::Expired {
            self.delete();
        }
        purged
    }

    fn delete(&mut self) {
        let token = self.record.take().map(|record| record.fencing_token);
        *self = Self {
            floor: self.floor.max(token),
            ..Self::default()
        };
    }

    fn write(&mut self, request: &Request) -> FencedWrite {
        let Some(record) = self.record.as_mut().filter(|record| !record.is_expired()) else {
            return FencedWrite::Fenced;
        };
        match request {
            Request::Renew(owner, lease) => transitions::renew(record, owner, *lease),
            Request::Complete(owner, outcome) => transitions::complete(record, owner, outcome),
            Request::Release(owner) => transitions::release(record, owner),
            Request::Interrupt(owner) => transitions::interrupt(record, owner),
            Request::SaveStep(owner, name, payload) if owner.may_write(record) => {
                let step = self.steps.entry(name.clone());
                step.or_insert_with(|| payload.clone());
                FencedWrite::Applied
            }
            Request::SaveInput(owner, payload, lease) if owner.may_write(record) => {
                self.save_input(payload, *lease);
                FencedWrite::Applied
            }
            _ => FencedWrite::Fenced,
        }
    }

    fn saved_steps(&self, owner: &Owner) -> Option<Vec<SavedStep>> {
        self.live().filter(|record| owner.may_write(record))?;
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

    fn postpone(&mut self, seen: &RecoveryInput, due_at: Timestamp, begun: u32) -> Resolved {
        match self.input.as_mut().filter(|input| input.is_as(seen)) {
            Some(input) => {
                input.due_at = due_at;
                input.recoveries += begun;
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
    pub fn state(&self) -> Option<State> {
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
