//! A store of records on a key-value server with revisions, written from `docs/writing-a-store.md` on `idem-store` alone.
//!
//! Each transition reads an entry, applies the rule to it, and writes it back if no other caller has changed it.

mod entry;
mod server;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use idem_store::record::{FencingToken, Observation, Outcome, Owner, Payload};
use idem_store::store::transitions::{self, Purge};
use idem_store::store::{
    ClaimOutcome, ClaimRequest, FencedWrite, Filter, Granted, Page, PageRequest, Purged,
    Resolution, Resolved, SavedStep, StepStore,
};
use idem_store::{Record, RecordId, Store, StoreError, StoreErrorKind, Timestamp};

use entry::{Entry, floor_from_bytes, floor_to_bytes};
use server::{Revision, Server};

/// Maximum number of tries of a transition whose entry is changed by others between its read and its write. Each lost
/// try is the success of another caller, so it only has to exceed the number of concurrent callers of a record.
const ROUNDS: u32 = 1_000;
/// Number of keys that a listing or a purge reads at a time.
const KEYS_AT_A_TIME: usize = 100;

/// Prefix of the keys of records; the id follows.
const RECORDS: &[u8] = b"record/";
/// Key of the highest fencing token of all deleted records.
const FLOOR: &[u8] = b"floor";

/// Store of records on a key-value server.
pub struct RevisionStore {
    server: Server,
}

/// An entry as it was read, and as a transition changes it.
struct Slot {
    entry: Option<Entry>,
    floor: Option<FencingToken>,
    now: Timestamp,
}

impl Slot {
    /// The entry, unless its record has expired.
    fn live(&mut self) -> Option<&mut Entry> {
        self.entry
            .as_mut()
            .filter(|entry| !entry.record.is_expired())
    }

    /// Creates the record of a first claim, in place of an expired one if there is one.
    fn begin(&mut self, claim: &ClaimRequest) -> ClaimOutcome {
        let replaced = self.entry.as_ref().map(|entry| entry.record.fencing_token);
        let record = transitions::begin(claim, self.floor.max(replaced), self.now);
        let granted = Granted::on(&record);
        self.entry = Some(Entry::new(record));
        ClaimOutcome::Granted(granted)
    }
}

impl RevisionStore {
    /// Creates a store on a new server.
    pub fn new() -> Self {
        Self {
            server: Server::start(),
        }
    }

    /// Applies a transition to the entry of a record, and writes the entry if that has changed it. Begins again if
    /// another caller has changed the entry in between.
    async fn apply<T>(
        &self,
        id: &RecordId,
        transition: impl Fn(&mut Slot) -> T + Send + Sync,
    ) -> Result<T, StoreError> {
        let key = [RECORDS, id.as_bytes()].concat();
        for _ in 0..ROUNDS {
            let floor = self.server.read(FLOOR).await;
            let read = self.server.read(&key).await;
            let now = read.time.into();
            let entry = read.value.map(|bytes| Entry::from_bytes(id, &bytes, now));
            let mut slot = Slot {
                entry: entry.transpose()?,
                floor: floor.value.as_deref().map(floor_from_bytes).transpose()?,
                now,
            };
            let before = slot.entry.clone();
            let answer = transition(&mut slot);
            let revisions = (read.revision, floor.revision);
            if slot.entry == before || self.commit(&key, revisions, before, &slot).await {
                return Ok(answer);
            }
        }
        Err(StoreError::new(
            StoreErrorKind::Conflict,
            "the record changed at each try because of concurrent calls, try again",
        ))
    }

    /// An absent entry has no revision: between the read and the write another caller may have created and deleted it.
    /// A commit that creates an entry therefore compares the floor as well, which every deletion may raise.
    async fn commit(
        &self,
        key: &[u8],
        (record, floor): (Revision, Revision),
        before: Option<Entry>,
        slot: &Slot,
    ) -> bool {
        let compared = [(key, record), (FLOOR, floor)];
        match (&slot.entry, before) {
            (Some(entry), Some(_)) => {
                let written = [(key, Some(entry.to_bytes()))];
                self.server.commit(&compared[..1], &written).await
            }
            (Some(entry), None) => {
                let written = [(key, Some(entry.to_bytes()))];
                self.server.commit(&compared, &written).await
            }
            (None, deleted) => {
                let deleted = deleted.map(|entry| entry.record.fencing_token);
                let raised = slot.floor.max(deleted).map(floor_to_bytes);
                let written = [(FLOOR, raised), (key, None)];
                self.server.commit(&compared, &written).await
            }
        }
    }

    /// Applies a write that only an owner may make.
    async fn write(
        &self,
        owner: &Owner,
        transition: impl Fn(&mut Record) -> FencedWrite + Send + Sync,
    ) -> Result<FencedWrite, StoreError> {
        let write = |slot: &mut Slot| match slot.live() {
            Some(entry) => transition(&mut entry.record),
            None => FencedWrite::Fenced,
        };
        self.apply(&owner.id, write).await
    }

    /// Reads the ids of some records, in order, that follow this id.
    async fn ids(&self, after: Option<&RecordId>) -> Result<Vec<RecordId>, StoreError> {
        let after = after.map_or(&[][..], |id| id.as_bytes());
        let after = [RECORDS, after].concat();
        let keys = self.server.keys(RECORDS, &after, KEYS_AT_A_TIME).await;
        let id = |key: &Vec<u8>| {
            key.strip_prefix(RECORDS)?
                .try_into()
                .ok()
                .map(RecordId::from_bytes)
        };
        let ids: Option<Vec<_>> = keys.iter().map(id).collect();
        ids.ok_or_else(|| {
            StoreError::new(
                StoreErrorKind::Corrupt,
                "a key is none that this store writes; find out who else writes to this server",
            )
        })
    }
}

impl Default for RevisionStore {
    fn default() -> Self {
        Self::new()
    }
}

/// Shows a count, and never a key or a stored value.
impl fmt::Debug for RevisionStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RevisionStore")
            .field("entries", &self.server.len())
            .finish()
    }
}

#[async_trait]
impl Store for RevisionStore {
    async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        self.apply(&claim.id, |slot| match slot.live() {
            Some(entry) => transitions::claim(&mut entry.record, claim),
            None => slot.begin(claim),
        })
        .await
    }

    async fn take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError> {
        self.apply(&claim.id, |slot| match slot.live() {
            Some(entry) => transitions::take_over(&mut entry.record, observed, claim),
            None => slot.begin(claim),
        })
        .await
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<FencedWrite, StoreError> {
        self.write(owner, |record| transitions::renew(record, owner, lease))
            .await
    }

    async fn complete(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError> {
        self.write(owner, |record| {
            transitions::complete(record, owner, outcome)
        })
        .await
    }

    async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        self.write(owner, |record| transitions::release(record, owner))
            .await
    }

    async fn interrupt(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        self.write(owner, |record| transitions::interrupt(record, owner))
            .await
    }

    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        self.apply(&observed.id, |slot| {
            let record = slot.live().map(|entry| &mut entry.record);
            let resolved = record.map_or(Resolved::Stale, |it| {
                transitions::resolve(it, observed, resolution)
            });
            if resolved == Resolved::Done && *resolution == Resolution::Erase {
                slot.entry = None;
            }
            resolved
        })
        .await
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        self.apply(id, |slot| slot.live().map(|entry| entry.record.clone()))
            .await
    }

    async fn list(&self, filter: &Filter, page: &PageRequest) -> Result<Page, StoreError> {
        let (mut after, limit) = page.in_id_order()?;
        let mut found = Vec::new();
        // One more record than requested shows that there is another page.
        while found.len() <= limit {
            let ids = self.ids(after.as_ref()).await?;
            let Some(last) = ids.last() else { break };
            after = Some(*last);
            for id in &ids {
                found.extend(self.get(id).await?.filter(|record| filter.matches(record)));
            }
        }
        Ok(Page::in_id_order(found, filter, limit))
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(self.server.read(FLOOR).await.time.into())
    }

    /// Each write checks the record again: a round that finds another revision purges what it finds then.
    async fn purge(&self, limit: u32, as_of: Timestamp) -> Result<Purged, StoreError> {
        let mut purged = Purged::default();
        let mut after = None;
        loop {
            let ids = self.ids(after.as_ref()).await?;
            let Some(last) = ids.last() else {
                return Ok(purged);
            };
            after = Some(*last);
            for id in &ids {
                if purged.removed + purged.interrupted == u64::from(limit) {
                    purged.more = true;
                    return Ok(purged);
                }
                let purge = |slot: &mut Slot| {
                    let record = &mut slot.entry.as_mut()?.record;
                    record.read_at = record.read_at.min(as_of);
                    let purge = transitions::purge(record);
                    let record = record.clone();
                    if purge == Purge::Expired {
                        slot.entry = None;
                    }
                    Some((purge, record))
                };
                if let Some((purge, record)) = self.apply(id, purge).await? {
                    purged.count(purge, &record);
                }
            }
        }
    }

    fn steps(&self) -> Option<&dyn StepStore> {
        Some(self)
    }
}

#[async_trait]
impl StepStore for RevisionStore {
    async fn save_step(
        &self,
        owner: &Owner,
        name: &str,
        payload: &Payload,
    ) -> Result<FencedWrite, StoreError> {
        self.apply(&owner.id, |slot| {
            let Some(entry) = slot.live().filter(|it| owner.may_write(&it.record)) else {
                return FencedWrite::Fenced;
            };
            // A saved step is never overwritten.
            if !entry.steps.contains_key(name) {
                entry.steps.insert(name.to_owned(), payload.clone());
            }
            FencedWrite::Applied
        })
        .await
    }

    async fn saved_steps(&self, owner: &Owner) -> Result<Option<Vec<SavedStep>>, StoreError> {
        self.apply(&owner.id, |slot| {
            let entry = slot.live().filter(|it| owner.may_write(&it.record))?;
            let steps = entry.steps.iter().map(|(name, payload)| SavedStep {
                name: name.clone(),
                payload: payload.clone(),
            });
            Some(steps.collect())
        })
        .await
    }
}
