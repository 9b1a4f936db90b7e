//! Completions of the store of a check.

use std::time::Duration;

use async_trait::async_trait;
use idem_runtime::error::StoreError;
use idem_runtime::record::{Outcome, Owner};
use idem_runtime::store::{FencedWrite, ForgettingStore, Store as _};

use super::{StoreMethod, TestStore};

impl TestStore {
    /// Sends a completion through the faults of the store.
    pub(super) async fn completing(
        &self,
        owner: &Owner,
        outcome: &Outcome,
        transition: impl Future<Output = Result<FencedWrite, StoreError>> + Send,
    ) -> Result<FencedWrite, StoreError> {
        self.control.alive(owner).await;
        let note = |write: &FencedWrite| match write {
            FencedWrite::Applied => {
                self.control
                    .seen()
                    .outcomes
                    .push((owner.id, outcome.state()));
                self.control.note(match outcome {
                    Outcome::Completed(_) => "stores the result",
                    Outcome::Failed(_) => "stores the error",
                    Outcome::Unrecorded => "cannot store the result: the record says `unrecorded`",
                });
            }
            FencedWrite::Fenced => self.control.note("is refused: it lost its lease"),
        };
        self.control
            .through(StoreMethod::Complete, None, transition, note)
            .await
    }
}

/// If the store behind keeps payloads as long as records, it completes as `Store::complete` does.
#[async_trait]
impl ForgettingStore for TestStore {
    async fn complete_for(
        &self,
        owner: &Owner,
        outcome: &Outcome,
        payload_for: Duration,
    ) -> Result<FencedWrite, StoreError> {
        let transition = match self.inner.forgetting() {
            Some(store) => store.complete_for(owner, outcome, payload_for),
            None => self.inner.complete(owner, outcome),
        };
        self.completing(owner, outcome, transition).await
    }
}
