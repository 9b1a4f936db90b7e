//! Listing of records, for operators.

use tokio::task::JoinSet;

use super::errors::task_failed;
use super::{MAX_CONCURRENT, RedisStore};
use crate::error::StoreError;
use crate::key::RecordId;
use crate::record::Record;
use crate::store::{Filter, Page, PageRequest, Store as _};

impl RedisStore {
    /// Finds the records of a page.
    pub(super) async fn page(
        &self,
        filter: &Filter,
        page: &PageRequest,
    ) -> Result<Page, StoreError> {
        let (after, limit) = page.in_id_order()?;
        let ids = self.ids().await?;
        let begin = after.map_or(0, |after| ids.partition_point(|id| *id <= after));
        let mut records = Vec::new();
        for ids in ids[begin..].chunks(MAX_CONCURRENT) {
            let read = self.records(ids).await?;
            records.extend(read.into_iter().filter(|record| filter.matches(record)));
            // One more record than requested shows that there is a next page.
            if records.len() > limit {
                break;
            }
        }
        Ok(Page::in_id_order(records, limit))
    }

    /// Returns the ids of all records, in order, including those that expired or were erased a moment ago.
    pub(super) async fn ids(&self) -> Result<Vec<RecordId>, StoreError> {
        let mut ids = Vec::new();
        for primary in self.connection.primaries(self.timeout).await? {
            let mut cursor = b"0".to_vec();
            loop {
                let found = self.scan(&primary, &cursor).await?;
                ids.extend(found.ids);
                cursor = found.cursor;
                if cursor == b"0" {
                    break;
                }
            }
        }
        // SCAN returns a key more than once if the server's table grows or shrinks during the scan.
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// Reads records concurrently, in the order of their ids.
    pub(super) async fn records(&self, ids: &[RecordId]) -> Result<Vec<Record>, StoreError> {
        let mut reading = JoinSet::new();
        for id in ids {
            let (store, id) = (self.clone(), *id);
            reading.spawn(async move { store.get(&id).await });
        }
        let mut records = Vec::with_capacity(ids.len());
        while let Some(read) = reading.join_next().await {
            records.extend(read.map_err(task_failed)??);
        }
        records.sort_unstable_by_key(|record| record.id);
        Ok(records)
    }
}
