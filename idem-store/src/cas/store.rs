//! The store, its steps and its attempts.

use std::time::Duration;

use async_trait::async_trait;

use super::entry::Slot;
use super::{Backend, CasStore, RECORDS, SCAN, SCANS, Versioned, corrupt, record_key};
use crate::error::StoreError;
use crate::key::RecordId;
use crate::record::{
    FencingToken, Observation, Outcome, Owner, OwnerLabel, Payload, Record, Timestamp,
};
use crate::store::transitions;
use crate::store::{
    AttemptStore, Attempts, AuditStore, ClaimOutcome, ClaimRequest, Cursor, FencedWrite, Filter,
    ForgettingStore, ListedRecord, Page, PageRequest, Purged, RecoveryStore, Resolution, Resolved,
    SavedStep, StepStore, Store, Unreadable,
};

/// Page of a listing: slots with records, items that cannot be read, and the position of the next page.
struct Found {
    slots: Vec<(Record, Slot)>,
    unreadable: Vec<Unreadable>,
    next: Option<Cursor>,
}

impl<B: Backend> CasStore<B> {
    /// Reads a page of matching records in the order of their ids.
    async fn find(&self, filter: &Filter, page: &PageRequest) -> Result<Found, StoreError> {
        let (after, limit) = page.in_id_order()?;
        let mut found = Found {
            slots: Vec::new(),
            unreadable: Vec::new(),
            next: None,
        };
        if let Some(id) = filter.id {
            if after.is_none_or(|after| id > after) {
                let slot = self.read(&id).await?.slot;
                found.slots.extend(selected(slot, filter));
            }
            return Ok(found);
        }
        let mut after = after.map_or_else(Vec::new, |id| record_key(&id));
        for _ in 0..SCANS {
            let entries = self.backend().scan(&[RECORDS], &after, SCAN).await?;
            let now = self.time().await?;
            let is_last = entries.len() < SCAN;
            for entry in entries {
                let id = record_id(&entry.key)?;
                if found.slots.len() + found.unreadable.len() == limit {
                    let last = record_id(&after)?;
                    found.next = Some(Cursor::after(&last));
                    return Ok(found);
                }
                let read = Slot::from_bytes(&id, &entry.value, now);
                let (slots, unreadable) = Unreadable::sort([(id.to_string(), read)])?;
                found.unreadable.extend(unreadable);
                found
                    .slots
                    .extend(slots.into_iter().filter_map(|it| selected(it, filter)));
                after = entry.key;
            }
            if is_last {
                return Ok(found);
            }
        }
        // A page of rare records is short, so that reading it takes no longer than any other call.
        found.next = Some(Cursor::after(&record_id(&after)?));
        Ok(found)
    }
}

/// The record of a slot, if the filter selects it.
fn selected(slot: Slot, filter: &Filter) -> Option<(Record, Slot)> {
    let record = match filter.expired {
        true => slot.record.as_ref(),
        false => slot.live(),
    };
    let record = record.filter(|it| filter.matches(it) && filter.matches_owner(slot.owner()))?;
    Some((record.clone(), slot))
}

fn record_id(key: &[u8]) -> Result<RecordId, StoreError> {
    let id = key
        .strip_prefix(&[RECORDS])
        .and_then(|id| id.try_into().ok());
    id.map(RecordId::from_bytes).ok_or_else(corrupt)
}

#[async_trait]
impl<B: Backend> Store for CasStore<B> {
    async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        self.apply(&claim.id, |slot| slot.claim(claim)).await
    }

    async fn take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError> {
        self.apply(&claim.id, |slot| slot.take_over(observed, claim))
            .await
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<FencedWrite, StoreError> {
        let renew = |slot: &mut Slot| slot.write(|at| transitions::renew(at, owner, lease));
        self.apply(&owner.id, renew).await
    }

    async fn complete(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError> {
        self.apply(&owner.id, |slot| slot.complete(owner, outcome))
            .await
    }

    async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        let release = |slot: &mut Slot| slot.write(|at| transitions::release(at, owner));
        self.apply(&owner.id, release).await
    }

    async fn interrupt(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        let interrupt = |slot: &mut Slot| slot.write(|at| transitions::interrupt(at, owner));
        self.apply(&owner.id, interrupt).await
    }

    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        let resolve = |slot: &mut Slot| slot.resolve(observed, resolution);
        self.apply(&observed.id, resolve).await
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        Ok(self.read(id).await?.slot.live().cloned())
    }

    async fn list(&self, filter: &Filter, page: &PageRequest) -> Result<Page, StoreError> {
        let found = self.find(filter, page).await?;
        let records = found.slots.into_iter().map(|(record, slot)| ListedRecord {
            owner: slot.owner().cloned(),
            ..ListedRecord::new(record, filter)
        });
        Ok(Page {
            records: records.collect(),
            unreadable: found.unreadable,
            next: found.next,
        })
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        // The read lets a backend learn the time from its answer.
        let _: Option<Versioned<B::Revision>> = self.backend().read(&[RECORDS]).await?;
        Ok(self.time().await?.earliest)
    }

    async fn purge(&self, limit: u32, as_of: Timestamp) -> Result<Purged, StoreError> {
        self.purge_batch(limit, as_of, None).await
    }

    fn time_uncertainty(&self) -> Duration {
        let widest = self.widest.load(std::sync::atomic::Ordering::Relaxed);
        Duration::from_micros(widest.unsigned_abs())
    }

    fn attempts(&self) -> Option<&dyn AttemptStore> {
        Some(self)
    }

    fn audit(&self) -> Option<&dyn AuditStore> {
        Some(self)
    }

    fn forgetting(&self) -> Option<&dyn ForgettingStore> {
        Some(self)
    }

    fn recovery(&self) -> Option<&dyn RecoveryStore> {
        Some(self)
    }

    fn steps(&self) -> Option<&dyn StepStore> {
        Some(self)
    }
}

#[async_trait]
impl<B: Backend> ForgettingStore for CasStore<B> {
    async fn complete_for(
        &self,
        owner: &Owner,
        outcome: &Outcome,
        payload_for: Duration,
    ) -> Result<FencedWrite, StoreError> {
        let complete = |slot: &mut Slot| slot.complete_for(owner, outcome, payload_for);
        self.apply(&owner.id, complete).await
    }
}

#[async_trait]
impl<B: Backend> StepStore for CasStore<B> {
    async fn save_step(
        &self,
        owner: &Owner,
        name: &str,
        payload: &Payload,
    ) -> Result<FencedWrite, StoreError> {
        let save = |slot: &mut Slot| slot.save_step(owner, name, payload);
        self.apply(&owner.id, save).await
    }

    async fn saved_steps(&self, owner: &Owner) -> Result<Option<Vec<SavedStep>>, StoreError> {
        Ok(self.read(&owner.id).await?.slot.saved_steps(owner))
    }
}

#[async_trait]
impl<B: Backend> AttemptStore for CasStore<B> {
    async fn attempts(&self, id: &RecordId) -> Result<Option<Attempts>, StoreError> {
        Ok(self.read(id).await?.slot.attempts())
    }

    async fn note_replay(
        &self,
        id: &RecordId,
        fencing_token: FencingToken,
        by: Option<&OwnerLabel>,
    ) -> Result<bool, StoreError> {
        let note = |slot: &mut Slot| slot.note_replay(fencing_token, by);
        self.apply(id, note).await
    }
}
