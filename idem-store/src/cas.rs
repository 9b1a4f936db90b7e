//! A store on any backend with compare-and-swap: a key-value server with revisions, an object store with conditional
//! writes, an embedded database.
//!
//! A [`Backend`] reads an entry with its revision, writes it if the revision is unchanged, deletes it on the same condition,
//! and lists entries in the order of their keys. [`CasStore`] makes a store of it: every transition, fencing tokens that
//! never go back, steps, the history of attempts, the audit, recovery inputs, listing and purging.
//!
//! # How it works
//!
//! A record and everything that belongs to it are one entry. Each transition reads the entry, applies the
//! [reference transition](crate::store::transitions), and writes the entry on condition that no other caller has changed it.
//! A caller that lost starts again with what is there now, after a random pause that grows. Each lost round is the success
//! of another caller. After [`ROUNDS`](CasStore::ROUNDS) rounds the call fails with
//! [`Conflict`](StoreErrorKind::Conflict), which is retryable.
//!
//! - A deleted record leaves a **tombstone** with its fencing token, so that the next one of its key gets a higher token. A
//!   purge removes the tombstone an hour after the time of its token, when the clock alone gives higher tokens.
//! - An entry of the **audit** is written before its change, as an intention. The change writes the number of the entry into
//!   the record in the same write. A listing shows an intention only if its record has that number.
//! - A recovery input is in the entry of its record. **Due times** have entries of their own, which are only hints: they are
//!   written before the record and compared with it when they are read.
//!
//! # Costs
//!
//! A claim is a read and a write, and so are a renewal, a step and a completion. A replay is a read. Each write has the whole
//! entry, with its steps. A listing and a purge read all entries, so they take time in proportion to the number of records. A
//! backend with an index for them, or with native expiry, deserves a store of its own.
//!
//! # Example
//!
//! `examples/etcd` in the repository is a store on etcd in less than 200 lines.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use crate::clock::Now;
use crate::error::{StoreError, StoreErrorKind};
use crate::key::RecordId;
use crate::random;
use crate::record::micros;

mod audit;
mod audit_entry;
mod entry;
mod parts;
mod purge;
mod recovery;
mod store;

use self::entry::Slot;

/// Backend of a [`CasStore`].
///
/// # Contract
///
/// 1. Keys are bytes, at most 80 of them, and compared as such. A backend that is shared gives them a prefix of its own, and
///    removes it from the keys that it returns.
/// 2. A value that was written is returned by every later read (linearizable), and comes back byte for byte. The table of
///    cases writes values of up to 1.1 MiB.
/// 3. A revision never returns: an entry that was changed has another revision than before, also after it was deleted and
///    created again. A hash of the value is no revision.
/// 4. A method that returns `Ok` has taken effect durably. After a [`Failure`] it is unknown whether it did. The backend does not
///    repeat a write by itself: a repeated conditional write that had taken effect would report that it lost.
/// 5. Futures may be dropped at any await. A write then takes effect or not, never in part.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Revision of an entry.
    type Revision: Clone + Send + Sync + 'static;

    /// Reads an entry with its revision. Returns `None` if there is none.
    async fn read(&self, key: &[u8]) -> Result<Option<Versioned<Self::Revision>>, Failure>;

    /// Writes an entry if its revision is still this one; with `None`, if there is no entry. Returns true if it was written.
    async fn write(
        &self,
        key: &[u8],
        value: Vec<u8>,
        expected: Option<&Self::Revision>,
    ) -> Result<bool, Failure>;

    /// Deletes an entry if its revision is still this one. Returns true if it was deleted.
    async fn delete(&self, key: &[u8], expected: &Self::Revision) -> Result<bool, Failure>;

    /// Reads up to `limit` entries whose keys begin with `prefix` and are greater than `after`, in the order of their keys.
    /// Fewer than `limit` entries are the last ones. `after` is empty, or a key that begins with `prefix`. The limit of a
    /// [`CasStore`] is 64.
    async fn scan(
        &self,
        prefix: &[u8],
        after: &[u8],
        limit: usize,
    ) -> Result<Vec<Entry<Self::Revision>>, Failure>;

    /// Reads the backend's clock, not the clock of this process, unless all processes that use the backend share that one.
    /// Each transition calls this after its read and before its write. A backend whose answers bring the time keeps a
    /// [`ServerClock`](crate::clock::ServerClock), observes each answer, and returns the clock's time. If the time takes a
    /// request of its own, this fails when that request fails.
    async fn now(&self) -> Result<Now, Failure>;
}

/// Value with the revision at which it was read.
#[derive(Clone)]
pub struct Versioned<R> {
    /// The value.
    pub value: Vec<u8>,
    /// Its revision.
    pub revision: R,
}

/// Entry of a [scan](Backend::scan).
#[derive(Clone)]
pub struct Entry<R> {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// Its revision.
    pub revision: R,
}

/// Shows the size of the value alone.
impl<R> fmt::Debug for Versioned<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Versioned({} bytes)", self.value.len())
    }
}

/// Shows the size of the value alone.
impl<R> fmt::Debug for Entry<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry({} bytes)", self.value.len())
    }
}

/// Failure of a [`Backend`].
///
/// It has a kind, a text of the program and a number, and cannot have anything else. Errors of drivers may quote keys and
/// stored values, in their text or in `Debug`. So a backend translates them, and nothing stored reaches a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    kind: StoreErrorKind,
    problem: &'static str,
    code: Option<i64>,
}

impl Failure {
    /// Creates a failure of this kind. The text says what is wrong and what to do, in lower case: "problem; remedy".
    /// [`Unavailable`](StoreErrorKind::Unavailable) and [`Timeout`](StoreErrorKind::Timeout) are for a lost answer.
    pub const fn new(kind: StoreErrorKind, problem: &'static str) -> Self {
        Self {
            kind,
            problem,
            code: None,
        }
    }

    /// Adds the number by which the backend tells its errors apart, such as a status of HTTP.
    #[must_use]
    pub const fn with_code(mut self, code: i64) -> Self {
        self.code = Some(code);
        self
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        let Failure {
            kind,
            problem,
            code,
        } = failure;
        match code {
            None => Self::new(kind, problem),
            Some(code) => Self::new(kind, format!("{problem} (code {code})")),
        }
    }
}

/// Store of records on a [`Backend`].
///
/// It has everything that is optional: steps, attempts, an audit and recovery inputs.
pub struct CasStore<B> {
    backend: B,
    /// How far the purges have come. The next one begins there.
    purged_until: Mutex<purge::Place>,
    /// The widest interval in which a time was read, in microseconds.
    widest: AtomicI64,
}

impl CasStore<()> {
    /// Maximum number of tries of a transition whose entry other callers change.
    pub const ROUNDS: u32 = 64;
}

/// Shortest limit of the pause before another round. It doubles with each round.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
/// Longest limit of the pause before another round.
const LAST_PAUSE: Duration = Duration::from_millis(100);
/// Number of entries that a listing or a purge reads at a time.
const SCAN: usize = 64;

/// Number of times that a page of a listing or a batch of a purge does so.
const SCANS: usize = 16;

/// First byte of the keys of records; the id follows.
const RECORDS: u8 = b'r';
/// First byte of the keys of entries of the audit.
const AUDIT: u8 = b'a';
/// First byte of the keys of due times.
const DUE: u8 = b'd';

impl<B: Backend> CasStore<B> {
    /// Creates a store on this backend.
    pub fn new(backend: B) -> Self {
        Self {
            backend,
            purged_until: Mutex::default(),
            widest: AtomicI64::new(0),
        }
    }

    /// The backend.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    async fn time(&self) -> Result<Now, StoreError> {
        let now = self.backend.now().await?;
        self.widest
            .fetch_max(micros(now.uncertainty()), Ordering::Relaxed);
        Ok(now)
    }

    /// Reads the entry of a record.
    async fn read(&self, id: &RecordId) -> Result<Read<B::Revision>, StoreError> {
        let read = self.backend.read(&record_key(id)).await?;
        let now = self.time().await?;
        let (bytes, revision) = match read {
            Some(Versioned { value, revision }) => (value, Some(revision)),
            None => (Vec::new(), None),
        };
        let slot = Slot::from_bytes(id, &bytes, now)?;
        Ok(Read {
            bytes,
            revision,
            slot,
        })
    }

    /// Writes the entry of a record, if it has changed. Returns false if another caller has written it since it was read.
    async fn write(&self, id: &RecordId, read: &Read<B::Revision>) -> Result<bool, StoreError> {
        let bytes = read.slot.to_bytes();
        if bytes == read.bytes {
            return Ok(true);
        }
        let (key, revision) = (record_key(id), read.revision.as_ref());
        Ok(self.backend.write(&key, bytes, revision).await?)
    }

    /// Applies a transition to the entry of a record, and begins again if another caller has changed the entry.
    async fn apply<T>(
        &self,
        id: &RecordId,
        transition: impl Fn(&mut Slot) -> T + Send + Sync,
    ) -> Result<T, StoreError> {
        let mut rounds = Rounds::default();
        loop {
            let mut read = self.read(id).await?;
            let answer = transition(&mut read.slot);
            if self.write(id, &read).await? {
                return Ok(answer);
            }
            rounds.next().await?;
        }
    }
}

/// The entry of a record as it was read, and as a transition changes it.
struct Read<R> {
    bytes: Vec<u8>,
    revision: Option<R>,
    slot: Slot,
}

/// Rounds of a compare-and-swap.
#[derive(Default)]
struct Rounds(u32);

impl Rounds {
    /// Pauses before the next round: up to a limit that grows, so that callers of one record come apart.
    async fn next(&mut self) -> Result<(), StoreError> {
        self.0 += 1;
        if self.0 >= CasStore::<()>::ROUNDS {
            return Err(StoreError::new(
                StoreErrorKind::Conflict,
                "the record changed at each try because of concurrent calls; try again",
            ));
        }
        let limit = FIRST_PAUSE.saturating_mul(1 << self.0.min(10));
        tokio::time::sleep(limit.min(LAST_PAUSE).mul_f64(random::fraction())).await;
        Ok(())
    }
}

fn record_key(id: &RecordId) -> Vec<u8> {
    [&[RECORDS][..], &id.as_bytes()[..]].concat()
}

fn corrupt() -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        "an entry holds what this store does not write; find out who else writes to this backend, and repair the entry",
    )
}

/// Shows nothing of the backend, which may hold a password.
impl<B> fmt::Debug for CasStore<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CasStore").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
