//! Purges: expired records, old tombstones, and what manual changes have left behind.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::audit_entry::{self, AuditKey, Written};
use super::{Backend, CasStore, Entry, RECORDS, SCAN, SCANS, record_key};
use crate::error::{StoreError, StoreErrorKind};
use crate::key::RecordId;
use crate::record::Timestamp;
use crate::store::{ManualChange, Purged};

use super::entry::Slot;

/// How long a tombstone is kept after the time of its fencing token: longer than the backend's clock may go back, and longer
/// than a write may be under way.
const TOMBSTONE: Duration = Duration::from_secs(3600);

/// Entry of the audit on a manual purge, which is written when the first record is due.
pub(super) struct PurgeEntry<'a> {
    pub(super) change: &'a ManualChange,
    pub(super) key: Option<AuditKey>,
}

/// Key of the last entry that a batch has looked at; empty at the begin. The next batch goes on there, also after this one
/// failed or was dropped. Concurrent batches do not see it before.
struct Place<'a> {
    after: Vec<u8>,
    kept: &'a Mutex<Option<Vec<u8>>>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let after = std::mem::take(&mut self.after);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        *kept = Some(after).filter(|key| !key.is_empty());
    }
}

impl<B: Backend> CasStore<B> {
    /// Purges one batch. It goes on where the last one stopped, so that batches do not read the same records. A batch that
    /// comes to the last record ends a round, and the next one begins with the first record.
    pub(super) async fn purge_batch(
        &self,
        limit: u32,
        as_of: Timestamp,
        mut entry: Option<&mut PurgeEntry<'_>>,
    ) -> Result<Purged, StoreError> {
        let mut purged = Purged::default();
        let mut place = Place {
            after: self.purged_until().clone().unwrap_or_default(),
            kept: &self.purged_until,
        };
        for _ in 0..SCANS {
            let after = place.after.clone();
            let entries = self.backend().scan(&[RECORDS], &after, SCAN).await?;
            let is_last = entries.len() < SCAN;
            for found in entries {
                if purged.removed + purged.interrupted >= u64::from(limit) {
                    purged.more = true;
                    return Ok(purged);
                }
                place.after.clone_from(&found.key);
                // An entry that cannot be read is left to operators, who see it in a listing.
                match self.purge_entry(found, as_of, &mut entry).await {
                    Ok(one) => {
                        purged.removed += one.removed;
                        purged.abandoned += one.abandoned;
                        purged.interrupted += one.interrupted;
                    }
                    Err(error) if error.kind() == StoreErrorKind::Corrupt => {}
                    Err(error) => return Err(error),
                }
            }
            if is_last {
                place.after.clear();
                return Ok(purged);
            }
        }
        purged.more = true;
        Ok(purged)
    }

    /// Purges one record, if it is due. A round that finds another revision purges what it finds then.
    async fn purge_entry(
        &self,
        found: Entry<B::Revision>,
        as_of: Timestamp,
        entry: &mut Option<&mut PurgeEntry<'_>>,
    ) -> Result<Purged, StoreError> {
        let mut purged = Purged::default();
        let Some(id) = found.key.strip_prefix(&[RECORDS]) else {
            return Ok(purged);
        };
        let Ok(id) = id.try_into().map(RecordId::from_bytes) else {
            return Ok(purged);
        };
        let now = self.time().await?;
        let mut slot = Slot::from_bytes(&id, &found.value, now)?;
        if let (Some(token), None) = (slot.tombstone, &slot.record)
            && slot.audited.is_empty()
            && Timestamp::from_micros(token.number()).after(TOMBSTONE) < now.earliest.min(as_of)
        {
            self.backend()
                .delete(&record_key(&id), &found.revision)
                .await?;
            return Ok(purged);
        }
        if !slot.audited.is_empty() {
            self.confirm(&id).await?;
        }
        if slot.purge(as_of).is_none() {
            return Ok(purged);
        }
        // The entry of the audit exists before the first change can be seen.
        if let Some(entry) = entry.as_deref_mut()
            && entry.key.is_none()
        {
            let key = AuditKey::new(now.earliest);
            let written = Written::purge(now.earliest, entry.change, &purged);
            self.insert(&key, &written).await?;
            entry.key = Some(key);
        }
        if let Some((purge, record)) = self.apply(&id, |slot| slot.purge(as_of)).await? {
            purged.count(purge, &record);
        }
        Ok(purged)
    }

    /// Writes an entry of the audit that is not there.
    pub(super) async fn insert(&self, key: &AuditKey, entry: &Written) -> Result<(), StoreError> {
        let (key, bytes) = (key.bytes(), entry.to_bytes());
        match self.backend().write(&key, bytes, None).await? {
            true => Ok(()),
            false => Err(audit_entry::taken()),
        }
    }
}
