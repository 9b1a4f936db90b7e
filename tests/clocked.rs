//! A store whose clock can be set, and whose backend deletes expired records itself if that is asked for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use idem_runtime::Store;
use idem_runtime::error::StoreError;
use idem_runtime::key::RecordId;
use idem_runtime::record::{FencingToken, Observation, Outcome, Owner, Record, Timestamp};
use idem_runtime::store::transitions::{self, Purge};
use idem_runtime::store::{
    ClaimOutcome, ClaimRequest, FencedWrite, Filter, Granted, Page, PageRequest, Purged,
    Resolution, Resolved,
};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// A store in memory. Its clock runs with that of tokio, and can be set apart from it. Clones share the records.
#[derive(Debug, Clone)]
pub struct ClockedStore(Arc<Mutex<Shelf>>);

#[derive(Debug)]
struct Shelf {
    records: BTreeMap<RecordId, Record>,
    fencing_floor: Option<FencingToken>,
    made: Instant,
    /// Time of the clock when the store was made, as if it had been set then.
    set_to: Timestamp,
    /// Wakes the task that deletes expired records, if there is one.
    changed: Option<Arc<Notify>>,
}

impl Shelf {
    fn now(&self) -> Timestamp {
        self.set_to.after(self.made.elapsed())
    }

    /// Reads a record. An expired record is absent.
    fn live(&mut self, id: &RecordId) -> Option<&mut Record> {
        let now = self.now();
        let record = self.records.get_mut(id)?;
        record.read_at = now;
        (!record.is_expired()).then_some(record)
    }

    fn begin(&mut self, claim: &ClaimRequest) -> ClaimOutcome {
        self.delete(&claim.id);
        let record = transitions::begin(claim, self.fencing_floor, self.now());
        let granted = Granted::on(&record);
        self.records.insert(claim.id, record);
        ClaimOutcome::Granted(granted)
    }

    fn delete(&mut self, id: &RecordId) {
        let deleted = self.records.remove(id).map(|record| record.fencing_token);
        self.fencing_floor = self.fencing_floor.max(deleted);
    }

    /// Deletes the expired records. Returns the time until the next one expires.
    fn expire(&mut self) -> Option<Duration> {
        let now = self.now();
        let ids: Vec<_> = self.records.keys().copied().collect();
        for id in ids {
            if self.live(&id).is_none() {
                self.delete(&id);
            }
        }
        let ends = self.records.values().filter_map(Record::expires_at);
        ends.min().map(|at| at.since(now))
    }
}

/// Deletes expired records by the clock of the store, until the store is dropped.
async fn expire_again_and_again(shelf: Weak<Mutex<Shelf>>, changed: Arc<Notify>) {
    while let Some(shelf) = shelf.upgrade() {
        let next = locked(&shelf).expire();
        drop(shelf);
        match next {
            // The end of the pause and a change are both reasons to look again.
            Some(pause) => drop(timeout(pause, changed.notified()).await),
            None => changed.notified().await,
        }
    }
}

fn locked(shelf: &Mutex<Shelf>) -> MutexGuard<'_, Shelf> {
    shelf.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ClockedStore {
    /// An empty store. Its clock shows the time of this machine.
    #[must_use]
    pub fn open() -> Self {
        Self::with(None)
    }

    /// An empty store whose backend deletes expired records itself, by its clock, in a task of this runtime.
    ///
    /// # Panics
    /// There is no runtime.
    #[must_use]
    pub fn open_expiring() -> Self {
        let changed = Arc::new(Notify::new());
        let store = Self::with(Some(Arc::clone(&changed)));
        tokio::spawn(expire_again_and_again(Arc::downgrade(&store.0), changed));
        store
    }

    fn with(changed: Option<Arc<Notify>>) -> Self {
        Self(Arc::new(Mutex::new(Shelf {
            records: BTreeMap::new(),
            fencing_floor: None,
            made: Instant::now(),
            set_to: SystemTime::now().into(),
            changed,
        })))
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        let shelf = locked(&self.0);
        if let Some(changed) = &shelf.changed {
            // The task waits for the lock, and sees what the holder of the lock changes.
            changed.notify_one();
        }
        shelf
    }

    /// Sets the clock forward by this much.
    pub fn set_forward(&self, by: Duration) {
        let mut shelf = self.shelf();
        shelf.set_to = shelf.set_to.after(by);
    }

    /// Sets the clock back by this much.
    pub fn set_back(&self, by: Duration) {
        let mut shelf = self.shelf();
        let micros = shelf.set_to.as_micros() - by.as_micros() as i64;
        shelf.set_to = Timestamp::from_micros(micros);
    }

    /// Number of records that are not deleted, whether they have expired or not.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.shelf().records.len()
    }

    fn write(
        &self,
        owner: &Owner,
        transition: impl FnOnce(&mut Record) -> FencedWrite,
    ) -> FencedWrite {
        let mut shelf = self.shelf();
        shelf
            .live(&owner.id)
            .map_or(FencedWrite::Fenced, transition)
    }
}

#[async_trait]
impl Store for ClockedStore {
    async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        let mut shelf = self.shelf();
        Ok(match shelf.live(&claim.id) {
            Some(record) => transitions::claim(record, claim),
            None => shelf.begin(claim),
        })
    }

    async fn take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError> {
        let mut shelf = self.shelf();
        Ok(match shelf.live(&claim.id) {
            Some(record) => transitions::take_over(record, observed, claim),
            None => shelf.begin(claim),
        })
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<FencedWrite, StoreError> {
        Ok(self.write(owner, |record| transitions::renew(record, owner, lease)))
    }

    async fn complete(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError> {
        Ok(self.write(owner, |record| {
            transitions::complete(record, owner, outcome)
        }))
    }

    async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        Ok(self.write(owner, |record| transitions::release(record, owner)))
    }

    async fn interrupt(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        Ok(self.write(owner, |record| transitions::interrupt(record, owner)))
    }

    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        let mut shelf = self.shelf();
        let Some(record) = shelf.live(&observed.id) else {
            return Ok(Resolved::Stale);
        };
        let resolved = transitions::resolve(record, observed, resolution);
        if resolved == Resolved::Done && *resolution == Resolution::Erase {
            shelf.delete(&observed.id);
        }
        Ok(resolved)
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        Ok(self.shelf().live(id).cloned())
    }

    async fn list(&self, filter: &Filter, page: &PageRequest) -> Result<Page, StoreError> {
        let (after, limit) = page.in_id_order()?;
        let mut shelf = self.shelf();
        let ids: Vec<_> = shelf.records.keys().copied().collect();
        let found = ids
            .iter()
            .filter(|id| after.is_none_or(|after| **id > after))
            .filter_map(|id| shelf.live(id).cloned())
            .filter(|record| filter.matches(record))
            .take(limit + 1)
            .collect();
        Ok(Page::in_id_order(found, filter, limit))
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(self.shelf().now())
    }

    fn expires_by_itself(&self) -> bool {
        self.shelf().changed.is_some()
    }

    async fn purge(&self, limit: u32, as_of: Timestamp) -> Result<Purged, StoreError> {
        let mut shelf = self.shelf();
        let as_of = shelf.now().min(as_of);
        let mut purged = Purged::default();
        let mut expired = Vec::new();
        for record in shelf.records.values_mut() {
            if purged.removed + purged.interrupted == u64::from(limit) {
                purged.more = true;
                break;
            }
            record.read_at = as_of;
            let purge = transitions::purge(record);
            purged.count(purge, record);
            if purge == Purge::Expired {
                expired.push(record.id);
            }
        }
        for id in expired {
            shelf.delete(&id);
        }
        Ok(purged)
    }
}
