//! Purges: expired records, old tombstones, and what manual changes have left behind.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::audit_entry::{self, AuditKey, Written};
use super::{Backend, CasStore, Entry, RECORDS, SCAN, SCANS, record_key};
use crate::clock::Now;
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

/// How far the purges of a store have come: the lap through all records, and the key of the last entry that was looked at,
/// which is empty at the begin of a lap.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    lap: u64,
    after: Vec<u8>,
}

/// The place that a batch has come to. The next batch begins there, also after this one failed or was dropped. A slower
/// concurrent batch never moves the place back: otherwise, concurrent purges would look at the same records again and
/// again, and might never come to the last one.
pub(super) struct Progress<'a> {
    place: Place,
    kept: &'a Mutex<Place>,
}

impl<'a> Progress<'a> {
    pub(super) fn new(kept: &'a Mutex<Place>) -> Self {
        let place = kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Self { place, kept }
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    pub(super) fn moves_to(&mut self, key: &[u8]) {
        self.place.after = key.to_vec();
    }

    pub(super) fn ends_lap(&mut self) {
        self.place.lap += 1;
        self.place.after.clear();
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if *kept < self.place {
            *kept = std::mem::take(&mut self.place);
        }
    }
}

impl<B: Backend> CasStore<B> {
    /// Purges one batch. It begins where the last one stopped, so that batches do not read the same records. A batch that
    /// comes to the last record continues with the first one, up to where it began. If there are few records, it has then
    /// looked at all of them. Otherwise it has ended a lap, and the next batch begins another.
    pub(super) async fn purge_batch(
        &self,
        limit: u32,
        as_of: Timestamp,
        mut entry: Option<&mut PurgeEntry<'_>>,
    ) -> Result<Purged, StoreError> {
        let mut purged = Purged::default();
        let mut progress = Progress::new(&self.purged_until);
        let began = progress.place().after.clone();
        let mut after = began.clone();
        let mut has_ended_a_lap = false;
        for _ in 0..SCANS {
            let entries = self.backend().scan(&[RECORDS], &after, SCAN).await?;
            // One time for all of these entries. A transition reads the time again before it writes.
            let now = self.time().await?;
            let is_last = entries.len() < SCAN;
            for found in entries {
                if has_ended_a_lap && found.key > began {
                    return Ok(purged);
                }
                if purged.changed() >= u64::from(limit) {
                    purged.more = true;
                    return Ok(purged);
                }
                after.clone_from(&found.key);
                if !has_ended_a_lap {
                    progress.moves_to(&found.key);
                }
                // An entry that cannot be read is left to operators, who see it in a listing.
                match self.purge_entry(found, now, as_of, &mut entry).await {
                    Ok(one) => {
                        purged.add(&one);
                    }
                    Err(error) if error.kind() == StoreErrorKind::Corrupt => {}
                    Err(error) => return Err(error),
                }
            }
            if is_last && has_ended_a_lap {
                return Ok(purged);
            }
            if is_last {
                has_ended_a_lap = true;
                progress.ends_lap();
                if began.is_empty() {
                    return Ok(purged);
                }
                after.clear();
            }
        }
        purged.more = !has_ended_a_lap;
        Ok(purged)
    }

    /// Purges one record, if it is due. A round that finds another revision purges what it finds then.
    async fn purge_entry(
        &self,
        found: Entry<B::Revision>,
        now: Now,
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
