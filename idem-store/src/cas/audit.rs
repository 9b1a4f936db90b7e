//! The audit of manual changes.
//!
//! A change and its entry have keys of their own, and the backend changes one at a time. So the entry is written first, as
//! an intention. The change writes the number of the entry into the record, in the same write. From then on the entry
//! is valid: a listing that finds an intention asks its record. Afterwards the entry is marked as certain, and then the number
//! leaves the record. Whatever was cut off in between is finished by the next purge, or by the next manual change.

use async_trait::async_trait;

use super::audit_entry::{AuditKey, Written};
use super::entry::AuditNumber;
use super::purge::PurgeEntry;
use super::{AUDIT, Backend, CasStore, Rounds, SCAN, Versioned, corrupt};
use crate::error::{StoreError, StoreErrorKind};
use crate::key::{RecordId, hex};
use crate::record::{Observation, Timestamp};
use crate::store::{
    AuditEntry, AuditFilter, AuditPage, AuditStore, Cursor, ManualChange, PageRequest, Purged,
    Resolution, Resolved, Unreadable,
};

impl<B: Backend> CasStore<B> {
    /// Marks the entries of a record as certain whose numbers it has, and removes the numbers from the record.
    pub(super) async fn confirm(&self, id: &RecordId) -> Result<(), StoreError> {
        let numbers = self.read(id).await?.slot.audited;
        if numbers.is_empty() {
            return Ok(());
        }
        let mut open = numbers.clone();
        let mut after = Vec::new();
        // The numbers are those of recent entries, which come first.
        while !open.is_empty() {
            let entries = self.backend().scan(&[AUDIT], &after, SCAN).await?;
            let is_last = entries.len() < SCAN;
            for entry in entries {
                let number = AuditKey::number_of(&entry.key);
                if let Some(at) = open.iter().position(|it| Some(*it) == number)
                    && let Some(mut written) = Written::from_bytes(&entry.value)
                {
                    open.swap_remove(at);
                    if !written.is_certain {
                        written.is_certain = true;
                        let bytes = written.to_bytes();
                        // Whoever was faster has written the same.
                        self.backend()
                            .write(&entry.key, bytes, Some(&entry.revision))
                            .await?;
                    }
                }
                after = entry.key;
            }
            if is_last {
                break;
            }
        }
        self.apply(id, |slot| slot.audited.retain(|it| !numbers.contains(it)))
            .await
    }

    /// Returns true if the change of this intention took effect.
    async fn took_effect(&self, id: &RecordId, number: &AuditNumber) -> Result<bool, StoreError> {
        Ok(self.read(id).await?.slot.audited.contains(number))
    }

    /// Reads an entry again, if it is there.
    async fn written(&self, key: &[u8]) -> Result<Option<Written>, StoreError> {
        let read = self.backend().read(key).await?;
        read.map(|it| Written::from_bytes(&it.value).ok_or_else(corrupt))
            .transpose()
    }

    /// Deletes an intention whose change did not take effect.
    async fn withdraw(&self, key: &AuditKey) -> Result<(), StoreError> {
        let key = key.bytes();
        if let Some(Versioned { revision, .. }) = self.backend().read(&key).await? {
            self.backend().delete(&key, &revision).await?;
        }
        Ok(())
    }

    /// Reads what a key of the audit holds. Returns `None` for the intention of a change that did not take effect.
    async fn entry(&self, key: &[u8], value: &[u8]) -> Result<Option<AuditEntry>, StoreError> {
        let written = Written::from_bytes(value).ok_or_else(corrupt)?;
        let number = AuditKey::number_of(key).ok_or_else(corrupt)?;
        if written.is_certain {
            return Ok(Some(written.entry));
        }
        let Some(record) = written.entry.record() else {
            return Err(corrupt());
        };
        if self.took_effect(&record.id, &number).await? {
            return Ok(Some(written.entry));
        }
        // Between the two reads, the entry may have become certain and its number have left the record.
        let again = self.written(key).await?.filter(|it| it.is_certain);
        Ok(again.map(|it| it.entry))
    }
}

#[async_trait]
impl<B: Backend> AuditStore for CasStore<B> {
    async fn resolve_manually(
        &self,
        observed: &Observation,
        resolution: &Resolution,
        change: &ManualChange,
    ) -> Result<Resolved, StoreError> {
        let id = &observed.id;
        let mut intention: Option<AuditKey> = None;
        let mut rounds = Rounds::default();
        loop {
            let mut read = self.read(id).await?;
            let (now, before) = (read.slot.now.earliest, read.slot.live().cloned());
            let resolved = read.slot.resolve(observed, resolution);
            let (Resolved::Done, Some(before)) = (resolved, before) else {
                if let Some(key) = &intention {
                    self.withdraw(key).await?;
                }
                return Ok(Resolved::Stale);
            };
            let key = match intention {
                Some(key) => key,
                None => {
                    let key = AuditKey::new(now);
                    let written = Written::intention(now, change, resolution, &before);
                    self.insert(&key, &written).await?;
                    *intention.insert(key)
                }
            };
            read.slot.audited.push(key.number);
            if self.write(id, &read).await? {
                break;
            }
            rounds.next().await?;
        }
        // The change has taken effect with its entry. This only saves later readers a read, and a purge repeats it.
        let _ = self.confirm(id).await;
        Ok(Resolved::Done)
    }

    async fn purge_manually(
        &self,
        limit: u32,
        change: &ManualChange,
    ) -> Result<Purged, StoreError> {
        let mut entry = PurgeEntry { change, key: None };
        let purged = self
            .purge_batch(limit, Timestamp::MAX, Some(&mut entry))
            .await?;
        let Some(key) = entry.key else {
            return Ok(purged);
        };
        if purged.is_nothing() {
            self.withdraw(&key).await?;
            return Ok(purged);
        }
        let bytes = key.bytes();
        if let Some(Versioned { value, revision }) = self.backend().read(&bytes).await? {
            let at = Written::from_bytes(&value).ok_or_else(corrupt)?.entry.at;
            let counted = Written::purge(at, change, &purged).to_bytes();
            self.backend()
                .write(&bytes, counted, Some(&revision))
                .await?;
        }
        Ok(purged)
    }

    async fn audit(
        &self,
        filter: &AuditFilter,
        page: &PageRequest,
    ) -> Result<AuditPage, StoreError> {
        // The limit is checked as for a listing of records. The cursor is the key of the last entry.
        let limit = PageRequest {
            after: None,
            ..*page
        }
        .in_id_order()?
        .1;
        let mut after = match &page.after {
            None => Vec::new(),
            Some(cursor) => hex::decode_any(cursor.as_str())
                .filter(|key| AuditKey::number_of(key).is_some())
                .ok_or_else(foreign_cursor)?,
        };
        let mut found = AuditPage {
            entries: Vec::new(),
            unreadable: Vec::new(),
            next: None,
        };
        loop {
            let entries = self.backend().scan(&[AUDIT], &after, SCAN).await?;
            let now = self.time().await?.earliest;
            let is_last = entries.len() < SCAN;
            for entry in entries {
                if found.entries.len() + found.unreadable.len() == limit {
                    found.next = Some(Cursor::new(hex::encode(&after)));
                    return Ok(found);
                }
                let name = hex::encode(entry.key.get(9..).unwrap_or_default());
                let read = self.entry(&entry.key, &entry.value).await;
                let (read, unreadable) = Unreadable::sort([(name, read)])?;
                found.unreadable.extend(unreadable);
                let read = read.into_iter().flatten();
                found
                    .entries
                    .extend(read.filter(|it| filter.matches(it, now)));
                after = entry.key;
            }
            if is_last {
                return Ok(found);
            }
        }
    }
}

fn foreign_cursor() -> StoreError {
    StoreError::new(
        StoreErrorKind::Other,
        "the cursor is not one of this store, list from the beginning",
    )
}
