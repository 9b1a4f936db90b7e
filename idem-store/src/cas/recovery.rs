//! Recovery inputs.
//!
//! The input and its due time are in the entry of the record. A hint of each due time has a key of its own, in the order of
//! operations and times: `d`, the hash of the operation's name, the time, the id. It is written before the record, so that
//! every due time has one, and compared with the record when it is read.

use std::time::Duration;

use async_trait::async_trait;

use super::entry::{Input, Slot};
use super::{Backend, CasStore, DUE, Rounds, SCAN, Versioned};
use crate::error::{StoreError, StoreErrorKind};
use crate::key::{Key, Operation, RecordId};
use crate::record::{Owner, Payload, Record, Timestamp};
use crate::store::{FencedWrite, RecoveryInput, RecoveryStore, Resolved};

/// How long a hint is kept that its record contradicts: longer than the write of the record may be under way.
const STALE_HINT: Duration = Duration::from_secs(3600);

/// Prefix of the hints of an operation: names of 255 bytes would not fit into a key.
fn prefix(operation: &Operation) -> Vec<u8> {
    let mut prefix = vec![DUE];
    prefix.extend_from_slice(Key::derive([operation.as_str()]).as_str().as_bytes());
    prefix.truncate(1 + 32);
    prefix
}

fn hint(operation: &Operation, due_at: Timestamp, id: &RecordId) -> Vec<u8> {
    let mut key = prefix(operation);
    key.extend_from_slice(&due_at.as_micros().to_be_bytes());
    key.extend_from_slice(id.as_bytes());
    key
}

/// Due time and record of a hint.
fn read_hint(key: &[u8]) -> Option<(Timestamp, RecordId)> {
    let (due_at, id) = key.get(33..)?.split_first_chunk()?;
    let due_at = Timestamp::from_micros(i64::from_be_bytes(*due_at));
    Some((due_at, RecordId::from_bytes(id.try_into().ok()?)))
}

/// The input of a record as callers see it.
fn input_of(record: &Record, input: &Input) -> RecoveryInput {
    RecoveryInput {
        id: record.id,
        first_claimed_at: record.first_claimed_at,
        payload: input.payload.clone(),
        recoveries: input.recoveries,
        due_at: input.due_at,
    }
}

/// The record of this input, if the input is as it was read.
fn as_read<'a>(slot: &'a Slot, read: &RecoveryInput) -> Option<(&'a Record, &'a Input)> {
    let (record, input) = (slot.record.as_ref()?, slot.input.as_ref()?);
    let is_same = record.first_claimed_at == read.first_claimed_at
        && input.recoveries == read.recoveries
        && input.due_at == read.due_at;
    is_same.then_some((record, input))
}

impl<B: Backend> CasStore<B> {
    /// Applies a change of a recovery input. The hint of its new due time is written first, and that of the old one is
    /// deleted afterwards.
    async fn change_input<T>(
        &self,
        id: &RecordId,
        change: impl Fn(&mut Slot) -> T + Send + Sync,
    ) -> Result<T, StoreError> {
        let mut rounds = Rounds::default();
        loop {
            let mut read = self.read(id).await?;
            let operation =
                |slot: &Slot| slot.record.as_ref().map(|it| it.identity.operation.clone());
            let due = |slot: &Slot| slot.input.as_ref().map(|it| it.due_at);
            let before = operation(&read.slot).zip(due(&read.slot));
            let answer = change(&mut read.slot);
            let after = operation(&read.slot).zip(due(&read.slot));
            if after != before
                && let Some((operation, due_at)) = &after
            {
                // It may be there: an earlier try, or an earlier generation, wrote the same.
                let key = hint(operation, *due_at, id);
                self.backend().write(&key, vec![b'.'], None).await?;
            }
            if self.write(id, &read).await? {
                if after != before
                    && let Some((operation, due_at)) = &before
                {
                    self.drop_hint(&hint(operation, *due_at, id)).await?;
                }
                return Ok(answer);
            }
            rounds.next().await?;
        }
    }

    async fn drop_hint(&self, key: &[u8]) -> Result<(), StoreError> {
        if let Some(Versioned { revision, .. }) = self.backend().read(key).await? {
            self.backend().delete(key, &revision).await?;
        }
        Ok(())
    }

    async fn postponed(
        &self,
        read: &RecoveryInput,
        by: Duration,
        begins: u32,
    ) -> Result<Resolved, StoreError> {
        self.change_input(&read.id, |slot| {
            if as_read(slot, read).is_none() {
                return Resolved::Stale;
            }
            let latest = slot.now.latest;
            if let Some(input) = &mut slot.input {
                // A time that differs from the one before shows other callers that they were late.
                input.due_at = latest
                    .after(by)
                    .max(input.due_at.after(Duration::from_micros(1)));
                input.recoveries = input.recoveries.saturating_add(begins);
            }
            Resolved::Done
        })
        .await
    }
}

#[async_trait]
impl<B: Backend> RecoveryStore for CasStore<B> {
    async fn save_input(
        &self,
        owner: &Owner,
        input: &Payload,
        lease: Duration,
    ) -> Result<FencedWrite, StoreError> {
        self.change_input(&owner.id, |slot| {
            let due_at = slot.now.latest.after(lease);
            slot.save_input(owner, input, due_at)
        })
        .await
    }

    async fn due(
        &self,
        operation: &Operation,
        limit: u32,
    ) -> Result<Vec<RecoveryInput>, StoreError> {
        let (prefix, limit) = (prefix(operation), limit as usize);
        let (mut found, mut after) = (Vec::new(), Vec::new());
        loop {
            let hints = self.backend().scan(&prefix, &after, SCAN).await?;
            let now = self.time().await?.earliest;
            let is_last = hints.len() < SCAN;
            for entry in hints {
                let hint = read_hint(&entry.key);
                let Some((due_at, id)) = hint.filter(|(due_at, _)| *due_at <= now) else {
                    return Ok(found);
                };
                if found.len() == limit {
                    return Ok(found);
                }
                let slot = match self.read(&id).await {
                    Ok(read) => read.slot,
                    // An operator sees it in a listing.
                    Err(error) if error.kind() == StoreErrorKind::Corrupt => continue,
                    Err(error) => return Err(error),
                };
                let input = slot.record.as_ref().zip(slot.input.as_ref());
                let input = input.filter(|(record, input)| {
                    input.due_at == due_at && record.identity.operation == *operation
                });
                match input {
                    Some((record, input)) => found.push(input_of(record, input)),
                    None if due_at.after(STALE_HINT) < now => {
                        self.backend().delete(&entry.key, &entry.revision).await?;
                    }
                    None => {}
                }
                after = entry.key;
            }
            if is_last {
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
        self.change_input(&input.id, |slot| {
            if as_read(slot, input).is_none() {
                return Resolved::Stale;
            }
            slot.input = None;
            Resolved::Done
        })
        .await
    }
}
