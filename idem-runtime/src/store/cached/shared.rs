//! Ended records in a Redis that the processes of a service share. Nothing here fails a call: what Redis does not say in
//! time is asked of the store.
//!
//! All times are of Redis' own clock, taken in the step that looks before the store is asked. So a process that was
//! paused, or a command that was delayed on the way, can neither prolong a record's life nor bring back an erased one.

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ::redis::Value;
use tokio::sync::Semaphore;

use super::breaker::{Breaker, Permit};
use super::wire::{self, Life};
use crate::error::{StoreError, StoreErrorKind};
use crate::key::{RecordId, hex};
use crate::record::{Grant, Record, Timestamp};
use crate::store::redis::RedisConnection;
use crate::store::redis::scripts::{Loadable, Step};

#[derive(Clone)]
pub(super) struct Shared {
    connection: RedisConnection,
    prefix: Arc<str>,
    /// How long a call waits for Redis each time that it asks.
    pub(super) timeout: Duration,
    /// Apart, since a Redis that is full, or a replica, still answers.
    reading: Arc<Breaker>,
    writing: Arc<Breaker>,
    /// Records that are being put there, by tasks that no call waits for.
    keeping: Arc<Semaphore>,
    /// Erasures whose mark is going to be left once more.
    barring: Arc<Semaphore>,
}

const TIMEOUT: Duration = Duration::from_millis(100);

/// How many records are put there at once: Redis that is slow must not gather them in this process.
const MOST_KEEPING: usize = 64;

/// How many marks of erasures are left once more. Beyond that, an erasure relies on its first mark.
const MOST_BARRING: usize = 4096;

/// For how long an erasure is remembered: longer than deleting a record may take and a read may be under way.
const BARRED: Duration = Duration::from_secs(60);

/// How long after Redis was asked a record is put there at the latest.
const READ_WITHIN: Duration = Duration::from_secs(5);

/// Larger records are not kept: sending one could take so long that it looks like an outage.
const MOST_BYTES: usize = 1 << 20;

static FIND: LazyLock<Loadable> = LazyLock::new(|| Loadable::new(include_str!("find.lua")));
static KEEP: LazyLock<Loadable> = LazyLock::new(|| Loadable::new(include_str!("keep.lua")));
static BAR: LazyLock<Loadable> = LazyLock::new(|| Loadable::new(include_str!("bar.lua")));
static DROP: LazyLock<Loadable> = LazyLock::new(|| Loadable::new(include_str!("drop.lua")));

/// What Redis says of a record.
pub(super) enum Found {
    Record(Box<Record>),
    /// It has none; what the store is asked from now on may be kept.
    Nothing(Looked),
    /// It was not asked, or did not answer.
    Unknown,
}

/// When Redis was seen to have no record, by its clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Looked(Timestamp);

impl Shared {
    pub(super) fn new(connection: RedisConnection, name: &str) -> Self {
        Self {
            connection,
            // The version of the form is in the name, so that builds with different ones do not meet.
            prefix: format!("{name}:record/2:").into(),
            timeout: TIMEOUT,
            reading: Breaker::new("reading"),
            writing: Breaker::new("writing"),
            keeping: Arc::new(Semaphore::new(MOST_KEEPING)),
            barring: Arc::new(Semaphore::new(MOST_BARRING)),
        }
    }

    /// The record that may be served, at most this long after it was read from the store.
    pub(super) async fn find(&self, id: &RecordId, max_age: Duration) -> Found {
        let Some(permit) = self.reading.admit() else {
            return Found::Unknown;
        };
        let key = self.key(id);
        let step = Step::new(&FIND, &key);
        let Some((now, value)) = self.run(permit, &step, answer_to_find).await else {
            return Found::Unknown;
        };
        let nothing = Found::Nothing(Looked(now));
        let Some(value) = value.filter(|it| !wire::is_mark(it)) else {
            return nothing;
        };
        match wire::read(&value, id) {
            Some((record, life)) => life
                .at(now, record, max_age)
                .map_or(nothing, |record| Found::Record(Box::new(record))),
            None => {
                tracing::debug!(
                    target: "idem",
                    "redis holds what no idem cache writes, dropping it and asking the store",
                );
                if let Some(permit) = self.writing.admit() {
                    self.run(permit, &Step::new(&DROP, &key).bytes(&value), number)
                        .await;
                }
                nothing
            }
        }
    }

    /// Has a record kept that was read from the store after Redis was asked. Nobody waits for it.
    pub(super) fn keep(&self, record: &Record, looked: Looked, max_age: Duration) {
        let size = record.payload.as_ref().map_or(0, |it| it.bytes.len());
        let Some(life) = Life::new(record, looked.0, max_age) else {
            return;
        };
        if size > MOST_BYTES {
            return;
        }
        let Ok(place) = Arc::clone(&self.keeping).try_acquire_owned() else {
            return;
        };
        let Some(permit) = self.writing.admit() else {
            return;
        };
        let Some(value) = wire::write(record, &life) else {
            return;
        };
        let (shared, key, grant) = (self.clone(), self.key(&record.id), record.grant);
        tokio::spawn(async move {
            let step = Step::new(&KEEP, &key)
                .bytes(&value)
                .number(grant.number())
                .number(life.until.as_micros() / 1_000)
                .number(looked.0.after(READ_WITHIN).as_micros());
            shared.run(permit, &step, number).await;
            drop(place);
        });
    }

    /// Forgets a record up to this grant, and keeps reads of it that are under way in any process from bringing it
    /// back. Whether Redis was told.
    pub(super) async fn bar(&self, id: &RecordId, grant: Grant) -> bool {
        // During a pause, too: an erasure is rare, and what it leaves behind is replayed.
        let permit = self.writing.insist();
        let (key, mark) = (self.key(id), wire::mark(grant));
        let step = Step::new(&BAR, &key)
            .bytes(&mark)
            .number(grant.number())
            .number(BARRED.as_millis() as i64);
        self.run(permit, &step, number).await.is_some()
    }

    /// Leaves the mark of an erasure once more, in the background, when no read from before the erasure can be kept any
    /// more. The first mark may have been evicted while such a read was under way, and the read then brought the record
    /// back: this removes it.
    pub(super) fn bar_later(&self, id: &RecordId, grant: Grant) {
        let Ok(place) = Arc::clone(&self.barring).try_acquire_owned() else {
            return;
        };
        let (shared, id) = (self.clone(), *id);
        tokio::spawn(async move {
            // A second more: the time of reads is of Redis' clock, this is of another.
            tokio::time::sleep(READ_WITHIN + Duration::from_secs(1)).await;
            shared.bar(&id, grant).await;
            drop(place);
        });
    }

    /// Whether a mark that was left so long ago may have gone before those are refused that it was left for.
    pub(super) fn outlasts(elapsed: Duration) -> bool {
        elapsed + 2 * READ_WITHIN > BARRED
    }

    /// Whether Redis is left alone, since it failed.
    pub(super) fn is_left_alone(&self) -> bool {
        self.reading.is_open()
    }

    /// What Redis answers, where it does in time.
    async fn run<T>(
        &self,
        permit: Permit,
        step: &Step,
        read: impl FnOnce(Value) -> Option<T>,
    ) -> Option<T> {
        let answer = self.connection.run(step, self.timeout).await;
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
        format!("{}{}", self.prefix, hex(id.as_bytes())).into_bytes()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// The time, and what stands there.
fn answer_to_find(answer: Value) -> Option<(Timestamp, Option<Vec<u8>>)> {
    let (now, value): (i64, Option<Vec<u8>>) = ::redis::from_redis_value(answer).ok()?;
    Some((Timestamp::from_micros(now), value))
}

fn number(answer: Value) -> Option<i64> {
    ::redis::from_redis_value(answer).ok()
}
