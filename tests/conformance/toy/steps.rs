//! The finished steps of bodies, in the toy store.

use std::time::Duration;

use async_trait::async_trait;
use idem_runtime::error::StoreError;
use idem_runtime::record::{Owner, Payload};
use idem_runtime::store::{FencedWrite, SavedStep, StepStore};

use super::ToyStore;
use crate::bug::Bug;

/// Number of steps that a record has room for under [`Bug::StepsAreBounded`].
const ROOM: usize = 64;

#[async_trait]
impl StepStore for ToyStore {
    async fn save_step(
        &self,
        owner: &Owner,
        name: &str,
        payload: &Payload,
    ) -> Result<FencedWrite, StoreError> {
        if self.has(Bug::StepIsReadThenWritten) {
            let answer = self.write(owner, |_| {});
            tokio::time::sleep(Duration::from_millis(4)).await;
            if answer == FencedWrite::Applied {
                self.write_step(owner, name, payload);
            }
            return Ok(answer);
        }
        let ended_too = self.has(Bug::EndedTakesSteps) && self.is_settled(owner);
        let answer = self.write(owner, |record| {
            if self.has(Bug::StepBeginsTheLeaseAnew) {
                record.lease_until = record.read_at.after(Duration::from_secs(3600));
            }
        });
        if answer == FencedWrite::Fenced && !ended_too {
            return Ok(FencedWrite::Fenced);
        }
        if self.has(Bug::StepIsSavedInHalves) {
            // Two writes with a yield between them: a drop at the yield leaves half of the step.
            let half = Payload {
                bytes: (*b"half").into(),
                ..payload.clone()
            };
            let is_new = self.write_step(owner, name, &half);
            tokio::task::yield_now().await;
            if is_new {
                let mut inner = self.lock();
                inner.steps.remove(&(owner.id, name.to_owned()));
                drop(inner);
                self.write_step(owner, name, payload);
            }
            return Ok(FencedWrite::Applied);
        }
        let is_new = self.write_step(owner, name, payload);
        Ok(match self.has(Bug::RepeatedStepIsLost) && !is_new {
            true => FencedWrite::Fenced,
            false => FencedWrite::Applied,
        })
    }

    async fn saved_steps(&self, owner: &Owner) -> Result<Option<Vec<SavedStep>>, StoreError> {
        let owned = self.write(owner, |_| {});
        if owned == FencedWrite::Fenced && !self.has(Bug::AnybodyReadsSteps) {
            return Ok(None);
        }
        let inner = self.lock();
        let own = inner.steps.iter().filter(|((id, _), _)| *id == owner.id);
        Ok(Some(
            own.map(|((_, name), payload)| SavedStep {
                name: name.clone(),
                payload: payload.clone(),
            })
            .collect(),
        ))
    }
}

impl ToyStore {
    /// Saves the step. Returns true if there was none with this name.
    fn write_step(&self, owner: &Owner, name: &str, payload: &Payload) -> bool {
        let mut inner = self.lock();
        let name = match self.has(Bug::StepNameIsTrimmed) {
            true => name.trim_end(),
            false => name,
        };
        let key = (owner.id, name.to_owned());
        let is_new = !inner.steps.contains_key(&key);
        let is_full = self.has(Bug::StepsAreBounded) && inner.steps.len() >= ROOM;
        if (is_new || self.has(Bug::StepIsOverwritten)) && !is_full {
            let payload = match self.has(Bug::StepLosesItsCodec) {
                true => Payload {
                    codec: "json/1".into(),
                    ..payload.clone()
                },
                false => payload.clone(),
            };
            inner.steps.insert(key, payload);
        }
        is_new
    }

    fn is_settled(&self, owner: &Owner) -> bool {
        let mut inner = self.lock();
        let record = self.live(&mut inner, &owner.id);
        record.is_some_and(|record| record.state.is_ended())
    }
}
