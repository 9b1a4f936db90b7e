//! Requests to a store and their answers, as values that can be recorded and replayed.

use std::time::Duration;

use idem_store::key::{Operation, RecordId};
use idem_store::record::{Observation, Outcome, Owner, Payload, Record, Timestamp};
use idem_store::store::{
    ClaimOutcome, ClaimRequest, FencedWrite, Filter, PageRequest, Purged, RecoveryInput,
    Resolution, Resolved, SavedStep, Store,
};
use idem_store::{StoreError, StoreErrorKind};

/// Records on a page of a listing: fewer than a listing finds, so that several pages are read.
const PAGE: u32 = 1;
/// Most records that one statement of a complete purge deletes.
const PURGE: u32 = 1000;

/// Request to a store.
#[derive(Debug, Clone)]
pub enum Request {
    /// See [`Store::claim`].
    Claim(ClaimRequest),
    /// See [`Store::take_over`].
    TakeOver(Observation, ClaimRequest),
    /// See [`Store::renew`].
    Renew(Owner, Duration),
    /// See [`Store::complete`].
    Complete(Owner, Outcome),
    /// See [`Store::release`].
    Release(Owner),
    /// See [`Store::interrupt`].
    Interrupt(Owner),
    /// See [`Store::resolve`].
    Resolve(Observation, Resolution),
    /// See [`Store::get`].
    Get(RecordId),
    /// All pages of [`Store::list`].
    List(Filter),
    /// One call of [`Store::purge`] with this limit, which may leave due records for the next one.
    Purge(u32),
    /// [`Store::purge`], repeated until no record is due.
    PurgeAll,
    /// See [`StepStore::save_step`](idem_store::store::StepStore::save_step).
    SaveStep(Owner, String, Payload),
    /// See [`StepStore::saved_steps`](idem_store::store::StepStore::saved_steps).
    SavedSteps(Owner),
    /// See [`RecoveryStore::save_input`](idem_store::store::RecoveryStore::save_input).
    SaveInput(Owner, Payload, Duration),
    /// See [`RecoveryStore::due`](idem_store::store::RecoveryStore::due).
    Due(Operation),
    /// See [`RecoveryStore::begin_recovery`](idem_store::store::RecoveryStore::begin_recovery).
    BeginRecovery(RecoveryInput, Duration),
    /// See [`RecoveryStore::postpone`](idem_store::store::RecoveryStore::postpone).
    Postpone(RecoveryInput, Duration),
    /// See [`RecoveryStore::forget`](idem_store::store::RecoveryStore::forget).
    Forget(RecoveryInput),
}

/// Answer of a store.
#[derive(Debug, Clone)]
pub enum Answer {
    /// Answer to a claim or takeover.
    Claim(ClaimOutcome),
    /// Answer to a write of an owner.
    Write(FencedWrite),
    /// Answer to a resolution, or to a change of a recovery input.
    Resolved(Resolved),
    /// The record that was read; of a listing, the one of the record in question.
    Record(Option<Box<Record>>),
    /// The records of a listing.
    Records(Vec<Record>),
    /// Saved steps, sorted by name; `None` if the caller does not own the record.
    Steps(Option<Vec<SavedStep>>),
    /// The recovery input of the record in question, if it is due.
    Input(Option<RecoveryInput>),
    /// Recovery inputs that are due.
    Inputs(Vec<RecoveryInput>),
    /// Result of a purge.
    Purged(Purged),
}

impl Answer {
    /// The part of the answer that concerns one record.
    #[must_use]
    pub fn about(&self, id: &RecordId) -> Self {
        match self {
            Self::Records(records) => {
                let record = records.iter().find(|record| record.id == *id);
                Self::Record(record.cloned().map(Box::new))
            }
            Self::Inputs(inputs) => {
                Self::Input(inputs.iter().find(|input| input.id == *id).cloned())
            }
            other => other.clone(),
        }
    }

    /// Returns true if the answer acknowledges a write.
    pub fn acknowledges(&self) -> bool {
        matches!(
            self,
            Self::Claim(ClaimOutcome::Granted(_))
                | Self::Write(FencedWrite::Applied)
                | Self::Resolved(Resolved::Done)
        )
    }

    /// The time of the store's clock at which it read the record in the answer.
    pub fn read_at(&self) -> Option<Timestamp> {
        match self {
            Self::Claim(ClaimOutcome::Existing(record)) | Self::Record(Some(record)) => {
                Some(record.read_at)
            }
            _ => None,
        }
    }
}

impl Request {
    /// Sends the request.
    ///
    /// # Errors
    /// The error of the store. The request may have been applied or not.
    ///
    /// # Cancel safety
    /// If the future is dropped, the request may have been applied or not.
    pub async fn send(&self, store: &dyn Store) -> Result<Answer, StoreError> {
        Ok(match self {
            Self::Claim(claim) => Answer::Claim(store.claim(claim).await?),
            Self::TakeOver(observed, claim) => {
                Answer::Claim(store.take_over(observed, claim).await?)
            }
            Self::Renew(owner, lease) => Answer::Write(store.renew(owner, *lease).await?),
            Self::Complete(owner, outcome) => Answer::Write(store.complete(owner, outcome).await?),
            Self::Release(owner) => Answer::Write(store.release(owner).await?),
            Self::Interrupt(owner) => Answer::Write(store.interrupt(owner).await?),
            Self::Resolve(observed, resolution) => {
                Answer::Resolved(store.resolve(observed, resolution).await?)
            }
            Self::Get(id) => Answer::Record(store.get(id).await?.map(Box::new)),
            Self::List(filter) => Answer::Records(list(store, filter).await?),
            Self::Purge(limit) => Answer::Purged(store.purge(*limit, Timestamp::MAX).await?),
            Self::PurgeAll => Answer::Purged(purge_all(store).await?),
            _ => return self.send_optional(store).await,
        })
    }

    /// Sends a request of an optional trait.
    async fn send_optional(&self, store: &dyn Store) -> Result<Answer, StoreError> {
        let steps = || store.steps().ok_or_else(|| missing("steps"));
        let recovery = || store.recovery().ok_or_else(|| missing("recovery inputs"));
        Ok(match self {
            Self::SaveStep(owner, name, payload) => {
                Answer::Write(steps()?.save_step(owner, name, payload).await?)
            }
            Self::SavedSteps(owner) => {
                let mut saved = steps()?.saved_steps(owner).await?;
                if let Some(saved) = &mut saved {
                    saved.sort_by(|a, b| a.name.cmp(&b.name));
                }
                Answer::Steps(saved)
            }
            Self::SaveInput(owner, payload, lease) => {
                Answer::Write(recovery()?.save_input(owner, payload, *lease).await?)
            }
            Self::Due(operation) => Answer::Inputs(recovery()?.due(operation, PURGE).await?),
            Self::BeginRecovery(input, by) => {
                Answer::Resolved(recovery()?.begin_recovery(input, *by).await?)
            }
            Self::Postpone(input, by) => Answer::Resolved(recovery()?.postpone(input, *by).await?),
            Self::Forget(input) => Answer::Resolved(recovery()?.forget(input).await?),
            other => return Err(missing(&format!("{other:?}"))),
        })
    }
}

fn missing(what: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Other,
        format!("the store does not support {what}"),
    )
}

async fn list(store: &dyn Store, filter: &Filter) -> Result<Vec<Record>, StoreError> {
    let filter = Filter {
        payloads: true,
        ..filter.clone()
    };
    let mut records = Vec::new();
    let mut page = PageRequest {
        limit: PAGE,
        after: None,
    };
    loop {
        let found = store.list(&filter, &page).await?;
        records.extend(found.records.into_iter().map(|it| it.record));
        page.after = found.next;
        if page.after.is_none() {
            return Ok(records);
        }
    }
}

async fn purge_all(store: &dyn Store) -> Result<Purged, StoreError> {
    let mut all = Purged::default();
    loop {
        let purged = store.purge(PURGE, Timestamp::MAX).await?;
        all.removed += purged.removed;
        all.abandoned += purged.abandoned;
        all.interrupted += purged.interrupted;
        if !purged.more {
            return Ok(all);
        }
    }
}
