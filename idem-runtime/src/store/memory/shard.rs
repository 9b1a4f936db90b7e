//! Records whose ids begin alike, and the order in which they become due.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use crate::key::RecordId;
use crate::record::{
    FencingToken, MemberDigests, Observation, Owner, OwnerLabel, Payload, Record, RecordState,
    Timestamp,
};
use crate::store::transitions::{self, Purge};
use crate::store::{
    AttemptLog, Attempts, ClaimOutcome, ClaimRequest, FencedWrite, Granted, Purged, Resolution,
    Resolved, SavedStep,
};

use super::hasher::BuildIdHasher;

/// Records with a lock of their own.
pub(super) struct Shard {
    slots: Slots,
    /// Due times of records, earliest first. An entry that its slot does not name is stale.
    queue: Queue,
    /// Highest fencing token of a deleted record: first claims get a higher one.
    fencing_floor: Option<FencingToken>,
}

type Slots = HashMap<RecordId, Slot, BuildIdHasher>;
type Queue = BinaryHeap<Reverse<(Timestamp, RecordId)>>;

struct Slot {
    /// Boxed, because the map moves its slots when it grows.
    record: Box<Record>,
    /// Due time of the record's queue entry; never later than the record may expire.
    queued: Option<Timestamp>,
    /// Attempts of this generation.
    log: AttemptLog,
    /// Digests of the members of the request.
    members: Option<MemberDigests>,
    /// Saved steps of this generation of the record, by name.
    steps: BTreeMap<Box<str>, Payload>,
}

impl Slot {
    /// Returns the current record, unless it has expired.
    fn at(&mut self, now: Timestamp) -> Option<&mut Record> {
        self.record.read_at = now;
        (!self.record.is_expired()).then_some(&mut *self.record)
    }
}

impl Shard {
    pub(super) fn new(seeds: (u64, u64)) -> Self {
        Self {
            slots: HashMap::with_hasher(BuildIdHasher(seeds.0, seeds.1)),
            queue: BinaryHeap::new(),
            fencing_floor: None,
        }
    }

    /// Returns the record, unless it has expired.
    pub(super) fn live(&mut self, id: &RecordId, now: Timestamp) -> Option<&mut Record> {
        self.slots.get_mut(id)?.at(now)
    }

    /// Returns the record with its attempts, unless it has expired.
    pub(super) fn attempts(&mut self, id: &RecordId, now: Timestamp) -> Option<Attempts> {
        let slot = self.slots.get_mut(id)?;
        let record = slot.at(now)?.clone();
        Some(slot.log.attempts(record).with_members(slot.members.clone()))
    }

    /// Adds a replay to the history of the record that has this fencing token.
    pub(super) fn note_replay(
        &mut self,
        id: &RecordId,
        fencing_token: FencingToken,
        by: Option<&OwnerLabel>,
        now: Timestamp,
    ) -> bool {
        let Some(slot) = self.slots.get_mut(id) else {
            return false;
        };
        let found = slot.at(now).map(|record| record.fencing_token);
        found == Some(fencing_token) && slot.log.note_replay(&slot.record, by)
    }

    /// Returns all records, expired or not, in no order, each with the label of the owner of its current or last attempt.
    pub(super) fn all(
        &mut self,
        now: Timestamp,
    ) -> impl Iterator<Item = (&Record, Option<&OwnerLabel>)> {
        self.slots.values_mut().map(move |slot| {
            slot.record.read_at = now;
            (&*slot.record, slot.log.owner())
        })
    }

    /// Claims an existing record, or replaces it if it has expired. Returns `None` if there is no record yet.
    pub(super) fn claim_present(
        &mut self,
        claim: &ClaimRequest,
        now: Timestamp,
    ) -> Option<ClaimOutcome> {
        let slot = self.slots.get_mut(&claim.id)?;
        let before = slot.record.observation();
        let outcome = match slot.at(now) {
            None => {
                *slot.record = transitions::begin(claim, Some(before.fencing_token), now);
                slot.log = AttemptLog::begin(claim.owner_label.as_ref());
                slot.steps.clear();
                ClaimOutcome::Granted(Granted::on(&slot.record))
            }
            Some(record) => {
                let outcome = transitions::claim(record, claim);
                slot.log
                    .follow(&before, &slot.record, claim.owner_label.as_ref());
                outcome
            }
        };
        if let ClaimOutcome::Granted(_) = outcome {
            slot.members.clone_from(&claim.members);
            enqueue(&mut self.queue, slot);
        }
        Some(outcome)
    }

    /// Creates a record for a claim of a new key.
    pub(super) fn claim_absent(&mut self, claim: &ClaimRequest, now: Timestamp) -> ClaimOutcome {
        let record = Box::new(transitions::begin(claim, self.fencing_floor, now));
        let granted = Granted::on(&record);
        let mut slot = Slot {
            record,
            queued: None,
            log: AttemptLog::begin(claim.owner_label.as_ref()),
            members: claim.members.clone(),
            steps: BTreeMap::new(),
        };
        enqueue_new(&mut self.queue, &mut slot);
        self.slots.insert(claim.id, slot);
        ClaimOutcome::Granted(granted)
    }

    /// Returns `None` if the record no longer exists.
    pub(super) fn take_over(
        &mut self,
        observed: &Observation,
        claim: &ClaimRequest,
        now: Timestamp,
    ) -> Option<ClaimOutcome> {
        let slot = self.slots.get_mut(&claim.id)?;
        let before = slot.record.observation();
        let outcome = transitions::take_over(slot.at(now)?, observed, claim);
        slot.log
            .follow(&before, &slot.record, claim.owner_label.as_ref());
        if let ClaimOutcome::Granted(_) = outcome {
            enqueue(&mut self.queue, slot);
        }
        Some(outcome)
    }

    /// Applies a transition that only the owner may make.
    pub(super) fn write(
        &mut self,
        owner: &Owner,
        now: Timestamp,
        transition: impl FnOnce(&mut Record) -> FencedWrite,
    ) -> FencedWrite {
        let Some(slot) = self.slots.get_mut(&owner.id) else {
            return FencedWrite::Fenced;
        };
        let before = slot.record.observation();
        let written = slot.at(now).map_or(FencedWrite::Fenced, transition);
        if written == FencedWrite::Applied {
            slot.log.follow(&before, &slot.record, None);
            enqueue(&mut self.queue, slot);
        }
        written
    }

    /// Saves the result of a step, unless the record has one under this name.
    pub(super) fn save_step(
        &mut self,
        owner: &Owner,
        name: &str,
        payload: &Payload,
        now: Timestamp,
    ) -> FencedWrite {
        let Some(slot) = self.owned_slot(owner, now) else {
            return FencedWrite::Fenced;
        };
        if !slot.steps.contains_key(name) {
            slot.steps.insert(name.into(), payload.clone());
        }
        FencedWrite::Applied
    }

    /// Returns the saved steps in the order of their names, or `None` if the caller does not own the record.
    pub(super) fn saved_steps(&mut self, owner: &Owner, now: Timestamp) -> Option<Vec<SavedStep>> {
        let slot = self.owned_slot(owner, now)?;
        let steps = slot.steps.iter().map(|(name, payload)| SavedStep {
            name: name.to_string(),
            payload: payload.clone(),
        });
        Some(steps.collect())
    }

    /// Returns the record and its steps to its owner.
    fn owned_slot(&mut self, owner: &Owner, now: Timestamp) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(&owner.id)?;
        let record = slot.at(now)?;
        owner.may_write(record).then_some(slot)
    }

    /// Applies a manual change.
    pub(super) fn resolve(
        &mut self,
        observed: &Observation,
        resolution: &Resolution,
        now: Timestamp,
    ) -> Resolved {
        let Some(slot) = self.slots.get_mut(&observed.id) else {
            return Resolved::Stale;
        };
        let Some(record) = slot.at(now) else {
            return Resolved::Stale;
        };
        if transitions::resolve(&mut *record, observed, resolution) == Resolved::Stale {
            return Resolved::Stale;
        }
        if *resolution == Resolution::Erase {
            self.fencing_floor = self.fencing_floor.max(Some(record.fencing_token));
            self.slots.remove(&observed.id);
            self.drop_stale_entries();
        } else {
            slot.log.follow(observed, &slot.record, None);
            enqueue(&mut self.queue, slot);
        }
        Resolved::Done
    }

    /// Deletes a record, expired or not. Returns false if the lease of its owner is valid, and `None` if there is no record.
    pub(super) fn erase(&mut self, id: &RecordId, now: Timestamp) -> Option<bool> {
        let slot = self.slots.get_mut(id)?;
        slot.record.read_at = now;
        if slot.record.has_live_owner() {
            return Some(false);
        }
        self.fencing_floor = self.fencing_floor.max(Some(slot.record.fencing_token));
        self.slots.remove(id);
        self.drop_stale_entries();
        Some(true)
    }

    /// Removes expired records, marks abandoned ones as interrupted, and drops payloads whose time is over. `budget` is the
    /// number of entries that it may still examine. `now` may be earlier than the time of the clock.
    pub(super) fn purge(&mut self, now: Timestamp, budget: &mut u32) -> Purged {
        let mut purged = Purged::default();
        while *budget > 0
            && let Some(Reverse((due, id))) = self.queue.peek().copied()
            && due <= now
        {
            self.queue.pop();
            *budget -= 1;
            let Some(slot) = self.slots.get_mut(&id).filter(|it| it.queued == Some(due)) else {
                continue;
            };
            slot.queued = None;
            slot.record.read_at = now;
            let purge = transitions::purge(&mut slot.record);
            purged.count(purge, &slot.record);
            if purge == Purge::Expired {
                self.fencing_floor = self.fencing_floor.max(Some(slot.record.fencing_token));
                self.slots.remove(&id);
            } else {
                enqueue(&mut self.queue, slot);
            }
        }
        purged
    }

    /// Erasing leaves an entry behind until its due time. A program that erases many records must not accumulate such
    /// entries.
    fn drop_stale_entries(&mut self) {
        if self.queue.len() > 64 + 2 * self.slots.len() {
            let slots = &self.slots;
            self.queue.retain(|Reverse((due, id))| {
                slots.get(id).is_some_and(|slot| slot.queued == Some(*due))
            });
        }
    }
}

/// Ensures that the record is checked no later than it may expire or lose its payload. Most records already have an early enough queue
/// entry, so this is one comparison.
fn enqueue(queue: &mut Queue, slot: &mut Slot) {
    let record = &slot.record;
    let due = match record.state {
        RecordState::Interrupted => return,
        RecordState::Running => record.lease_until.after(record.retention),
        _ => {
            let ended_at = record.ended_at.unwrap_or(record.read_at);
            let expires_at = ended_at.after(record.retention);
            let payload_until = record.payload.as_ref().and(record.payload_until());
            payload_until.map_or(expires_at, |it| it.min(expires_at))
        }
    };
    enqueue_at(queue, slot, due);
}

/// The first entry of a record is early enough for a record that ends immediately, so ending it needs no other entry.
/// Records of one retention arrive in the order of their time, so this is an append.
fn enqueue_new(queue: &mut Queue, slot: &mut Slot) {
    let due = slot.record.read_at.after(slot.record.retention);
    enqueue_at(queue, slot, due);
}

fn enqueue_at(queue: &mut Queue, slot: &mut Slot, due: Timestamp) {
    if slot.queued.is_none_or(|queued| due < queued) {
        slot.queued = Some(due);
        queue.push(Reverse((due, slot.record.id)));
    }
}
