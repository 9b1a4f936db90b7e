//! A store with deliberate defects, on the reference. The sequences and the checker must find each of them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use idem_store::key::{Operation, RecordId};
use idem_store::record::{
    FencingToken, Observation, OnCrash, Outcome, Owner, Payload, Record, Timestamp,
};
use idem_store::store::{
    ClaimOutcome, ClaimRequest, FencedWrite, Filter, Page, PageRequest, Purged, RecoveryInput,
    RecoveryStore, Resolution, Resolved, SavedStep, StepStore, Store,
};
use idem_store::{State, StoreError, StoreErrorKind};

use crate::history::Clock;
use crate::reference::Cell;
use crate::request::{Answer, Request};

/// A way to break the contract of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
    /// A completion compares neither claim id nor fencing token.
    CompletesWithoutFencing,
    /// An owner's write compares the claim id, and not the fencing token.
    IgnoresFencingToken,
    /// A takeover does not compare the observation.
    TakesOverWithoutCompare,
    /// A takeover does not wait for the end of the lease.
    TakesOverLiveLease,
    /// A transition reads and writes in two steps, so that one of two concurrent ones is lost.
    LosesUpdates,
    /// Some transitions are acknowledged, and not written.
    LosesAcknowledged,
    /// Some reads return an earlier state.
    ReadsStale,
    /// A second completion overwrites the outcome.
    OverwritesOutcome,
    /// A renewal answers without writing.
    RenewsNothing,
    /// A repeated claim is not recognised.
    ForgetsClaimId,
    /// A repeated claim gets a new fencing token.
    RepeatedClaimGetsNewToken,
    /// A release is accepted from an earlier owner.
    ReleasesForAnyone,
    /// A claim does not compare the fingerprint.
    IgnoresFingerprint,
    /// An operator's resolution does not compare the observation.
    ResolvesWithoutCompare,
    /// A purge deletes records with an unknown outcome.
    PurgesUnknown,
    /// The fencing token of a deleted record is forgotten, and tokens are a counter.
    ForgetsDeletedToken,
    /// A repeated step overwrites the saved one.
    OverwritesSteps,
    /// Steps outlive the generation of their record.
    StepsOutliveGeneration,
    /// An expired record is still there.
    NeverExpires,
    /// Any number of recoveries may begin with one input.
    RecoversTwice,
}

impl Defect {
    /// All defects.
    pub const ALL: [Self; 20] = [
        Self::CompletesWithoutFencing,
        Self::IgnoresFencingToken,
        Self::TakesOverWithoutCompare,
        Self::TakesOverLiveLease,
        Self::LosesUpdates,
        Self::LosesAcknowledged,
        Self::ReadsStale,
        Self::OverwritesOutcome,
        Self::RenewsNothing,
        Self::ForgetsClaimId,
        Self::RepeatedClaimGetsNewToken,
        Self::ReleasesForAnyone,
        Self::IgnoresFingerprint,
        Self::ResolvesWithoutCompare,
        Self::PurgesUnknown,
        Self::ForgetsDeletedToken,
        Self::OverwritesSteps,
        Self::StepsOutliveGeneration,
        Self::NeverExpires,
        Self::RecoversTwice,
    ];
}

/// The reference as a store, with one defect or none.
#[derive(Debug)]
pub struct ReferenceStore {
    defect: Option<Defect>,
    clock: Clock,
    cells: Mutex<Cells>,
}

#[derive(Debug, Default)]
struct Cells {
    by_id: BTreeMap<RecordId, Cell>,
    /// The state of each record before its last change.
    before: BTreeMap<RecordId, Cell>,
    /// Number of requests.
    requests: u64,
}

impl ReferenceStore {
    /// An empty store with this defect, which reads this clock.
    #[must_use]
    pub fn new(defect: Option<Defect>, clock: Clock) -> Self {
        Self {
            defect,
            clock,
            cells: Mutex::default(),
        }
    }

    fn is(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    fn now(&self) -> Timestamp {
        self.clock.now().at
    }

    fn lock(&self) -> MutexGuard<'_, Cells> {
        self.cells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes a request about one record.
    async fn execute(&self, id: &RecordId, request: Request) -> Answer {
        let mut read = self.lock().by_id.get(id).cloned().unwrap_or_default();
        if self.is(Defect::LosesUpdates) {
            tokio::time::sleep(Duration::from_micros(300)).await;
        }
        let mut cells = self.lock();
        if !self.is(Defect::LosesUpdates) {
            read = cells.by_id.get(id).cloned().unwrap_or_default();
        }
        cells.requests += 1;
        let is_unlucky = cells.requests.is_multiple_of(5);
        let is_read = matches!(request, Request::Get(_) | Request::SavedSteps(_));
        let before = read.clone();
        if self.is(Defect::ReadsStale) && is_read && is_unlucky {
            read = cells.before.get(id).cloned().unwrap_or_default();
            return read.execute(&request, self.now());
        }
        let answer = self.transition(&mut read, request);
        if self.is(Defect::LosesAcknowledged) && is_unlucky {
            return answer;
        }
        if before != read {
            cells.before.insert(*id, before);
        }
        cells.by_id.insert(*id, read);
        answer
    }

    /// Executes a request on a cell, with the defect.
    fn transition(&self, cell: &mut Cell, request: Request) -> Answer {
        let now = self.now();
        let request = self.disturb(cell, request);
        let steps = cell.steps.clone();
        let owner_ended = cell.record.as_ref().is_some_and(|it| it.state.is_ended());
        if let (true, Some(record), Request::Complete(owner, _)) = (
            self.is(Defect::OverwritesOutcome) && owner_ended,
            &mut cell.record,
            &request,
        ) && owner.owns(record)
        {
            record.state = State::Running;
        }
        if self.is(Defect::ForgetsDeletedToken) {
            cell.floor = None;
        }
        let retention = cell
            .record
            .as_mut()
            .filter(|_| self.is(Defect::NeverExpires));
        let retention = retention
            .map(|record| std::mem::replace(&mut record.retention, Duration::from_secs(3600)));
        let lease = cell.record.as_ref().map(|record| record.lease_until);
        let mut answer = cell.execute(&request, now);
        restore_retention(retention, cell, &mut answer);
        if let (true, Some(record), Some(lease), Request::Renew(..)) = (
            self.is(Defect::RenewsNothing),
            &mut cell.record,
            lease,
            &request,
        ) {
            record.lease_until = lease;
        }
        if self.is(Defect::StepsOutliveGeneration) && cell.steps.is_empty() {
            cell.steps = steps;
        }
        if let (true, Answer::Claim(ClaimOutcome::Granted(granted)), Some(record)) = (
            self.is(Defect::ForgetsDeletedToken),
            &mut answer,
            &mut cell.record,
        ) && granted.attempt == 1
        {
            granted.fencing_token = FencingToken::from_number(1);
            record.fencing_token = granted.fencing_token;
        }
        answer
    }

    /// Changes a request, or the record that it meets.
    fn disturb(&self, cell: &mut Cell, mut request: Request) -> Request {
        let Some(defect) = self.defect else {
            return request;
        };
        if let (Some(input), true, Request::BeginRecovery(seen, _)) =
            (&cell.input, defect == Defect::RecoversTwice, &mut request)
        {
            (seen.due_at, seen.recoveries) = (input.due_at, input.recoveries);
        }
        if let (Defect::OverwritesSteps, Request::SaveStep(_, name, _)) = (defect, &request) {
            cell.steps.remove(name);
        }
        if let Some(record) = &mut cell.record {
            disturb_record(defect, record, &mut request, self.now());
        }
        request
    }
}

/// Undoes a change of the retention, unless the request has set another one.
fn restore_retention(retention: Option<Duration>, cell: &mut Cell, answer: &mut Answer) {
    let Some(retention) = retention else { return };
    let read = match answer {
        Answer::Claim(ClaimOutcome::Existing(record)) | Answer::Record(Some(record)) => {
            Some(&mut **record)
        }
        _ => None,
    };
    for record in read.into_iter().chain(&mut cell.record) {
        if record.retention == Duration::from_secs(3600) {
            record.retention = retention;
        }
    }
}

/// Defects of a request that meets a record.
fn disturb_record(defect: Defect, record: &mut Record, request: &mut Request, now: Timestamp) {
    let own = |owner: &mut Owner| {
        owner.claim_id = record.claim_id.unwrap_or(owner.claim_id);
        owner.fencing_token = record.fencing_token;
    };
    match (defect, request) {
        (Defect::CompletesWithoutFencing, Request::Complete(owner, _))
        | (Defect::ReleasesForAnyone, Request::Release(owner)) => own(owner),
        (
            Defect::IgnoresFencingToken,
            Request::Complete(owner, _)
            | Request::Renew(owner, _)
            | Request::Release(owner)
            | Request::Interrupt(owner),
        ) => owner.fencing_token = record.fencing_token,
        (Defect::TakesOverWithoutCompare, Request::TakeOver(observed, _))
        | (Defect::ResolvesWithoutCompare, Request::Resolve(observed, _)) => {
            *observed = record.observation();
        }
        (Defect::TakesOverLiveLease, Request::TakeOver(observed, _))
            if *observed == record.observation() =>
        {
            record.lease_until = record.lease_until.min(now);
            *observed = record.observation();
        }
        (Defect::ForgetsClaimId, Request::Claim(claim) | Request::TakeOver(_, claim))
            if claim.is_repeated_on(record) =>
        {
            claim.claim_id = idem_store::record::ClaimId::random();
        }
        (Defect::RepeatedClaimGetsNewToken, Request::Claim(claim))
            if claim.is_repeated_on(record) =>
        {
            let next = record.fencing_token.number() + 1;
            record.fencing_token = FencingToken::from_number(next);
        }
        (Defect::IgnoresFingerprint, Request::Claim(claim) | Request::TakeOver(_, claim)) => {
            claim.fingerprint = record.fingerprint;
        }
        (Defect::PurgesUnknown, Request::Purge(_) | Request::PurgeAll) => {
            record.on_crash = OnCrash::Rerun;
        }
        _ => {}
    }
}

fn unexpected(answer: &Answer) -> StoreError {
    StoreError::new(StoreErrorKind::Other, format!("unexpected: {answer:?}"))
}

fn claimed(answer: Answer) -> Result<ClaimOutcome, StoreError> {
    match answer {
        Answer::Claim(outcome) => Ok(outcome),
        other => Err(unexpected(&other)),
    }
}

fn written(answer: Answer) -> Result<FencedWrite, StoreError> {
    match answer {
        Answer::Write(write) => Ok(write),
        other => Err(unexpected(&other)),
    }
}

fn resolved(answer: Answer) -> Result<Resolved, StoreError> {
    match answer {
        Answer::Resolved(resolved) => Ok(resolved),
        other => Err(unexpected(&other)),
    }
}

#[async_trait]
impl Store for ReferenceStore {
    async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        claimed(self.execute(&claim.id, Request::Claim(claim.clone())).await)
    }

    async fn take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError> {
        let request = Request::TakeOver(*observed, claim.clone());
        claimed(self.execute(&claim.id, request).await)
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<FencedWrite, StoreError> {
        written(self.execute(&owner.id, Request::Renew(*owner, lease)).await)
    }

    async fn complete(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError> {
        let request = Request::Complete(*owner, outcome.clone());
        written(self.execute(&owner.id, request).await)
    }

    async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        written(self.execute(&owner.id, Request::Release(*owner)).await)
    }

    async fn interrupt(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        written(self.execute(&owner.id, Request::Interrupt(*owner)).await)
    }

    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        let request = Request::Resolve(*observed, resolution.clone());
        resolved(self.execute(&observed.id, request).await)
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        match self.execute(id, Request::Get(*id)).await {
            Answer::Record(record) => Ok(record.map(|record| *record)),
            other => Err(unexpected(&other)),
        }
    }

    async fn list(&self, filter: &Filter, page: &PageRequest) -> Result<Page, StoreError> {
        let (after, limit) = page.in_id_order()?;
        let now = self.now();
        let mut records = Vec::new();
        for (id, cell) in &mut self.lock().by_id {
            let answer = cell.execute(&Request::List(filter.clone()), now);
            if let (true, Answer::Record(Some(record))) =
                (after.is_none_or(|after| *id > after), answer)
            {
                records.push(*record);
            }
        }
        records.truncate(limit + 1);
        Ok(Page::in_id_order(records, limit))
    }

    async fn purge(&self, _: u32) -> Result<Purged, StoreError> {
        let ids: Vec<_> = self.lock().by_id.keys().copied().collect();
        let mut all = Purged::default();
        for id in ids {
            match self.execute(&id, Request::PurgeAll).await {
                Answer::Purged(purged) => {
                    all.removed += purged.removed;
                    all.abandoned += purged.abandoned;
                    all.interrupted += purged.interrupted;
                }
                other => return Err(unexpected(&other)),
            }
        }
        Ok(all)
    }

    fn recovery(&self) -> Option<&dyn RecoveryStore> {
        Some(self)
    }

    fn steps(&self) -> Option<&dyn StepStore> {
        Some(self)
    }
}

#[async_trait]
impl StepStore for ReferenceStore {
    async fn save_step(
        &self,
        owner: &Owner,
        name: &str,
        payload: &Payload,
    ) -> Result<FencedWrite, StoreError> {
        let request = Request::SaveStep(*owner, name.to_owned(), payload.clone());
        written(self.execute(&owner.id, request).await)
    }

    async fn saved_steps(&self, owner: &Owner) -> Result<Option<Vec<SavedStep>>, StoreError> {
        match self.execute(&owner.id, Request::SavedSteps(*owner)).await {
            Answer::Steps(steps) => Ok(steps),
            other => Err(unexpected(&other)),
        }
    }
}

#[async_trait]
impl RecoveryStore for ReferenceStore {
    async fn save_input(
        &self,
        owner: &Owner,
        input: &Payload,
        lease: Duration,
    ) -> Result<FencedWrite, StoreError> {
        let request = Request::SaveInput(*owner, input.clone(), lease);
        written(self.execute(&owner.id, request).await)
    }

    async fn due(
        &self,
        operation: &Operation,
        limit: u32,
    ) -> Result<Vec<RecoveryInput>, StoreError> {
        let now = self.now();
        let request = Request::Due(operation.clone());
        let mut inputs = Vec::new();
        for cell in self.lock().by_id.values_mut() {
            let record = cell.record.as_ref();
            if record.is_none_or(|record| record.identity.operation != *operation) {
                continue;
            }
            if let Answer::Input(Some(input)) = cell.execute(&request, now) {
                inputs.push(input);
            }
        }
        inputs.sort_by_key(|input| input.due_at);
        inputs.truncate(limit as usize);
        Ok(inputs)
    }

    async fn begin_recovery(
        &self,
        input: &RecoveryInput,
        by: Duration,
    ) -> Result<Resolved, StoreError> {
        let request = Request::BeginRecovery(input.clone(), by);
        resolved(self.execute(&input.id, request).await)
    }

    async fn postpone(&self, input: &RecoveryInput, by: Duration) -> Result<Resolved, StoreError> {
        let request = Request::Postpone(input.clone(), by);
        resolved(self.execute(&input.id, request).await)
    }

    async fn forget(&self, input: &RecoveryInput) -> Result<Resolved, StoreError> {
        resolved(
            self.execute(&input.id, Request::Forget(input.clone()))
                .await,
        )
    }
}
