//! Store traits of the SQL stores, implemented once for all of them.

/// Implements `Store`, `ForgettingStore`, `StepStore` and `RecoveryStore` for a [`SqlStore`](crate::store::sql::SqlStore). One
/// implementation for every type with that trait is not possible, because the traits may belong to another crate.
macro_rules! store {
    ($store:ty) => {
        const _: () = {
            use std::time::Duration;

            use crate::error::StoreError;
            use crate::key::{Operation, RecordId};
            use crate::record::{Observation, Outcome, Owner, Payload, Record, Timestamp};
            use crate::store::sql::{self, SqlStore};
            use crate::store::{
                AttemptStore, Attempts, ClaimOutcome, ClaimRequest, FencedWrite, Filter,
                ForgettingStore, Page, PageRequest, Purged, RecoveryInput, RecoveryStore,
                Resolution, Resolved, SavedStep, StepStore, Store,
            };

            #[async_trait::async_trait]
            impl Store for $store {
                async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
                    sql::claim(self, claim).await
                }

                async fn take_over(
                    &self,
                    observed: &Observation,
                    claim: &ClaimRequest,
                ) -> Result<ClaimOutcome, StoreError> {
                    sql::take_over(self, observed, claim).await
                }

                async fn renew(
                    &self,
                    owner: &Owner,
                    lease: Duration,
                ) -> Result<FencedWrite, StoreError> {
                    sql::renew(self, owner, lease).await
                }

                async fn complete(
                    &self,
                    owner: &Owner,
                    outcome: &Outcome,
                ) -> Result<FencedWrite, StoreError> {
                    SqlStore::complete(self, owner, outcome).await
                }

                async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
                    SqlStore::release(self, owner).await
                }

                async fn interrupt(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
                    sql::interrupt(self, owner).await
                }

                async fn resolve(
                    &self,
                    observed: &Observation,
                    resolution: &Resolution,
                ) -> Result<Resolved, StoreError> {
                    SqlStore::resolve(self, observed, resolution).await
                }

                async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
                    sql::get(self, id).await
                }

                async fn list(
                    &self,
                    filter: &Filter,
                    page: &PageRequest,
                ) -> Result<Page, StoreError> {
                    sql::list(self, filter, page).await
                }

                async fn now(&self) -> Result<Timestamp, StoreError> {
                    sql::now(self).await
                }

                async fn purge(&self, limit: u32, as_of: Timestamp) -> Result<Purged, StoreError> {
                    SqlStore::purge(self, limit, as_of).await
                }

                fn claim_concurrency(&self) -> usize {
                    SqlStore::claim_concurrency(self)
                }

                fn bottleneck(&self) -> Option<String> {
                    SqlStore::bottleneck(self)
                }

                fn audit(&self) -> Option<&dyn crate::store::AuditStore> {
                    Some(self)
                }

                fn attempts(&self) -> Option<&dyn AttemptStore> {
                    Some(self)
                }

                fn forgetting(&self) -> Option<&dyn ForgettingStore> {
                    Some(self)
                }

                fn erasure(&self) -> Option<&dyn crate::store::ErasureStore> {
                    Some(self)
                }

                fn operations(&self) -> Option<&dyn crate::store::OperationStore> {
                    Some(self)
                }

                fn recovery(&self) -> Option<&dyn RecoveryStore> {
                    Some(self)
                }

                fn steps(&self) -> Option<&dyn StepStore> {
                    Some(self)
                }
            }

            sql::audit_store!($store);
            sql::erasure_store!($store);

            #[async_trait::async_trait]
            impl AttemptStore for $store {
                async fn attempts(&self, id: &RecordId) -> Result<Option<Attempts>, StoreError> {
                    sql::attempts(self, id).await
                }

                async fn note_replay(
                    &self,
                    id: &RecordId,
                    fencing_token: crate::record::FencingToken,
                    by: Option<&crate::record::OwnerLabel>,
                ) -> Result<bool, StoreError> {
                    sql::note_replay(self, id, fencing_token, by).await
                }
            }

            /// Such completions are not batched: few calls have one, and a batch has one statement for all of its
            /// completions.
            #[async_trait::async_trait]
            impl ForgettingStore for $store {
                async fn complete_for(
                    &self,
                    owner: &Owner,
                    outcome: &Outcome,
                    payload_for: Duration,
                ) -> Result<FencedWrite, StoreError> {
                    sql::complete_as(self, owner, outcome, Some(payload_for)).await
                }
            }

            #[async_trait::async_trait]
            impl StepStore for $store {
                async fn save_step(
                    &self,
                    owner: &Owner,
                    name: &str,
                    payload: &Payload,
                ) -> Result<FencedWrite, StoreError> {
                    sql::save_step(self, owner, name, payload).await
                }

                async fn saved_steps(
                    &self,
                    owner: &Owner,
                ) -> Result<Option<Vec<SavedStep>>, StoreError> {
                    sql::saved_steps(self, owner).await
                }
            }

            #[async_trait::async_trait]
            impl RecoveryStore for $store {
                async fn save_input(
                    &self,
                    owner: &Owner,
                    input: &Payload,
                    lease: Duration,
                ) -> Result<FencedWrite, StoreError> {
                    sql::save_input(self, owner, input, lease).await
                }

                async fn due(
                    &self,
                    operation: &Operation,
                    limit: u32,
                ) -> Result<Vec<RecoveryInput>, StoreError> {
                    sql::due_inputs(self, operation, limit).await
                }

                async fn begin_recovery(
                    &self,
                    input: &RecoveryInput,
                    by: Duration,
                ) -> Result<Resolved, StoreError> {
                    sql::postpone_input(self, input, by, 1).await
                }

                async fn postpone(
                    &self,
                    input: &RecoveryInput,
                    by: Duration,
                ) -> Result<Resolved, StoreError> {
                    sql::postpone_input(self, input, by, 0).await
                }

                async fn forget(&self, input: &RecoveryInput) -> Result<Resolved, StoreError> {
                    sql::forget_input(self, input).await
                }
            }
        };
    };
}
pub(in crate::store) use store;
