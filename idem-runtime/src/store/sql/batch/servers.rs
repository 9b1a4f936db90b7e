//! Batching for database servers.

use std::collections::HashSet;

use tokio::sync::oneshot::Sender;

use super::{BatchExecutor, Batcher};
use crate::error::StoreError;
use crate::key::RecordId;
use crate::record::{Outcome, Owner, Payload};
use crate::store::FencedWrite;
use crate::store::sql::{Backend, complete};

/// Largest payload in bytes that is sent in a batch.
const MAX_BATCHED_PAYLOAD: usize = 16 * 1024;

/// A completion, and the sender of its response.
pub(in crate::store) type Completion = ((Owner, Outcome), Sender<FencedWrite>);

impl<T: BatchExecutor<Pending: From<Completion>>> Batcher<T> {
    /// Completes a record of this store, in a batch unless its payload is large.
    pub(in crate::store) async fn complete<B: Backend>(
        &self,
        store: &B,
        executor: impl FnOnce() -> T,
        owner: &Owner,
        outcome: &Outcome,
    ) -> Result<FencedWrite, StoreError> {
        let run_single = || complete(store, owner, outcome);
        if outcome.payload().is_some_and(is_large) {
            return Box::pin(run_single()).await;
        }
        let request = |sender| ((*owner, outcome.clone()), sender).into();
        self.submit(executor, request, run_single).await
    }
}

/// Returns true for a payload that is sent on its own.
pub(in crate::store) fn is_large(payload: &Payload) -> bool {
    payload.bytes.len() > MAX_BATCHED_PAYLOAD
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

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::key::{Identity, Key, Operation, Scope};

    fn record(key: &str) -> RecordId {
        RecordId::of(&Identity {
            scope: Scope::none(),
            operation: Operation::new("test.operation").unwrap(),
            key: Key::new(key).unwrap(),
        })
    }

    fn payload(bytes: usize) -> Payload {
        Payload {
            codec: "json/1".into(),
            bytes: vec![0; bytes].into(),
        }
    }

    #[test]
    fn large_payloads_are_sent_on_their_own() {
        assert!(!is_large(&payload(16 * 1024)));
        assert!(is_large(&payload(16 * 1024 + 1)));
    }

    #[test]
    fn a_batch_has_one_request_a_record_in_the_order_of_their_ids() {
        let keys = ["a", "b", "c", "b", "d", "a", "e"];
        let (batch, mut receivers): (Vec<_>, Vec<_>) = keys
            .iter()
            .enumerate()
            .map(|(number, key)| {
                let (sender, receiver) = oneshot::channel::<()>();
                (((number, record(key)), sender), receiver)
            })
            .unzip();
        let sorted = one_per_record(batch, |(_, id)| *id);
        let ids: Vec<_> = sorted.iter().map(|((_, id), _)| *id).collect();
        assert!(ids.is_sorted() && ids.len() == 5, "{ids:?}");
        let mut kept: Vec<_> = sorted.iter().map(|((number, _), _)| *number).collect();
        kept.sort_unstable();
        assert_eq!(kept, [0, 1, 2, 4, 6], "the first of each record");
        // The dropped requests have no sender any more, so their callers run them individually.
        for dropped in [3, 5] {
            let closed = Err(oneshot::error::TryRecvError::Closed);
            assert_eq!(receivers[dropped].try_recv(), closed);
        }
    }
}
