//! Cache of ended records in a Redis that the processes of a service share. No failure here fails a call: if Redis does
//! not answer in time, the call asks the store.
//!
//! All times are of Redis' own clock, read in the script that looks up the record before the store is asked. A process
//! that was paused, or a delayed command, can therefore neither prolong a record's life nor bring back an erased
//! record.

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ::redis::Value;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::breaker::{Breaker, Permit};
use super::wire::{self, Freshness};
use crate::error::{StoreError, StoreErrorKind};
use crate::key::{RecordId, hex};
use crate::metrics::CacheAction;
use crate::record::{FencingToken, Observation, Record, Timestamp};
use crate::store::redis::RedisConnection;
use crate::store::redis::scripts::{LoadableScript, ScriptCall};

#[derive(Clone)]
pub(super) struct RedisCache {
    connection: RedisConnection,
    prefix: Arc<str>,
    /// Longest wait of a call for each answer of Redis.
    pub(super) timeout: Duration,
    /// Separate breakers, because a Redis that is full, or a replica, still answers reads.
    reading: Arc<Breaker>,
    writing: Arc<Breaker>,
    /// Permits of tasks that put records. No call waits for these tasks.
    put_permits: Arc<Semaphore>,
    /// Permits of erasures whose tombstone will be written again.
    tombstone_permits: Arc<Semaphore>,
}

const TIMEOUT: Duration = Duration::from_millis(100);

/// Maximum number of concurrent puts. Without a limit, a slow Redis would make records accumulate in this process.
const MAX_CONCURRENT_PUTS: usize = 64;

/// Maximum number of tombstones that wait to be written again. Beyond that, an erasure relies on its first tombstone.
const MAX_PENDING_TOMBSTONES: usize = 4096;

/// Time to live of a tombstone: longer than the deletion of a record or a read in flight may take.
const TOMBSTONE_TTL: Duration = Duration::from_secs(60);

/// Longest time from a lookup to the put of the record that was then read from the store.
const MAX_READ_TIME: Duration = Duration::from_secs(5);

/// Largest cached result. Sending a larger one could take so long that it looks like an outage.
const MAX_BYTES: usize = 1 << 20;

static LOOKUP: LazyLock<LoadableScript> =
    LazyLock::new(|| LoadableScript::new(include_str!("lookup.lua")));
static PUT: LazyLock<LoadableScript> =
    LazyLock::new(|| LoadableScript::new(include_str!("put.lua")));
static TOMBSTONE: LazyLock<LoadableScript> =
    LazyLock::new(|| LoadableScript::new(include_str!("tombstone.lua")));
static REMOVE: LazyLock<LoadableScript> =
    LazyLock::new(|| LoadableScript::new(include_str!("remove.lua")));

/// Result of a lookup in Redis.
pub(super) enum CacheLookup {
    Record(Box<Record>),
    /// Redis has no record. A record that is read from the store from now on may be put there.
    Absent(LookupTime),
    /// Redis was not asked, or did not answer.
    Unknown,
}

/// Time of a lookup that found no record, by the clock of Redis.
#[derive(Debug, Clone, Copy)]
pub(super) struct LookupTime(Timestamp);

impl RedisCache {
    pub(super) fn new(connection: RedisConnection, name: &str) -> Self {
        Self {
            connection,
            // The key contains the version of the format, so that builds with different formats do not share values.
            prefix: format!("{name}:record/2:").into(),
            timeout: TIMEOUT,
            reading: Breaker::new(CacheAction::Reading),
            writing: Breaker::new(CacheAction::Writing),
            put_permits: Arc::new(Semaphore::new(MAX_CONCURRENT_PUTS)),
            tombstone_permits: Arc::new(Semaphore::new(MAX_PENDING_TOMBSTONES)),
        }
    }

    /// Looks up a record that may be served, at most this long after it was read from the store.
    pub(super) async fn lookup(&self, id: &RecordId, max_age: Duration) -> CacheLookup {
        let Some(permit) = self.reading.admit() else {
            return CacheLookup::Unknown;
        };
        let key = self.key(id);
        let call = ScriptCall::new(&LOOKUP, &key);
        let Some((now, value)) = self.run(permit, &call, lookup_answer).await else {
            return CacheLookup::Unknown;
        };
        let absent = CacheLookup::Absent(LookupTime(now));
        let Some(value) = value.filter(|it| !wire::is_tombstone(it)) else {
            return absent;
        };
        match wire::read(&value, id) {
            Some((record, freshness)) => freshness
                .at(now, record, max_age)
                .map_or(absent, |record| CacheLookup::Record(Box::new(record))),
            None => {
                tracing::debug!(
                    target: "idem",
                    "redis holds what no idem cache writes, dropping it and asking the store",
                );
                if let Some(permit) = self.writing.admit() {
                    self.run(
                        permit,
                        &ScriptCall::new(&REMOVE, &key).bytes(&value),
                        number,
                    )
                    .await;
                }
                absent
            }
        }
    }

    /// Puts a record that was read from the store after the lookup, in a background task.
    pub(super) fn put(&self, record: &Record, lookup_time: LookupTime, max_age: Duration) {
        let size = record.payload.as_ref().map_or(0, |it| it.bytes.len());
        let Some(freshness) = Freshness::new(record, lookup_time.0, max_age) else {
            return;
        };
        if size > MAX_BYTES {
            return;
        }
        let Ok(put_permit) = Arc::clone(&self.put_permits).try_acquire_owned() else {
            return;
        };
        let Some(permit) = self.writing.admit() else {
            return;
        };
        let Some(value) = wire::write(record, &freshness) else {
            return;
        };
        let (cache, key, fencing_token) =
            (self.clone(), self.key(&record.id), record.fencing_token);
        tokio::spawn(async move {
            let call = ScriptCall::new(&PUT, &key)
                .bytes(&value)
                .number(fencing_token.number())
                .number(freshness.valid_until.as_micros() / 1_000)
                .number(lookup_time.0.after(MAX_READ_TIME).as_micros());
            cache.run(permit, &call, number).await;
            drop(put_permit);
        });
    }

    /// Writes a tombstone. It removes a record up to this fencing token, and prevents concurrent reads in any process
    /// from putting the record back. Returns true if Redis acknowledged the write.
    pub(super) async fn write_tombstone(&self, id: &RecordId, fencing_token: FencingToken) -> bool {
        // Also while the breaker is open: erasures are rare, and a record that remains is replayed.
        let permit = self.writing.insist();
        let (key, tombstone) = (self.key(id), wire::tombstone(fencing_token));
        let call = ScriptCall::new(&TOMBSTONE, &key)
            .bytes(&tombstone)
            .number(fencing_token.number())
            .number(TOMBSTONE_TTL.as_millis() as i64);
        self.run(permit, &call, number).await.is_some()
    }

    /// Writes the tombstones of these records, a few at a time. Returns true if Redis acknowledged all of them.
    pub(super) async fn write_tombstones(&self, records: &[Observation]) -> bool {
        let mut written = true;
        for records in records.chunks(MAX_CONCURRENT_PUTS) {
            let mut writing = JoinSet::new();
            for Observation {
                id, fencing_token, ..
            } in records.iter().copied()
            {
                let cache = self.clone();
                writing.spawn(async move { cache.write_tombstone(&id, fencing_token).await });
            }
            while let Some(done) = writing.join_next().await {
                written &= done.unwrap_or(false);
            }
        }
        written
    }

    /// Writes the tombstone again, in the background, when reads from before the erasure can no longer be put. The
    /// first tombstone may have been evicted while such a read was in flight, so that the read put the record back. The
    /// second tombstone removes it.
    pub(super) fn write_tombstone_later(&self, id: &RecordId, fencing_token: FencingToken) {
        let Ok(tombstone_permit) = Arc::clone(&self.tombstone_permits).try_acquire_owned() else {
            return;
        };
        let (cache, id) = (self.clone(), *id);
        tokio::spawn(async move {
            // One second more, because reads are timed by Redis' clock, and this wait by another.
            tokio::time::sleep(MAX_READ_TIME + Duration::from_secs(1)).await;
            cache.write_tombstone(&id, fencing_token).await;
            drop(tombstone_permit);
        });
    }

    /// Returns true if a tombstone of this age may have expired before the concurrent reads are refused.
    pub(super) fn may_have_expired(elapsed: Duration) -> bool {
        elapsed + 2 * MAX_READ_TIME > TOMBSTONE_TTL
    }

    /// Returns true if the circuit breaker of reads is open because Redis failed.
    pub(super) fn is_circuit_open(&self) -> bool {
        self.reading.is_open()
    }

    /// Runs a call of Redis. Returns its answer if it arrives in time.
    async fn run<T>(
        &self,
        permit: Permit,
        call: &ScriptCall,
        read: impl FnOnce(Value) -> Option<T>,
    ) -> Option<T> {
        let answer = self.connection.run(call, self.timeout).await;
        let answer = answer.and_then(|it| {
            read(it).ok_or_else(|| {
                StoreError::new(
                    StoreErrorKind::Corrupt,
                    "the server answered with something unreadable",
                )
            })
        });
        match answer {
            Ok(answer) => {
                permit.succeeded();
                Some(answer)
            }
            Err(error) => {
                permit.failed(&error);
                None
            }
        }
    }

    fn key(&self, id: &RecordId) -> Vec<u8> {
        format!("{}{}", self.prefix, hex::encode(id.as_bytes())).into_bytes()
    }
}

impl fmt::Debug for RedisCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// Parses the time and the value.
fn lookup_answer(answer: Value) -> Option<(Timestamp, Option<Vec<u8>>)> {
    let (now, value): (i64, Option<Vec<u8>>) = ::redis::from_redis_value(answer).ok()?;
    Some((Timestamp::from_micros(now), value))
}

fn number(answer: Value) -> Option<i64> {
    ::redis::from_redis_value(answer).ok()
}
