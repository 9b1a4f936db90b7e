//! Cache of ended records in front of any store.
//!
//! Caching is correct here because an outcome is immutable until it expires. After reading an ended record, a process
//! knows the store's answer for the rest of the record's retention, unless an operator erases the record.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use self::local::LocalCache;
#[cfg(feature = "redis")]
use self::shared::{CacheLookup, LookupTime, RedisCache};
use crate::error::{StoreError, StoreErrorKind};
use crate::key::RecordId;
use crate::metrics::sink;
use crate::record::{Observation, Outcome, Owner, Record, Timestamp};
use crate::store::operator::{
    AgeOrder, Counting, Finding, IndexState, KeptRecord, MigrationPlan, OperatorStore,
    OptionalIndex, Stats, StepsOfRecord,
};
#[cfg(feature = "redis")]
use crate::store::redis::RedisConnection;
use crate::store::{
    AttemptStore, AuditFilter, AuditPage, AuditStore, ClaimOutcome, ClaimRequest, ErasureStore,
    FencedWrite, Filter, ForgettingStore, ImmediateStore, ManualChange, OperationStore, Page,
    PageRequest, Purged, RecoveryStore, Resolution, Resolved, StepStore, Store,
};

#[cfg(feature = "redis")]
mod breaker;
mod erasure;
mod local;
#[cfg(feature = "redis")]
mod shared;
#[cfg(feature = "redis")]
mod wire;

/// Store with a cache of ended records, so that a replay needs no round trip to the inner store.
///
/// ```
/// # #[cfg(feature = "memory")]
/// # fn main() {
/// use idem_runtime::{Cached, Idem, MemoryStore};
///
/// let idem = Idem::new(Cached::new(MemoryStore::new()));
/// # }
/// # #[cfg(not(feature = "memory"))]
/// # fn main() {}
/// ```
///
/// Only ended records are cached: completed, failed and unrecorded. A record is cached when it is first read. In each
/// process, the first replay therefore reads the store, and later ones do not. The cache answers only claims, and only
/// with an existing record. Only the store grants claims. The record contains its fingerprint, which is compared as if
/// the record came from the store.
///
/// # Staleness
///
/// A record is served for the retention that it had left when it was read. This time is counted by the process's
/// monotonic clock from *before* the read was sent. A record is therefore never served beyond its retention, as long as
/// the store's clock is no faster than this one. It is also served no longer than the [maximum age](Self::max_age): by
/// then, all processes have noticed an erasure by an operator in another process or without idem. An erasure through
/// this store takes effect here immediately, and a concurrent read of the erased record is not cached.
///
/// Reads ([`Store::get`], [`Store::list`]) always go to the store. An operator who checks whether a record is gone gets
/// the store's answer, and this process then stops serving an erased record.
pub struct Cached<S> {
    store: S,
    backend: CacheBackend,
    max_age: Duration,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// Counters of a cache, see [`Cached::stats`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Number of claims that the cache answered.
    pub hits: u64,
    /// Number of claims that were sent to the store.
    pub misses: u64,
    /// Number of bytes cached in this process now; 0 if records are cached in Redis.
    pub bytes: u64,
    /// True if the circuit breaker is open: Redis failed, and has not answered since.
    pub circuit_open: bool,
}

/// Default capacity in bytes.
const DEFAULT_CAPACITY: usize = 64 << 20;

/// Retries and double clicks come within seconds. Erasures elsewhere are rare, and their operator can wait this long.
const DEFAULT_MAX_AGE: Duration = Duration::from_secs(60);

/// Place where records are cached.
#[derive(Debug)]
enum CacheBackend {
    Local(LocalCache),
    #[cfg(feature = "redis")]
    Redis(RedisCache),
}

/// Longer than any process runs, and short enough to be added to any instant.
const LONGEST_AGE: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

impl<S: Store> Cached<S> {
    /// Caches up to 64 MiB of records in the memory of this process.
    pub fn new(store: S) -> Self {
        Self::with_capacity(store, DEFAULT_CAPACITY)
    }

    /// Caches up to this many bytes of records in the memory of this process, including results, keys, scopes and the
    /// index. A large cache is divided into parts of 1 MiB or more, and a record that is larger than a part is not
    /// cached. With 0 bytes nothing is cached.
    pub fn with_capacity(store: S, bytes: usize) -> Self {
        Self::at(store, CacheBackend::Local(LocalCache::new(bytes)))
    }

    /// Caches records in this Redis, or Valkey, so that all processes that use the same cache name replay them.
    /// Supports version 7.0 and later: one server, a cluster, or servers with failover at one address. Takes a
    /// `ConnectionManager`, or with feature `redis-cluster` a `ClusterConnection`.
    ///
    /// The **name** identifies the inner store, and two stores must never share a name. A record is found only by its
    /// operation, scope and key, so a test's record would be replayed in production. Every key in Redis begins with the
    /// name.
    ///
    /// The inner store remains the authority. A claim asks Redis first, in one round trip. If Redis does not answer [in
    /// time](Self::timeout), the claim goes to the store. A circuit breaker then skips Redis until it answers again;
    /// one call a second tries. Losing Redis, or its data, therefore costs time, but no call gets a wrong answer. Only
    /// erasures depend on Redis, see below. Background tasks write records to Redis, and no call waits for them.
    /// Results of up to 1 MiB are cached, encoded as in the store: every user who can read this Redis can read them,
    /// and every user who can write to it can forge them. If its address leads to another server after a failover, the
    /// cache reconnects like [`RedisStore`](crate::RedisStore).
    ///
    /// The clock of Redis decides how long a record is served, in place of the monotonic clock above. If it is set
    /// back, or a failover leads to a server whose clock is behind, cached records may be served longer by that amount.
    ///
    /// An erasure through any cache with this name takes effect in all of them immediately. If Redis cannot be reached,
    /// the erasing process logs a warning, and the erasure takes effect within the maximum age, like one without the
    /// cache. After an erasure, a new record under the same key is cached like any other. `Cached::new` in front of
    /// this cache answers without any round trip, and adds its own maximum age.
    ///
    /// # Eviction
    ///
    /// Any eviction policy is suitable for records: an evicted record is read from the store again. An erased record is
    /// replaced by a tombstone for a minute, so that a process that is just reading it from the store does not put it
    /// back. The tombstone itself can be lost within these seconds, by eviction, `FLUSHALL` or a failover. Such a
    /// process then puts the erased record back, and it is replayed for up to six more seconds. After that, the process
    /// that erased it writes the tombstone again. The record is replayed up to the maximum age only if that process has
    /// ended, cannot reach Redis, or erased over 4,096 records in these six seconds. Under `noeviction` no tombstone is
    /// evicted. Under `volatile-ttl` tombstones are among the first to be evicted. Under the other policies a tombstone
    /// that is a few seconds old is seldom evicted.
    ///
    /// # Privileges
    ///
    /// A Redis user with ACLs needs the keys of the name, as in `~payments:*`, and these commands:
    ///
    /// - always: `+eval +evalsha +time +get +getrange +set +del +pexpire`
    /// - on a cluster: `+ping +cluster|slots +asking`
    /// - if the URL names another database than 0: `+select`
    ///
    /// ```no_run
    /// # async fn example<S: idem_runtime::Store>(store: S) -> redis::RedisResult<()> {
    /// use idem_runtime::{Cached, Idem};
    /// use redis::aio::{ConnectionManager, ConnectionManagerConfig};
    ///
    /// let client = redis::Client::open("redis://127.0.0.1/")?;
    /// // Lazy: the service starts without Redis as well.
    /// let connection = ConnectionManager::new_lazy_with_config(client, ConnectionManagerConfig::new())?;
    /// let idem = Idem::new(Cached::in_redis(store, connection, "payments"));
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "redis")]
    pub fn in_redis(store: S, connection: impl Into<RedisConnection>, name: &str) -> Self {
        Self::at(
            store,
            CacheBackend::Redis(RedisCache::new(connection.into(), name)),
        )
    }

    fn at(store: S, backend: CacheBackend) -> Self {
        Self {
            store,
            backend,
            max_age: DEFAULT_MAX_AGE,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// Sets how long a call waits for each answer of Redis, 100 milliseconds by default. A claim asks once. Has no
    /// effect on a cache in process.
    #[cfg(feature = "redis")]
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        if let CacheBackend::Redis(redis) = &mut self.backend {
            redis.timeout = timeout;
        }
        self
    }

    /// Sets how long a record is served after it was read from the store, 60 seconds by default. This limits how long a
    /// record is still replayed here after it was erased elsewhere. Zero caches nothing.
    #[must_use]
    pub fn max_age(mut self, max_age: Duration) -> Self {
        self.max_age = max_age.min(LONGEST_AGE);
        self
    }

    /// Inner store.
    pub fn inner(&self) -> &S {
        &self.store
    }

    /// Removes the cache and returns the inner store. Records in Redis stay there until they expire.
    pub fn into_inner(self) -> S {
        self.store
    }

    /// Counters of this cache.
    pub fn stats(&self) -> CacheStats {
        let (bytes, circuit_open) = match &self.backend {
            CacheBackend::Local(local) => (local.bytes(), false),
            #[cfg(feature = "redis")]
            CacheBackend::Redis(redis) => (0, redis.is_circuit_open()),
        };
        CacheStats {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            bytes,
            circuit_open,
        }
    }

    /// Caches a record read from the store, if it has ended. Any other result invalidates the cached record.
    fn update(&self, id: &RecordId, store_read: &StoreRead, record: Option<&Record>) {
        match &self.backend {
            CacheBackend::Local(local) => {
                match record
                    .and_then(|record| CachedRecord::new(record, store_read.sent_at, self.max_age))
                {
                    Some(cached) => local.put(cached, store_read),
                    None => local.forget(id),
                }
            }
            // A cached value may be out of date, but some process put it there recently. Checking it would cost each
            // first call a round trip.
            #[cfg(feature = "redis")]
            CacheBackend::Redis(redis) => {
                if let (Some(record), Some(lookup_time)) = (record, store_read.lookup_time) {
                    redis.put(record, lookup_time, self.max_age);
                }
            }
        }
    }

    fn note_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
        sink::cache_lookup(true);
    }

    /// Begins a read of the store without a cache lookup.
    fn begin_read(&self, id: &RecordId) -> StoreRead {
        StoreRead {
            sent_at: Instant::now(),
            epoch: match &self.backend {
                CacheBackend::Local(local) => local.epoch(id),
                #[cfg(feature = "redis")]
                CacheBackend::Redis(_) => 0,
            },
            // Redis' clock determines freshness, so without a lookup there, nothing is cached. The next claim looks up.
            #[cfg(feature = "redis")]
            lookup_time: None,
        }
    }

    /// Looks up the cached record. If there is none, returns the read of the store that can fill it.
    async fn lookup(&self, id: &RecordId) -> Result<Record, StoreRead> {
        match &self.backend {
            CacheBackend::Local(local) => match local.lookup(id, Instant::now()) {
                Some(record) => Ok(record),
                None => Err(self.begin_read(id)),
            },
            #[cfg(feature = "redis")]
            CacheBackend::Redis(redis) => match redis.lookup(id, self.max_age).await {
                CacheLookup::Record(record) => Ok(*record),
                CacheLookup::Absent(lookup_time) => Err(StoreRead {
                    lookup_time: Some(lookup_time),
                    ..self.begin_read(id)
                }),
                CacheLookup::Unknown => Err(self.begin_read(id)),
            },
        }
    }

    /// Drops expired records from memory. The records that the store removed are among them, and are no longer served.
    fn after_purge(&self, purged: Purged) -> Purged {
        match &self.backend {
            CacheBackend::Local(local) if !purged.more => local.drop_expired(Instant::now()),
            _ => {}
        }
        purged
    }

    async fn resolve_in_store(
        &self,
        observed: &Observation,
        resolution: &Resolution,
        change: Option<&ManualChange>,
    ) -> Result<Resolved, StoreError> {
        match (change, self.store.audit()) {
            (None, _) => self.store.resolve(observed, resolution).await,
            (Some(change), Some(audit)) => {
                audit.resolve_manually(observed, resolution, change).await
            }
            (Some(_), None) => Err(no_audit()),
        }
    }

    /// Erases or corrects a record in the store, and removes it from the cache.
    async fn resolve_ended(
        &self,
        observed: &Observation,
        resolution: &Resolution,
        change: Option<&ManualChange>,
    ) -> Result<Resolved, StoreError> {
        match &self.backend {
            CacheBackend::Local(local) => {
                // Removes the cached record after the answer, and also if none arrives: the transition may have been
                // applied.
                let _forget = ForgetOnDrop(local, &observed.id);
                self.resolve_in_store(observed, resolution, change).await
            }
            #[cfg(feature = "redis")]
            CacheBackend::Redis(redis) => {
                // Before the change, because its answer may never arrive and the record would stay cached.
                let tombstone_at = Instant::now();
                let mut has_tombstone = redis
                    .write_tombstone(&observed.id, observed.fencing_token)
                    .await;
                let resolved = self.resolve_in_store(observed, resolution, change).await;
                if !has_tombstone || RedisCache::may_have_expired(tombstone_at.elapsed()) {
                    has_tombstone = redis
                        .write_tombstone(&observed.id, observed.fencing_token)
                        .await;
                }
                if !has_tombstone {
                    tracing::warn!(
                        target: "idem",
                        "redis could not be told of an erasure or a correction, the old record may be replayed from there up to the \
                         maximum age",
                    );
                }
                if !matches!(resolved, Ok(Resolved::Stale)) {
                    redis.write_tombstone_later(&observed.id, observed.fencing_token);
                }
                resolved
            }
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for Cached<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cached")
            .field("store", &self.store)
            .field("backend", &self.backend)
            .field("max_age", &self.max_age)
            .finish()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: Store> Store for Cached<S> {
    async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        let store_read = match self.lookup(&claim.id).await {
            Ok(record) => {
                self.note_hit();
                return Ok(ClaimOutcome::Existing(Box::new(record)));
            }
            Err(store_read) => store_read,
        };
        self.misses.fetch_add(1, Ordering::Relaxed);
        sink::cache_lookup(false);
        let answer = self.store.claim(claim).await?;
        self.update(&claim.id, &store_read, existing(&answer));
        Ok(answer)
    }

    async fn take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError> {
        let store_read = self.begin_read(&claim.id);
        let answer = self.store.take_over(observed, claim).await?;
        self.update(&claim.id, &store_read, existing(&answer));
        Ok(answer)
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<FencedWrite, StoreError> {
        self.store.renew(owner, lease).await
    }

    async fn complete(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError> {
        self.store.complete(owner, outcome).await
    }

    async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        self.store.release(owner).await
    }

    async fn interrupt(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        self.store.interrupt(owner).await
    }

    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        match changes_ended(resolution) {
            true => self.resolve_ended(observed, resolution, None).await,
            false => self.store.resolve(observed, resolution).await,
        }
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        let store_read = self.begin_read(id);
        let record = self.store.get(id).await?;
        self.update(id, &store_read, record.as_ref());
        Ok(record)
    }

    async fn list(&self, filter: &Filter, page: &PageRequest) -> Result<Page, StoreError> {
        self.store.list(filter, page).await
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        self.store.now().await
    }

    async fn purge(&self, limit: u32, as_of: Timestamp) -> Result<Purged, StoreError> {
        Ok(self.after_purge(self.store.purge(limit, as_of).await?))
    }

    fn audit(&self) -> Option<&dyn AuditStore> {
        self.store.audit().map(|_| self as &dyn AuditStore)
    }

    /// A cache in Redis waits.
    fn immediate(&self) -> Option<&dyn ImmediateStore> {
        None
    }

    fn claim_concurrency(&self) -> usize {
        self.store.claim_concurrency()
    }

    /// A miss is counted by the claim that follows.
    async fn cached(&self, id: &RecordId) -> Option<Record> {
        match self.lookup(id).await {
            Ok(record) => {
                self.note_hit();
                Some(record)
            }
            Err(_) => self.store.cached(id).await,
        }
    }

    fn can_resolve_manually(&self) -> bool {
        self.store.can_resolve_manually()
    }

    fn bottleneck(&self) -> Option<String> {
        self.store.bottleneck()
    }

    fn expires_by_itself(&self) -> bool {
        self.store.expires_by_itself()
    }

    fn time_uncertainty(&self) -> Duration {
        self.store.time_uncertainty()
    }

    fn attempts(&self) -> Option<&dyn AttemptStore> {
        self.store.attempts()
    }

    /// A running record is not cached, so that the store itself completes it.
    fn forgetting(&self) -> Option<&dyn ForgettingStore> {
        self.store.forgetting()
    }

    fn erasure(&self) -> Option<&dyn ErasureStore> {
        self.store.erasure().map(|_| self as &dyn ErasureStore)
    }

    fn operations(&self) -> Option<&dyn OperationStore> {
        self.store.operations()
    }

    fn recovery(&self) -> Option<&dyn RecoveryStore> {
        self.store.recovery()
    }

    /// Steps of the store itself: steps belong to records that have not ended, which are not cached.
    fn steps(&self) -> Option<&dyn StepStore> {
        self.store.steps()
    }
}

fn existing(answer: &ClaimOutcome) -> Option<&Record> {
    match answer {
        ClaimOutcome::Existing(record) => Some(record),
        ClaimOutcome::Granted(_) => None,
    }
}

/// Read of the store that has begun.
struct StoreRead {
    /// Time before the read was sent.
    sent_at: Instant,
    /// Epoch of removals at that time.
    epoch: u64,
    /// Time at which Redis had no record, if it was asked before.
    #[cfg(feature = "redis")]
    lookup_time: Option<LookupTime>,
}

/// Ended record, and the time until which it may be served.
struct CachedRecord {
    record: Record,
    /// Time before the read was sent: the store's clock showed `record.read_at` then or later.
    sent_at: Instant,
    valid_until: Instant,
}

impl CachedRecord {
    fn new(record: &Record, sent_at: Instant, max_age: Duration) -> Option<Self> {
        if !record.state.is_ended() {
            return None;
        }
        let left = record.unchanged_until()?.since(record.read_at).min(max_age);
        Some(Self {
            record: record.clone(),
            sent_at,
            valid_until: sent_at.checked_add(left)?,
        })
    }

    /// Record as the store would return it now, if it may still be served.
    fn at(&self, now: Instant) -> Option<Record> {
        (now < self.valid_until).then(|| {
            let elapsed = now.saturating_duration_since(self.sent_at);
            let mut record = self.record.clone();
            record.read_at = record.read_at.after(elapsed);
            record
        })
    }
}

/// Removes a cached record on drop.
struct ForgetOnDrop<'a>(&'a LocalCache, &'a RecordId);

impl Drop for ForgetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.forget(self.1);
    }
}

#[async_trait]
impl<S: Store> AuditStore for Cached<S> {
    async fn resolve_manually(
        &self,
        observed: &Observation,
        resolution: &Resolution,
        change: &ManualChange,
    ) -> Result<Resolved, StoreError> {
        match changes_ended(resolution) {
            true => self.resolve_ended(observed, resolution, Some(change)).await,
            false => {
                self.resolve_in_store(observed, resolution, Some(change))
                    .await
            }
        }
    }

    async fn purge_manually(
        &self,
        limit: u32,
        change: &ManualChange,
    ) -> Result<Purged, StoreError> {
        let audit = self.store.audit().ok_or_else(no_audit)?;
        Ok(self.after_purge(audit.purge_manually(limit, change).await?))
    }

    async fn audit(
        &self,
        filter: &AuditFilter,
        page: &PageRequest,
    ) -> Result<AuditPage, StoreError> {
        match self.store.audit() {
            Some(audit) => audit.audit(filter, page).await,
            None => Err(no_audit()),
        }
    }
}

/// Operators read the inner store.
#[async_trait]
impl<S: OperatorStore> OperatorStore for Cached<S> {
    async fn steps_of(
        &self,
        id: &RecordId,
        with_payloads: bool,
    ) -> Result<StepsOfRecord, StoreError> {
        self.store.steps_of(id, with_payloads).await
    }

    async fn stats(&self, counting: Counting) -> Result<Stats, StoreError> {
        self.store.stats(counting).await
    }

    async fn findings(&self) -> Vec<Finding> {
        self.store.findings().await
    }

    async fn migration_plan(&self) -> Result<Option<MigrationPlan>, StoreError> {
        self.store.migration_plan().await
    }

    async fn apply_migrations(&self) -> Result<(), StoreError> {
        self.store.apply_migrations().await
    }

    async fn index(&self, index: OptionalIndex) -> Result<Option<IndexState>, StoreError> {
        self.store.index(index).await
    }

    async fn create_index(&self, index: OptionalIndex) -> Result<(), StoreError> {
        self.store.create_index(index).await
    }

    async fn list_by_age(
        &self,
        filter: &Filter,
        order: AgeOrder,
        page: &PageRequest,
    ) -> Result<Page, StoreError> {
        self.store.list_by_age(filter, order, page).await
    }

    async fn kept(&self, id: &RecordId) -> Result<Option<KeptRecord>, StoreError> {
        self.store.kept(id).await
    }
}

/// Returns true for a change of a record that may be in the cache.
fn changes_ended(resolution: &Resolution) -> bool {
    matches!(resolution, Resolution::Erase | Resolution::Correct(_))
}

fn no_audit() -> StoreError {
    StoreError::new(
        StoreErrorKind::Other,
        "the store behind the cache keeps no audit, so its records cannot be changed manually",
    )
}
