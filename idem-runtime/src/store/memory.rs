//! Store of records in the memory of one process, for tests and for services with a single process.
//!
//! The rules are those of [`transitions`]. This module adds what makes them fast: `shard` finds records by their id and
//! by the time at which they are due, and the store spreads the records over shards with a lock each.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::time::Instant;

use crate::error::{StoreError, StoreErrorKind};
use crate::key::{Identity, Operation, RecordId};
use crate::mutex::lock;
use crate::record::{
    FencingToken, Observation, Outcome, Owner, OwnerLabel, Payload, Record, Timestamp,
};
use crate::store::transitions;
use crate::store::{
    AttemptStore, Attempts, AuditAction, AuditEntry, AuditFilter, AuditPage, AuditStore,
    AuditSubject, AuditedRecord, ClaimOutcome, ClaimRequest, Cursor, Erasure, ErasureStore,
    FencedWrite, Filter, ForgettingStore, ImmediateStore, ManualChange, OperationStore, Page,
    PageRequest, Purged, Redacted, Resolution, Resolved, SavedStep, ScopeFilter, StepStore, Store,
};

mod hasher;
mod shard;

use shard::Shard;

/// Store of records in the memory of this process. They are lost when the process ends.
///
/// The number of records is bounded. When the store is full, a claim of a new key first drops expired records. If there
/// are none, the claim fails with [`StoreErrorKind::Full`]. A record that has not expired is never dropped. Of the audit of
/// manual changes, the last 10,000 entries are kept.
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
    /// Entries of the audit with their numbers, the oldest first. Locked after a shard, never before one.
    audit: Mutex<VecDeque<(u64, AuditEntry)>>,
    /// Names of operations that had records.
    operations: Mutex<BTreeSet<String>>,
}

/// A power of two, at most 256: the first byte of a record's id selects its shard, so the order of shards follows the
/// order of ids.
const SHARDS: usize = 64;
const DEFAULT_CAPACITY: usize = 1_000_000;
/// Number of entries of the audit that are kept.
const MAX_AUDIT: usize = 10_000;

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
            audit: Mutex::default(),
            operations: Mutex::default(),
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
        lock(&self.shards[shard])
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

    fn resolve_and_note(
        &self,
        observed: &Observation,
        resolution: &Resolution,
        change: Option<&ManualChange>,
    ) -> Resolved {
        let now = self.now();
        let mut shard = self.shard(&observed.id);
        let noted = change.and_then(|change| {
            let record = shard.live(&observed.id, now)?;
            Some(AuditEntry {
                at: now,
                change: change.clone(),
                user: None,
                action: AuditAction::of(resolution),
                subject: AuditSubject::Record(AuditedRecord::before(record, resolution)),
            })
        });
        if shard.resolve(observed, resolution, now) == Resolved::Stale {
            return Resolved::Stale;
        }
        if *resolution == Resolution::Erase {
            self.len.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(entry) = noted {
            self.write_entry(entry);
        }
        Resolved::Done
    }

    fn write_entry(&self, entry: AuditEntry) {
        let mut audit = lock(&self.audit);
        let number = audit.back().map_or(0, |(number, _)| number + 1);
        audit.push_back((number, entry));
        if audit.len() > MAX_AUDIT {
            audit.pop_front();
        }
    }

    /// Adds to the number of the erasure's entry, which the first batch that erased something writes.
    fn count_erased(&self, number: u64, erasure: &Erasure, change: &ManualChange) {
        if number == 0 {
            return;
        }
        for (_, entry) in &mut *lock(&self.audit) {
            if let AuditSubject::Scope {
                number: of, erased, ..
            } = &mut entry.subject
                && *of == erasure.number()
            {
                *erased += number;
                return;
            }
        }
        self.write_entry(AuditEntry {
            at: self.now(),
            change: change.clone(),
            user: None,
            action: AuditAction::ErasedScope,
            subject: AuditSubject::Scope {
                id: erasure.audit_id(),
                number: erasure.number(),
                erased: number,
            },
        });
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
        self.claim_now(claim)
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
        Ok(self.shard(&owner.id).write(owner, self.now(), |record| {
            transitions::renew(record, owner, lease)
        }))
    }

    async fn complete(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError> {
        self.complete_now(owner, outcome)
    }

    async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        self.release_now(owner)
    }

    async fn interrupt(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        self.interrupt_now(owner)
    }

    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        Ok(self.resolve_and_note(observed, resolution, None))
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        Ok(self.shard(id).live(id, self.now()).cloned())
    }

    async fn list(&self, filter: &Filter, page: &PageRequest) -> Result<Page, StoreError> {
        let (after, limit) = page.in_id_order()?;
        let (mut records, mut owners) = (Vec::new(), Vec::new());
        let shards = match &filter.id {
            Some(id) => shard_of(id)..shard_of(id) + 1,
            None => after.as_ref().map_or(0, shard_of)..SHARDS,
        };
        for shard in shards {
            let now = self.now();
            let mut shard = self.lock(shard);
            let mut matching: Vec<_> = shard
                .all(now)
                .filter(|(record, owner)| {
                    after.is_none_or(|id| record.id > id)
                        && (filter.expired || !record.is_expired())
                        && filter.matches(record)
                        && filter.matches_owner(*owner)
                })
                .collect();
            matching.sort_unstable_by_key(|(record, _)| record.id);
            // One record more than requested shows that there is a next page.
            let missing = limit.saturating_add(1) - records.len();
            for (record, owner) in matching.into_iter().take(missing) {
                records.push(record.clone());
                owners.push(owner.cloned());
            }
            if records.len() > limit {
                break;
            }
        }
        let mut page = Page::in_id_order(records, filter, limit);
        for (listed, owner) in page.records.iter_mut().zip(owners) {
            listed.owner = owner;
        }
        Ok(page)
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(self.now())
    }

    async fn purge(&self, limit: u32, as_of: Timestamp) -> Result<Purged, StoreError> {
        let mut budget = limit;
        let mut total = Purged::default();
        let first = self.purge_from.load(Ordering::Relaxed);
        for offset in 0..SHARDS {
            let shard = (first + offset) % SHARDS;
            let now = self.now().min(as_of);
            let purged = self.lock(shard).purge(now, &mut budget);
            self.len
                .fetch_sub(purged.removed as usize, Ordering::Relaxed);
            total.add(&purged);
            if budget == 0 {
                self.purge_from.store(shard, Ordering::Relaxed);
                total.more = true;
                break;
            }
        }
        Ok(total)
    }

    fn immediate(&self) -> Option<&dyn ImmediateStore> {
        Some(self)
    }

    fn audit(&self) -> Option<&dyn AuditStore> {
        Some(self)
    }

    fn attempts(&self) -> Option<&dyn AttemptStore> {
        Some(self)
    }

    fn forgetting(&self) -> Option<&dyn ForgettingStore> {
        Some(self)
    }

    fn erasure(&self) -> Option<&dyn ErasureStore> {
        Some(self)
    }

    fn operations(&self) -> Option<&dyn OperationStore> {
        Some(self)
    }

    fn steps(&self) -> Option<&dyn StepStore> {
        Some(self)
    }
}

#[async_trait]
impl ForgettingStore for MemoryStore {
    async fn complete_for(
        &self,
        owner: &Owner,
        outcome: &Outcome,
        payload_for: Duration,
    ) -> Result<FencedWrite, StoreError> {
        Ok(self.shard(&owner.id).write(owner, self.now(), |record| {
            transitions::complete_for(record, owner, outcome, payload_for)
        }))
    }
}

impl ImmediateStore for MemoryStore {
    fn claim_now(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        self.claim_in(self.shard(&claim.id), claim)
    }

    fn complete_now(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError> {
        Ok(self.shard(&owner.id).write(owner, self.now(), |record| {
            transitions::complete(record, owner, outcome)
        }))
    }

    fn release_now(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        Ok(self.shard(&owner.id).write(owner, self.now(), |record| {
            transitions::release(record, owner)
        }))
    }

    fn interrupt_now(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        Ok(self.shard(&owner.id).write(owner, self.now(), |record| {
            transitions::interrupt(record, owner)
        }))
    }
}

#[async_trait]
impl AuditStore for MemoryStore {
    async fn resolve_manually(
        &self,
        observed: &Observation,
        resolution: &Resolution,
        change: &ManualChange,
    ) -> Result<Resolved, StoreError> {
        Ok(self.resolve_and_note(observed, resolution, Some(change)))
    }

    async fn purge_manually(
        &self,
        limit: u32,
        change: &ManualChange,
    ) -> Result<Purged, StoreError> {
        let purged = self.purge(limit, Timestamp::MAX).await?;
        if !purged.is_nothing() {
            self.write_entry(AuditEntry {
                at: self.now(),
                change: change.clone(),
                user: None,
                action: AuditAction::Purged,
                subject: AuditSubject::of_purge(&purged),
            });
        }
        Ok(purged)
    }

    async fn audit(
        &self,
        filter: &AuditFilter,
        page: &PageRequest,
    ) -> Result<AuditPage, StoreError> {
        let before = match &page.after {
            None => u64::MAX,
            Some(cursor) => cursor.as_str().parse().map_err(|_| {
                StoreError::new(
                    StoreErrorKind::Other,
                    "this is no position in an audit of this store, begin again without one",
                )
            })?,
        };
        let (now, limit) = (self.now(), page.limit.max(1) as usize);
        let audit = lock(&self.audit);
        let matching = audit
            .iter()
            .rev()
            .filter(|(number, entry)| *number < before && filter.matches(entry, now));
        let mut found: Vec<_> = matching.take(limit + 1).cloned().collect();
        let is_more = found.len() > limit;
        found.truncate(limit);
        let last = found.last().filter(|_| is_more);
        Ok(AuditPage {
            next: last.map(|(number, _)| Cursor::new(number.to_string())),
            entries: found.into_iter().map(|(_, entry)| entry).collect(),
            unreadable: Vec::new(),
        })
    }
}

#[async_trait]
impl ErasureStore for MemoryStore {
    async fn erase_all(
        &self,
        records: &[Observation],
        erasure: &Erasure,
        change: &ManualChange,
    ) -> Result<Vec<RecordId>, StoreError> {
        let (mut gone, mut erased) = (Vec::new(), 0);
        for observed in records {
            let id = observed.id;
            match self.shard(&id).erase(&id, self.now()) {
                Some(true) => erased += 1,
                Some(false) => continue,
                None => {}
            }
            gone.push(id);
        }
        self.len.fetch_sub(erased, Ordering::Relaxed);
        self.count_erased(erased as u64, erasure, change);
        Ok(gone)
    }

    async fn redact_audit(
        &self,
        scope: &ScopeFilter,
        _: Option<&Cursor>,
    ) -> Result<Redacted, StoreError> {
        let mut entries = 0;
        for (_, entry) in &mut *lock(&self.audit) {
            if let AuditSubject::Record(record) = &mut entry.subject {
                let is_of_scope = |identity: &mut Identity| scope.matches(&identity.scope);
                if record.identity.take_if(is_of_scope).is_some() {
                    (record.old_value, record.new_value) = (None, None);
                    entries += 1;
                }
            }
        }
        Ok(Redacted {
            entries,
            next: None,
        })
    }
}

#[async_trait]
impl OperationStore for MemoryStore {
    async fn note_operation(&self, operation: &Operation) -> Result<(), StoreError> {
        lock(&self.operations).insert(operation.as_str().to_owned());
        Ok(())
    }

    async fn operations(&self) -> Result<Vec<Operation>, StoreError> {
        let operations = lock(&self.operations);
        let names = operations.iter().cloned();
        Ok(names.filter_map(|name| Operation::new(name).ok()).collect())
    }
}

#[async_trait]
impl AttemptStore for MemoryStore {
    async fn attempts(&self, id: &RecordId) -> Result<Option<Attempts>, StoreError> {
        Ok(self.shard(id).attempts(id, self.now()))
    }

    async fn note_replay(
        &self,
        id: &RecordId,
        fencing_token: FencingToken,
        by: Option<&OwnerLabel>,
    ) -> Result<bool, StoreError> {
        let mut shard = self.shard(id);
        Ok(shard.note_replay(id, fencing_token, by, self.now()))
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
        Ok(shard.save_step(owner, name, payload, self.now()))
    }

    async fn saved_steps(&self, owner: &Owner) -> Result<Option<Vec<SavedStep>>, StoreError> {
        Ok(self.shard(&owner.id).saved_steps(owner, self.now()))
    }
}

fn shard_of(id: &RecordId) -> usize {
    usize::from(id.as_bytes()[0]) / (256 / SHARDS)
}
