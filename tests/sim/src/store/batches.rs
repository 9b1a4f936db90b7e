//! Batches of claims and completions: the batcher of the SQL stores over the simulated store.

use std::sync::Arc;

use idem_store::StoreError;
use idem_store::key::RecordId;
use idem_store::record::{Outcome, Owner};
use idem_store::store::{ClaimOutcome, ClaimRequest, FencedWrite};
use tokio::sync::oneshot::Sender;

use super::SimStore;
use super::batch::{BatchExecutor, Batcher};
use crate::message::{Reply, Request};

/// The batchers of a process.
#[derive(Clone)]
pub(super) struct Batches(Arc<(Batcher<Claims>, Batcher<Completions>)>);

impl Batches {
    pub(super) fn new() -> Self {
        Self(Arc::new((
            Batcher::for_statements(),
            Batcher::for_statements(),
        )))
    }

    pub(super) async fn claim(
        &self,
        store: &SimStore,
        claim: &ClaimRequest,
        single: impl Future<Output = Result<ClaimOutcome, StoreError>>,
    ) -> Result<ClaimOutcome, StoreError> {
        let executor = || Claims(store.clone());
        let request = |sender| (claim.clone(), sender);
        self.0.0.submit(executor, request, || single).await
    }

    pub(super) async fn complete(
        &self,
        store: &SimStore,
        owner: &Owner,
        outcome: &Outcome,
        single: impl Future<Output = Result<FencedWrite, StoreError>>,
    ) -> Result<FencedWrite, StoreError> {
        let executor = || Completions(store.clone());
        let request = |sender| ((*owner, outcome.clone()), sender);
        self.0.1.submit(executor, request, || single).await
    }
}

#[derive(Clone)]
struct Claims(SimStore);

impl BatchExecutor for Claims {
    type Pending = (ClaimRequest, Sender<ClaimOutcome>);

    async fn run(&self, batch: Vec<Self::Pending>) {
        let batch = one_per_record(batch, |claim| claim.id);
        let requests = batch.iter().map(|(claim, _)| Request::Claim(claim.clone()));
        let replies = send(&self.0, requests.collect()).await;
        for ((_, sender), reply) in batch.into_iter().zip(replies) {
            if let Some(Reply::Claim(outcome)) = reply {
                // Its caller may have left.
                let _ = sender.send(outcome);
            }
        }
    }
}

#[derive(Clone)]
struct Completions(SimStore);

impl BatchExecutor for Completions {
    type Pending = ((Owner, Outcome), Sender<FencedWrite>);

    async fn run(&self, batch: Vec<Self::Pending>) {
        let batch = one_per_record(batch, |(owner, _)| owner.id);
        let requests = batch
            .iter()
            .map(|((owner, outcome), _)| Request::Complete(*owner, outcome.clone()));
        let replies = send(&self.0, requests.collect()).await;
        for ((_, sender), reply) in batch.into_iter().zip(replies) {
            if let Some(Reply::Fenced(fenced)) = reply {
                // Its caller may have left.
                let _ = sender.send(fenced);
            }
        }
    }
}

/// Sends a batch. Without an answer there are no replies.
async fn send(store: &SimStore, requests: Vec<Request>) -> Vec<Option<Reply>> {
    match store.ask(Request::Batch(requests)).await {
        Ok(Reply::Batch(replies)) => replies,
        _ => Vec::new(),
    }
}

/// Sorts a batch by record. Of several requests for one record all but the first run individually.
fn one_per_record<S, A>(mut batch: Vec<(S, A)>, id: impl Fn(&S) -> RecordId) -> Vec<(S, A)> {
    batch.sort_by_key(|(request, _)| id(request));
    batch.dedup_by_key(|(request, _)| id(request));
    batch
}
