//! Cache of ended records in the memory of this process, bounded in bytes.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use tokio::time::Instant;

use super::{CachedRecord, StoreRead};
use crate::key::RecordId;
use crate::mutex::lock;
use crate::record::Record;

/// Records by id. When the cache is full, it evicts by how recently and how often records were requested.
pub(super) struct LocalCache {
    records: Cache<RecordId, Arc<CachedRecord>, Weight>,
    /// Number of removals, by the first byte of the id. A read that began before a removal may have seen the removed
    /// record, so its result is not cached. Ids that share a counter cost each other at most a round trip.
    epochs: Box<[Mutex<u64>]>,
}

/// Minimum size of a part. Each part has a lock and an equal share of the bytes, so small parts could not hold large
/// records.
const PART: usize = 1 << 20;
const MOST_PARTS: usize = 64;

/// Typical size of a small record with its key and its slot: an estimate, from which the cache sizes its tables.
const TYPICAL: usize = 1024;

impl LocalCache {
    pub(super) fn new(bytes: usize) -> Self {
        let parts = 1 << (bytes / PART).clamp(1, MOST_PARTS).ilog2();
        let options = OptionsBuilder::new()
            .shards(parts)
            // The cache creates fewer parts than requested if a part would hold fewer than 32 records.
            .estimated_items_capacity((bytes / TYPICAL).max(32 * parts))
            // Shares are rounded up.
            .weight_capacity((bytes / parts * parts) as u64)
            .build()
            .expect("all that must be set is set");
        Self {
            records: Cache::with_options(
                options,
                Weight,
                DefaultHashBuilder::default(),
                DefaultLifecycle::default(),
            ),
            epochs: (0..=u8::MAX).map(|_| Mutex::new(0)).collect(),
        }
    }

    pub(super) fn lookup(&self, id: &RecordId, now: Instant) -> Option<Record> {
        self.records.get(id)?.at(now)
    }

    /// Returns the current epoch, which a read must still match when its result is cached.
    pub(super) fn epoch(&self, id: &RecordId) -> u64 {
        *self.lock(id)
    }

    pub(super) fn put(&self, cached: CachedRecord, store_read: &StoreRead) {
        let id = cached.record.id;
        // Locked until the insertion, so that no removal comes between the check and the insertion.
        let epoch = self.lock(&id);
        let newer = self
            .records
            .peek(&id)
            .is_some_and(|other| other.record.fencing_token > cached.record.fencing_token);
        // A record with a higher fencing token was created after an erasure that a late answer has not seen.
        if *epoch == store_read.epoch && !newer {
            self.records.insert(id, Arc::new(cached));
        }
    }

    pub(super) fn forget(&self, id: &RecordId) {
        let mut epoch = self.lock(id);
        *epoch = epoch.wrapping_add(1);
        self.records.remove(id);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.records.weight()
    }

    pub(super) fn drop_expired(&self, now: Instant) {
        self.records.retain(|_, cached| now < cached.valid_until);
    }

    fn lock(&self, id: &RecordId) -> MutexGuard<'_, u64> {
        lock(&self.epochs[usize::from(id.as_bytes()[0])])
    }
}

impl fmt::Debug for LocalCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local")
            .field("records", &self.records.len())
            .field("bytes", &self.records.weight())
            .field("capacity", &self.records.capacity())
            .finish_non_exhaustive()
    }
}

/// Weight of a record: all bytes that it uses.
#[derive(Debug, Clone)]
struct Weight;

impl Weighter<RecordId, Arc<CachedRecord>> for Weight {
    fn weight(&self, _: &RecordId, cached: &Arc<CachedRecord>) -> u64 {
        /// Size of a slot in the cache: the id, its share of the table, and the counts of shared values.
        const SLOT: usize = 192;
        let identity = &cached.record.identity;
        let payload = cached.record.payload.as_ref();
        let bytes = SLOT
            + size_of::<CachedRecord>()
            + identity.scope.as_str().len()
            + identity.operation.as_str().len()
            + identity.key.as_str().len()
            + identity.key.scope().as_str().len()
            + payload.map_or(0, |it| it.codec.len() + it.bytes.len());
        bytes as u64
    }
}
