//! A store with only the required methods, and no optional trait.

use std::time::Duration;

use async_trait::async_trait;
use idem_runtime::record::{Observation, Outcome, Owner};
use idem_runtime::store::{
    ClaimOutcome, ClaimRequest, FencedWrite, Filter, Page, PageRequest, Purged, Resolution,
    Resolved,
};
use idem_runtime::{MemoryStore, Record, RecordId, Store, StoreError};

#[derive(Debug)]
pub(super) struct Plain(pub(super) MemoryStore);

#[async_trait]
impl Store for Plain {
    async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        self.0.claim(claim).await
    }

    async fn take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError> {
        self.0.take_over(observed, claim).await
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<FencedWrite, StoreError> {
        self.0.renew(owner, lease).await
    }

    async fn complete(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError> {
        self.0.complete(owner, outcome).await
    }

    async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        self.0.release(owner).await
    }

    async fn interrupt(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        self.0.interrupt(owner).await
    }

    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        self.0.resolve(observed, resolution).await
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        self.0.get(id).await
    }

    async fn list(&self, filter: &Filter, page: &PageRequest) -> Result<Page, StoreError> {
        self.0.list(filter, page).await
    }

    async fn purge(&self, limit: u32) -> Result<Purged, StoreError> {
        self.0.purge(limit).await
    }
}
