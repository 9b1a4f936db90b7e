//! Contract between the engine and the stores of records.
//!
//! A store moves records from state to state, atomically and by its own clock. It never sees a codec, a policy or a
//! user's type. Every implementation passes the same suite of cases (feature `conformance`).

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::StoreError;
use crate::key::{Identity, RecordId};
use crate::record::{
    ClaimId, Digest, FencingToken, MemberDigests, Observation, OnCrash, Outcome, Owner, OwnerLabel,
    Record, RecordState, Timestamp,
};

mod attempts;
mod audit;
mod cursor;
#[doc(hidden)]
pub mod encoding;
mod erasure;
mod filter;
mod forgetting;
mod immediate;
mod listed;
mod operations;
mod recovery;
#[doc(hidden)]
pub mod status;
mod steps;
mod transaction;
pub mod transitions;
mod unreadable;

pub use self::attempts::{
    AttemptEnd, AttemptEntry, AttemptLog, AttemptStore, Attempts, NotedReplay,
};
pub use self::audit::{
    AuditAction, AuditEntry, AuditFilter, AuditPage, AuditStore, AuditSubject, AuditedRecord,
    ManualChange, ValueHash,
};
pub use self::erasure::{Erasure, ErasureStore, Redacted};
pub use self::filter::{Filter, ScopeFilter};
pub use self::forgetting::ForgettingStore;
pub use self::immediate::ImmediateStore;
pub use self::listed::{ListedRecord, PayloadSummary};
pub use self::operations::OperationStore;
pub use self::recovery::{RecoveryInput, RecoveryStore};
pub use self::steps::{SavedStep, StepStore};
pub use self::transaction::{ClaimInTransaction, Connects, TransactionalStore};
pub use self::unreadable::Unreadable;

/// Store of records.
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
/// 1. Each method is **one atomic transition**, durable when it returns `Ok`. Of two concurrent claims of one record,
///    at most one creates it.
/// 2. **The store's clock decides** every "now" below. Requests contain durations, never points in time.
/// 3. A record whose [`is_expired`](Record::is_expired) holds is **absent** for every method. A claim replaces the
///    record, and the other methods behave as if it had been purged.
/// 4. A **fencing token** is `max(previous + 1, now in µs)`, see [`FencingToken::next`].
/// 5. [`renew`](Self::renew), [`complete`](Self::complete), [`release`](Self::release) and
///    [`interrupt`](Self::interrupt) take effect only while the record has the owner's claim id **and** fencing token
///    and has not ended. Otherwise they write nothing and return [`FencedWrite::Fenced`]. An owner whose lease has
///    lapsed, or whose record is INTERRUPTED, may still write. RELEASED records and records resolved manually have no
///    claim id.
/// 6. [`take_over`](Self::take_over) and [`resolve`](Self::resolve) take effect only while the record **equals the
///    observation** (compare-and-swap), and never on a record whose lease is still valid.
/// 7. An **outcome is immutable** until it expires. Only one that no owner set can be
///    [corrected](Resolution::Correct), which gives the record a new fencing token.
/// 8. After an error the transition may have been applied or not. The caller repeats it, and the store recognises the
///    repetition by its claim id. This holds as well for errors that certainly changed nothing.
///
/// # Cancel safety
///
/// If a future of this trait is dropped, its transition is applied or not applied, never in part.
///
/// # Wrappers
///
/// A store that wraps another one delegates every method, those with a default included: it keeps the steps, the attempts
/// and the audit of the inner store. `#[deny(clippy::missing_trait_methods)]` on its `impl Store` finds what is missing,
/// also after an update of this crate.
#[doc = concat!("\n", include_str!("store/example.md"))]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a store",
    label = "not a store",
    note = "`Idem::new` takes a store, such as `PostgresStore::new(pool)` or `SqliteStore::open(path).await?`: open it, await it and handle its error first"
)]
#[async_trait]
pub trait Store: Debug + Send + Sync + 'static {
    /// Claims a record, in one transition:
    ///
    /// - absent: becomes RUNNING with this claim id, a new fencing token and attempt 1; granted;
    /// - RUNNING with this claim id and fingerprint: the claim is a repetition. Its lease is renewed, and its retention
    ///   is that of the repetition; granted with the same fencing token and attempt;
    /// - RELEASED with this fingerprint: becomes RUNNING with this claim id, a new fencing token and attempt + 1;
    ///   granted. Lease and retention are those of the new claim; `on_crash`, fingerprint and the time of the first
    ///   claim stay;
    /// - anything else: nothing is written, and the current record is returned, even if it has lapsed.
    async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError>;

    /// Claims a lapsed RUNNING record, or an INTERRUPTED one, that still equals the observation. The record becomes
    /// RUNNING with the claim's own id, lease and retention, a new fencing token and attempt + 1. A record whose
    /// `on_crash` is [`Refuse`](OnCrash::Refuse), or that has another fingerprint, is never taken over.
    ///
    /// A repeated takeover finds its own claim id RUNNING. It is granted with the same fencing token, and its lease is
    /// renewed. In every other case nothing is written and the current record is returned. If the record no longer
    /// exists, this method behaves like [`claim`](Self::claim). The claim may be a second transition, after the one that
    /// found no record.
    async fn take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError>;

    /// Renews the lease. An INTERRUPTED record becomes RUNNING again, because its owner is alive.
    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<FencedWrite, StoreError>;

    /// Ends the record, which keeps its claim id and fencing token. A repeated completion finds its own fencing token
    /// on the ended record and returns [`FencedWrite::Applied`] without writing.
    async fn complete(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError>;

    /// Releases the claim: the record becomes RELEASED, without claim id.
    async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError>;

    /// Marks the record INTERRUPTED, on behalf of its owner, who does not know whether the body took effect. The record
    /// keeps its claim id and fencing token. A repetition returns [`FencedWrite::Applied`].
    async fn interrupt(&self, owner: &Owner) -> Result<FencedWrite, StoreError>;

    /// Resolves a lapsed RUNNING or an INTERRUPTED record that still equals the observation, see [`Resolution`].
    /// [`Resolution::Erase`] works on ended and released records as well, and [`Resolution::Correct`] only on ended ones
    /// without a claim id. Any other record stays unchanged.
    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError>;

    /// Reads a record.
    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError>;

    /// Reads a page of matching records, in a stable order that the store chooses. A record that exists during the
    /// whole listing is on exactly one page. A record that cannot be read is passed over and named in
    /// [`Page::unreadable`]; it does not fail the listing.
    ///
    /// The records have no payloads, unless [`Filter::payloads`] asks for them. They have the labels of their owners if the
    /// store is an [`AttemptStore`].
    async fn list(&self, filter: &Filter, page: &PageRequest) -> Result<Page, StoreError>;

    /// Time of the store's clock: that of the server, for a store with a server. A store with several clocks returns the
    /// earliest of those that it can read, and a store with an uncertain clock the earliest time that it may show.
    async fn now(&self) -> Result<Timestamp, StoreError>;

    /// Checks up to `limit` records that are due. Deletes those that are [expired](Record::is_expired). Marks
    /// INTERRUPTED those RUNNING under `refuse` or `reconcile` whose lease ended more than their retention ago. Drops the
    /// payload of those whose [`payload_until`](Record::payload_until) has passed, if the store is a [`ForgettingStore`].
    /// The statement that writes checks these conditions again.
    ///
    /// All of this is decided as of the earlier of `as_of` and the store's clock. A caller that has a reason to mistrust
    /// the store's clock sets a limit to it by `as_of`. [`Timestamp::MAX`] sets no limit.
    async fn purge(&self, limit: u32, as_of: Timestamp) -> Result<Purged, StoreError>;

    /// Returns this store as one that claims and settles without waiting, if it is one. A wrapper around a store need not
    /// pass this on.
    fn immediate(&self) -> Option<&dyn ImmediateStore> {
        None
    }

    /// Number of claims that this store works on at the same time. The engine sends no more of them at once: further ones
    /// wait in the process, so that queued claims do not delay the writes of calls that run.
    fn claim_concurrency(&self) -> usize {
        64
    }

    /// Returns the ended record with this id, if this store has it in a cache. The engine asks before a claim has to wait:
    /// a replay then waits for nobody. The record is as old as one that a claim would be answered with.
    async fn cached(&self, _id: &RecordId) -> Option<Record> {
        None
    }

    /// Returns true if somebody can resolve a record whose effect is unknown. By default, that takes an [audit](Self::audit),
    /// because operators change records only with one. A call under [`Refuse`](OnCrash::Refuse) is refused before its body
    /// runs where this is false: after a crash its record would stay INTERRUPTED for ever. A store without an audit whose
    /// program calls [`resolve`](Self::resolve) itself returns true.
    fn can_resolve_manually(&self) -> bool {
        self.audit().is_some()
    }

    /// Returns true if the backend deletes expired records without a [purge](Self::purge). A purge may then find none, and
    /// has only abandoned records under `refuse` and `reconcile` to mark. Somebody still has to run it for those. The
    /// default is false.
    ///
    /// The command and the console tell operators that such a store deletes expired records itself. The `as_of` of a purge
    /// keeps no outcome there: if the backend's clock jumps forward, the backend deletes outcomes early.
    fn expires_by_itself(&self) -> bool {
        false
    }

    /// Returns what this process knows about why statements of this store wait right now, as a part of a sentence: that all
    /// connections of a pool are in use, for example. The error of a call that got no answer in time then says so. The
    /// default knows nothing.
    fn bottleneck(&self) -> Option<String> {
        None
    }

    /// Largest difference between the earliest and the latest time that the store's clock may have shown when a transition
    /// read it. Leases and retentions may last longer than they were asked for by this much, and never shorter. The default
    /// is zero: the store reads its clock exactly. See [`clock`](crate::clock).
    fn time_uncertainty(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns this store as a store of attempts, if it keeps their history.
    fn attempts(&self) -> Option<&dyn AttemptStore> {
        None
    }

    /// Returns this store as a store of an audit, if it keeps one. Without an audit, no record can be changed manually.
    fn audit(&self) -> Option<&dyn AuditStore> {
        None
    }

    /// Returns this store as one that drops payloads before their records expire, if it does. If it does not, the payload
    /// of a record is kept as long as the record.
    fn forgetting(&self) -> Option<&dyn ForgettingStore> {
        None
    }

    /// Returns this store as one that erases all records of a scope, if it does.
    fn erasure(&self) -> Option<&dyn ErasureStore> {
        None
    }

    /// Returns this store as one that remembers the names of operations, if it does.
    fn operations(&self) -> Option<&dyn OperationStore> {
        None
    }

    /// Returns this store as a store of recovery inputs, if it supports them.
    fn recovery(&self) -> Option<&dyn RecoveryStore> {
        None
    }

    /// Returns this store as a store of steps, if it supports them.
    fn steps(&self) -> Option<&dyn StepStore> {
        None
    }
}

/// Request to claim a record.
#[derive(Debug, Clone)]
pub struct ClaimRequest {
    /// Id of the record.
    pub id: RecordId,
    /// Scope, operation and key of the record, in readable form.
    pub identity: Identity,
    /// Fingerprint of the request.
    pub fingerprint: Digest,
    /// Claim id that the caller made before its first try.
    pub claim_id: ClaimId,
    /// Lease duration: how long the claim stays valid without renewal.
    pub lease: Duration,
    /// Retention: time for which the record is kept after it ends.
    pub retention: Duration,
    /// Policy after a crash. Applies only if this is the first claim of the record.
    pub on_crash: OnCrash,
    /// Label of the caller, for operators. It has no effect on the claim. A store that is no [`AttemptStore`] ignores it.
    pub owner_label: Option<OwnerLabel>,
    /// Digests of the members of the request, for operators. They have no effect on the claim. A store that is no
    /// [`AttemptStore`] ignores them.
    pub members: Option<MemberDigests>,
}

impl ClaimRequest {
    /// Returns true if [`Store::claim`] grants this claim on an existing record that has not
    /// [expired](Record::is_expired): a RELEASED record with this fingerprint, or a record that this claim already has.
    pub fn may_claim(&self, record: &Record) -> bool {
        self.is_repeated_on(record)
            || record.state == RecordState::Released && record.fingerprint == self.fingerprint
    }

    /// Returns true if [`Store::take_over`] grants this claim on an existing record that has not
    /// [expired](Record::is_expired): a lapsed or INTERRUPTED record with this fingerprint that equals the observation
    /// and is not under [`Refuse`](OnCrash::Refuse), or a record that this claim already has.
    pub fn may_take_over(&self, observed: &Observation, record: &Record) -> bool {
        self.is_repeated_on(record)
            || record.is_stuck()
                && record.observation() == *observed
                && record.on_crash != OnCrash::Refuse
                && record.fingerprint == self.fingerprint
    }

    /// Returns true if the record is RUNNING under this very claim: the caller repeats it, because the answer was lost.
    pub fn is_repeated_on(&self, record: &Record) -> bool {
        record.state == RecordState::Running
            && record.claim_id == Some(self.claim_id)
            && record.fingerprint == self.fingerprint
    }
}

/// Answer to a claim or a takeover.
#[derive(Debug, Clone)]
pub enum ClaimOutcome {
    /// The caller owns the record.
    Granted(Granted),
    /// The caller does not own the record. Contains the current record.
    Existing(Box<Record>),
}

/// Data of a granted claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    /// Fencing token. A repeated claim gets the same one.
    pub fencing_token: FencingToken,
    /// Number of this attempt; the first is 1.
    pub attempt: u32,
    /// Time of the first claim of the record, by the store's clock.
    pub first_claimed_at: Timestamp,
    /// Policy after a crash, as the first claim of the record set it.
    pub on_crash: OnCrash,
}

impl Granted {
    /// Data of the claim that owns this record.
    pub fn on(record: &Record) -> Self {
        Self {
            fencing_token: record.fencing_token,
            attempt: record.attempt,
            first_claimed_at: record.first_claimed_at,
            on_crash: record.on_crash,
        }
    }
}

/// Answer to a write that only the owner of a record may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FencedWrite {
    /// The write took effect.
    Applied,
    /// The record has another claim id or fencing token than the owner, or it has ended. Nothing was written.
    Fenced,
}

/// Resolution of a record whose owner is gone. Every resolution except `Interrupt` removes the claim id. Those that
/// keep the record also give it a new fencing token, which fences off an owner that was only paused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    /// The operation took effect, with this outcome.
    Complete(Outcome),
    /// The operation did not take effect: the record becomes RELEASED, and the next claim runs the body.
    Release,
    /// Nothing is known about the effect of the operation: the record becomes INTERRUPTED. Claim id and fencing token
    /// stay, so that its owner may still complete it.
    Interrupt,
    /// Deletes the record, in any state except RUNNING with a valid lease.
    Erase,
    /// Replaces the outcome of an ended record, if no owner set it ([`Record::was_resolved`]). The time of its end stays,
    /// and so does its expiry. Only for outcomes that an operator set by mistake.
    Correct(Outcome),
}

impl Resolution {
    /// Outcome that the resolution gives to the record.
    pub const fn outcome(&self) -> Option<&Outcome> {
        match self {
            Self::Complete(outcome) | Self::Correct(outcome) => Some(outcome),
            Self::Release | Self::Interrupt | Self::Erase => None,
        }
    }
}

/// Answer to a [`Resolution`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolved {
    /// The resolution took effect.
    Done,
    /// The record no longer equals the observation, or its state does not allow this resolution. Nothing was written.
    Stale,
}

/// Position and size of a page. The default is the first page, with [`DEFAULT_LIMIT`](Self::DEFAULT_LIMIT) records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRequest {
    /// Maximum number of records; at least 1.
    pub limit: u32,
    /// [`Page::next`] of the previous page; `None` for the first page.
    pub after: Option<Cursor>,
}

impl PageRequest {
    /// Number of records on a page of the default size.
    pub const DEFAULT_LIMIT: u32 = 100;
}

impl Default for PageRequest {
    fn default() -> Self {
        Self {
            limit: Self::DEFAULT_LIMIT,
            after: None,
        }
    }
}

/// Position at which a listing continues. Opaque: valid only for the store that returned it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cursor(Box<str>);

impl Cursor {
    /// Creates a cursor from its text.
    pub fn new(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }

    /// Text of the cursor, to send over a network or show on a command line.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Page of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Records of the page. There may be fewer than requested, even none, while [`next`](Self::next) says there are
    /// more.
    pub records: Vec<ListedRecord>,
    /// Records that may match but cannot be read. A page with many of them is short.
    pub unreadable: Vec<Unreadable>,
    /// Start of the next page; `None` on the last page.
    pub next: Option<Cursor>,
}

/// Result of a purge.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Purged {
    /// Number of deleted records, those in [`abandoned`](Self::abandoned) included.
    pub removed: u64,
    /// Number of deleted records that were still RUNNING under `rerun`, not renewed for longer than lease and
    /// retention.
    pub abandoned: u64,
    /// Number of records marked INTERRUPTED.
    pub interrupted: u64,
    /// Number of records that stay, but lost their payload because its time was over. See [`ForgettingStore`].
    pub forgotten: u64,
    /// True if more records may be due right now.
    pub more: bool,
}

impl Purged {
    /// Returns true if no record was deleted or marked. A payload that is dropped when its time is over is no change that an
    /// audit tells of.
    pub const fn is_nothing(&self) -> bool {
        self.removed == 0 && self.interrupted == 0
    }

    /// Number of records that the purge changed: the limit of a purge counts them.
    pub const fn changed(&self) -> u64 {
        self.removed + self.interrupted + self.forgotten
    }

    /// Adds the counts of another purge, which came after this one.
    pub const fn add(&mut self, next: &Self) {
        self.removed += next.removed;
        self.abandoned += next.abandoned;
        self.interrupted += next.interrupted;
        self.forgotten += next.forgotten;
        self.more = next.more;
    }
}

/// A pointer to a store is that store.
macro_rules! by_pointer {
    ($($pointer:ident),*) => {$(
        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<S: Store + ?Sized> Store for $pointer<S> {
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

            async fn now(&self) -> Result<Timestamp, StoreError> {
                (**self).now().await
            }

            async fn purge(&self, limit: u32, as_of: Timestamp) -> Result<Purged, StoreError> {
                (**self).purge(limit, as_of).await
            }

            fn immediate(&self) -> Option<&dyn ImmediateStore> {
                (**self).immediate()
            }

            fn claim_concurrency(&self) -> usize {
                (**self).claim_concurrency()
            }

            async fn cached(&self, id: &RecordId) -> Option<Record> {
                (**self).cached(id).await
            }

            fn can_resolve_manually(&self) -> bool {
                (**self).can_resolve_manually()
            }

            fn expires_by_itself(&self) -> bool {
                (**self).expires_by_itself()
            }

            fn bottleneck(&self) -> Option<String> {
                (**self).bottleneck()
            }

            fn time_uncertainty(&self) -> Duration {
                (**self).time_uncertainty()
            }

            fn attempts(&self) -> Option<&dyn AttemptStore> {
                (**self).attempts()
            }

            fn audit(&self) -> Option<&dyn AuditStore> {
                (**self).audit()
            }

            fn forgetting(&self) -> Option<&dyn ForgettingStore> {
                (**self).forgetting()
            }

            fn erasure(&self) -> Option<&dyn ErasureStore> {
                (**self).erasure()
            }

            fn operations(&self) -> Option<&dyn OperationStore> {
                (**self).operations()
            }

            fn recovery(&self) -> Option<&dyn RecoveryStore> {
                (**self).recovery()
            }

            fn steps(&self) -> Option<&dyn StepStore> {
                (**self).steps()
            }
        }
    )*};
}

by_pointer!(Arc, Box);
