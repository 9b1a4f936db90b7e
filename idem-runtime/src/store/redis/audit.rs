//! Audit of manual changes: a list for each record that was changed, and for each batch of a manual purge.

use std::cmp::Reverse;

use async_trait::async_trait;
use redis::{Value, cmd};

use super::scripts::{self, ScriptCall};
use super::{RedisStore, decode, errors};
use crate::error::{StoreError, StoreErrorKind};
use crate::key::{RecordId, hex};
use crate::random;
use crate::record::{FencingToken, Observation, Outcome, RecordState, Timestamp};
use crate::store::encoding::read_request;
use crate::store::status::number;
use crate::store::{
    AuditAction, AuditEntry, AuditFilter, AuditPage, AuditStore, AuditSubject, AuditedRecord,
    Cursor, ManualChange, PageRequest, Purged, Resolution, Resolved, Store as _, Unreadable,
    ValueHash,
};

/// Names of details.
const OLD_VALUE: &str = "old_value";
const NEW_VALUE: &str = "new_value";
const USER: &str = "user";

/// Order of entries: time, record, and position in the record's list.
type Place = (Timestamp, RecordId, usize);
/// Entries of a record that were read, and those that cannot be read, named by the record.
type Entries = (Vec<(Place, AuditEntry)>, Vec<Unreadable>);

impl RedisStore {
    /// Resolves a record, and writes the entry of a manual change in the same script.
    pub(super) async fn resolve_and_note(
        &self,
        observed: &Observation,
        resolution: &Resolution,
        change: Option<&ManualChange>,
    ) -> Result<Resolved, StoreError> {
        let key = self.key(&observed.id);
        let name = match resolution {
            Resolution::Complete(_) => "complete",
            Resolution::Release => "release",
            Resolution::Interrupt => "interrupt",
            Resolution::Erase => "erase",
            Resolution::Correct(_) => "correct",
        };
        let details = match change {
            None => String::new(),
            Some(_) => self.details(observed, resolution).await?,
        };
        let call = match change {
            None => ScriptCall::new(&scripts::RESOLVE, &key),
            Some(_) => {
                let audit = self.audit_key(&observed.id);
                ScriptCall::with_two_keys(&scripts::RESOLVE, [&key, &audit])
            }
        };
        let mut call = call
            .text(name)
            .observation(observed)
            .text(change.map_or("", ManualChange::actor))
            .text(change.map_or("", ManualChange::reason))
            .text(&details);
        if let Some(outcome) = resolution.outcome() {
            call = call.outcome(outcome);
        }
        Ok(if decode::took_effect(&self.write(&call).await?)? {
            Resolved::Done
        } else {
            Resolved::Stale
        })
    }

    /// Details that an entry has after its action: hashes of values, and the user.
    ///
    /// The script checks that the record is still as observed. It has the content that is read here then, because no record
    /// ends twice with one fencing token.
    async fn details(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<String, StoreError> {
        let record = match resolution {
            Resolution::Correct(_) => self.get(&observed.id).await?,
            _ => None,
        };
        let old_value = record.and_then(|it| it.payload);
        let new_value = resolution.outcome().and_then(Outcome::payload);
        let mut details = String::new();
        for (name, value) in [(OLD_VALUE, old_value.as_ref()), (NEW_VALUE, new_value)] {
            if let Some(value) = value {
                details += &format!(" {name}={}", ValueHash::of(value));
            }
        }
        details += &self.user_detail().await?;
        Ok(details)
    }

    /// Detail with the user of the connection. It is empty if the user may not ask for its name, or if the server knows no
    /// users.
    pub(super) async fn user_detail(&self) -> Result<String, StoreError> {
        let primaries = self.connection.primaries(self.timeout).await?;
        let Some(primary) = primaries.first() else {
            return Ok(String::new());
        };
        let mut who = cmd("ACL");
        who.arg("WHOAMI");
        match self.connection.ask(primary, [who], self.timeout).await {
            Ok([Value::BulkString(name)]) => {
                let name = String::from_utf8_lossy(&name);
                Ok(format!(
                    " {USER}={}",
                    name.replace(char::is_whitespace, "_")
                ))
            }
            Ok([Value::SimpleString(name)]) => Ok(format!(" {USER}={name}")),
            Err(error) if error.kind() == StoreErrorKind::Unavailable => Err(error),
            Ok(_) | Err(_) => Ok(String::new()),
        }
    }

    /// Finds the records that have an audit.
    pub(super) async fn audited(&self) -> Result<Vec<RecordId>, StoreError> {
        let mut ids = Vec::new();
        for primary in self.connection.primaries(self.timeout).await? {
            let mut cursor = b"0".to_vec();
            loop {
                let found = self.scan(&primary, &cursor).await?;
                ids.extend(found.audits);
                cursor = found.cursor;
                if cursor == b"0" {
                    break;
                }
            }
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// Reads the entries of one record.
    pub(super) async fn entries(&self, id: &RecordId) -> Result<Entries, StoreError> {
        let key = self.audit_key(id);
        let answer = self.read(&ScriptCall::new(&scripts::AUDIT, &key)).await;
        let entries = match answer {
            Ok(Value::Array(entries)) => entries,
            // The key holds something else than a list.
            Err(error) if error.kind() == StoreErrorKind::Corrupt => {
                return Ok((Vec::new(), vec![Unreadable::new(id.to_string(), &error)]));
            }
            Ok(_) => return Err(errors::unreadable()),
            Err(error) => return Err(error),
        };
        let entries = entries.into_iter().enumerate().map(|(index, entry)| {
            let entry = match entry {
                Value::BulkString(bytes) => decode_entry(id, &bytes),
                _ => None,
            };
            let entry = entry.map(|entry| ((entry.at, *id, index), entry));
            (
                id.to_string(),
                entry.ok_or_else(|| errors::corrupt("audit")),
            )
        });
        Unreadable::sort(entries)
    }
}

#[async_trait]
impl AuditStore for RedisStore {
    async fn resolve_manually(
        &self,
        observed: &Observation,
        resolution: &Resolution,
        change: &ManualChange,
    ) -> Result<Resolved, StoreError> {
        self.resolve_and_note(observed, resolution, Some(change))
            .await
    }

    /// Reads all audits and sorts them, unless the filter names a record: Redis has no index for them.
    /// Purges each record in a script of its own. The entry is therefore written before, and its counts afterwards.
    async fn purge_manually(
        &self,
        limit: u32,
        change: &ManualChange,
    ) -> Result<Purged, StoreError> {
        let mut note = PurgeNote::new(self, change, self.user_detail().await?);
        let purged = self
            .purge_noted(limit, Timestamp::MAX, Some(&mut note))
            .await?;
        note.end(self, &purged).await?;
        Ok(purged)
    }

    async fn audit(
        &self,
        filter: &AuditFilter,
        page: &PageRequest,
    ) -> Result<AuditPage, StoreError> {
        let before = page.after.as_ref().map(read_place).transpose()?;
        let limit = page.limit.max(1) as usize;
        let ids = match filter.id {
            Some(id) => vec![id],
            None => self.audited().await?,
        };
        let now = self.time().await?;
        let (mut found, mut unreadable) = (Vec::new(), Vec::new());
        for id in &ids {
            let (entries, passed_over) = self.entries(id).await?;
            // They have no time, so the first page names them.
            if before.is_none() {
                unreadable.extend(passed_over);
            }
            found.extend(entries.into_iter().filter(|(place, entry)| {
                before.is_none_or(|before| *place < before) && filter.matches(entry, now)
            }));
        }
        found.sort_unstable_by_key(|(place, _)| Reverse(*place));
        let is_more = found.len() > limit;
        found.truncate(limit);
        let last = found.last().filter(|_| is_more);
        Ok(AuditPage {
            next: last.map(|(place, _)| write_place(place)),
            entries: found.into_iter().map(|(_, entry)| entry).collect(),
            unreadable,
        })
    }
}

/// Entry of a batch of a manual purge.
pub(super) struct PurgeNote<'a> {
    /// Key of the list that has this entry alone.
    key: Vec<u8>,
    change: &'a ManualChange,
    user: String,
    has_begun: bool,
}

impl<'a> PurgeNote<'a> {
    /// The list has the form of a record's audit, with a random id that no record has.
    fn new(store: &RedisStore, change: &'a ManualChange, user: String) -> Self {
        Self {
            key: store.audit_key(&RecordId::from_bytes(random::bytes())),
            change,
            user,
            has_begun: false,
        }
    }

    /// Writes the entry without its counts, before the first record is changed.
    pub(super) async fn begin(&mut self, store: &RedisStore) -> Result<(), StoreError> {
        if !self.has_begun {
            self.write(store, &Purged::default(), "begins").await?;
            self.has_begun = true;
        }
        Ok(())
    }

    /// Writes the counts. Deletes the entry if nothing was changed.
    async fn end(self, store: &RedisStore, purged: &Purged) -> Result<(), StoreError> {
        match self.has_begun {
            true => self.write(store, purged, "ended").await,
            false => Ok(()),
        }
    }

    async fn write(
        &self,
        store: &RedisStore,
        purged: &Purged,
        phase: &str,
    ) -> Result<(), StoreError> {
        let call = ScriptCall::new(&scripts::NOTE_PURGE, &self.key)
            .text(self.change.actor())
            .text(self.change.reason())
            .text(&purged.removed.to_string())
            .text(&purged.abandoned.to_string())
            .text(&purged.interrupted.to_string())
            .text(phase)
            .text(&self.user);
        store.write(&call).await.map(drop)
    }
}

/// Decodes an entry: time, actor, reason and action with its details, each in a line; then state, fencing token and attempt of a record and
/// its request, or the counts of a purge, or number and count of an erasure.
fn decode_entry(id: &RecordId, bytes: &[u8]) -> Option<AuditEntry> {
    let mut parts = bytes.splitn(8, |byte| *byte == b'\n');
    let mut text = || std::str::from_utf8(parts.next()?).ok();
    let at = Timestamp::from_micros(number(text()?)?);
    let change = ManualChange::new(text()?, text()?).ok()?;
    let mut words = text()?.split(' ');
    let action = AuditAction::from_stored(words.next()?)?;
    let (mut user, mut old_value, mut new_value) = (None, None, None);
    for word in words {
        let (name, value) = word.split_once('=')?;
        let hash = || Some(ValueHash::from_bytes(hex::decode(value)?));
        match name {
            OLD_VALUE => old_value = Some(hash()?),
            NEW_VALUE => new_value = Some(hash()?),
            USER => user = Some(value.into()),
            _ => return None,
        }
    }
    let subject = if action == AuditAction::Purged {
        let mut count = || u64::try_from(number(text()?)?).ok();
        AuditSubject::Purge {
            removed: count()?,
            abandoned: count()?,
            interrupted: count()?,
        }
    } else if action == AuditAction::ErasedScope {
        AuditSubject::Scope {
            id: *id,
            number: number(text()?)?,
            erased: u64::try_from(number(text()?)?).ok()?,
        }
    } else {
        let state = RecordState::from_stored(text()?)?;
        let fencing_token = FencingToken::from_number(number(text()?)?);
        let attempt = u32::try_from(number(text()?)?).ok()?;
        // The request was removed if the scope was erased.
        let identity = match parts.next()? {
            b"" => None,
            request => Some(read_request(request)?.1),
        };
        if identity.as_ref().is_some_and(|it| RecordId::of(it) != *id) {
            return None;
        }
        AuditSubject::Record(AuditedRecord {
            id: *id,
            identity,
            state,
            fencing_token,
            attempt,
            old_value,
            new_value,
        })
    };
    Some(AuditEntry {
        at,
        change,
        user,
        action,
        subject,
    })
}

fn write_place((at, id, index): &Place) -> Cursor {
    Cursor::new(format!(
        "{}-{}-{index}",
        at.as_micros(),
        hex::encode(id.as_bytes())
    ))
}

fn read_place(cursor: &Cursor) -> Result<Place, StoreError> {
    let read = || {
        let mut words = cursor.as_str().splitn(3, '-');
        let at = Timestamp::from_micros(number(words.next()?)?);
        let id = RecordId::from_bytes(hex::decode(words.next()?)?);
        let index = usize::try_from(number(words.next()?)?).ok()?;
        Some((at, id, index))
    };
    read().ok_or_else(|| {
        StoreError::new(
            StoreErrorKind::Other,
            "this is no position in an audit of this store, begin again without one",
        )
    })
}
