//! A store that records the calls of one process, and fails, stops or dies on demand.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use idem_runtime::error::{StoreError, StoreErrorKind};
use idem_runtime::key::{Operation, RecordId};
use idem_runtime::record::{Observation, Outcome, Owner, Payload, Record, RecordState, Timestamp};
use idem_runtime::store::{
    AttemptStore, AuditStore, ClaimOutcome, ClaimRequest, ErasureStore, FencedWrite, Filter,
    ForgettingStore, ImmediateStore, OperationStore, Page, PageRequest, Purged, RecoveryInput,
    RecoveryStore, Resolution, Resolved, SavedStep, StepStore, Store,
};
use idem_runtime::{Key, MemoryStore};

use crate::control::Control;
use crate::log::Log;
use crate::method::{Failure, StoreMethod};

mod completing;

/// Store for tests. It records the calls that a handle makes, fails on demand, and ends leases and retentions without
/// waiting. Clones share everything.
///
/// ```
/// use std::time::Duration;
/// use idem_runtime::{Call, Error, Idem, Key};
/// use idem_testing::{Failure, StoreMethod, TestStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = TestStore::new();
/// let idem = Idem::new(store.clone());
/// let key: Key = "order-1".parse()?;
/// let call = || Call::new("orders.place", &key, "a lamp", Duration::from_secs(3600));
///
/// store.fail_next(StoreMethod::Claim, Failure::After); // the engine tries again
/// idem.run(call(), async || Ok::<_, Error>(1)).await?;
/// assert_eq!(idem.run(call(), async || Ok::<_, Error>(2)).await?, 1); // replayed
/// store.expire(&key).await?;
/// assert_eq!(idem.run(call(), async || Ok::<_, Error>(3)).await?, 3); // a new call
/// assert!(store.calls().contains(&StoreMethod::Complete));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct TestStore {
    inner: Arc<dyn Store>,
    control: Control,
}

impl TestStore {
    /// Creates an empty store in memory.
    pub fn new() -> Self {
        Self::over(Arc::new(MemoryStore::new()))
    }

    /// Wraps a store.
    pub fn over(store: Arc<dyn Store>) -> Self {
        Self::watching(store, Control::new('A', Log::default(), false))
    }

    pub(crate) fn watching(inner: Arc<dyn Store>, control: Control) -> Self {
        Self { inner, control }
    }

    /// The calls of the store so far, in order.
    pub fn calls(&self) -> Vec<StoreMethod> {
        self.control.seen().calls.clone()
    }

    /// Plans the failure of the next call of this method that has no planned failure yet. The engine repeats what may be
    /// repeated, so a single failure is often invisible to callers.
    pub fn fail_next(&self, method: StoreMethod, failure: Failure) {
        self.control.seen().failures.push((method, failure));
    }

    /// Makes each call fail until [`come_back`](Self::come_back).
    pub fn go_away(&self) {
        self.control.seen().is_away = true;
    }

    /// Ends an absence.
    pub fn come_back(&self) {
        self.control.come_back();
    }

    /// Ends the lease of each running record with this key, so that the next call takes over. Its owner is not told, and
    /// may renew the lease again: to prevent that, use [`crash_owner`](Self::crash_owner).
    ///
    /// # Errors
    /// An error of the store behind.
    pub async fn lapse(&self, key: &Key) -> Result<(), StoreError> {
        for record in self.records(key).await? {
            lapse(&*self.inner, &record).await?;
        }
        Ok(())
    }

    /// Ends the retention of each record with this key: the next call is a first call.
    ///
    /// # Errors
    /// An error of the store behind.
    pub async fn expire(&self, key: &Key) -> Result<(), StoreError> {
        for record in self.records(key).await? {
            self.inner
                .resolve(&record.observation(), &Resolution::Erase)
                .await?;
        }
        Ok(())
    }

    /// Crashes the owner of each running record with this key, as far as the store can see: nothing of the owner reaches
    /// the store any more, and the record can be taken over.
    ///
    /// # Errors
    /// An error of the store behind.
    pub async fn crash_owner(&self, key: &Key) -> Result<(), StoreError> {
        for record in self.records(key).await? {
            self.control.seen().crashed.extend(record.claim_id);
            lapse(&*self.inner, &record).await?;
        }
        Ok(())
    }

    async fn records(&self, key: &Key) -> Result<Vec<Record>, StoreError> {
        let mut records = all_records(&*self.inner).await?;
        records.retain(|record| record.identity.key.as_str() == key.as_str());
        Ok(records)
    }
}

impl Default for TestStore {
    fn default() -> Self {
        Self::new()
    }
}

/// All records of a store.
pub(crate) async fn all_records(store: &dyn Store) -> Result<Vec<Record>, StoreError> {
    let filter = Filter {
        payloads: true,
        ..Filter::default()
    };
    let mut records = Vec::new();
    let mut page = PageRequest::default();
    loop {
        let listed = store.list(&filter, &page).await?;
        records.extend(listed.records.into_iter().map(|it| it.record));
        match listed.next {
            Some(next) => page.after = Some(next),
            None => return Ok(records),
        }
    }
}

/// Ends the lease of a running record.
pub(crate) async fn lapse(store: &dyn Store, record: &Record) -> Result<(), StoreError> {
    if let (RecordState::Running, Some(claim_id)) = (record.state, record.claim_id) {
        let owner = Owner {
            id: record.id,
            claim_id,
            fencing_token: record.fencing_token,
        };
        store.renew(&owner, Duration::from_micros(1)).await?;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for TestStore {
    /// Never: it may fail, stop or die.
    fn immediate(&self) -> Option<&dyn ImmediateStore> {
        None
    }

    async fn cached(&self, id: &RecordId) -> Option<Record> {
        self.inner.cached(id).await
    }

    fn can_resolve_manually(&self) -> bool {
        self.inner.can_resolve_manually()
    }

    fn bottleneck(&self) -> Option<String> {
        self.inner.bottleneck()
    }

    fn expires_by_itself(&self) -> bool {
        self.inner.expires_by_itself()
    }

    fn time_uncertainty(&self) -> Duration {
        self.inner.time_uncertainty()
    }

    fn claim_concurrency(&self) -> usize {
        self.inner.claim_concurrency()
    }

    async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        let note = |outcome: &ClaimOutcome| self.control.note_claim(claim, outcome);
        self.control
            .through(
                StoreMethod::Claim,
                Some(&claim.id),
                self.inner.claim(claim),
                note,
            )
            .await
    }

    async fn take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError> {
        let note = |outcome: &ClaimOutcome| self.control.note_claim(claim, outcome);
        let transition = self.inner.take_over(observed, claim);
        self.control
            .through(StoreMethod::TakeOver, Some(&claim.id), transition, note)
            .await
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<FencedWrite, StoreError> {
        self.control.alive(owner).await;
        let transition = self.inner.renew(owner, lease);
        self.control
            .through(StoreMethod::Renew, None, transition, |_| {})
            .await
    }

    async fn complete(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError> {
        self.completing(owner, outcome, self.inner.complete(owner, outcome))
            .await
    }

    async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        self.control.alive(owner).await;
        let note = |write: &FencedWrite| {
            if *write == FencedWrite::Applied {
                self.control.seen().released += 1;
                self.control.note("releases the key");
            }
        };
        let transition = self.inner.release(owner);
        self.control
            .through(StoreMethod::Release, None, transition, note)
            .await
    }

    async fn interrupt(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        self.control.alive(owner).await;
        let note = |write: &FencedWrite| {
            if *write == FencedWrite::Applied {
                self.control.note("marks the record as interrupted");
            }
        };
        let transition = self.inner.interrupt(owner);
        self.control
            .through(StoreMethod::Interrupt, None, transition, note)
            .await
    }

    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        let transition = self.inner.resolve(observed, resolution);
        self.control
            .through(StoreMethod::Resolve, None, transition, |_| {})
            .await
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        let note = |found: &Option<Record>| {
            if let Some(record) = found {
                self.control.note_found(record);
            }
        };
        self.control
            .through(StoreMethod::Get, Some(id), self.inner.get(id), note)
            .await
    }

    async fn list(&self, filter: &Filter, page: &PageRequest) -> Result<Page, StoreError> {
        let transition = self.inner.list(filter, page);
        self.control
            .through(StoreMethod::List, None, transition, |_| {})
            .await
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        self.control
            .through(StoreMethod::Now, None, self.inner.now(), |_| {})
            .await
    }

    async fn purge(&self, limit: u32, as_of: Timestamp) -> Result<Purged, StoreError> {
        let transition = self.inner.purge(limit, as_of);
        self.control
            .through(StoreMethod::Purge, None, transition, |_| {})
            .await
    }

    fn attempts(&self) -> Option<&dyn AttemptStore> {
        self.inner.attempts()
    }

    fn audit(&self) -> Option<&dyn AuditStore> {
        self.inner.audit()
    }

    fn forgetting(&self) -> Option<&dyn ForgettingStore> {
        self.inner
            .forgetting()
            .map(|_| self as &dyn ForgettingStore)
    }

    fn erasure(&self) -> Option<&dyn ErasureStore> {
        self.inner.erasure()
    }

    /// A check has its own operations, and nobody looks keys up in its store.
    fn operations(&self) -> Option<&dyn OperationStore> {
        None
    }

    fn recovery(&self) -> Option<&dyn RecoveryStore> {
        self.inner.recovery().map(|_| self as &dyn RecoveryStore)
    }

    fn steps(&self) -> Option<&dyn StepStore> {
        self.inner.steps().map(|_| self as &dyn StepStore)
    }
}

/// If the store behind saves no steps, both methods fail.
#[async_trait]
impl StepStore for TestStore {
    async fn save_step(
        &self,
        owner: &Owner,
        name: &str,
        payload: &Payload,
    ) -> Result<FencedWrite, StoreError> {
        self.control.alive(owner).await;
        let steps = self.inner.steps().ok_or_else(no_steps)?;
        let note = |write: &FencedWrite| {
            if *write == FencedWrite::Applied {
                self.control.note_step(owner, name);
                self.control.note("saves a step");
            }
        };
        let transition = steps.save_step(owner, name, payload);
        self.control
            .through(StoreMethod::SaveStep, None, transition, note)
            .await
    }

    async fn saved_steps(&self, owner: &Owner) -> Result<Option<Vec<SavedStep>>, StoreError> {
        let steps = self.inner.steps().ok_or_else(no_steps)?;
        let transition = steps.saved_steps(owner);
        self.control
            .through(StoreMethod::SavedSteps, None, transition, |_| {})
            .await
    }
}

fn no_steps() -> StoreError {
    StoreError::new(StoreErrorKind::Other, "the store behind saves no steps")
}

/// If the store behind saves no recovery inputs, all methods fail.
#[async_trait]
impl RecoveryStore for TestStore {
    async fn save_input(
        &self,
        owner: &Owner,
        input: &Payload,
        lease: Duration,
    ) -> Result<FencedWrite, StoreError> {
        self.control.alive(owner).await;
        let note = |write: &FencedWrite| {
            if *write == FencedWrite::Applied {
                self.control.seen().inputs.push(owner.id);
                self.control.note("saves the recovery input");
            }
        };
        // Where time cannot be moved, the input is due when the check ends the lease.
        let lease = match self.control.is_real_time() {
            true => lease.min(Duration::from_millis(1)),
            false => lease,
        };
        let transition = self.inputs()?.save_input(owner, input, lease);
        self.control
            .through(StoreMethod::SaveInput, None, transition, note)
            .await
    }

    async fn due(
        &self,
        operation: &Operation,
        limit: u32,
    ) -> Result<Vec<RecoveryInput>, StoreError> {
        let transition = self.inputs()?.due(operation, limit);
        self.control
            .through(StoreMethod::Due, None, transition, |_| {})
            .await
    }

    async fn begin_recovery(
        &self,
        input: &RecoveryInput,
        by: Duration,
    ) -> Result<Resolved, StoreError> {
        let note = |resolved: &Resolved| {
            if *resolved == Resolved::Done {
                self.control.note("recovers the call");
            }
        };
        let transition = self.inputs()?.begin_recovery(input, by);
        self.control
            .through(StoreMethod::BeginRecovery, None, transition, note)
            .await
    }

    async fn postpone(&self, input: &RecoveryInput, by: Duration) -> Result<Resolved, StoreError> {
        let transition = self.inputs()?.postpone(input, by);
        self.control
            .through(StoreMethod::Postpone, None, transition, |_| {})
            .await
    }

    async fn forget(&self, input: &RecoveryInput) -> Result<Resolved, StoreError> {
        let transition = self.inputs()?.forget(input);
        self.control
            .through(StoreMethod::Forget, None, transition, |_| {})
            .await
    }
}

impl TestStore {
    fn inputs(&self) -> Result<&dyn RecoveryStore, StoreError> {
        self.inner.recovery().ok_or_else(|| {
            StoreError::new(
                StoreErrorKind::Other,
                "the store behind saves no recovery inputs",
            )
        })
    }
}
