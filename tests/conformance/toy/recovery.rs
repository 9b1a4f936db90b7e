//! Recovery inputs of calls, in the toy store.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use idem_runtime::StoreError;
use idem_runtime::key::Operation;
use idem_runtime::record::{Owner, Payload, State, Timestamp};
use idem_runtime::store::{FencedWrite, RecoveryInput, RecoveryStore, Resolved};

use super::{Inner, ToyStore};
use crate::bug::Bug;

/// A recovery input, and the operation under which it is found.
#[derive(Debug, Clone)]
pub(super) struct Row {
    kept: RecoveryInput,
    operation: String,
}

#[async_trait]
impl RecoveryStore for ToyStore {
    async fn save_input(
        &self,
        owner: &Owner,
        kept: &Payload,
        lease: Duration,
    ) -> Result<FencedWrite, StoreError> {
        let mut held = None;
        let answer = self.held(owner, |record| {
            if self.has(Bug::KeepingBeginsTheLeaseAnew) {
                record.lease_until = record.read_at.after(Duration::from_secs(3600));
            }
            held = Some(record.clone());
        });
        if self.has(Bug::SavingAnInputIsNotFenced) {
            held = self.lock().records.get(&owner.id).cloned();
        }
        let Some(record) = held else {
            return Ok(answer);
        };
        if self.has(Bug::KeepingNeedsALease)
            && (record.is_lapsed() || record.state != State::Running)
        {
            return Ok(FencedWrite::Fenced);
        }
        let mut payload = kept.clone();
        if self.has(Bug::KeptLosesItsCodec) {
            payload.codec = "json/1".into();
        }
        let lease = match self.has(Bug::KeptIsDueAtOnce) {
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
        if let Some(Row { kept: old, .. }) = inner.kept.get(&owner.id) {
            if self.has(Bug::KeepingAgainIsIgnored) {
                new.payload = old.payload.clone();
            }
            if !self.has(Bug::KeepingAgainForgetsRecoveries) {
                new.recoveries = old.recoveries;
            }
            if !self.has(Bug::KeepingAgainHastens) {
                new.due_at = new.due_at.max(old.due_at);
            }
        }
        let operation = record.identity.operation.as_str().to_owned();
        let row = Row {
            kept: new,
            operation,
        };
        inner.kept.insert(owner.id, row);
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
            .kept
            .values()
            .filter(|row| match self.bug {
                Some(Bug::DueMatchesPrefix) => row.operation.starts_with(asked),
                Some(Bug::DueFoldsNames) => row.operation.eq_ignore_ascii_case(asked),
                _ => row.operation == asked,
            })
            .map(|row| row.kept.clone())
            .filter(|kept| kept.due_at <= now)
            .collect();
        due.sort_by_key(|kept| kept.due_at);
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
        kept: &RecoveryInput,
        by: Duration,
    ) -> Result<Resolved, StoreError> {
        let counted = !self.has(Bug::RecoveriesAreNotCounted);
        Ok(self.postpone_and_count(kept, by, u32::from(counted)))
    }

    async fn postpone(&self, kept: &RecoveryInput, by: Duration) -> Result<Resolved, StoreError> {
        let counted = self.has(Bug::LooksAreCounted);
        Ok(self.postpone_and_count(kept, by, u32::from(counted)))
    }

    async fn forget(&self, kept: &RecoveryInput) -> Result<Resolved, StoreError> {
        let mut inner = self.lock();
        if as_read(&mut inner, kept, self.has(Bug::ForgottenHoweverRead)).is_none() {
            let gone = !inner.kept.contains_key(&kept.id);
            return Ok(match self.has(Bug::ForgottenTwice) && gone {
                true => Resolved::Done,
                false => Resolved::Stale,
            });
        }
        inner.kept.remove(&kept.id);
        Ok(Resolved::Done)
    }
}

impl ToyStore {
    fn postpone_and_count(&self, kept: &RecoveryInput, by: Duration, recoveries: u32) -> Resolved {
        let mut inner = self.lock();
        let Some(row) = as_read(&mut inner, kept, self.has(Bug::PostponedHoweverRead)) else {
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
        row.kept.due_at = now.after(by.max(Duration::from_micros(1)));
        row.kept.recoveries += recoveries;
        Resolved::Done
    }
}

/// Row of a recovery input, if it has not changed since it was read (compare-and-swap).
fn as_read<'a>(inner: &'a mut Inner, kept: &RecoveryInput, however: bool) -> Option<&'a mut Row> {
    let row = inner.kept.get_mut(&kept.id)?;
    let now = &row.kept;
    let is = now.first_claimed_at == kept.first_claimed_at
        && now.due_at == kept.due_at
        && now.recoveries == kept.recoveries;
    (is || however).then_some(row)
}
