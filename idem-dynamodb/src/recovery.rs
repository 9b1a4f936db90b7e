//! Recovery inputs, in the heads of their records. The index `recovery` has their due times.

use std::time::Duration;

use async_trait::async_trait;
use idem_store::clock::Now;
use idem_store::record::{Owner, Payload};
use idem_store::store::{FencedWrite, RecoveryInput, RecoveryStore, Resolved};
use idem_store::{Operation, RecordId, StoreError, StoreErrorKind};

use crate::DynamoDbStore;
use crate::error::failed;
use crate::item::{Entry, Head, Input, Item, Parts, RECOVERY, Stored, id_of, number, text};
use crate::request::{LARGEST_PAYLOAD, Rounds, Written, send};

/// Returns true if the input of this record is as it was read.
fn is_as_read(entry: &Entry, read: &RecoveryInput) -> bool {
    entry.record.first_claimed_at == read.first_claimed_at
        && entry
            .input
            .as_ref()
            .is_some_and(|it| it.recoveries == read.recoveries && it.due_at == read.due_at)
}

fn parts_of(input: Option<&Input>) -> Option<Parts> {
    input.and_then(|it| it.payload.parts()).cloned()
}

impl DynamoDbStore {
    /// Changes the recovery input of a record, which may have expired. Returns `None` if there is no record.
    ///
    /// The condition on the revision excludes all others: whichever change comes second reads again.
    async fn change_input<T>(
        &self,
        id: &RecordId,
        change: impl Fn(&mut Entry, Now) -> T + Send + Sync,
    ) -> Result<Option<T>, StoreError> {
        let mut rounds = Rounds::default();
        loop {
            let Some(item) = self.item(id).await? else {
                return Ok(None);
            };
            let now = self.time().await?;
            let mut head = Head::read(id, &item, now.earliest)?;
            let revision = head.revision;
            let Some(entry) = &mut head.entry else {
                return Ok(None);
            };
            let before = entry.input.clone();
            let answer = change(entry, now);
            if entry.input == before {
                return Ok(Some(answer));
            }
            let update = self.updating(entry, revision, now);
            if let Written::Done(_) = self.update(update).await? {
                let parts = parts_of(before.as_ref());
                if parts != parts_of(entry.input.as_ref()) {
                    self.drop_parts(id, parts).await;
                }
                return Ok(Some(answer));
            }
            rounds.next().await?;
        }
    }

    async fn postponed(
        &self,
        read: &RecoveryInput,
        by: Duration,
        begins: u32,
    ) -> Result<Resolved, StoreError> {
        let postponed = self.change_input(&read.id, |entry, now| {
            if !is_as_read(entry, read) {
                return Resolved::Stale;
            }
            if let Some(input) = &mut entry.input {
                // A time that differs from the one before shows other callers that they were late.
                let least = input.due_at.after(Duration::from_micros(1));
                input.due_at = now.latest.after(by).max(least);
                input.recoveries = input.recoveries.saturating_add(begins);
            }
            Resolved::Done
        });
        Ok(postponed.await?.unwrap_or(Resolved::Stale))
    }

    /// Reads the input of a record, if it is due. The input of an expired record is deleted, because DynamoDB may delete
    /// the record days later.
    async fn due_input(
        &self,
        item: &Item,
        operation: &Operation,
    ) -> Result<Option<RecoveryInput>, StoreError> {
        let id = id_of(item)?;
        let now = self.time().await?.earliest;
        let head = Head::read(&id, item, now)?;
        let Some(entry) = &head.entry else {
            return Ok(None);
        };
        let Some(input) = &entry.input else {
            return Ok(None);
        };
        if entry.record.is_expired() {
            let first_claimed_at = entry.record.first_claimed_at;
            let deleted = self.change_input(&id, |entry, _| {
                if entry.record.is_expired() && entry.record.first_claimed_at == first_claimed_at {
                    entry.input = None;
                }
            });
            deleted.await?;
            return Ok(None);
        }
        if input.due_at > now || entry.record.identity.operation != *operation {
            return Ok(None);
        }
        // Without its parts, the input was replaced or forgotten since the head was read.
        let payload = self.payload(&id, &input.payload).await?;
        Ok(payload.map(|payload| RecoveryInput {
            id,
            first_claimed_at: entry.record.first_claimed_at,
            payload,
            recoveries: input.recoveries,
            due_at: input.due_at,
        }))
    }
}

#[async_trait]
impl RecoveryStore for DynamoDbStore {
    async fn save_input(
        &self,
        owner: &Owner,
        input: &Payload,
        lease: Duration,
    ) -> Result<FencedWrite, StoreError> {
        let stored = self.store(&owner.id, input, LARGEST_PAYLOAD, None).await?;
        let saved = self.change_input(&owner.id, |entry, now| {
            if entry.record.is_expired() || !owner.may_write(&entry.record) {
                return FencedWrite::Fenced;
            }
            let due_at = now.latest.after(lease);
            let before = entry.input.as_ref();
            entry.input = Some(Input {
                payload: stored.clone(),
                recoveries: before.map_or(0, |it| it.recoveries),
                due_at: before.map_or(due_at, |it| it.due_at.max(due_at)),
            });
            FencedWrite::Applied
        });
        let saved = saved.await?.unwrap_or(FencedWrite::Fenced);
        if let (FencedWrite::Fenced, Stored::InParts(parts)) = (saved, stored) {
            self.drop_parts(&owner.id, [parts]).await;
        }
        Ok(saved)
    }

    async fn due(
        &self,
        operation: &Operation,
        limit: u32,
    ) -> Result<Vec<RecoveryInput>, StoreError> {
        let mut found: Vec<RecoveryInput> = Vec::new();
        let mut start = None;
        loop {
            let now = self.time().await?.earliest;
            let query = self.client.query().table_name(&self.table);
            let query = query
                .index_name(RECOVERY)
                .limit(50)
                .key_condition_expression("ro = :operation AND rd <= :now")
                .expression_attribute_values(":operation", text(operation.as_str()))
                .expression_attribute_values(":now", number(now.as_micros()))
                .set_exclusive_start_key(start.take());
            let output = send!(self, query).map_err(|error| self.note(failed(&error)))?;
            let ids: Result<Vec<_>, _> =
                output.items.unwrap_or_default().iter().map(id_of).collect();
            // The index may be older than the heads.
            for item in self.items(&ids?).await? {
                match self.due_input(&item, operation).await {
                    Ok(input) => found.extend(input),
                    // An operator sees it in a listing.
                    Err(error) if error.kind() == StoreErrorKind::Corrupt => {}
                    Err(error) => return Err(error),
                }
            }
            start = output.last_evaluated_key;
            if found.len() >= limit as usize || start.is_none() {
                found.sort_by_key(|it| it.due_at);
                found.truncate(limit as usize);
                return Ok(found);
            }
        }
    }

    async fn begin_recovery(
        &self,
        input: &RecoveryInput,
        by: Duration,
    ) -> Result<Resolved, StoreError> {
        self.postponed(input, by, 1).await
    }

    async fn postpone(&self, input: &RecoveryInput, by: Duration) -> Result<Resolved, StoreError> {
        self.postponed(input, by, 0).await
    }

    async fn forget(&self, input: &RecoveryInput) -> Result<Resolved, StoreError> {
        let forgotten = self.change_input(&input.id, |entry, _| {
            if !is_as_read(entry, input) {
                return Resolved::Stale;
            }
            entry.input = None;
            Resolved::Done
        });
        Ok(forgotten.await?.unwrap_or(Resolved::Stale))
    }
}
