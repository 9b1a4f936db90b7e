//! Store wrapper that fails or hangs on demand, before or after the transition of the inner store.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::error::{StoreError, StoreErrorKind};
use crate::key::RecordId;
use crate::record::{Observation, Outcome, Owner, Payload, Record, Timestamp};
use crate::store::{
    AttemptStore, AuditFilter, AuditPage, AuditStore, ClaimOutcome, ClaimRequest, ErasureStore,
    FencedWrite, Filter, ForgettingStore, ImmediateStore, ManualChange, OperationStore, Page,
    PageRequest, Purged, RecoveryStore, Resolution, Resolved, SavedStep, StepStore, Store,
};

/// Method of a [`Store`] or [`StepStore`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is the method of its name")]
pub enum Op {
    Claim,
    TakeOver,
    Renew,
    Complete,
    Release,
    Interrupt,
    Resolve,
    Get,
    List,
    Now,
    Purge,
    SaveStep,
    SavedSteps,
}

impl Op {
    /// All operations.
    pub const ALL: [Self; 13] = [
        Self::Claim,
        Self::TakeOver,
        Self::Renew,
        Self::Complete,
        Self::Release,
        Self::Interrupt,
        Self::Resolve,
        Self::Get,
        Self::List,
        Self::Now,
        Self::Purge,
        Self::SaveStep,
        Self::SavedSteps,
    ];
}

/// Fault of a call.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Fault {
    /// No fault: the call succeeds.
    None,
    /// Returns an error of this kind. The transition is not applied.
    FailBefore(StoreErrorKind),
    /// Applies the transition, then returns an error of this kind: a lost acknowledgement.
    FailAfter(StoreErrorKind),
    /// Panics. The transition is not applied.
    Panic,
    /// Never returns. The transition is not applied.
    HangBefore,
    /// Applies the transition, and never returns.
    HangAfter,
    /// Waits at the gate, then applies the transition.
    HoldBefore(Gate),
    /// Applies the transition, then waits at the gate before returning.
    HoldAfter(Gate),
}

/// Store that injects planned faults into calls, in order, and otherwise forwards to the inner store.
///
/// Clones share their plan and their counts, so a test keeps one clone and passes the other to the code under test. The
/// store uses no timers: a call that hangs does so until it is dropped, and a held call waits until its [`Gate`] opens.
///
/// ```
/// use idem_store::conformance::faults::{FaultStore, Op};
/// use idem_store::{Store, Timestamp};
///
/// async fn purges_at_the_second_try(store: impl Store) {
///     let faults = FaultStore::new(store);
///     faults.fail_before(Op::Purge, 1);
///     assert!(faults.purge(100, Timestamp::MAX).await.is_err());
///     assert!(faults.purge(100, Timestamp::MAX).await.is_ok());
///     assert_eq!(faults.count(Op::Purge), 2);
/// }
/// ```
#[derive(Debug)]
pub struct FaultStore<S> {
    inner: Arc<Inner<S>>,
}

#[derive(Debug)]
struct Inner<S> {
    store: S,
    ops: Mutex<[Script; Op::ALL.len()]>,
    refused_results: Mutex<Option<StoreErrorKind>>,
}

#[derive(Debug, Default)]
struct Script {
    next: VecDeque<Fault>,
    always: Option<Fault>,
    count: u64,
}

impl<S> Clone for FaultStore<S> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<S> FaultStore<S> {
    /// Wraps a store, without faults.
    pub fn new(store: S) -> Self {
        Self {
            inner: Arc::new(Inner {
                store,
                ops: Mutex::default(),
                refused_results: Mutex::default(),
            }),
        }
    }

    /// Inner store, without faults and counts.
    pub fn inner(&self) -> &S {
        &self.inner.store
    }

    /// Plans the fault of the next call of this kind that has no planned fault yet.
    pub fn next(&self, op: Op, fault: Fault) {
        self.scripts()[op as usize].next.push_back(fault);
    }

    /// Plans the fault of every call of this kind after the planned ones, until [`reset`](Self::reset).
    pub fn always(&self, op: Op, fault: Fault) {
        self.scripts()[op as usize].always = Some(fault);
    }

    /// Makes every call fail as [`Unavailable`](StoreErrorKind::Unavailable), without its transition, until
    /// [`reset`](Self::reset).
    pub fn outage(&self) {
        for op in Op::ALL {
            self.always(op, Fault::FailBefore(StoreErrorKind::Unavailable));
        }
    }

    /// Makes the next calls of this kind fail as [`Unavailable`](StoreErrorKind::Unavailable), without their
    /// transition.
    pub fn fail_before(&self, op: Op, calls: usize) {
        self.plan(op, calls, &Fault::FailBefore(StoreErrorKind::Unavailable));
    }

    /// Makes the next calls of this kind fail as [`Unavailable`](StoreErrorKind::Unavailable), after their transition
    /// was applied.
    pub fn fail_after(&self, op: Op, calls: usize) {
        self.plan(op, calls, &Fault::FailAfter(StoreErrorKind::Unavailable));
    }

    /// Makes the next calls of this kind hang, without their transition.
    pub fn hang_before(&self, op: Op, calls: usize) {
        self.plan(op, calls, &Fault::HangBefore);
    }

    /// Makes the next calls of this kind hang, after their transition was applied.
    pub fn hang_after(&self, op: Op, calls: usize) {
        self.plan(op, calls, &Fault::HangAfter);
    }

    /// Holds the next call of this kind before its transition, until the gate opens.
    pub fn hold_before(&self, op: Op) -> Gate {
        let gate = Gate::new();
        self.next(op, Fault::HoldBefore(gate.clone()));
        gate
    }

    /// Holds the next call of this kind after its transition, until the gate opens.
    pub fn hold_after(&self, op: Op) -> Gate {
        let gate = Gate::new();
        self.next(op, Fault::HoldAfter(gate.clone()));
        gate
    }

    /// Makes every completion with a result fail with this kind, without its transition, until [`reset`](Self::reset). A
    /// completion without a result succeeds, as in a store that is too full for the result alone.
    pub fn refuse_results(&self, kind: StoreErrorKind) {
        *self.refused_results() = Some(kind);
    }

    /// Number of calls of this kind that have begun since the last [`reset`](Self::reset).
    pub fn count(&self, op: Op) -> u64 {
        self.scripts()[op as usize].count
    }

    /// Number of calls of any kind that have begun since the last [`reset`](Self::reset).
    pub fn total(&self) -> u64 {
        self.scripts().iter().map(|script| script.count).sum()
    }

    /// Clears plans and counts. Calls that hang or are held stay so.
    pub fn reset(&self) {
        *self.scripts() = Default::default();
        *self.refused_results() = None;
    }

    fn refused_results(&self) -> MutexGuard<'_, Option<StoreErrorKind>> {
        self.inner
            .refused_results
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn plan(&self, op: Op, calls: usize, fault: &Fault) {
        for _ in 0..calls {
            self.next(op, fault.clone());
        }
    }

    fn scripts(&self) -> MutexGuard<'_, [Script; Op::ALL.len()]> {
        self.inner
            .ops
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, op: Op) -> Fault {
        let script = &mut self.scripts()[op as usize];
        script.count += 1;
        script
            .next
            .pop_front()
            .or_else(|| script.always.clone())
            .unwrap_or(Fault::None)
    }

    async fn faulty<T>(
        &self,
        op: Op,
        transition: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        match self.begin(op) {
            Fault::None => transition.await,
            Fault::FailBefore(kind) => Err(planned(kind)),
            Fault::FailAfter(kind) => {
                transition.await?;
                Err(planned(kind))
            }
            Fault::Panic => std::panic::panic_any("a planned panic"),
            Fault::HangBefore => std::future::pending().await,
            Fault::HangAfter => {
                transition.await?;
                std::future::pending().await
            }
            Fault::HoldBefore(gate) => {
                gate.pass().await;
                transition.await
            }
            Fault::HoldAfter(gate) => {
                let answer = transition.await;
                gate.pass().await;
                answer
            }
        }
    }
}

const PLANNED: &str = "a planned fault";

fn planned(kind: StoreErrorKind) -> StoreError {
    StoreError::new(kind, PLANNED)
}

/// Returns true for the error of a planned fault, and false for one of the inner store.
pub(super) fn is_planned(error: &StoreError) -> bool {
    error.to_string() == PLANNED
}

/// Gate at which a call is held. Clones share its state.
#[derive(Debug, Clone)]
pub struct Gate {
    state: Arc<watch::Sender<GateState>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct GateState {
    reached: bool,
    open: bool,
}

impl Gate {
    /// Creates a closed gate.
    pub fn new() -> Self {
        Self {
            state: Arc::new(watch::Sender::new(GateState::default())),
        }
    }

    /// Waits until a call has reached the gate.
    ///
    /// # Cancel safety
    /// The future may be dropped and the method called again.
    pub async fn reached(&self) {
        self.until(|state| state.reached).await;
    }

    /// Opens the gate for the waiting call and all later calls.
    pub fn open(&self) {
        self.state.send_modify(|state| state.open = true);
    }

    async fn pass(&self) {
        self.state.send_modify(|state| state.reached = true);
        self.until(|state| state.open).await;
    }

    async fn until(&self, holds: impl Fn(&GateState) -> bool) {
        // The sender is in `self`, so the wait ends only when the condition holds.
        let _ = self.state.subscribe().wait_for(|state| holds(state)).await;
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: Store> Store for FaultStore<S> {
    /// A fault may be a delay.
    fn immediate(&self) -> Option<&dyn ImmediateStore> {
        None
    }

    fn can_resolve_manually(&self) -> bool {
        self.inner.store.can_resolve_manually()
    }

    fn bottleneck(&self) -> Option<String> {
        self.inner.store.bottleneck()
    }

    fn expires_by_itself(&self) -> bool {
        self.inner.store.expires_by_itself()
    }

    fn time_uncertainty(&self) -> Duration {
        self.inner.store.time_uncertainty()
    }

    fn claim_concurrency(&self) -> usize {
        self.inner().claim_concurrency()
    }

    async fn cached(&self, id: &RecordId) -> Option<Record> {
        self.inner.store.cached(id).await
    }

    async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        self.faulty(Op::Claim, self.inner().claim(claim)).await
    }

    async fn take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError> {
        let transition = self.inner().take_over(observed, claim);
        self.faulty(Op::TakeOver, transition).await
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<FencedWrite, StoreError> {
        self.faulty(Op::Renew, self.inner().renew(owner, lease))
            .await
    }

    async fn complete(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError> {
        let refused = *self.refused_results();
        let transition = async {
            match refused {
                Some(kind) if outcome.payload().is_some() => Err(planned(kind)),
                _ => self.inner().complete(owner, outcome).await,
            }
        };
        self.faulty(Op::Complete, transition).await
    }

    async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        self.faulty(Op::Release, self.inner().release(owner)).await
    }

    async fn interrupt(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        let transition = self.inner().interrupt(owner);
        self.faulty(Op::Interrupt, transition).await
    }

    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        let transition = self.inner().resolve(observed, resolution);
        self.faulty(Op::Resolve, transition).await
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        self.faulty(Op::Get, self.inner().get(id)).await
    }

    async fn list(&self, filter: &Filter, page: &PageRequest) -> Result<Page, StoreError> {
        self.faulty(Op::List, self.inner().list(filter, page)).await
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        self.faulty(Op::Now, self.inner().now()).await
    }

    async fn purge(&self, limit: u32, as_of: Timestamp) -> Result<Purged, StoreError> {
        self.faulty(Op::Purge, self.inner().purge(limit, as_of))
            .await
    }

    fn audit(&self) -> Option<&dyn AuditStore> {
        self.inner().audit().map(|_| self as &dyn AuditStore)
    }

    fn attempts(&self) -> Option<&dyn AttemptStore> {
        self.inner().attempts()
    }

    fn forgetting(&self) -> Option<&dyn ForgettingStore> {
        self.inner()
            .forgetting()
            .map(|_| self as &dyn ForgettingStore)
    }

    fn erasure(&self) -> Option<&dyn ErasureStore> {
        self.inner().erasure()
    }

    fn operations(&self) -> Option<&dyn OperationStore> {
        self.inner().operations()
    }

    fn recovery(&self) -> Option<&dyn RecoveryStore> {
        self.inner().recovery()
    }

    fn steps(&self) -> Option<&dyn StepStore> {
        self.inner().steps().map(|_| self as &dyn StepStore)
    }
}

/// A manual change is subject to the faults of [`Op::Resolve`], and a manual purge to those of [`Op::Purge`]. If the inner
/// store keeps no audit, all methods fail.
#[async_trait]
impl<S: Store> AuditStore for FaultStore<S> {
    async fn resolve_manually(
        &self,
        observed: &Observation,
        resolution: &Resolution,
        change: &ManualChange,
    ) -> Result<Resolved, StoreError> {
        let audit = self.inner().audit().ok_or_else(no_audit)?;
        let transition = audit.resolve_manually(observed, resolution, change);
        self.faulty(Op::Resolve, transition).await
    }

    async fn purge_manually(
        &self,
        limit: u32,
        change: &ManualChange,
    ) -> Result<Purged, StoreError> {
        let audit = self.inner().audit().ok_or_else(no_audit)?;
        let transition = audit.purge_manually(limit, change);
        self.faulty(Op::Purge, transition).await
    }

    async fn audit(
        &self,
        filter: &AuditFilter,
        page: &PageRequest,
    ) -> Result<AuditPage, StoreError> {
        let audit = self.inner().audit().ok_or_else(no_audit)?;
        audit.audit(filter, page).await
    }
}

fn no_audit() -> StoreError {
    StoreError::new(
        StoreErrorKind::Other,
        "the store behind the faults keeps no audit",
    )
}

/// The completion is subject to the faults of [`Op::Complete`]. If the inner store keeps payloads as long as records, it
/// completes as [`Store::complete`] does.
#[async_trait]
impl<S: Store> ForgettingStore for FaultStore<S> {
    async fn complete_for(
        &self,
        owner: &Owner,
        outcome: &Outcome,
        payload_for: Duration,
    ) -> Result<FencedWrite, StoreError> {
        let transition = match self.inner().forgetting() {
            Some(store) => store.complete_for(owner, outcome, payload_for),
            None => self.inner().complete(owner, outcome),
        };
        self.faulty(Op::Complete, transition).await
    }
}

/// If the inner store does not save steps, both methods fail.
#[async_trait]
impl<S: Store> StepStore for FaultStore<S> {
    async fn save_step(
        &self,
        owner: &Owner,
        name: &str,
        payload: &Payload,
    ) -> Result<FencedWrite, StoreError> {
        let steps = self.inner().steps().ok_or_else(no_steps)?;
        self.faulty(Op::SaveStep, steps.save_step(owner, name, payload))
            .await
    }

    async fn saved_steps(&self, owner: &Owner) -> Result<Option<Vec<SavedStep>>, StoreError> {
        let steps = self.inner().steps().ok_or_else(no_steps)?;
        self.faulty(Op::SavedSteps, steps.saved_steps(owner)).await
    }
}

fn no_steps() -> StoreError {
    StoreError::new(
        StoreErrorKind::Other,
        "the store behind the faults keeps no steps",
    )
}
