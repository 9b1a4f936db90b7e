//! Transitions of records and their steps: one script each.

use std::time::Duration;

use async_trait::async_trait;
use redis::Value;

use super::layout::{self, Snapshot, span};
use super::scripts::{self, ScriptCall};
use super::{RedisStore, decode};
use crate::error::StoreError;
use crate::key::RecordId;
use crate::record::{
    FencingToken, Observation, Outcome, Owner, OwnerLabel, Payload, Record, Timestamp,
};
use crate::store::{
    AttemptStore, Attempts, AuditStore, ClaimOutcome, ClaimRequest, ErasureStore, FencedWrite,
    Filter, OperationStore, Page, PageRequest, Purged, Resolution, Resolved, SavedStep, StepStore,
    Store,
};

impl RedisStore {
    /// Runs a script that only reads.
    pub(super) async fn read(&self, call: &ScriptCall) -> Result<Value, StoreError> {
        self.connection.run(call, self.timeout).await
    }

    /// Runs a script that may write.
    pub(super) async fn write(&self, call: &ScriptCall) -> Result<Value, StoreError> {
        match &self.replica_wait {
            None => self.read(call).await,
            Some(replica_wait) => replica_wait.run(call, self.timeout, &self.connection).await,
        }
    }

    /// Reads a record with the server's time and the expiry of its key.
    pub(super) async fn snapshot(&self, id: &RecordId) -> Result<Option<Snapshot>, StoreError> {
        let key = self.key(id);
        let call = ScriptCall::new(&scripts::READ, &key);
        decode::snapshot(self.read(&call).await?)
    }

    /// Call of a transition that only the owner may make, and that changes the record as its first claim wrote it.
    fn owner_op(&self, name: &str, owner: &Owner) -> ScriptCall {
        self.first_claims.forget(&owner.id);
        ScriptCall::new(&scripts::OWNER_OPS, &self.key(&owner.id))
            .text(name)
            .owner(owner)
    }

    async fn fenced(&self, call: &ScriptCall) -> Result<FencedWrite, StoreError> {
        Ok(if decode::took_effect(&self.write(call).await?)? {
            FencedWrite::Applied
        } else {
            FencedWrite::Fenced
        })
    }
}

#[async_trait]
impl Store for RedisStore {
    /// All commands share one connection, on which they are sent one after the other.
    fn claim_concurrency(&self) -> usize {
        256
    }

    async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        if self.replica_wait.is_some()
            && let Some(record) = self.get(&claim.id).await?
            && !claim.may_claim(&record)
        {
            return Ok(ClaimOutcome::Existing(Box::new(record)));
        }
        if self.replica_wait.is_none()
            && let Some(outcome) = self.claim_natively(claim).await?
        {
            return Ok(outcome);
        }
        let key = self.key(&claim.id);
        let call = ScriptCall::new(&scripts::CLAIM, &key).claim(claim);
        decode::claim_outcome(claim, self.write(&call).await?)
    }

    async fn take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError> {
        let key = self.key(&claim.id);
        let call = ScriptCall::new(&scripts::CLAIM, &key)
            .claim(claim)
            .observation(observed);
        decode::claim_outcome(claim, self.write(&call).await?)
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<FencedWrite, StoreError> {
        let call = self.owner_op("renew", owner);
        self.fenced(&call.number(span(lease))).await
    }

    async fn complete(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError> {
        if let Some(completed) = self.complete_first(owner, outcome).await? {
            return Ok(completed);
        }
        let call = self
            .owner_op("complete", owner)
            .number(self.replica_wait.is_some().into())
            .outcome(outcome);
        self.fenced(&call).await
    }

    async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        self.fenced(&self.owner_op("release", owner)).await
    }

    async fn interrupt(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        self.fenced(&self.owner_op("interrupt", owner)).await
    }

    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        self.resolve_and_note(observed, resolution, None).await
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        match self.snapshot(id).await? {
            Some(snapshot) => snapshot.record(id, None),
            None => Ok(None),
        }
    }

    async fn list(&self, filter: &Filter, page: &PageRequest) -> Result<Page, StoreError> {
        self.page(filter, page).await
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        self.time().await
    }

    async fn purge(&self, limit: u32, as_of: Timestamp) -> Result<Purged, StoreError> {
        self.purge_due(limit, as_of).await
    }

    fn expires_by_itself(&self) -> bool {
        true
    }

    fn audit(&self) -> Option<&dyn AuditStore> {
        Some(self)
    }

    fn attempts(&self) -> Option<&dyn AttemptStore> {
        Some(self)
    }

    fn erasure(&self) -> Option<&dyn ErasureStore> {
        Some(self)
    }

    fn operations(&self) -> Option<&dyn OperationStore> {
        Some(self)
    }

    fn steps(&self) -> Option<&dyn StepStore> {
        Some(self)
    }
}

#[async_trait]
impl AttemptStore for RedisStore {
    async fn attempts(&self, id: &RecordId) -> Result<Option<Attempts>, StoreError> {
        match self.snapshot(id).await? {
            Some(snapshot) => decode::attempts(id, &snapshot),
            None => Ok(None),
        }
    }

    async fn note_replay(
        &self,
        id: &RecordId,
        fencing_token: FencingToken,
        by: Option<&OwnerLabel>,
    ) -> Result<bool, StoreError> {
        let key = self.key(id);
        let call = ScriptCall::new(&scripts::NOTE_REPLAY, &key)
            .number(fencing_token.number())
            .text(by.map_or("", OwnerLabel::as_str));
        decode::took_effect(&self.write(&call).await?)
    }
}

#[async_trait]
impl StepStore for RedisStore {
    async fn save_step(
        &self,
        owner: &Owner,
        name: &str,
        payload: &Payload,
    ) -> Result<FencedWrite, StoreError> {
        let call = self
            .owner_op("save", owner)
            .bytes(&layout::step(name, payload));
        self.fenced(&call).await
    }

    async fn saved_steps(&self, owner: &Owner) -> Result<Option<Vec<SavedStep>>, StoreError> {
        match self.snapshot(&owner.id).await? {
            Some(snapshot) => decode::saved_steps(owner, &snapshot),
            None => Ok(None),
        }
    }
}
