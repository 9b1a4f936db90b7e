//! The reference as a store, with a deliberate defect. The sequences and the checker must find each of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use idem_reference::{Defect, Transitions};
use idem_store::key::{Operation, RecordId};
use idem_store::record::{Observation, Outcome, Owner, Payload, Record, Timestamp};
use idem_store::store::{
    ClaimOutcome, ClaimRequest, FencedWrite, Filter, Page, PageRequest, Purged, RecoveryInput,
    RecoveryStore, Resolution, Resolved, SavedStep, StepStore, Store,
};
use idem_store::{StoreError, StoreErrorKind};

use crate::history::Clock;
use crate::reference::Cell;
use crate::request::{Answer, Request};

/// The reference as a store, with one defect or none.
#[derive(Debug)]
pub struct ReferenceStore {
    transitions: Transitions,
    clock: Clock,
    cells: Arc<Mutex<Cells>>,
    /// True for a store on another connection, which only reads.
    is_elsewhere: bool,
}

#[derive(Debug, Default)]
struct Cells {
    by_id: BTreeMap<RecordId, Cell>,
    /// The state of each record before its last change.
    before: BTreeMap<RecordId, Cell>,
    /// What other connections see.
    committed: BTreeMap<RecordId, Cell>,
    /// Number of requests.
    requests: u64,
}

impl ReferenceStore {
    /// An empty store with this defect, which reads this clock.
    #[must_use]
    pub fn new(defect: Option<Defect>, clock: Clock) -> Self {
        Self {
            transitions: Transitions { defect },
            clock,
            cells: Arc::default(),
            is_elsewhere: false,
        }
    }

    /// A store on the same records that reads on another connection.
    #[must_use]
    pub fn elsewhere(&self) -> Self {
        Self {
            cells: Arc::clone(&self.cells),
            is_elsewhere: true,
            ..*self
        }
    }

    fn is(&self, defect: Defect) -> bool {
        self.transitions.is(defect)
    }

    fn now(&self) -> Timestamp {
        self.clock.now().at
    }

    fn lock(&self) -> MutexGuard<'_, Cells> {
        self.cells.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes a request about one record.
    async fn execute(&self, id: &RecordId, request: Request) -> Answer {
        if self.is_elsewhere {
            let committed = self.lock().committed.get(id).cloned();
            return committed.unwrap_or_default().execute(&request, self.now());
        }
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
        let answer = read.execute_by(self.transitions, &request, self.now());
        if self.is(Defect::LosesAcknowledged) && is_unlucky {
            return answer;
        }
        if before != read {
            cells.before.insert(*id, before);
        }
        cells.by_id.insert(*id, read);
        // Other code on the connection begins a transaction, and commits it some requests later.
        let is_open = (cells.requests / 64).is_multiple_of(2);
        if !(self.is(Defect::WritesInForeignTransaction) && is_open) {
            cells.committed = cells.by_id.clone();
        }
        answer
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
            let answer = cell.execute_by(self.transitions, &Request::List(filter.clone()), now);
            if let (true, Answer::Record(Some(record))) =
                (after.is_none_or(|after| *id > after), answer)
            {
                records.push(*record);
            }
        }
        records.truncate(limit + 1);
        Ok(Page::in_id_order(records, filter, limit))
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(self.now())
    }

    async fn purge(&self, _: u32, _: Timestamp) -> Result<Purged, StoreError> {
        let ids: Vec<_> = self.lock().by_id.keys().copied().collect();
        let mut all = Purged::default();
        for id in ids {
            match self.execute(&id, Request::PurgeAll).await {
                Answer::Purged(purged) => {
                    all.add(&purged);
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
