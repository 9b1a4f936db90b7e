//! Ended records of any store, kept where they can be had faster.
//!
//! Caching is correct here because an outcome is immutable until it expires: whoever has read an ended record knows
//! what the store would answer for the rest of its retention, unless an operator erases it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use self::local::LocalCache;
#[cfg(feature = "redis")]
use self::shared::{CacheLookup, LookupTime, RedisCache};
use crate::error::StoreError;
use crate::key::RecordId;
use crate::record::{Observation, Outcome, Owner, Record};
#[cfg(feature = "redis")]
use crate::store::redis::RedisConnection;
use crate::store::{
    ClaimOutcome, ClaimRequest, FencedWrite, Filter, Page, PageRequest, Purged, RecoveryStore,
    Resolution, Resolved, StepStore, Store,
};

#[cfg(feature = "redis")]
mod breaker;
mod local;
#[cfg(feature = "redis")]
mod shared;
#[cfg(feature = "redis")]
mod wire;

/// A store in front of which ended records are kept, so that a replay costs no round trip to it.
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
/// Only what has ended is kept: completed, failed and unrecorded. It is kept when it is first read, so the first replay
/// in a process reads the store, and those after it do not. A claim is all that is answered from here, and only with a
/// record that is there; whether to grant one is for the store alone. The record carries its fingerprint, which is
/// compared as if it came from the store.
///
/// # What may be stale
///
/// A record is served for as long as it had left when it was read, counted by this process's monotonic clock from
/// *before* the read was sent, so never beyond its retention while the store's clock runs as fast as this one. It is
/// served no longer than the [maximum age](Self::max_age) either: an operator who erases a record through another
/// process or past idem is heeded everywhere by then. What is erased through this store is heeded at once, and a read
/// of it that was under way is not kept.
///
/// Reads ([`Store::get`], [`Store::list`]) always ask the store: a person who looks whether a record is gone is told
/// so, and this process heeds it from then on.
pub struct Cached<S> {
    store: S,
    backend: CacheBackend,
    max_age: Duration,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// What a cache did so far, see [`Cached::stats`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Claims that were answered from the cache.
    pub hits: u64,
    /// Claims that the store was asked for.
    pub misses: u64,
    /// The bytes that are kept in this process now; 0 where records are kept in Redis.
    pub bytes: u64,
    /// Whether Redis is left alone, since it failed and has not answered since.
    pub circuit_open: bool,
}

/// What the cache may hold unless it is told otherwise, in bytes.
const DEFAULT_CAPACITY: usize = 64 << 20;

/// Retries and double clicks come within seconds; an erasure elsewhere is rare and its operator can wait this long.
const DEFAULT_MAX_AGE: Duration = Duration::from_secs(60);

/// Where records are cached.
#[derive(Debug)]
enum CacheBackend {
    Local(LocalCache),
    #[cfg(feature = "redis")]
    Redis(RedisCache),
}

/// Longer than any process runs, and short enough to be added to any instant.
const LONGEST_AGE: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

impl<S: Store> Cached<S> {
    /// Keeps up to 64 MiB of records in the memory of this process.
    pub fn new(store: S) -> Self {
        Self::with_capacity(store, DEFAULT_CAPACITY)
    }

    /// Keeps up to this many bytes of records in the memory of this process: results, keys, scopes and what it takes
    /// to find them. A large cache is divided into parts of 1 MiB or more, and a record that is larger than a part is
    /// not kept. With 0 bytes nothing is.
    pub fn with_capacity(store: S, bytes: usize) -> Self {
        Self::at(store, CacheBackend::Local(LocalCache::new(bytes)))
    }

    /// Keeps records in this Redis, or Valkey, from where all processes that name the cache alike replay them: 6.2 and
    /// later, one server, a cluster, or what fails over as one. It takes a `ConnectionManager`, or with feature
    /// `redis-cluster` a `ClusterConnection`.
    ///
    /// The **name** stands for the store behind, and two stores must never share one: a record is found by its
    /// operation, scope and key alone, so a test's would be replayed in production. It begins the name of every key in
    /// Redis.
    ///
    /// The store stays the truth. A claim asks Redis first, one round trip; what it does not answer [in
    /// time](Self::timeout) the store is asked, and Redis is left alone until it answers again, which one call a second
    /// tries. So losing Redis, or what is in it, costs time and no call its right answer; only erasures depend on it,
    /// see below. Records are put there by tasks that no call waits for. Results of up to 1 MiB are kept, encoded as in
    /// the store: whoever can read this Redis can read them, whoever can write it can forge them. Where its address
    /// comes to lead to another server after a failover, the connection is made anew as by
    /// [`RedisStore`](crate::RedisStore).
    ///
    /// How long a record is served, Redis' clock says, which stands for the monotonic one here; where it is set back,
    /// or a failover brings another that is behind, what was kept before may be served for longer by as much.
    ///
    /// An erasure through any cache of this name is heeded by all of them at once, unless Redis could not be told,
    /// which is a warning; then, as for one past the cache, within the maximum age. What a claim under the same key
    /// does after an erasure is kept as anything else. `Cached::new` in front of this one answers without any round
    /// trip, and adds its own maximum age.
    ///
    /// # Eviction
    ///
    /// Any eviction policy will do, for records: one that is evicted is read from the store again. A record that is
    /// erased leaves a tombstone in its place, for a minute, so that a process that is just reading it from the store does
    /// not put it back. Where the tombstone itself is lost within these seconds, by eviction, `FLUSHALL` or a failover, such
    /// a process does put it back, and the erased record is replayed for up to six more seconds: then the process that
    /// erased it leaves the tombstone again. Only if that process has ended, cannot reach Redis, or erased over 4,096
    /// records in these six seconds, it is replayed up to the maximum age. Under `noeviction` no tombstone is evicted; under
    /// `volatile-ttl` tombstones are among the first to go, and under the other policies a tombstone that is a few seconds old
    /// seldom goes.
    ///
    /// # Privileges
    ///
    /// A Redis user with ACLs needs the keys of the name, as in `~payments:*`, and these commands:
    ///
    /// - always: `+eval +evalsha +time +get +getrange +set +del +pexpire`
    /// - on a cluster: `+ping +cluster|slots +asking`
    /// - where the URL names another database than 0: `+select`
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

    /// How long a call waits for Redis each time that it asks, 100 milliseconds unless told otherwise; a claim asks
    /// once. Of no effect in process.
    #[cfg(feature = "redis")]
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        if let CacheBackend::Redis(redis) = &mut self.backend {
            redis.timeout = timeout;
        }
        self
    }

    /// Serves no record for longer than this after it was read from the store, 60 seconds unless told otherwise. It
    /// bounds how long a record is replayed here that was erased elsewhere. Zero keeps nothing.
    #[must_use]
    pub fn max_age(mut self, max_age: Duration) -> Self {
        self.max_age = max_age.min(LONGEST_AGE);
        self
    }

    /// The store behind it.
    pub fn inner(&self) -> &S {
        &self.store
    }

    /// The store behind it, without the cache. What is kept in Redis stays there until its time is over.
    pub fn into_inner(self) -> S {
        self.store
    }

    /// What this cache did so far.
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

    /// Keeps what a read of the store brought, where it has ended. Anything else says that what is kept is of before.
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
            // What is there was kept by some process not long ago, and saying so at each first call would cost each of
            // them a round trip.
            #[cfg(feature = "redis")]
            CacheBackend::Redis(redis) => {
                if let (Some(record), Some(lookup_time)) = (record, store_read.lookup_time) {
                    redis.put(record, lookup_time, self.max_age);
                }
            }
        }
    }

    /// A read of the store that does not ask here first.
    fn begin_read(&self, id: &RecordId) -> StoreRead {
        StoreRead {
            sent_at: Instant::now(),
            epoch: match &self.backend {
                CacheBackend::Local(local) => local.epoch(id),
                #[cfg(feature = "redis")]
                CacheBackend::Redis(_) => 0,
            },
            // Without a look at Redis, whose clock counts, nothing is kept there: the next claim looks.
            #[cfg(feature = "redis")]
            lookup_time: None,
        }
    }

    /// The record that is kept, or the read of the store that is to bring it.
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

    /// Deletes a record from the store, and from here.
    async fn erase(&self, observed: &Observation) -> Result<Resolved, StoreError> {
        match &self.backend {
            CacheBackend::Local(local) => {
                // Forgotten when the answer is there, and just so when it never comes: the step may have been taken.
                let _forget = ForgetOnDrop(local, &observed.id);
                self.store.resolve(observed, &Resolution::Erase).await
            }
            #[cfg(feature = "redis")]
            CacheBackend::Redis(redis) => {
                // Before, lest an answer that never comes leaves it there.
                let tombstone_at = Instant::now();
                let mut has_tombstone = redis
                    .write_tombstone(&observed.id, observed.fencing_token)
                    .await;
                let resolved = self.store.resolve(observed, &Resolution::Erase).await;
                if !has_tombstone || RedisCache::may_have_expired(tombstone_at.elapsed()) {
                    has_tombstone = redis
                        .write_tombstone(&observed.id, observed.fencing_token)
                        .await;
                }
                if !has_tombstone {
                    tracing::warn!(
                        target: "idem",
                        "redis could not be told of an erasure, the record may be replayed from there up to the \
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
impl<S: Store> Store for Cached<S> {
    async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        let store_read = match self.lookup(&claim.id).await {
            Ok(record) => {
                self.hits.fetch_add(1, Ordering::Relaxed);
                return Ok(ClaimOutcome::Existing(Box::new(record)));
            }
            Err(store_read) => store_read,
        };
        self.misses.fetch_add(1, Ordering::Relaxed);
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
        // Nothing but an erasure touches what has ended.
        match resolution {
            Resolution::Erase => self.erase(observed).await,
            _ => self.store.resolve(observed, resolution).await,
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

    async fn purge(&self, limit: u32) -> Result<Purged, StoreError> {
        let purged = self.store.purge(limit).await?;
        // What the store removed had expired and is not served any more; here it only takes up room.
        match &self.backend {
            CacheBackend::Local(local) if !purged.more => local.drop_expired(Instant::now()),
            _ => {}
        }
        Ok(purged)
    }

    fn recovery(&self) -> Option<&dyn RecoveryStore> {
        self.store.recovery()
    }

    /// Those of the store: the steps of what has not ended are nothing to keep.
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

/// A read of the store that has begun.
struct StoreRead {
    /// Before it was sent.
    sent_at: Instant,
    /// What had been forgotten by then.
    epoch: u64,
    /// When Redis had no record, where it was asked before.
    #[cfg(feature = "redis")]
    lookup_time: Option<LookupTime>,
}

/// An ended record, and until when it may be served.
struct CachedRecord {
    record: Record,
    /// Before the read that brought it was sent: the store's clock showed `record.read_at` then or later.
    sent_at: Instant,
    valid_until: Instant,
}

impl CachedRecord {
    fn new(record: &Record, sent_at: Instant, max_age: Duration) -> Option<Self> {
        if !record.state.is_ended() {
            return None;
        }
        let left = record.expires_at()?.since(record.read_at).min(max_age);
        Some(Self {
            record: record.clone(),
            sent_at,
            valid_until: sent_at.checked_add(left)?,
        })
    }

    /// The record as the store would answer it now, while it may be served.
    fn at(&self, now: Instant) -> Option<Record> {
        (now < self.valid_until).then(|| {
            let elapsed = now.saturating_duration_since(self.sent_at);
            let mut record = self.record.clone();
            record.read_at = record.read_at.after(elapsed);
            record
        })
    }
}

/// Forgets a record when it is dropped.
struct ForgetOnDrop<'a>(&'a LocalCache, &'a RecordId);

impl Drop for ForgetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.forget(self.1);
    }
}
