//! Reads for operators.

use async_trait::async_trait;
use redis::cmd;

use super::errors::unreadable;
use super::scripts::{self, ScriptCall};
use super::{MAX_CONCURRENT, RedisStore, decode};
use crate::error::StoreError;
use crate::key::RecordId;
use crate::record::Timestamp;
use crate::store::operator::{
    Counting, Finding, Groups, MigrationPlan, OperatorStore, Scanned, Stats, StepOfRecord,
    StuckIndex,
};

#[async_trait]
impl OperatorStore for RedisStore {
    async fn steps_of(
        &self,
        id: &RecordId,
        with_payloads: bool,
    ) -> Result<Vec<StepOfRecord>, StoreError> {
        let key = self.key(id);
        let call = ScriptCall::new(&scripts::STEPS_OF_RECORD, &key);
        let answer = self.connection.run(&call, self.timeout).await?;
        let saved = decode::saved_steps(answer)?.unwrap_or_default();
        let mut steps: Vec<_> = saved
            .into_iter()
            .map(|step| StepOfRecord {
                name: step.name,
                codec: step.payload.codec.into_owned(),
                size: step.payload.bytes.len() as u64,
                payload: with_payloads.then_some(step.payload.bytes),
            })
            .collect();
        steps.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(steps)
    }

    /// Scans keys of the database, and reads each record among them, a few at a time. SCAN follows the hashes of the keys,
    /// so the first keys of a scan are a sample of all. Exact counting scans all keys; the ids of all records are in memory
    /// meanwhile: 32 bytes a record.
    async fn stats(&self, counting: Counting) -> Result<Stats, StoreError> {
        let mut groups = Groups::default();
        let Counting::Sample(size) = counting else {
            self.add_records(&mut groups, &self.ids().await?, None)
                .await?;
            return Ok(groups.stats(None));
        };
        let primaries = self.connection.primaries(self.timeout).await?;
        let size = (size as usize).div_ceil(primaries.len().max(1)).max(1);
        let (mut read, mut is_sample) = (0, false);
        for primary in primaries {
            let (ids, scanned) = self.scan_some(&primary, size).await?;
            is_sample |= scanned.is_some();
            read += self.add_records(&mut groups, &ids, scanned).await?;
        }
        Ok(groups.stats(is_sample.then_some(read)))
    }

    async fn clock(&self) -> Result<Timestamp, StoreError> {
        let primaries = self.connection.primaries(self.timeout).await?;
        let primary = primaries.first().ok_or_else(unreadable)?;
        let [time] = self
            .connection
            .ask(primary, [cmd("TIME")], self.timeout)
            .await?;
        let (seconds, micros): (i64, i64) =
            redis::from_redis_value(time).map_err(|_| unreadable())?;
        let micros = seconds.saturating_mul(1_000_000).saturating_add(micros);
        Ok(Timestamp::from_micros(micros))
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

    async fn stuck_index(&self) -> Result<Option<StuckIndex>, StoreError> {
        Ok(None)
    }

    async fn create_stuck_index(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

impl RedisStore {
    /// Reads these records, and adds them to the statistics. Returns their number.
    async fn add_records(
        &self,
        groups: &mut Groups,
        ids: &[RecordId],
        of: Option<Scanned>,
    ) -> Result<u64, StoreError> {
        let mut added = 0;
        for ids in ids.chunks(MAX_CONCURRENT) {
            for summary in self.summaries_of(ids).await? {
                groups.add(&summary.record, of);
                added += 1;
            }
        }
        Ok(added)
    }
}
