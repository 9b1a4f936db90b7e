//! The record that a store keeps for a key, and the small types that fence it.

mod member_digests;
mod observation;
mod owner_label;
#[cfg(feature = "serde")]
mod serial;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::key::{Identity, RecordId, hex};
use crate::random;

pub use self::member_digests::MemberDigests;
pub use self::owner_label::OwnerLabel;

/// A point in time by a store's clock, in microseconds since 1970-01-01 UTC.
///
/// Timestamps are comparable only within one store. They are never compared with a process clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Latest time, later than any time of a clock.
    pub const MAX: Self = Self(i64::MAX);

    /// Creates the time this many microseconds after 1970-01-01 UTC.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since 1970-01-01 UTC.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Time elapsed since `earlier`; zero if this is before `earlier`.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0).max(0) as u64)
    }

    /// The time this much later, limited to the last representable one.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(micros(duration)))
    }
}

impl From<Timestamp> for SystemTime {
    fn from(at: Timestamp) -> Self {
        let distance = Duration::from_micros(at.0.unsigned_abs());
        if at.0 < 0 {
            UNIX_EPOCH - distance
        } else {
            UNIX_EPOCH + distance
        }
    }
}

impl From<SystemTime> for Timestamp {
    fn from(at: SystemTime) -> Self {
        match at.duration_since(UNIX_EPOCH) {
            Ok(after) => Self(micros(after)),
            Err(before) => Self(-micros(before.duration())),
        }
    }
}

/// A duration in whole microseconds, as stores take it, limited to the longest representable one.
pub fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// 128 random bits that the caller makes before its first claim. A claim that is repeated after a lost acknowledgement
/// recognises its own record by them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClaimId([u8; 16]);

impl ClaimId {
    /// Creates a random claim id.
    pub fn random() -> Self {
        Self(random::bytes())
    }

    /// Creates the claim id with these bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The 16 bytes of the claim id.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClaimId({}..)", hex::encode(&self.0[..4]))
    }
}

/// Fencing token: a number that increases with every claim of a key. The next token is `max(previous + 1, the store's
/// clock in µs)`. It therefore never decreases for a key, not even after the key's record was purged. A resource can
/// check it to refuse writes of an owner that was paused past its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(i64);

impl FencingToken {
    /// Creates the fencing token with this number.
    pub const fn from_number(number: i64) -> Self {
        Self(number)
    }

    /// The token as a number.
    pub const fn number(self) -> i64 {
        self.0
    }

    /// The fencing token that follows `previous` at `now`.
    pub fn next(previous: Option<Self>, now: Timestamp) -> Self {
        Self(previous.map_or(now.0, |Self(number)| now.0.max(number.saturating_add(1))))
    }
}

/// Owner of a record: claim id and fencing token. Renewing, completing and releasing take effect only while the record
/// has both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Id of the record.
    pub id: RecordId,
    /// The claim id that the caller made.
    pub claim_id: ClaimId,
    /// The fencing token that the store assigned.
    pub fencing_token: FencingToken,
}

impl Owner {
    /// Returns true if the record has this claim id and this fencing token.
    pub fn owns(&self, record: &Record) -> bool {
        record.claim_id == Some(self.claim_id) && record.fencing_token == self.fencing_token
    }

    /// Returns true if this owner may change the record, or save a step with it: it [owns](Self::owns) the record, and
    /// the record has not ended. A lapsed lease makes no difference.
    pub fn may_write(&self, record: &Record) -> bool {
        self.owns(record) && !record.state.is_ended()
    }
}

/// Stored digest of a request: the version of the algorithm, the id of the secret that signed it, and 32 bytes of hash.
/// Stores compare digests byte for byte and do not interpret them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; Self::LEN]);

impl Digest {
    /// Length of a stored digest, in bytes.
    pub const LEN: usize = 37;

    /// Creates a digest of these parts; the key id is zero if no secret was used.
    pub fn new(version: u8, key_id: [u8; 4], hash: &[u8; 32]) -> Self {
        let mut bytes = [0; Self::LEN];
        bytes[0] = version;
        bytes[1..5].copy_from_slice(&key_id);
        bytes[5..].copy_from_slice(hash);
        Self(bytes)
    }

    /// Reads a digest from a store, if it has the right length.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// The whole digest, as a store keeps it.
    pub const fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// The version of the algorithm.
    pub fn version(&self) -> u8 {
        self.0[0]
    }

    /// Id of the secret that signed the hash; zero if it is not signed.
    pub fn key_id(&self) -> [u8; 4] {
        [self.0[1], self.0[2], self.0[3], self.0[4]]
    }

    /// The hash.
    pub fn hash(&self) -> [u8; 32] {
        let mut hash = [0; 32];
        hash.copy_from_slice(&self.0[5..]);
        hash
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Digest(v{}, {}..)",
            self.0[0],
            hex::encode(&self.0[5..9])
        )
    }
}

/// Policy of a record after a crash, cancellation or panic of its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnCrash {
    /// The next call runs the body again, once the lease has lapsed.
    Rerun,
    /// The body does not run again until an operator has resolved the record.
    Refuse,
    /// The next call asks `reconcile` what happened, then decides.
    Reconcile,
}

impl OnCrash {
    /// Name of the policy in stores.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rerun => "rerun",
            Self::Refuse => "refuse",
            Self::Reconcile => "reconcile",
        }
    }

    /// Parses the name in a store.
    pub fn from_stored(word: &str) -> Option<Self> {
        [Self::Rerun, Self::Refuse, Self::Reconcile]
            .into_iter()
            .find(|it| it.as_str() == word)
    }
}

/// State of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecordState {
    /// Claimed; the lease may be valid or have lapsed.
    Running,
    /// Released by the last owner: there is no outcome, and the next claim runs the body again.
    Released,
    /// Ended with a stored value.
    Completed,
    /// Ended with a stored final error.
    Failed,
    /// Ended, but the result could not be stored.
    Unrecorded,
    /// The owner crashed, or does not know what it did; `reconcile` or an operator must resolve the record.
    Interrupted,
}

impl RecordState {
    const ALL: [Self; 6] = [
        Self::Running,
        Self::Released,
        Self::Completed,
        Self::Failed,
        Self::Unrecorded,
        Self::Interrupted,
    ];

    /// Name of the state in stores.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Released => "released",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Unrecorded => "unrecorded",
            Self::Interrupted => "interrupted",
        }
    }

    /// Parses the name in a store.
    pub fn from_stored(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.as_str() == word)
    }

    /// True if the record has an outcome, which is immutable.
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Unrecorded)
    }
}

impl fmt::Display for RecordState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An encoded value and the tag of the codec that can read it, such as `json/1`. Cloning is cheap.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload {
    /// Tag of the codec, with its version, that wrote the bytes.
    pub codec: Cow<'static, str>,
    /// The encoded bytes.
    pub bytes: Arc<[u8]>,
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({}, {} bytes)", self.codec, self.bytes.len())
    }
}

/// Outcome of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A value, to be replayed.
    Completed(Payload),
    /// A final error, to be replayed.
    Failed(Payload),
    /// The work is done, but its result could not be stored.
    Unrecorded,
}

impl Outcome {
    /// The state of a record with this outcome.
    pub const fn state(&self) -> RecordState {
        match self {
            Self::Completed(_) => RecordState::Completed,
            Self::Failed(_) => RecordState::Failed,
            Self::Unrecorded => RecordState::Unrecorded,
        }
    }

    /// The encoded value or error.
    pub const fn payload(&self) -> Option<&Payload> {
        match self {
            Self::Completed(payload) | Self::Failed(payload) => Some(payload),
            Self::Unrecorded => None,
        }
    }
}

/// A record as a store read it.
///
/// ```
/// use idem_store::record::{Record, RecordState};
///
/// fn explain(record: &Record) -> &'static str {
///     match record.state {
///         RecordState::Running if record.is_lapsed() => "its owner is gone, the next call takes over",
///         RecordState::Running => "a call is running",
///         RecordState::Interrupted => "an operator has to look",
///         _ => "ended or released",
///     }
/// }
/// ```
///
/// With the feature `serde`, a record can be sent to an operator, result and key included. Its [`Observation`] is one text
/// that comes back unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Record {
    /// Id of the record.
    pub id: RecordId,
    /// Scope, operation and key, in readable form.
    pub identity: Identity,
    /// Digest of the request for which the record was first claimed.
    pub fingerprint: Digest,
    /// State of the record.
    pub state: RecordState,
    /// The encoded value or error of a completed or failed record. None as well if the record [has forgotten it](Self::is_forgotten).
    pub payload: Option<Payload>,
    /// Claim id of the current or last owner; none once the record is released or was resolved manually.
    pub claim_id: Option<ClaimId>,
    /// The last fencing token.
    pub fencing_token: FencingToken,
    /// Number of times that the body has run; the first run is 1.
    pub attempt: u32,
    /// Expiry of the current or last lease.
    pub lease_until: Timestamp,
    /// Retention: how long the record is kept after it ended or was released.
    #[cfg_attr(feature = "serde", serde(with = "serial::duration"))]
    pub retention: Duration,
    /// Time for which the payload is kept after the record ended, if it is shorter than the retention. A purge then drops
    /// the payload, and the rest of the record [stays](Self::is_forgotten). None: the payload is kept as long as the
    /// record.
    #[cfg_attr(
        feature = "serde",
        serde(
            default,
            skip_serializing_if = "Option::is_none",
            with = "serial::optional_duration"
        )
    )]
    pub payload_for: Option<Duration>,
    /// Policy after a crash of the owner. Set by the first claim.
    pub on_crash: OnCrash,
    /// Time of the first claim.
    pub first_claimed_at: Timestamp,
    /// Time at which the record ended or was released.
    pub ended_at: Option<Timestamp>,
    /// The store's time of this read.
    pub read_at: Timestamp,
}

impl Record {
    /// True if the lease has expired without renewal.
    pub fn is_lapsed(&self) -> bool {
        self.state == RecordState::Running && self.lease_until <= self.read_at
    }

    /// True if the record is RUNNING and its lease is valid: its owner may be at work.
    pub fn has_live_owner(&self) -> bool {
        self.state == RecordState::Running && !self.is_lapsed()
    }

    /// True if the record has neither an outcome nor an owner with a valid lease: it is lapsed or INTERRUPTED. It may be
    /// taken over, or resolved by an operator.
    pub fn is_stuck(&self) -> bool {
        self.state == RecordState::Interrupted || self.is_lapsed()
    }

    /// True if the record ended without an owner: an operator resolved it, or the answer of a reconciliation did. The
    /// [audit](crate::store::AuditStore) tells them apart.
    pub fn was_resolved(&self) -> bool {
        self.state.is_ended() && self.claim_id.is_none()
    }

    /// Time from which the record may be purged, and a claim treats it as absent. None if the record stays until it is
    /// resolved.
    pub fn expires_at(&self) -> Option<Timestamp> {
        match (self.state, self.ended_at) {
            (RecordState::Running, _) if self.on_crash == OnCrash::Rerun => {
                Some(self.lease_until.after(self.retention))
            }
            (RecordState::Running | RecordState::Interrupted, _) | (_, None) => None,
            (_, Some(ended_at)) => Some(ended_at.after(self.retention)),
        }
    }

    /// True if the record may be purged; a claim then treats it as absent.
    pub fn is_expired(&self) -> bool {
        self.expires_at().is_some_and(|at| at <= self.read_at)
    }

    /// Time until which the payload is kept, if it may be dropped before the record [expires](Self::expires_at). None for
    /// a record that has not ended.
    pub fn payload_until(&self) -> Option<Timestamp> {
        match self.state.is_ended() {
            true => Some(self.ended_at?.after(self.payload_for?)),
            false => None,
        }
    }

    /// Time until which the record stays as it is, unless somebody changes it: its payload may then be dropped, or the record
    /// [expires](Self::expires_at). None if it stays until it is resolved.
    pub fn unchanged_until(&self) -> Option<Timestamp> {
        let expires_at = self.expires_at()?;
        let payload_until = self.payload.as_ref().and(self.payload_until());
        Some(payload_until.map_or(expires_at, |it| it.min(expires_at)))
    }

    /// True if the payload was dropped: the record still says that its work was done, and can no longer say with what
    /// result.
    pub fn is_forgotten(&self) -> bool {
        self.payload_for.is_some()
            && self.payload.is_none()
            && matches!(self.state, RecordState::Completed | RecordState::Failed)
    }

    /// The observed version of the record, for a conditional transition.
    pub fn observation(&self) -> Observation {
        Observation {
            id: self.id,
            state: self.state,
            claim_id: self.claim_id,
            fencing_token: self.fencing_token,
            lease_until: self.lease_until,
        }
    }

    /// Outcome of the record; none while it has not ended.
    pub fn outcome(&self) -> Option<Outcome> {
        match (self.state, &self.payload) {
            (RecordState::Completed, Some(payload)) => Some(Outcome::Completed(payload.clone())),
            (RecordState::Failed, Some(payload)) => Some(Outcome::Failed(payload.clone())),
            (RecordState::Unrecorded, _) => Some(Outcome::Unrecorded),
            _ => None,
        }
    }
}

/// An observed version of a record, for optimistic locking. Taking over, resolving and marking as interrupted take
/// effect only if the record still matches it. A heartbeat, a takeover or a later interruption changes the record, so
/// that it no longer matches.
///
/// An operator may see a record in a browser, and decide later. The text of an observation (`Display`, `FromStr`, and
/// serde with the feature of that name) carries it there and back: what the operator decides has no effect on a record
/// that has changed meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation {
    /// Id of the record.
    pub id: RecordId,
    /// Observed state.
    pub state: RecordState,
    /// Observed claim id.
    pub claim_id: Option<ClaimId>,
    /// Observed fencing token.
    pub fencing_token: FencingToken,
    /// Observed expiry of the lease.
    pub lease_until: Timestamp,
}
