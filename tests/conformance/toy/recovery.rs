//! Recovery inputs of calls, in the toy store.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use idem_runtime::error::StoreError;
use idem_runtime::key::Operation;
use idem_runtime::record::{Owner, Payload, RecordState, Timestamp};
use idem_runtime::store::{FencedWrite, RecoveryInput, RecoveryStore, Resolved};

use super::{Inner, ToyStore};
use crate::bug::Bug;

/// A recovery input, and the operation under which it is found.
#[derive(Debug, Clone)]
pub(super) struct Row {
    input: RecoveryInput,
    operation: String,
}

#[async_trait]
impl RecoveryStore for ToyStore {
    async fn save_input(
        &self,
        owner: &Owner,
        input: &Payload,
        lease: Duration,
    ) -> Result<FencedWrite, StoreError> {
        let mut written = None;
        let answer = self.write(owner, |record| {
            if self.has(Bug::SavingAnInputBeginsTheLeaseAnew) {
                record.lease_until = record.read_at.after(Duration::from_secs(3600));
            }
            written = Some(record.clone());
        });
        if self.has(Bug::SavingAnInputIsNotFenced) {
            written = self.lock().records.get(&owner.id).cloned();
        }
        let Some(record) = written else {
            return Ok(answer);
        };
        if self.has(Bug::SavingAnInputNeedsALease)
            && (record.is_lapsed() || record.state != RecordState::Running)
        {
            return Ok(FencedWrite::Fenced);
        }
        let mut payload = input.clone();
        if self.has(Bug::InputLosesItsCodec) {
            payload.codec = "json/1".into();
        }
        let lease = match self.has(Bug::InputIsDueAtOnce) {
            true => Duration::ZERO,
            false => lease,
        };
        let mut new = RecoveryInput {
            id: owner.id,
            first_claimed_at: record.first_claimed_at,
            payload,
            recoveries: 0,
            due_at: record.read_at.after(lease),
        };
        let mut inner = self.lock();
        if let Some(Row { input: old, .. }) = inner.inputs.get(&owner.id) {
            if self.has(Bug::SavingAgainIsIgnored) {
                new.payload = old.payload.clone();
            }
            if !self.has(Bug::SavingAgainForgetsRecoveries) {
                new.recoveries = old.recoveries;
            }
            if !self.has(Bug::SavingAgainHastens) {
                new.due_at = new.due_at.max(old.due_at);
            }
        }
        let operation = record.identity.operation.as_str().to_owned();
        let row = Row {
            input: new,
            operation,
        };
        inner.inputs.insert(owner.id, row);
        Ok(FencedWrite::Applied)
    }

    async fn due(
        &self,
        operation: &Operation,
        limit: u32,
    ) -> Result<Vec<RecoveryInput>, StoreError> {
        let now: Timestamp = SystemTime::now().into();
        let asked = operation.as_str();
        let inner = self.lock();
        let mut due: Vec<RecoveryInput> = inner
            .inputs
            .values()
            .filter(|row| match self.bug {
                Some(Bug::DueMatchesPrefix) => row.operation.starts_with(asked),
                Some(Bug::DueFoldsNames) => row.operation.eq_ignore_ascii_case(asked),
                _ => row.operation == asked,
            })
            .map(|row| row.input.clone())
            .filter(|input| input.due_at <= now)
            .collect();
        due.sort_by_key(|input| input.due_at);
        if self.has(Bug::DueHasNoOrder) {
            due.reverse();
        }
        if !self.has(Bug::DueIsUnbounded) {
            due.truncate(limit as usize);
        }
        Ok(due)
    }

    async fn begin_recovery(
        &self,
        input: &RecoveryInput,
        by: Duration,
    ) -> Result<Resolved, StoreError> {
        let counted = !self.has(Bug::RecoveriesAreNotCounted);
        Ok(self.postpone_and_count(input, by, u32::from(counted)))
    }

    async fn postpone(&self, input: &RecoveryInput, by: Duration) -> Result<Resolved, StoreError> {
        let counted = self.has(Bug::PostponementsAreCounted);
        Ok(self.postpone_and_count(input, by, u32::from(counted)))
    }

    async fn forget(&self, input: &RecoveryInput) -> Result<Resolved, StoreError> {
        let mut inner = self.lock();
        if as_read(&mut inner, input, self.has(Bug::ForgottenHoweverRead)).is_none() {
            let gone = !inner.inputs.contains_key(&input.id);
            return Ok(match self.has(Bug::ForgottenTwice) && gone {
                true => Resolved::Done,
                false => Resolved::Stale,
            });
        }
        inner.inputs.remove(&input.id);
        Ok(Resolved::Done)
    }
}

impl ToyStore {
    fn postpone_and_count(&self, input: &RecoveryInput, by: Duration, recoveries: u32) -> Resolved {
        let mut inner = self.lock();
        let Some(row) = as_read(&mut inner, input, self.has(Bug::PostponedHoweverRead)) else {
            return match self.has(Bug::PostponedByAll) {
                true => Resolved::Done,
                false => Resolved::Stale,
            };
        };
        let now: Timestamp = SystemTime::now().into();
        let by = match self.has(Bug::PostponedForNothing) {
            true => Duration::ZERO,
            false => by,
        };
        // Never the previous due time.
        row.input.due_at = now.after(by.max(Duration::from_micros(1)));
        row.input.recoveries += recoveries;
        Resolved::Done
    }
}

/// Row of a recovery input, if it has not changed since it was read (compare-and-swap).
fn as_read<'a>(inner: &'a mut Inner, input: &RecoveryInput, however: bool) -> Option<&'a mut Row> {
    let row = inner.inputs.get_mut(&input.id)?;
    let now = &row.input;
    let is = now.first_claimed_at == input.first_claimed_at
        && now.due_at == input.due_at
        && now.recoveries == input.recoveries;
    (is || however).then_some(row)
}
