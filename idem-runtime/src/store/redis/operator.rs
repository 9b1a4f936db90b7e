//! Reads for operators.

use super::layout::Snapshot;
use super::{MAX_CONCURRENT, RedisStore, decode};
use crate::error::{StoreError, StoreErrorKind};
use crate::key::RecordId;
use crate::store::operator::{
    AgeOrder, Count, Counting, Finding, Groups, IndexState, KeptRecord, MigrationPlan,
    OperatorStore, OptionalIndex, Scanned, Stats, StepOfRecord, StepsOfRecord,
};
use crate::store::{Filter, Page, PageRequest, Unreadable};
use async_trait::async_trait;

#[async_trait]
impl OperatorStore for RedisStore {
    async fn steps_of(
        &self,
        id: &RecordId,
        with_payloads: bool,
    ) -> Result<StepsOfRecord, StoreError> {
        match self.snapshot(id).await? {
            Some(snapshot) if snapshot.record(id, None)?.is_some() => {
                steps(&snapshot, with_payloads)
            }
            _ => Ok(StepsOfRecord::default()),
        }
    }

    /// Scans keys of the database, and reads each record among them, a few at a time. SCAN follows the hashes of the keys,
    /// so the first keys of a scan are a sample of all. Exact counting scans all keys; the ids of all records are in memory
    /// meanwhile: 32 bytes a record.
    async fn stats(&self, counting: Counting) -> Result<Stats, StoreError> {
        let mut groups = Groups::default();
        let Counting::Sample(size) = counting else {
            let added = self
                .add_records(&mut groups, &self.ids().await?, None)
                .await?;
            let mut stats = groups.stats(None);
            stats.unreadable = Count::Exactly(added.unreadable);
            return Ok(stats);
        };
        let primaries = self.connection.primaries(self.timeout).await?;
        let size = (size as usize).div_ceil(primaries.len().max(1)).max(1);
        let (mut read, mut unreadable, mut is_sample) = (0, 0.0, false);
        for primary in primaries {
            let (ids, scanned) = self.scan_some(&primary, size).await?;
            is_sample |= scanned.is_some();
            let added = self.add_records(&mut groups, &ids, scanned).await?;
            read += added.read;
            unreadable += added.unreadable as f64 * Groups::weight(scanned);
        }
        let mut stats = groups.stats(is_sample.then_some(read));
        stats.unreadable = match is_sample {
            true => Count::About(unreadable.round() as u64),
            false => Count::Exactly(unreadable as u64),
        };
        Ok(stats)
    }

    async fn findings(&self) -> Vec<Finding> {
        self.examine().await
    }

    async fn migration_plan(&self) -> Result<Option<MigrationPlan>, StoreError> {
        Ok(None)
    }

    async fn apply_migrations(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn index(&self, _: OptionalIndex) -> Result<Option<IndexState>, StoreError> {
        Ok(None)
    }

    async fn create_index(&self, _: OptionalIndex) -> Result<(), StoreError> {
        Ok(())
    }

    async fn list_by_age(
        &self,
        _: &Filter,
        _: AgeOrder,
        _: &PageRequest,
    ) -> Result<Page, StoreError> {
        Err(StoreError::new(
            StoreErrorKind::Other,
            "Redis has no index of ages; list in the order of the store",
        ))
    }

    async fn kept(&self, id: &RecordId) -> Result<Option<KeptRecord>, StoreError> {
        let Some(snapshot) = self.snapshot(id).await? else {
            return Ok(None);
        };
        let Some(attempts) = decode::attempts_of_any(id, &snapshot)? else {
            return Ok(None);
        };
        Ok(Some(KeptRecord {
            attempts,
            steps: steps(&snapshot, true)?,
            recovery_input: None,
        }))
    }
}

fn steps(snapshot: &Snapshot, with_payloads: bool) -> Result<StepsOfRecord, StoreError> {
    let (saved, unreadable) = Unreadable::sort(decode::steps(&snapshot.sections()?))?;
    let mut list: Vec<_> = saved
        .into_iter()
        .map(|step| StepOfRecord {
            name: step.name,
            codec: step.payload.codec.into_owned(),
            size: step.payload.bytes.len() as u64,
            payload: with_payloads.then_some(step.payload.bytes),
        })
        .collect();
    list.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    Ok(StepsOfRecord { list, unreadable })
}

impl RedisStore {
    /// Reads these records, and adds them to the statistics.
    async fn add_records(
        &self,
        groups: &mut Groups,
        ids: &[RecordId],
        of: Option<Scanned>,
    ) -> Result<Added, StoreError> {
        let mut added = Added::default();
        for ids in ids.chunks(MAX_CONCURRENT) {
            let (records, unreadable) = self.read_listed(ids, &Filter::default()).await?;
            for listed in &records {
                groups.add(&listed.record, of);
            }
            added.read += records.len() as u64;
            added.unreadable += unreadable.len() as u64;
        }
        Ok(added)
    }
}

/// Numbers of records that were read for the statistics.
#[derive(Debug, Default)]
struct Added {
    read: u64,
    unreadable: u64,
}
