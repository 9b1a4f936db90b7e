//! Store of records in the memory of one process: the reference implementation, for tests and for services with a
//! single process.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::time::Instant;

use crate::error::{StoreError, StoreErrorKind};
use crate::key::RecordId;
use crate::record::{
    FencingToken, Observation, OnCrash, Outcome, Owner, Payload, Record, State, Timestamp,
};
use crate::store::{
    ClaimOutcome, ClaimRequest, FencedWrite, Filter, Granted, Page, PageRequest, Purged,
    Resolution, Resolved, SavedStep, StepStore, Store, cursor,
};

mod hasher;

use hasher::BuildIdHasher;

/// Store of records in the memory of this process. They are lost when the process ends.
///
/// The number of records is bounded. When the store is full, a claim of a new key first drops expired records. If there
/// are none, the claim fails with [`StoreErrorKind::Full`]. A record that has not expired is never dropped.
///
/// The store's clock is the wall time at its creation plus the tokio time since then. It therefore never goes back, and
/// follows `tokio::time::pause` and `advance` in tests.
pub struct MemoryStore {
    shards: Box<[Mutex<Shard>]>,
    capacity: usize,
    len: AtomicUsize,
    /// Shard with which the next purge begins, so that small purges reach all shards in turn.
    purge_from: AtomicUsize,
    made_at: Timestamp,
    made: Instant,
}

/// A power of two, at most 256: the first byte of a record's id selects its shard, so the order of shards follows the
/// order of ids.
const SHARDS: usize = 64;
const DEFAULT_CAPACITY: usize = 1_000_000;

impl MemoryStore {
    /// Creates an empty store for up to a million records.
    pub fn new() -> Self {
        Self::with_capacity(DEFAULT_CAPACITY)
    }

    /// Creates an empty store for up to this many records. Memory is allocated as records are added.
    pub fn with_capacity(records: usize) -> Self {
        let seeds = (rand::random(), rand::random());
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(Shard::new(seeds))).collect(),
            capacity: records,
            len: AtomicUsize::new(0),
            purge_from: AtomicUsize::new(0),
            made_at: SystemTime::now().into(),
            made: Instant::now(),
        }
    }

    /// Number of records, including expired ones that are not purged yet.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Returns true if there are no records.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn now(&self) -> Timestamp {
        self.made_at
            .after(Instant::now().saturating_duration_since(self.made))
    }

    fn shard(&self, id: &RecordId) -> MutexGuard<'_, Shard> {
        self.lock(shard_of(id))
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        // No code under the lock can panic half way, so the data of a poisoned shard is valid.
        self.shards[shard]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn claim_in<'a>(
        &'a self,
        mut shard: MutexGuard<'a, Shard>,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError> {
        let now = self.now();
        if let Some(answer) = shard.claim_present(claim, now) {
            return Ok(answer);
        }
        if !self.reserve() {
            // Two shards are never locked at the same time, to avoid deadlocks. This shard is therefore unlocked while
            // the others are searched, and the claim checks it again afterwards.
            drop(shard);
            if !self.make_room(shard_of(&claim.id)) {
                return Err(StoreError::new(
                    StoreErrorKind::Full,
                    format!(
                        "the memory store holds {} records and none has expired, give it a larger capacity or keep \
                         records for a shorter time",
                        self.capacity
                    ),
                ));
            }
            shard = self.shard(&claim.id);
            if let Some(answer) = shard.claim_present(claim, self.now()) {
                self.len.fetch_sub(1, Ordering::Relaxed);
                return Ok(answer);
            }
        }
        Ok(shard.claim_absent(claim, now))
    }

    /// Counts one more record, if there is room for it.
    fn reserve(&self) -> bool {
        if self.len.fetch_add(1, Ordering::Relaxed) < self.capacity {
            return true;
        }
        self.len.fetch_sub(1, Ordering::Relaxed);
        false
    }

    /// Drops expired records until there is room, beginning with this shard, and reserves the room.
    fn make_room(&self, first: usize) -> bool {
        let now = self.now();
        (0..SHARDS).any(|offset| {
            loop {
                let mut budget = 64;
                let purged = self.lock((first + offset) % SHARDS).purge(now, &mut budget);
                self.len
                    .fetch_sub(purged.removed as usize, Ordering::Relaxed);
                if self.reserve() {
                    return true;
                }
                if budget > 0 {
                    return false;
                }
            }
        })
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("records", &self.len())
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        self.claim_in(self.shard(&claim.id), claim)
    }

    async fn take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError> {
        let mut shard = self.shard(&claim.id);
        match shard.take_over(observed, claim, self.now()) {
            Some(answer) => Ok(answer),
            None => self.claim_in(shard, claim),
        }
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<FencedWrite, StoreError> {
        Ok(self
            .shard(&owner.id)
            .apply_as_owner(owner, self.now(), |record| {
                record.state = State::Running;
                record.lease_until = record.read_at.after(lease);
            }))
    }

    async fn complete(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError> {
        let now = self.now();
        let mut shard = self.shard(&owner.id);
        if let Some(record) = shard.live(&owner.id, now)
            && record.state.is_ended()
            && is_owned_by(record, owner)
        {
            return Ok(FencedWrite::Applied);
        }
        Ok(shard.apply_as_owner(owner, now, |record| complete_record(record, outcome)))
    }

    async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        Ok(self
            .shard(&owner.id)
            .apply_as_owner(owner, self.now(), release_record))
    }

    async fn interrupt(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        Ok(self
            .shard(&owner.id)
            .apply_as_owner(owner, self.now(), |record| {
                record.state = State::Interrupted;
            }))
    }

    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        let mut shard = self.shard(&observed.id);
        let resolved = shard.resolve(observed, resolution, self.now());
        if resolved == Resolved::Done && *resolution == Resolution::Erase {
            self.len.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(resolved)
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        Ok(self.shard(id).live(id, self.now()).cloned())
    }

    async fn list(&self, filter: &Filter, page: &PageRequest) -> Result<Page, StoreError> {
        let (after, limit) = cursor::read(page)?;
        let mut records = Vec::new();
        for shard in after.as_ref().map_or(0, shard_of)..SHARDS {
            let now = self.now();
            let mut shard = self.lock(shard);
            let mut matching: Vec<&Record> = shard
                .slots
                .values_mut()
                .filter_map(|slot| slot.at(now))
                .map(|record| &*record)
                .filter(|record| after.is_none_or(|id| record.id > id) && filter.matches(record))
                .collect();
            matching.sort_unstable_by_key(|record| record.id);
            // One record more than requested shows that there is a next page.
            let missing = limit + 1 - records.len();
            records.extend(matching.into_iter().take(missing).cloned());
            if records.len() > limit {
                break;
            }
        }
        let more = records.len() > limit;
        records.truncate(limit);
        let next = records
            .last()
            .filter(|_| more)
            .map(|record| cursor::after(&record.id));
        Ok(Page { records, next })
    }

    async fn purge(&self, limit: u32) -> Result<Purged, StoreError> {
        let mut budget = limit;
        let mut total = Purged::default();
        let first = self.purge_from.load(Ordering::Relaxed);
        for offset in 0..SHARDS {
            let shard = (first + offset) % SHARDS;
            let purged = self.lock(shard).purge(self.now(), &mut budget);
            self.len
                .fetch_sub(purged.removed as usize, Ordering::Relaxed);
            total.removed += purged.removed;
            total.abandoned += purged.abandoned;
            total.interrupted += purged.interrupted;
            if budget == 0 {
                self.purge_from.store(shard, Ordering::Relaxed);
                total.more = true;
                break;
            }
        }
        Ok(total)
    }

    fn answers_at_once(&self) -> bool {
        true
    }

    fn steps(&self) -> Option<&dyn StepStore> {
        Some(self)
    }
}

#[async_trait]
impl StepStore for MemoryStore {
    async fn save_step(
        &self,
        owner: &Owner,
        name: &str,
        payload: &Payload,
    ) -> Result<FencedWrite, StoreError> {
        let mut shard = self.shard(&owner.id);
        let Some(slot) = shard.owned_slot(owner, self.now()) else {
            return Ok(FencedWrite::Fenced);
        };
        if !slot.steps.contains_key(name) {
            slot.steps.insert(name.into(), payload.clone());
        }
        Ok(FencedWrite::Applied)
    }

    async fn saved_steps(&self, owner: &Owner) -> Result<Option<Vec<SavedStep>>, StoreError> {
        let mut shard = self.shard(&owner.id);
        let slot = shard.owned_slot(owner, self.now());
        Ok(slot.map(|slot| {
            let steps = slot.steps.iter().map(|(name, payload)| SavedStep {
                name: name.to_string(),
                payload: payload.clone(),
            });
            steps.collect()
        }))
    }
}

fn shard_of(id: &RecordId) -> usize {
    usize::from(id.as_bytes()[0]) / (256 / SHARDS)
}

struct Shard {
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
    fn new(seeds: (u64, u64)) -> Self {
        Self {
            slots: HashMap::with_hasher(BuildIdHasher(seeds.0, seeds.1)),
            queue: BinaryHeap::new(),
            fencing_floor: None,
        }
    }

    fn live(&mut self, id: &RecordId, now: Timestamp) -> Option<&mut Record> {
        self.slots.get_mut(id)?.at(now)
    }

    /// Claims an existing record, or replaces it if it has expired. Returns `None` if there is no record yet.
    fn claim_present(&mut self, claim: &ClaimRequest, now: Timestamp) -> Option<ClaimOutcome> {
        let slot = self.slots.get_mut(&claim.id)?;
        let previous = slot.record.fencing_token;
        let granted = match slot.at(now) {
            None => {
                *slot.record = new_record(claim, Some(previous), now);
                slot.steps.clear();
                granted(&slot.record)
            }
            Some(record) if is_own_claim(record, claim) => repeat_claim(record, claim),
            Some(record)
                if record.state == State::Released && record.fingerprint == claim.fingerprint =>
            {
                next_attempt(record, claim)
            }
            Some(record) => return Some(ClaimOutcome::Existing(Box::new(record.clone()))),
        };
        enqueue(&mut self.queue, slot);
        Some(ClaimOutcome::Granted(granted))
    }

    fn claim_absent(&mut self, claim: &ClaimRequest, now: Timestamp) -> ClaimOutcome {
        let record = Box::new(new_record(claim, self.fencing_floor, now));
        let granted = granted(&record);
        let mut slot = Slot {
            record,
            queued: None,
            steps: BTreeMap::new(),
        };
        enqueue_new(&mut self.queue, &mut slot);
        self.slots.insert(claim.id, slot);
        ClaimOutcome::Granted(granted)
    }

    /// Returns `None` if the record no longer exists.
    fn take_over(
        &mut self,
        observed: &Observation,
        claim: &ClaimRequest,
        now: Timestamp,
    ) -> Option<ClaimOutcome> {
        let slot = self.slots.get_mut(&claim.id)?;
        let record = slot.at(now)?;
        let granted = if is_own_claim(record, claim) {
            repeat_claim(record, claim)
        } else if is_unsettled(record)
            && record.observation() == *observed
            && record.on_crash != OnCrash::Refuse
            && record.fingerprint == claim.fingerprint
        {
            next_attempt(record, claim)
        } else {
            return Some(ClaimOutcome::Existing(Box::new(record.clone())));
        };
        enqueue(&mut self.queue, slot);
        Some(ClaimOutcome::Granted(granted))
    }

    /// Applies a transition that only the owner may make.
    fn apply_as_owner(
        &mut self,
        owner: &Owner,
        now: Timestamp,
        transition: impl FnOnce(&mut Record),
    ) -> FencedWrite {
        let Some(slot) = find_owned(&mut self.slots, owner, now) else {
            return FencedWrite::Fenced;
        };
        transition(&mut slot.record);
        enqueue(&mut self.queue, slot);
        FencedWrite::Applied
    }

    /// Returns the record and its steps to its owner.
    fn owned_slot(&mut self, owner: &Owner, now: Timestamp) -> Option<&mut Slot> {
        find_owned(&mut self.slots, owner, now)
    }

    fn resolve(
        &mut self,
        observed: &Observation,
        resolution: &Resolution,
        now: Timestamp,
    ) -> Resolved {
        let Some(slot) = self.slots.get_mut(&observed.id) else {
            return Resolved::Stale;
        };
        let Some(record) = slot.at(now).filter(|it| it.observation() == *observed) else {
            return Resolved::Stale;
        };
        let settles = match resolution {
            Resolution::Erase => record.state != State::Running || record.is_lapsed(),
            _ => is_unsettled(record),
        };
        if !settles {
            return Resolved::Stale;
        }
        match resolution {
            Resolution::Erase => {
                self.fencing_floor = self.fencing_floor.max(Some(record.fencing_token));
                self.slots.remove(&observed.id);
                self.drop_stale_entries();
                return Resolved::Done;
            }
            Resolution::Complete(outcome) => {
                complete_record(record, outcome);
                fence_off(record);
            }
            Resolution::Release => {
                release_record(record);
                fence_off(record);
            }
            Resolution::Interrupt => record.state = State::Interrupted,
        }
        enqueue(&mut self.queue, slot);
        Resolved::Done
    }

    fn purge(&mut self, now: Timestamp, budget: &mut u32) -> Purged {
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
            let Some(record) = slot.at(now) else {
                purged.removed += 1;
                purged.abandoned += u64::from(slot.record.state == State::Running);
                self.fencing_floor = self.fencing_floor.max(Some(slot.record.fencing_token));
                self.slots.remove(&id);
                continue;
            };
            if record.state == State::Running
                && record.on_crash != OnCrash::Rerun
                && record.lease_until.after(record.retention) <= now
            {
                record.state = State::Interrupted;
                purged.interrupted += 1;
            }
            enqueue(&mut self.queue, slot);
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

fn find_owned<'a>(slots: &'a mut Slots, owner: &Owner, now: Timestamp) -> Option<&'a mut Slot> {
    let slot = slots.get_mut(&owner.id)?;
    let record = slot.at(now)?;
    (is_owned_by(record, owner) && !record.state.is_ended()).then_some(slot)
}

/// Ensures that the record is checked no later than it may expire. Most records already have an early enough queue
/// entry, so this is one comparison.
fn enqueue(queue: &mut Queue, slot: &mut Slot) {
    let record = &slot.record;
    let due = match record.state {
        State::Interrupted => return,
        State::Running => record.lease_until.after(record.retention),
        _ => record
            .ended_at
            .unwrap_or(record.read_at)
            .after(record.retention),
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

fn new_record(claim: &ClaimRequest, previous: Option<FencingToken>, now: Timestamp) -> Record {
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

fn granted(record: &Record) -> Granted {
    Granted {
        fencing_token: record.fencing_token,
        attempt: record.attempt,
        first_claimed_at: record.first_claimed_at,
        on_crash: record.on_crash,
    }
}

/// Grants a repeated claim.
fn repeat_claim(record: &mut Record, claim: &ClaimRequest) -> Granted {
    record.lease_until = record.read_at.after(claim.lease);
    granted(record)
}

/// Grants the next attempt of a record that was released or whose lease has lapsed.
fn next_attempt(record: &mut Record, claim: &ClaimRequest) -> Granted {
    record.state = State::Running;
    record.claim_id = Some(claim.claim_id);
    record.fencing_token = FencingToken::next(Some(record.fencing_token), record.read_at);
    record.attempt = record.attempt.saturating_add(1);
    record.lease_until = record.read_at.after(claim.lease);
    record.retention = claim.retention;
    record.ended_at = None;
    granted(record)
}

fn complete_record(record: &mut Record, outcome: &Outcome) {
    record.state = outcome.state();
    record.payload = outcome.payload().cloned();
    record.ended_at = Some(record.read_at);
}

fn release_record(record: &mut Record) {
    record.state = State::Released;
    record.claim_id = None;
    record.ended_at = Some(record.read_at);
}

fn fence_off(record: &mut Record) {
    record.claim_id = None;
    record.fencing_token = FencingToken::next(Some(record.fencing_token), record.read_at);
}

fn is_own_claim(record: &Record, claim: &ClaimRequest) -> bool {
    record.state == State::Running
        && record.claim_id == Some(claim.claim_id)
        && record.fingerprint == claim.fingerprint
}

fn is_owned_by(record: &Record, owner: &Owner) -> bool {
    record.claim_id == Some(owner.claim_id) && record.fencing_token == owner.fencing_token
}

/// Returns true if the record has no owner and no outcome.
fn is_unsettled(record: &Record) -> bool {
    record.state == State::Interrupted || record.is_lapsed()
}
