//! Entries of the audit, and their keys.

use super::entry::AuditNumber;
use super::{AUDIT, parts};
use crate::error::{StoreError, StoreErrorKind};
use crate::key::RecordId;
use crate::random;
use crate::record::{FencingToken, Record, RecordState, Timestamp};
use crate::store::encoding;
use crate::store::{
    AuditAction, AuditEntry, AuditSubject, AuditedRecord, ManualChange, Purged, Resolution,
    ValueHash,
};

/// Key of an entry. The newest entry has the lowest key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AuditKey {
    at: i64,
    pub(super) number: AuditNumber,
}

impl AuditKey {
    pub(super) fn new(at: Timestamp) -> Self {
        Self {
            at: at.as_micros(),
            number: random::bytes(),
        }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let newest_first = i64::MAX.abs_diff(self.at).to_be_bytes();
        [&[AUDIT][..], &newest_first[..], &self.number[..]].concat()
    }

    /// Number in the key of an entry that was found.
    pub(super) fn number_of(key: &[u8]) -> Option<AuditNumber> {
        let number = key.strip_prefix(&[AUDIT])?.get(8..)?;
        number.try_into().ok()
    }
}

/// An entry as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Written {
    /// True if the change is known to have taken effect. Otherwise its record tells.
    pub(super) is_certain: bool,
    pub(super) entry: AuditEntry,
    fingerprint: Option<crate::record::Digest>,
}

impl Written {
    /// The intention to change a record.
    pub(super) fn intention(
        at: Timestamp,
        change: &ManualChange,
        resolution: &Resolution,
        record: &Record,
    ) -> Self {
        Self {
            is_certain: false,
            entry: AuditEntry {
                at,
                change: change.clone(),
                user: None,
                action: AuditAction::of(resolution),
                subject: AuditSubject::Record(AuditedRecord::before(record, resolution)),
            },
            fingerprint: Some(record.fingerprint),
        }
    }

    pub(super) fn purge(at: Timestamp, change: &ManualChange, purged: &Purged) -> Self {
        Self {
            is_certain: true,
            entry: AuditEntry {
                at,
                change: change.clone(),
                user: None,
                action: AuditAction::Purged,
                subject: AuditSubject::of_purge(purged),
            },
            fingerprint: None,
        }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut push = |tag, part: &[u8]| parts::push(&mut bytes, tag, part);
        let AuditEntry {
            at,
            change,
            user: _,
            action,
            subject,
        } = &self.entry;
        push(b'C', &[u8::from(self.is_certain)]);
        push(b'@', &at.as_micros().to_be_bytes());
        push(b'W', change.actor().as_bytes());
        push(b'Y', change.reason().as_bytes());
        push(b'D', action.as_str().as_bytes());
        match (subject, &self.fingerprint) {
            (AuditSubject::Record(record), Some(fingerprint)) => {
                let request = record.identity.as_ref();
                let request = request.map(|it| encoding::request(fingerprint, it));
                push(b'I', record.id.as_bytes());
                push(b'Q', &request.unwrap_or_default());
                push(b'S', record.state.as_str().as_bytes());
                push(b'F', &record.fencing_token.number().to_be_bytes());
                push(b'N', &i64::from(record.attempt).to_be_bytes());
                for (tag, hash) in [(b'O', &record.old_value), (b'V', &record.new_value)] {
                    if let Some(hash) = hash {
                        push(tag, hash.as_bytes());
                    }
                }
            }
            (AuditSubject::Record(_), None) | (AuditSubject::Scope { .. }, _) => {}
            (
                AuditSubject::Purge {
                    removed,
                    abandoned,
                    interrupted,
                },
                _,
            ) => {
                push(
                    b'P',
                    &[*removed, *abandoned, *interrupted]
                        .map(u64::to_be_bytes)
                        .concat(),
                );
            }
        }
        bytes
    }

    /// Returns `None` for bytes that [`to_bytes`](Self::to_bytes) does not write.
    pub(super) fn from_bytes(mut bytes: &[u8]) -> Option<Self> {
        let mut next = |tag: u8| {
            let (found, part) = parts::take(&mut bytes)?;
            (found == tag).then_some(part)
        };
        let is_certain = next(b'C')? == [1];
        let at = Timestamp::from_micros(parts::number(next(b'@')?)?);
        let actor = parts::text(next(b'W')?)?;
        let change = ManualChange::new(actor, parts::text(next(b'Y')?)?).ok()?;
        let action = AuditAction::from_stored(&parts::text(next(b'D')?)?)?;
        let (subject, fingerprint) = if action == AuditAction::Purged {
            let counts = next(b'P')?;
            let count = |n: usize| {
                let part = counts.get(n * 8..n * 8 + 8)?;
                Some(u64::from_be_bytes(part.try_into().ok()?))
            };
            let subject = AuditSubject::Purge {
                removed: count(0)?,
                abandoned: count(1)?,
                interrupted: count(2)?,
            };
            (subject, None)
        } else {
            let id = RecordId::from_bytes(next(b'I')?.try_into().ok()?);
            let (fingerprint, identity) = encoding::read_request(next(b'Q')?)?;
            let mut record = AuditedRecord {
                id,
                identity: Some(identity),
                state: RecordState::from_stored(&parts::text(next(b'S')?)?)?,
                fencing_token: FencingToken::from_number(parts::number(next(b'F')?)?),
                attempt: u32::try_from(parts::number(next(b'N')?)?).ok()?,
                old_value: None,
                new_value: None,
            };
            while let Some((tag, part)) = parts::take(&mut bytes) {
                let hash = Some(ValueHash::from_bytes(part.try_into().ok()?));
                match tag {
                    b'O' => record.old_value = hash,
                    b'V' => record.new_value = hash,
                    _ => return None,
                }
            }
            (AuditSubject::Record(record), Some(fingerprint))
        };
        bytes.is_empty().then_some(Self {
            is_certain,
            entry: AuditEntry {
                at,
                change,
                user: None,
                action,
                subject,
            },
            fingerprint,
        })
    }
}

/// Error of an entry whose random number is taken.
pub(super) fn taken() -> StoreError {
    StoreError::new(
        StoreErrorKind::Conflict,
        "another entry of the audit has this number; try again",
    )
}
