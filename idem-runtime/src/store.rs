//! The contract between the engine and whatever keeps the records.
//!
//! A store moves records from state to state, atomically and by its own clock. It never sees a codec, a policy or a
//! user's type. Every implementation passes the same table of cases (feature `conformance`).

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::StoreError;
use crate::key::{Identity, RecordId};
use crate::record::{
    ClaimId, Digest, FencingToken, Observation, OnCrash, Outcome, Owner, Record, State, Timestamp,
};

#[cfg(feature = "cache")]
pub mod cached;
#[cfg(any(
    feature = "memory",
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql",
    feature = "redis"
))]
mod cursor;
#[cfg(feature = "memory")]
pub mod memory;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(all(
    feature = "outbox",
    any(feature = "sqlite", feature = "postgres", feature = "mysql")
))]
pub(crate) mod outbox;
#[cfg(feature = "postgres")]
pub mod postgres;
mod recovery;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql",
    feature = "redis"
))]
#[cfg_attr(
    not(any(feature = "sqlite", feature = "mysql", feature = "redis", test)),
    expect(dead_code, reason = "PostgreSQL gives it column by column")
)]
mod status;
mod steps;
mod transaction;

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub use self::sql::{Cancellation, OpenTransaction};
pub use self::transaction::{ClaimInTransaction, Connects, TransactionalStore};

pub use self::recovery::{RecoveryInput, RecoveryStore};
pub use self::steps::{SavedStep, StepStore};

/// Where records live.
///
/// # Contract
///
/// ```text
///  (nothing) ──claim──▶ RUNNING ──complete──▶ COMPLETED | FAILED | UNRECORDED ──retention over──▶ (nothing)
///                        │ ▲ ▲ └─ renew, save_step
///              release   │ │ └── take_over of what was observed (new claim_id, fencing_token, attempt + 1), steps kept
///                        ▼ │
///                     RELEASED ──claim (new claim_id, fencing_token, attempt + 1), steps kept
///
///  RUNNING ──interrupt | resolve──▶ INTERRUPTED ──complete, renew, release by its owner | resolve──▶ …
/// ```
///
/// 1. Each method is **one atomic transition**, durable when it returns `Ok`. Two claims of one record never both
///    create it.
/// 2. **The store's clock decides** every "now" below; requests bring durations, never points in time.
/// 3. A record whose [`is_expired`](Record::is_expired) holds is **absent** for every method: a claim replaces it, and
///    the rest behave as if it were purged.
/// 4. A **fencing token** is `max(previous + 1, now in µs)`, see [`FencingToken::next`].
/// 5. [`renew`](Self::renew), [`complete`](Self::complete), [`release`](Self::release) and
///    [`interrupt`](Self::interrupt) take effect only while the record bears the owner's claim id **and** fencing token
///    and has not ended; otherwise they write nothing and answer [`FencedWrite::Fenced`]. A lease that ran out does not
///    by itself refuse its owner, nor does INTERRUPTED. RELEASED and records resolved by hand bear no claim id.
/// 6. [`take_over`](Self::take_over) and [`resolve`](Self::resolve) take effect only while **exactly the observation**
///    still holds, and never on a record whose lease still runs.
/// 7. An **outcome is immutable** until it expires.
/// 8. An error may leave the transition done or not done; the caller repeats it and finds itself by its claim id.
///    An error that is certain to have changed nothing is no different.
///
/// # Cancel safety
///
/// A future of this trait that is dropped leaves its transition done or not done, never half done.
#[async_trait]
pub trait Store: Debug + Send + Sync + 'static {
    /// Claims a record, in one transition:
    ///
    /// - absent: RUNNING with this claim id, a new fencing token, attempt 1, granted;
    /// - RUNNING with this very claim id and fingerprint: the claim was repeated; its lease begins anew, granted with
    ///   the same fencing token and attempt;
    /// - RELEASED with this very fingerprint: RUNNING with this claim id, a new fencing token, attempt + 1, granted.
    ///   Lease and retention are the new claim's; `on_crash`, fingerprint and the time of the first claim stay;
    /// - anything else: nothing is written, and the record is returned as it stands, a lapsed one too.
    async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError>;

    /// Claims a lapsed RUNNING record, or an INTERRUPTED one, that still is exactly as observed: RUNNING with the
    /// claim's own id, lease and retention, a new fencing token, attempt + 1. Never takes over a record whose
    /// `on_crash` is [`Refuse`](OnCrash::Refuse), nor one with another fingerprint.
    ///
    /// A takeover that is repeated finds its own claim id RUNNING and is granted with the same fencing token, its lease
    /// begun anew. In every other case nothing is written and the record is returned as it stands; where there is none
    /// any more, this behaves like [`claim`](Self::claim).
    async fn take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError>;

    /// Begins the lease anew. An INTERRUPTED record becomes RUNNING again: its owner is alive.
    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<FencedWrite, StoreError>;

    /// Ends the record, which keeps its claim id and fencing token: a completion that is repeated finds its own fencing
    /// token on the ended record and answers [`FencedWrite::Applied`] without writing.
    async fn complete(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError>;

    /// Gives the record back: RELEASED, without claim id.
    async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError>;

    /// Marks the record INTERRUPTED, by its own owner, who does not know what was done. It keeps claim id and fencing
    /// token. Repeating it answers [`FencedWrite::Applied`].
    async fn interrupt(&self, owner: &Owner) -> Result<FencedWrite, StoreError>;

    /// Settles a lapsed RUNNING or an INTERRUPTED record that still is exactly as observed, see [`Resolution`].
    /// [`Resolution::Erase`] works on ended and released records as well. Any other record is left as it is.
    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError>;

    /// Reads a record.
    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError>;

    /// Reads a page of records that match, in an order that is stable and the store's own. A record that exists during
    /// the whole listing is on exactly one page.
    async fn list(&self, filter: &Filter, page: &PageRequest) -> Result<Page, StoreError>;

    /// Looks at up to `limit` records whose time has come. Deletes those that are [expired](Record::is_expired), and
    /// marks INTERRUPTED those RUNNING under `refuse` or `reconcile` whose lease ended more than their retention ago,
    /// rechecking in the statement that writes.
    async fn purge(&self, limit: u32) -> Result<Purged, StoreError>;

    /// Whether the futures of this store are ready at their first poll, so that none of them can be dropped half way. The
    /// engine then spares what it takes to give back a claim that is dropped.
    fn answers_at_once(&self) -> bool {
        false
    }

    /// The store as one that keeps what it takes to make calls again, where it is one.
    fn recovery(&self) -> Option<&dyn RecoveryStore> {
        None
    }

    /// The store as one that keeps the finished steps of bodies, where it is one. What stands in front of a store gives
    /// its steps as well.
    fn steps(&self) -> Option<&dyn StepStore> {
        None
    }
}

/// What a caller wants to claim.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// Which record.
    pub id: RecordId,
    /// What it is about, to be kept readable.
    pub identity: Identity,
    /// The request it is for.
    pub fingerprint: Digest,
    /// The claim id that the caller made before its first try.
    pub claim_id: ClaimId,
    /// How long a silent owner is believed.
    pub lease: Duration,
    /// How long the record is kept after it ends.
    pub retention: Duration,
    /// What happens after a crash, should this be the first claim.
    pub on_crash: OnCrash,
}

/// The answer to a claim or a takeover.
#[derive(Debug, Clone)]
pub enum ClaimOutcome {
    /// The caller owns the record.
    Granted(Granted),
    /// It does not; this is what is there.
    Existing(Box<Record>),
}

/// What an owner is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    /// The fencing token, the same when the claim was repeated.
    pub fencing_token: FencingToken,
    /// Which attempt this is, the first being 1.
    pub attempt: u32,
    /// When the record was first claimed, by the store's clock.
    pub first_claimed_at: Timestamp,
    /// What the record says should happen after a crash; the first claim decided.
    pub on_crash: OnCrash,
}

/// Answer to a write that only the owner of a record may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FencedWrite {
    /// The write took effect.
    Applied,
    /// The record no longer bears the owner's claim id and fencing token, or has ended; nothing was written.
    Fenced,
}

/// How a record that nobody owns any more is settled. All of them leave it without claim id, and those that keep the
/// record give it a new fencing token, so a paused owner is fenced off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    /// It was done, with this result.
    Complete(Outcome),
    /// It was not done: RELEASED, the next claim runs it.
    Release,
    /// Nobody knows: INTERRUPTED. The exception: claim id and fencing token stay, so that its owner may still complete
    /// it.
    Interrupt,
    /// Delete it, in any state but RUNNING with a lease that holds.
    Erase,
}

/// The answer to a [`Resolution`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolved {
    /// It took effect.
    Done,
    /// The record is not as observed any more, or is in a state that cannot be resolved so; nothing was written.
    Stale,
}

/// Which records to list; the default is all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only those in this state.
    pub state: Option<State>,
    /// Only those whose lease ran out.
    pub lapsed: bool,
    /// Only those of the operation of exactly this name.
    pub operation: Option<String>,
    /// Only those first claimed at least this long ago.
    pub older_than: Option<Duration>,
}

impl Filter {
    /// Whether this record matches.
    pub fn matches(&self, record: &Record) -> bool {
        self.state.is_none_or(|state| record.state == state)
            && (!self.lapsed || record.is_lapsed())
            && self
                .operation
                .as_ref()
                .is_none_or(|name| record.identity.operation.as_str() == name)
            && self
                .older_than
                .is_none_or(|age| record.read_at.since(record.first_claimed_at) >= age)
    }
}

/// Which page of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRequest {
    /// How many records at most; at least 1.
    pub limit: u32,
    /// [`Page::next`] of the page before; none for the first.
    pub after: Option<Cursor>,
}

/// Where a listing goes on. Opaque: a store understands its own alone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cursor(Box<str>);

impl Cursor {
    /// The cursor with this text.
    pub fn new(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }

    /// Its text, to be carried over a network or shown on a command line.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A page of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The records. May be fewer than asked for, even none, while [`next`](Self::next) says there is more.
    pub records: Vec<Record>,
    /// Where the next page begins; none at the end.
    pub next: Option<Cursor>,
}

/// What a purge did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Purged {
    /// Records deleted, those in [`abandoned`](Self::abandoned) included.
    pub removed: u64,
    /// Deleted records that were still RUNNING, under `rerun`, their owner silent for longer than lease and retention.
    pub abandoned: u64,
    /// Records marked INTERRUPTED.
    pub interrupted: u64,
    /// Whether there may be more to do right now.
    pub more: bool,
}

#[async_trait]
impl<S: Store + ?Sized> Store for std::sync::Arc<S> {
    async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        (**self).claim(claim).await
    }

    async fn take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError> {
        (**self).take_over(observed, claim).await
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<FencedWrite, StoreError> {
        (**self).renew(owner, lease).await
    }

    async fn complete(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError> {
        (**self).complete(owner, outcome).await
    }

    async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        (**self).release(owner).await
    }

    async fn interrupt(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        (**self).interrupt(owner).await
    }

    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        (**self).resolve(observed, resolution).await
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        (**self).get(id).await
    }

    async fn list(&self, filter: &Filter, page: &PageRequest) -> Result<Page, StoreError> {
        (**self).list(filter, page).await
    }

    async fn purge(&self, limit: u32) -> Result<Purged, StoreError> {
        (**self).purge(limit).await
    }

    fn answers_at_once(&self) -> bool {
        (**self).answers_at_once()
    }

    fn recovery(&self) -> Option<&dyn RecoveryStore> {
        (**self).recovery()
    }

    fn steps(&self) -> Option<&dyn StepStore> {
        (**self).steps()
    }
}
