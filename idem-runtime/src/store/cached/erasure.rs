//! Erasure of all records of a scope, from the inner store and from the cache.

use async_trait::async_trait;

use super::{CacheBackend, Cached, ForgetOnDrop, no_audit};
use crate::error::StoreError;
use crate::key::RecordId;
use crate::record::Observation;
use crate::store::{Cursor, Erasure, ErasureStore, ManualChange, Redacted, ScopeFilter, Store};

#[async_trait]
impl<S: Store> ErasureStore for Cached<S> {
    /// The cached copies are removed before and after: a concurrent read may put one back in between.
    async fn erase_all(
        &self,
        records: &[Observation],
        erasure: &Erasure,
        change: &ManualChange,
    ) -> Result<Vec<RecordId>, StoreError> {
        let erase = self.store.erasure().ok_or_else(no_audit)?;
        match &self.backend {
            CacheBackend::Local(local) => {
                // Also if no answer arrives: the records may have been erased.
                let _forget: Vec<_> = records
                    .iter()
                    .map(|it| ForgetOnDrop(local, &it.id))
                    .collect();
                erase.erase_all(records, erasure, change).await
            }
            #[cfg(feature = "redis")]
            CacheBackend::Redis(redis) => {
                let mut has_tombstones = redis.write_tombstones(records).await;
                let erased = erase.erase_all(records, erasure, change).await;
                has_tombstones &= redis.write_tombstones(records).await;
                if !has_tombstones {
                    tracing::warn!(
                        target: "idem",
                        "redis could not be told of an erasure, records may be replayed from there up to the maximum age",
                    );
                }
                for record in records {
                    redis.write_tombstone_later(&record.id, record.fencing_token);
                }
                erased
            }
        }
    }

    async fn redact_audit(
        &self,
        scope: &ScopeFilter,
        after: Option<&Cursor>,
    ) -> Result<Redacted, StoreError> {
        let erase = self.store.erasure().ok_or_else(no_audit)?;
        erase.redact_audit(scope, after).await
    }
}
