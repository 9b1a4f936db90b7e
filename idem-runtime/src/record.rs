//! What a store keeps for a key, and the small types that fence it.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::key::{Identity, RecordId, hex};

/// A point in time by a store's clock, in microseconds since 1970-01-01 UTC.
///
/// Only points of one store compare: no process clock is ever compared with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The point this many microseconds after 1970-01-01 UTC.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since 1970-01-01 UTC.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// How long after `earlier` this is; zero where it is before it.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0).max(0) as u64)
    }

    /// The point this much later; the last representable one where there is none.
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

/// A duration in whole microseconds, as stores take it; the longest representable one where it is longer.
pub fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// 128 random bits that the caller makes before its first claim, so that a claim repeated after a lost
/// acknowledgement finds itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClaimId([u8; 16]);

impl ClaimId {
    /// A fresh claim id.
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// The claim id with these bytes.
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
        write!(f, "Token({}..)", hex(&self.0[..4]))
    }
}

/// The fencing token: `max(previous + 1, the store's clock in µs)`, so it never goes back for a key, not even
/// after its record was purged. It is the fencing token that a resource can check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(i64);

impl FencingToken {
    /// The fencing token with this number.
    pub const fn from_number(number: i64) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn number(self) -> i64 {
        self.0
    }

    /// The fencing token that follows `previous` at `now`.
    pub fn next(previous: Option<Self>, now: Timestamp) -> Self {
        Self(previous.map_or(now.0, |Self(number)| now.0.max(number.saturating_add(1))))
    }
}

/// Who holds a record: renewing, completing and releasing take effect only while it bears both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Which record.
    pub id: RecordId,
    /// The claim id that the caller made.
    pub claim_id: ClaimId,
    /// The fencing token that the store gave.
    pub fencing_token: FencingToken,
}

/// The digest of a request as a record keeps it: the version of the algorithm, which secret signed it, and 32 bytes
/// of hash. Stores compare it byte for byte and look no further.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; Self::LEN]);

impl Digest {
    /// How long a stored digest is, in bytes.
    pub const LEN: usize = 37;

    /// A digest of these parts; the key id is zero where no secret was used.
    pub fn new(version: u8, key_id: [u8; 4], hash: &[u8; 32]) -> Self {
        let mut bytes = [0; Self::LEN];
        bytes[0] = version;
        bytes[1..5].copy_from_slice(&key_id);
        bytes[5..].copy_from_slice(hash);
        Self(bytes)
    }

    /// The digest that a store kept, where it has the right length.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// All of it, as a store keeps it.
    pub const fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }

    /// The version of the algorithm.
    pub fn version(&self) -> u8 {
        self.0[0]
    }

    /// Which secret signed the hash; zero where none did.
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
        write!(f, "Digest(v{}, {}..)", self.0[0], hex(&self.0[5..9]))
    }
}

/// What a record says should happen after a crash, cancellation or panic of its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnCrash {
    /// The next call runs the body again, once the lease is over.
    Rerun,
    /// Nobody runs it again until a person has resolved the record.
    Refuse,
    /// The next call asks what happened, then decides.
    Reconcile,
}

impl OnCrash {
    /// The word for it in stores.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rerun => "rerun",
            Self::Refuse => "refuse",
            Self::Reconcile => "reconcile",
        }
    }

    /// What the word in a store means.
    pub fn from_stored(word: &str) -> Option<Self> {
        [Self::Rerun, Self::Refuse, Self::Reconcile]
            .into_iter()
            .find(|it| it.as_str() == word)
    }
}

/// Where a record stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Somebody claimed it; its lease may hold or be over.
    Running,
    /// The last owner gave it back: nothing terminal was done, the next claim runs it again.
    Released,
    /// Ended with a stored value.
    Completed,
    /// Ended with a stored terminal error.
    Failed,
    /// Ended, but the result could not be stored.
    Unrecorded,
    /// Its owner died or does not know what it did; somebody must resolve it.
    Interrupted,
}

impl State {
    const ALL: [Self; 6] = [
        Self::Running,
        Self::Released,
        Self::Completed,
        Self::Failed,
        Self::Unrecorded,
        Self::Interrupted,
    ];

    /// The word for it in stores.
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

    /// What the word in a store means.
    pub fn from_stored(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.as_str() == word)
    }

    /// Whether the outcome is settled and immutable.
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Unrecorded)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An encoded value and the tag of the codec that can read it, such as `json/1`. Cloning is cheap.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload {
    /// Which codec, and which version of it, wrote the bytes.
    pub codec: Cow<'static, str>,
    /// What it wrote.
    pub bytes: Arc<[u8]>,
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({}, {} bytes)", self.codec, self.bytes.len())
    }
}

/// What a record ended with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// With this value, to be replayed.
    Completed(Payload),
    /// With this terminal error, to be replayed.
    Failed(Payload),
    /// Done, but with a result that could not be stored.
    Unrecorded,
}

impl Outcome {
    /// The state of a record that ended so.
    pub const fn state(&self) -> State {
        match self {
            Self::Completed(_) => State::Completed,
            Self::Failed(_) => State::Failed,
            Self::Unrecorded => State::Unrecorded,
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// What it is found by.
    pub id: RecordId,
    /// What it is about, readable.
    pub identity: Identity,
    /// The request that it was first claimed for.
    pub fingerprint: Digest,
    /// Where it stands.
    pub state: State,
    /// The encoded value or error of a completed or failed record.
    pub payload: Option<Payload>,
    /// Whose it is or was; none once it is released or was resolved by hand.
    pub claim_id: Option<ClaimId>,
    /// Its last fencing token.
    pub fencing_token: FencingToken,
    /// How many times its body was run, the first being 1.
    pub attempt: u32,
    /// When its lease ends or ended.
    pub lease_until: Timestamp,
    /// How long it is kept after it ended or was released.
    pub retention: Duration,
    /// What happens after a crash of its owner. The first claim decides.
    pub on_crash: OnCrash,
    /// When it was first claimed.
    pub first_claimed_at: Timestamp,
    /// When it ended or was released.
    pub ended_at: Option<Timestamp>,
    /// What the store's clock showed when this was read.
    pub read_at: Timestamp,
}

impl Record {
    /// Whether its owner has been silent for longer than its lease.
    pub fn is_lapsed(&self) -> bool {
        self.state == State::Running && self.lease_until <= self.read_at
    }

    /// When it may be purged, and a claim treats it as absent; none where it stays until somebody resolves it.
    pub fn expires_at(&self) -> Option<Timestamp> {
        match (self.state, self.ended_at) {
            (State::Running, _) if self.on_crash == OnCrash::Rerun => {
                Some(self.lease_until.after(self.retention))
            }
            (State::Running | State::Interrupted, _) | (_, None) => None,
            (_, Some(ended_at)) => Some(ended_at.after(self.retention)),
        }
    }

    /// Whether it may be purged: a claim treats it as absent.
    pub fn is_expired(&self) -> bool {
        self.expires_at().is_some_and(|at| at <= self.read_at)
    }

    /// What was seen of it, for a conditional transition.
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
            (State::Completed, Some(payload)) => Some(Outcome::Completed(payload.clone())),
            (State::Failed, Some(payload)) => Some(Outcome::Failed(payload.clone())),
            (State::Unrecorded, _) => Some(Outcome::Unrecorded),
            _ => None,
        }
    }
}

/// What somebody saw of a record. Taking over, resolving and marking interrupted take effect only while all of it
/// still holds: a heartbeat, a takeover or a later interruption in between changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation {
    /// Which record.
    pub id: RecordId,
    /// Where it stood.
    pub state: State,
    /// Whose it was.
    pub claim_id: Option<ClaimId>,
    /// Its last fencing token.
    pub fencing_token: FencingToken,
    /// When its lease ends or ended.
    pub lease_until: Timestamp,
}
