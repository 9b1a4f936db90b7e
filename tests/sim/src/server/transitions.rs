//! Changes of one record, by the reference functions, and the deliberate defects of some of them.

use std::collections::BTreeMap;

use idem_reference::Defect;
use idem_store::record::{Observation, Timestamp};
use idem_store::store::{ClaimOutcome, ClaimRequest, FencedWrite, Granted, Resolution, Resolved};

use super::{Server, Slot};
use crate::message::Arrival;
use crate::message::{Reply, Request};

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
        if self.is(Defect::LeaseByProcessClock)
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
        let by = self.transitions;
        if let Some(slot) = cell.as_mut().filter(|slot| !slot.record.is_expired()) {
            return by.claim(&mut slot.record, claim);
        }
        let (previous, mut steps) = match cell.take() {
            Some(expired) => (Some(expired.record.fencing_token), expired.steps),
            None => (self.floor, BTreeMap::new()),
        };
        let slot = cell.insert(Slot::new(by.begin(claim, previous, now)));
        by.end_steps(&mut steps);
        slot.steps = steps;
        ClaimOutcome::Granted(Granted::on(&slot.record))
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
        self.transitions
            .take_over(&mut slot.record, observed, claim)
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
        let record = &mut slot.record;
        let resolved = self.transitions.resolve(record, observed, resolution);
        if resolved == Resolved::Done && *resolution == Resolution::Erase {
            *cell = None;
        }
        resolved
    }

    /// Applies a write of an owner.
    fn write(&self, slot: &mut Slot, request: &Request) -> FencedWrite {
        let (by, record) = (self.transitions, &mut slot.record);
        match request {
            Request::Renew(owner, lease) => by.renew(record, owner, *lease),
            Request::Complete(owner, outcome) => by.complete(record, owner, outcome),
            Request::Release(owner) => by.release(record, owner),
            Request::Interrupt(owner) => by.interrupt(record, owner),
            Request::SaveStep(owner, name, payload) if owner.may_write(record) => {
                by.save_step(&mut slot.steps, name, payload);
                FencedWrite::Applied
            }
            Request::SaveInput(owner, payload, lease) => slot.save_input(owner, payload, *lease),
            _ => FencedWrite::Fenced,
        }
    }
}
