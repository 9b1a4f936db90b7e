//! Payloads that are kept for a shorter time than their records, with the bugs that they can have.

use std::time::Duration;

use async_trait::async_trait;
use idem_runtime::error::StoreError;
use idem_runtime::record::{Outcome, Owner, Record};
use idem_runtime::store::{FencedWrite, ForgettingStore};

use super::ToyStore;
use crate::bug::Bug;

#[async_trait]
impl ForgettingStore for ToyStore {
    async fn complete_for(
        &self,
        owner: &Owner,
        outcome: &Outcome,
        payload_for: Duration,
    ) -> Result<FencedWrite, StoreError> {
        if self.has(Bug::CompletionForATimeIsNotFenced) {
            if let Some(record) = self.live(&mut self.lock(), &owner.id) {
                self.end(record, outcome);
            }
            return Ok(FencedWrite::Applied);
        }
        let is_ended = |record: &Record| record.state.is_ended() && owner.owns(record);
        if self
            .live(&mut self.lock(), &owner.id)
            .is_some_and(|record| is_ended(record))
        {
            return Ok(FencedWrite::Applied);
        }
        Ok(self.write(owner, |record| {
            self.end(record, outcome);
            if !self.has(Bug::PayloadTimeIsLost) {
                record.payload_for = record.payload.as_ref().map(|_| payload_for);
            }
        }))
    }
}
