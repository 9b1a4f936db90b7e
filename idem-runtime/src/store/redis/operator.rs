//! Reads for operators.

use std::collections::BTreeMap;

use async_trait::async_trait;
use redis::cmd;

use super::errors::unreadable;
use super::scripts::{self, ScriptCall};
use super::{MAX_CONCURRENT, RedisStore, decode};
use crate::error::StoreError;
use crate::key::RecordId;
use crate::record::Timestamp;
use crate::store::operator::{
    Finding, MigrationPlan, OperatorStore, RecordStats, StepOfRecord, count_record,
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

    /// Scans all keys of the database and reads every record, a few at a time. The ids of all records are in memory
    /// meanwhile: 32 bytes a record.
    async fn stats(&self) -> Result<Vec<RecordStats>, StoreError> {
        let mut stats = BTreeMap::new();
        for ids in self.ids().await?.chunks(MAX_CONCURRENT) {
            for record in self.records(ids).await? {
                count_record(&mut stats, &record);
            }
        }
        Ok(stats.into_values().collect())
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
}
