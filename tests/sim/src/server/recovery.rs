//! Recovery inputs of the simulated store.

use std::time::Duration;

use idem_store::key::Operation;
use idem_store::record::{Owner, Payload, Timestamp};
use idem_store::store::{FencedWrite, RecoveryInput, Resolved};

use super::{Input, Server, Slot};
use crate::world::World;

impl Slot {
    /// Saves the recovery input of the owner's call.
    pub(super) fn save_input(
        &mut self,
        owner: &Owner,
        payload: &Payload,
        lease: Duration,
    ) -> FencedWrite {
        if !owner.may_write(&self.record) {
            return FencedWrite::Fenced;
        }
        let due_at = self.record.read_at.after(lease);
        let generation = self.record.first_claimed_at;
        let earlier = self
            .input
            .take()
            .filter(|input| input.first_claimed_at == generation);
        self.input = Some(Input {
            first_claimed_at: generation,
            payload: payload.clone(),
            recoveries: earlier.as_ref().map_or(0, |input| input.recoveries),
            due_at: earlier.map_or(due_at, |input| input.due_at.max(due_at)),
        });
        FencedWrite::Applied
    }
}

impl Server {
    pub(super) fn due(
        &self,
        operation: &Operation,
        limit: usize,
        now: Timestamp,
    ) -> Vec<RecoveryInput> {
        let of_operation = self
            .slots
            .values()
            .filter(|slot| slot.record.identity.operation == *operation);
        let inputs = of_operation.filter_map(|slot| {
            let input = slot.input.as_ref().filter(|input| input.due_at <= now)?;
            Some(RecoveryInput {
                id: slot.record.id,
                first_claimed_at: input.first_claimed_at,
                payload: input.payload.clone(),
                recoveries: input.recoveries,
                due_at: input.due_at,
            })
        });
        let mut inputs: Vec<_> = inputs.collect();
        inputs.sort_by_key(|input| (input.due_at, input.id));
        inputs.truncate(limit);
        inputs
    }

    pub(super) fn postpone(
        &mut self,
        world: &mut World,
        seen: &RecoveryInput,
        by: Duration,
        recovering: bool,
        now: Timestamp,
    ) -> Resolved {
        let transitions = self.transitions;
        let Some(slot) = self.slots.get_mut(&seen.id) else {
            return Resolved::Stale;
        };
        let Some(input) = slot
            .input
            .as_mut()
            .filter(|input| transitions.may_recover(input.is_as(seen)))
        else {
            return Resolved::Stale;
        };
        input.due_at = now.after(by);
        if recovering {
            world.recovery_began(&seen.id, seen.first_claimed_at, seen.recoveries);
            input.recoveries = seen.recoveries + 1;
        }
        Resolved::Done
    }

    pub(super) fn forget(&mut self, seen: &RecoveryInput, _: Timestamp) -> Resolved {
        let Some(slot) = self.slots.get_mut(&seen.id) else {
            return Resolved::Stale;
        };
        if !slot.input.as_ref().is_some_and(|input| input.is_as(seen)) {
            return Resolved::Stale;
        }
        slot.input = None;
        Resolved::Done
    }
}

impl Input {
    /// True if the input has not changed since it was read.
    fn is_as(&self, seen: &RecoveryInput) -> bool {
        self.first_claimed_at == seen.first_claimed_at
            && self.recoveries == seen.recoveries
            && self.due_at == seen.due_at
    }
}
