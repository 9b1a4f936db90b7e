//! Batching for database servers.

use std::collections::HashSet;

use tokio::sync::oneshot::Sender;

use super::{BatchExecutor, Batcher};
use crate::error::StoreError;
use crate::key::RecordId;
use crate::record::{Outcome, Owner};
use crate::store::FencedWrite;
use crate::store::sql::{Backend, complete};

/// Largest payload in bytes that is sent in a batch.
const MAX_BATCHED_PAYLOAD: usize = 16 * 1024;

impl<T: BatchExecutor<Request = (Owner, Outcome), Response = FencedWrite>> Batcher<T> {
    /// Completes a record of this store, in a batch unless its payload is large.
    pub(in crate::store) async fn complete<B: Backend>(
        &self,
        store: &B,
        executor: impl FnOnce() -> T,
        owner: &Owner,
        outcome: &Outcome,
    ) -> Result<FencedWrite, StoreError> {
        let run_single = complete(store, owner, outcome);
        if is_large(outcome) {
            return run_single.await;
        }
        let request = || (*owner, outcome.clone());
        self.submit(executor, request, run_single).await
    }
}

fn is_large(outcome: &Outcome) -> bool {
    let payload = outcome.payload();
    payload.is_some_and(|payload| payload.bytes.len() > MAX_BATCHED_PAYLOAD)
}

/// Sorts requests by the id of their record, so that no two batches lock rows in opposite orders. Of several requests
/// for one record all but the first are dropped, and run individually.
pub(in crate::store) fn one_per_record<S, A>(
    mut batch: Vec<(S, Sender<A>)>,
    id: impl Fn(&S) -> RecordId,
) -> Vec<(S, Sender<A>)> {
    let mut seen = HashSet::with_capacity(batch.len());
    batch.retain(|(request, _)| seen.insert(id(request)));
    batch.sort_unstable_by_key(|(request, _)| id(request));
    batch
}
