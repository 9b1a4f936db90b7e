//! Changes of one record, by the reference functions, and the deliberate defects of some of them.

use idem_store::record::{FencingToken, Observation, Owner, State, Timestamp};
use idem_store::store::transitions;
use idem_store::store::{ClaimOutcome, ClaimRequest, FencedWrite, Granted, Resolution, Resolved};

use super::{Server, Slot};
use crate::message::Arrival;
use crate::message::{Reply, Request};
use crate::mutants::StoreMutant;

impl Server {
    /// Applies a request to a record, which may be absent or expired.
    pub(super) fn transition(
        &self,
        cell: &mut Option<Slot>,
        arrival: &Arrival,
        request: &Request,
        now: Timestamp,
    ) -> Reply {
        if let Some(slot) = cell {
            slot.record.read_at = now;
        }
        let reply = match request {
            Request::Claim(claim) => Reply::Claim(self.claim(cell, claim, now)),
            Request::TakeOver(observed, claim) => {
                Reply::Claim(self.take_over(cell, observed, claim, now))
            }
            Request::Resolve(observed, resolution) => {
                Reply::Resolved(self.resolve(cell, observed, resolution))
            }
            _ => Reply::Fenced(
                match cell.as_mut().filter(|slot| !slot.record.is_expired()) {
                    Some(slot) => self.write(slot, request),
                    None => FencedWrite::Fenced,
                },
            ),
        };
        if self.is(StoreMutant::LeaseByProcessClock)
            && let Some(slot) = cell
            && let Request::Claim(ClaimRequest { lease, .. })
            | Request::TakeOver(_, ClaimRequest { lease, .. })
            | Request::Renew(_, lease) = request
            && slot.record.lease_until == now.after(*lease)
        {
            let sent_at = Timestamp::from_micros(arrival.process_clock);
            slot.record.lease_until = sent_at.after(*lease);
        }
        reply
    }

    /// Claims a record.
    pub(super) fn claim(
        &self,
        cell: &mut Option<Slot>,
        claim: &ClaimRequest,
        now: Timestamp,
    ) -> ClaimOutcome {
        let Some(slot) = cell else {
            let record = self.numbered(transitions::begin(claim, self.floor(), now));
            let granted = Granted::on(&record);
            *cell = Some(Slot::new(record));
            return ClaimOutcome::Granted(granted);
        };
        if slot.record.is_expired() {
            let previous = Some(slot.record.fencing_token);
            let steps = match self.is(StoreMutant::StepsOutliveGeneration) {
                true => std::mem::take(&mut slot.steps),
                false => Default::default(),
            };
            *slot = Slot::new(transitions::begin(claim, previous, now));
            slot.steps = steps;
            return ClaimOutcome::Granted(Granted::on(&slot.record));
        }
        let record = &mut slot.record;
        if claim.is_repeated_on(record) {
            if self.is(StoreMutant::ForgetsClaimId) {
                return ClaimOutcome::Existing(Box::new(record.clone()));
            }
            if self.is(StoreMutant::RepeatedClaimGetsNewToken) {
                record.fencing_token = FencingToken::next(Some(record.fencing_token), now);
            }
        }
        let takes_over = self.is(StoreMutant::ClaimTakesOver) && record.is_lapsed();
        let is_free = self.is(StoreMutant::ClaimsReleasedWithoutFingerprint)
            && record.state == State::Released;
        let is_unrecorded =
            self.is(StoreMutant::ClaimsUnrecorded) && record.state == State::Unrecorded;
        if takes_over || is_free || is_unrecorded {
            if is_free {
                record.fingerprint = claim.fingerprint;
            }
            record.state = State::Released;
        }
        transitions::claim(record, claim)
    }

    /// Takes a record over, or claims it if there is none.
    pub(super) fn take_over(
        &self,
        cell: &mut Option<Slot>,
        observed: &Observation,
        claim: &ClaimRequest,
        now: Timestamp,
    ) -> ClaimOutcome {
        let Some(slot) = cell.as_mut().filter(|slot| !slot.record.is_expired()) else {
            return self.claim(cell, claim, now);
        };
        let record = &mut slot.record;
        let mut observed = *observed;
        if self.is(StoreMutant::TakesOverWithoutCompare) && record.state == State::Running {
            // The condition is the one of the statement that read the record, and it is not repeated.
            observed = record.observation();
            record.lease_until = record.lease_until.min(now);
        }
        if self.is(StoreMutant::TakesOverLiveLease) && record.state == State::Running {
            observed.lease_until = record.lease_until.min(now);
            record.lease_until = record.lease_until.min(now);
        }
        transitions::take_over(record, &observed, claim)
    }

    fn resolve(
        &self,
        cell: &mut Option<Slot>,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Resolved {
        let Some(slot) = cell.as_mut().filter(|slot| !slot.record.is_expired()) else {
            return Resolved::Stale;
        };
        let mut observed = *observed;
        if self.is(StoreMutant::ResolvesWithoutCompare) && !slot.record.state.is_ended() {
            slot.record.lease_until = slot.record.lease_until.min(slot.record.read_at);
            observed = slot.record.observation();
        }
        let resolved = transitions::resolve(&mut slot.record, &observed, resolution);
        if resolved == Resolved::Done && *resolution == Resolution::Erase {
            *cell = None;
        }
        resolved
    }

    /// Applies a write of an owner.
    fn write(&self, slot: &mut Slot, request: &Request) -> FencedWrite {
        let record = &mut slot.record;
        match request {
            Request::Renew(owner, _) if self.is(StoreMutant::RenewsNothing) => {
                match owner.may_write(record) {
                    true => FencedWrite::Applied,
                    false => FencedWrite::Fenced,
                }
            }
            Request::Renew(owner, lease) => transitions::renew(record, owner, *lease),
            Request::Complete(owner, outcome) => {
                let owner = self.completing(owner, slot);
                if self.is(StoreMutant::OverwritesOutcome)
                    && slot.record.state.is_ended()
                    && owner.owns(&slot.record)
                {
                    slot.record.state = State::Running;
                }
                transitions::complete(&mut slot.record, &owner, outcome)
            }
            Request::Release(owner) => {
                let mut owner = *owner;
                if self.is(StoreMutant::ReleasesForNewClaim)
                    && let Some(claim_id) = record.claim_id
                {
                    (owner.claim_id, owner.fencing_token) = (claim_id, record.fencing_token);
                }
                transitions::release(record, &owner)
            }
            Request::Interrupt(owner) => transitions::interrupt(record, owner),
            Request::SaveStep(owner, name, payload) => {
                if !owner.may_write(record) {
                    return FencedWrite::Fenced;
                }
                if !self.is(StoreMutant::LosesSteps) || slot.steps.is_empty() {
                    slot.steps
                        .entry(name.clone())
                        .or_insert_with(|| payload.clone());
                }
                FencedWrite::Applied
            }
            Request::SaveInput(owner, payload, lease) => slot.save_input(owner, payload, *lease),
            _ => FencedWrite::Fenced,
        }
    }

    /// The owner that a completion is compared with.
    fn completing(&self, owner: &Owner, slot: &Slot) -> Owner {
        let mut owner = *owner;
        if self.is(StoreMutant::CompletesByClaimIdAlone)
            && slot.record.claim_id == Some(owner.claim_id)
        {
            owner.fencing_token = slot.record.fencing_token;
        }
        if self.is(StoreMutant::CompletesWithoutFencing)
            && let Some(claim_id) = slot.record.claim_id
        {
            (owner.claim_id, owner.fencing_token) = (claim_id, slot.record.fencing_token);
        }
        owner
    }

    /// Tokens of a store that counts from one for each record, and does not look at its clock.
    fn numbered(&self, mut record: idem_store::Record) -> idem_store::Record {
        if self.is(StoreMutant::ForgetsDeletedToken) {
            record.fencing_token = FencingToken::from_number(1);
        }
        record
    }
}
