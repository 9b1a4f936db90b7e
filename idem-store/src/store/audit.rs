//! Optional store trait: writes down who changed records manually, and why.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sha2::{Digest as _, Sha256};

use crate::error::{InvalidChange, StoreError};
use crate::key::{Identity, RecordId, hex};
use crate::record::{FencingToken, Observation, Outcome, Payload, Record, RecordState, Timestamp};
use crate::store::{Cursor, PageRequest, Purged, Resolution, Resolved, Unreadable};

/// Store that keeps an audit of manual changes.
///
/// # Contract
///
/// [`resolve_manually`](Self::resolve_manually) and its entry are **one atomic transition**: either both take effect or
/// neither does. A resolution that is [`Stale`](Resolved::Stale) writes no entry. An entry outlives its record, also where
/// the record is erased or purged. The store never deletes entries, and changes them only to
/// remove the scope, the keys and the hashes of values of an erased scope. Operators may delete old ones by the means
/// of the database.
///
/// [`purge_manually`](Self::purge_manually) writes one entry with the counts of its batch. The entry exists before the
/// first change can be seen: in the same transaction, or, where a purge is more than one transition, in an earlier one.
/// Such an early entry has zeros as its counts until the batch has ended.
#[async_trait]
pub trait AuditStore: Send + Sync {
    /// Resolves like [`Store::resolve`](crate::Store::resolve), and writes who did it and why.
    ///
    /// After an error, both may have taken effect or neither. A repetition then finds another record than was observed.
    async fn resolve_manually(
        &self,
        observed: &Observation,
        resolution: &Resolution,
        change: &ManualChange,
    ) -> Result<Resolved, StoreError>;

    /// Purges one batch like [`Store::purge`](crate::Store::purge), as of the time of the store's clock, and writes who did it and why. A batch that changed
    /// nothing leaves no entry. A batch may be smaller than `limit`.
    ///
    /// After an error, the batch may have been purged in part; its entry exists then. A repetition purges the rest.
    async fn purge_manually(&self, limit: u32, change: &ManualChange)
    -> Result<Purged, StoreError>;

    /// Reads a page of matching entries, the newest first. An entry that cannot be read is passed over and named in
    /// [`AuditPage::unreadable`]; it does not fail the page.
    async fn audit(
        &self,
        filter: &AuditFilter,
        page: &PageRequest,
    ) -> Result<AuditPage, StoreError>;
}

/// Who changes records manually, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManualChange {
    actor: Arc<str>,
    reason: Arc<str>,
}

impl ManualChange {
    /// Longest name of an actor, in bytes.
    pub const MAX_ACTOR: usize = 120;
    /// Longest reason, in bytes.
    pub const MAX_REASON: usize = 1000;

    /// Creates a change by this actor for this reason: 1 to 120 and 1 to 1000 bytes, without control characters.
    ///
    /// # Errors
    /// [`InvalidChange`] for other texts.
    pub fn new(actor: impl AsRef<str>, reason: impl AsRef<str>) -> Result<Self, InvalidChange> {
        Ok(Self {
            actor: checked("actor", actor.as_ref(), Self::MAX_ACTOR)?,
            reason: checked("reason", reason.as_ref(), Self::MAX_REASON)?,
        })
    }

    /// Person or program that makes the change.
    pub fn actor(&self) -> &str {
        &self.actor
    }

    /// Reason of the change.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

fn checked(part: &'static str, text: &str, limit: usize) -> Result<Arc<str>, InvalidChange> {
    if text.trim().is_empty() {
        return Err(InvalidChange::Empty { part });
    }
    if text.len() > limit {
        let length = text.len();
        return Err(InvalidChange::TooLong {
            part,
            limit,
            length,
        });
    }
    if text.chars().any(char::is_control) {
        return Err(InvalidChange::Control { part });
    }
    Ok(text.into())
}

/// Kind of a manual change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AuditAction {
    /// The record was ended with a value.
    Completed,
    /// The record was ended with an error.
    Failed,
    /// The record was ended without a result.
    Unrecorded,
    /// The record was released.
    Released,
    /// The record was marked INTERRUPTED.
    Interrupted,
    /// The record was deleted.
    Erased,
    /// A batch of expired records was deleted.
    Purged,
    /// All records of a scope were deleted.
    ErasedScope,
    /// The outcome of the record was replaced.
    Corrected,
}

impl AuditAction {
    /// All actions.
    pub const ALL: [Self; 9] = [
        Self::Completed,
        Self::Failed,
        Self::Unrecorded,
        Self::Released,
        Self::Interrupted,
        Self::Erased,
        Self::Purged,
        Self::ErasedScope,
        Self::Corrected,
    ];

    /// Action of a resolution.
    pub const fn of(resolution: &Resolution) -> Self {
        match resolution {
            Resolution::Complete(Outcome::Completed(_)) => Self::Completed,
            Resolution::Complete(Outcome::Failed(_)) => Self::Failed,
            Resolution::Complete(Outcome::Unrecorded) => Self::Unrecorded,
            Resolution::Release => Self::Released,
            Resolution::Interrupt => Self::Interrupted,
            Resolution::Erase => Self::Erased,
            Resolution::Correct(_) => Self::Corrected,
        }
    }

    /// Returns true if the change gave the record an outcome.
    pub const fn sets_outcome(self) -> bool {
        matches!(
            self,
            Self::Completed | Self::Failed | Self::Unrecorded | Self::Corrected
        )
    }

    /// The action as it is stored.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Unrecorded => "unrecorded",
            Self::Released => "released",
            Self::Interrupted => "interrupted",
            Self::Erased => "erased",
            Self::Purged => "purged",
            Self::ErasedScope => "erased_scope",
            Self::Corrected => "corrected",
        }
    }

    /// Reads an action as it is stored. None for any other word.
    pub fn from_stored(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.as_str() == word)
    }
}

impl fmt::Display for AuditAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Entry of the audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// Time of the change, by the store's clock.
    pub at: Timestamp,
    /// Who made the change, and why.
    pub change: ManualChange,
    /// User of the database with whom the change was made. Unlike the actor, it is no free text. `None` if the backend has
    /// no users, or does not name them.
    pub user: Option<Arc<str>>,
    /// The change.
    pub action: AuditAction,
    /// Record or records that were changed.
    pub subject: AuditSubject,
}

impl AuditEntry {
    /// Returns the id of the record that was changed, or the one that stands for the scope that was erased.
    pub fn id(&self) -> Option<RecordId> {
        match &self.subject {
            AuditSubject::Record(record) => Some(record.id),
            AuditSubject::Scope { id, .. } => Some(*id),
            AuditSubject::Purge { .. } => None,
        }
    }

    /// Returns the record that was changed, unless the entry is on several.
    pub fn record(&self) -> Option<&AuditedRecord> {
        match &self.subject {
            AuditSubject::Record(record) => Some(record),
            AuditSubject::Purge { .. } | AuditSubject::Scope { .. } => None,
        }
    }
}

/// Record or records that a manual change was made on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AuditSubject {
    /// One record.
    Record(AuditedRecord),
    /// Batch of a purge, with the counts of [`Purged`]. If all counts are zero, the purge has not ended, and its counts are
    /// not known.
    Purge {
        /// Number of deleted records, those in `abandoned` included.
        removed: u64,
        /// Number of deleted records that were still RUNNING under `rerun`.
        abandoned: u64,
        /// Number of records marked INTERRUPTED.
        interrupted: u64,
    },
    /// All records of a scope.
    Scope {
        /// Id that stands for the scope, see [`Scope::audit_id`](crate::Scope::audit_id).
        id: RecordId,
        /// Random number of the erasure, see [`Erasure::number`](crate::store::Erasure::number).
        number: i64,
        /// Number of records that were deleted so far.
        erased: u64,
    },
}

impl AuditSubject {
    /// Subject of a purge with these counts.
    pub const fn of_purge(purged: &Purged) -> Self {
        Self::Purge {
            removed: purged.removed,
            abandoned: purged.abandoned,
            interrupted: purged.interrupted,
        }
    }
}

/// Record as it was before a manual change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditedRecord {
    /// Id of the record.
    pub id: RecordId,
    /// Scope, operation and key of the record. `None` after its scope was erased.
    pub identity: Option<Identity>,
    /// State of the record before the change.
    pub state: RecordState,
    /// Fencing token of the record before the change.
    pub fencing_token: FencingToken,
    /// Attempt of the record before the change.
    pub attempt: u32,
    /// Hash of the content that a correction replaced. `None` if the record had none, or after its scope was erased.
    pub old_value: Option<ValueHash>,
    /// Hash of the content that the change stored. `None` if it stored none, or after the scope was erased.
    pub new_value: Option<ValueHash>,
}

impl AuditedRecord {
    /// A record with this content before a change by this resolution.
    pub fn before(record: &Record, resolution: &Resolution) -> Self {
        let hash = |payload: Option<&Payload>| payload.map(ValueHash::of);
        let replaced = match resolution {
            Resolution::Correct(_) => record.payload.as_ref(),
            _ => None,
        };
        Self {
            id: record.id,
            identity: Some(record.identity.clone()),
            state: record.state,
            fencing_token: record.fencing_token,
            attempt: record.attempt,
            old_value: hash(replaced),
            new_value: hash(resolution.outcome().and_then(Outcome::payload)),
        }
    }
}

/// SHA-256 over the stored bytes of a result or an error.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ValueHash([u8; 32]);

impl ValueHash {
    /// Hash of this content.
    pub fn of(payload: &Payload) -> Self {
        Self(Sha256::digest(&*payload.bytes).into())
    }

    /// A hash that was stored.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Bytes of the hash.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// 64 hexadecimal digits, as `sha256sum` writes them.
impl fmt::Display for ValueHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&hex::encode(&self.0))
    }
}

impl fmt::Debug for ValueHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ValueHash({self})")
    }
}

/// Selection of entries. The default selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Selects only entries on this record, or on the erasure of the scope with this
    /// [`audit_id`](crate::Scope::audit_id).
    pub id: Option<RecordId>,
    /// Selects only entries by exactly this actor.
    pub actor: Option<String>,
    /// Selects only entries that are at most this old, by the store's clock.
    pub within: Option<Duration>,
}

impl AuditFilter {
    /// Returns true if this entry matches at this time of the store's clock.
    pub fn matches(&self, entry: &AuditEntry, now: Timestamp) -> bool {
        self.id.is_none_or(|id| entry.id() == Some(id))
            && self
                .actor
                .as_deref()
                .is_none_or(|actor| entry.change.actor() == actor)
            && self.within.is_none_or(|age| now.since(entry.at) <= age)
    }
}

/// Page of the audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditPage {
    /// Entries of the page, the newest first.
    pub entries: Vec<AuditEntry>,
    /// Entries that may match but cannot be read, by their numbers, or by the id of their record.
    pub unreadable: Vec<Unreadable>,
    /// Start of the next page; `None` on the last page.
    pub next: Option<Cursor>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actor_and_reason_are_short_text_of_one_line() {
        let long = "x".repeat(1000);
        let change = ManualChange::new("ann@web-1", &long).unwrap();
        assert_eq!((change.actor(), change.reason()), ("ann@web-1", &*long));
        for (actor, reason) in [
            ("", "r"),
            (" ", "r"),
            ("a", ""),
            ("a\tb", "r"),
            ("a", "r\n"),
            (&*"x".repeat(121), "r"),
            ("a", &*"x".repeat(1001)),
        ] {
            let error = ManualChange::new(actor, reason).unwrap_err();
            let part = if reason == "r" { "actor" } else { "reason" };
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn actions_are_read_back() {
        for action in AuditAction::ALL {
            assert_eq!(AuditAction::from_stored(action.as_str()), Some(action));
        }
    }
}
