//! A store that fails or hangs on cue, before or after the transition of the store behind it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::error::{StoreError, StoreErrorKind};
use crate::key::RecordId;
use crate::record::{Observation, Outcome, Owner, Payload, Record};
use crate::store::{
    ClaimOutcome, ClaimRequest, FencedWrite, Filter, Page, PageRequest, Purged, RecoveryStore,
    Resolution, Resolved, SavedStep, StepStore, Store,
};

/// A call of a [`Store`] or [`StepStore`].
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
    Purge,
    SaveStep,
    SavedSteps,
}

impl Op {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Claim,
        Self::TakeOver,
        Self::Renew,
        Self::Complete,
        Self::Release,
        Self::Interrupt,
        Self::Resolve,
        Self::Get,
        Self::List,
        Self::Purge,
        Self::SaveStep,
        Self::SavedSteps,
    ];
}

/// What happens to a call.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing: the call goes through.
    None,
    /// An error of this kind, and the transition is not taken.
    FailBefore(StoreErrorKind),
    /// The transition is taken, then an error of this kind: a lost acknowledgement.
    FailAfter(StoreErrorKind),
    /// The call panics, and the transition is not taken.
    Panic,
    /// The call never comes back, and the transition is not taken.
    HangBefore,
    /// The transition is taken, and the call never comes back.
    HangAfter,
    /// The call waits at the gate, then the transition is taken.
    HoldBefore(Gate),
    /// The transition is taken, and the call waits at the gate before it says so.
    HoldAfter(Gate),
}

/// A store that does what it is told to the calls that come, in order, and otherwise what the store behind it does.
///
/// Clones share their plan and their counts, so a test keeps one and hands the other to what it tests. There are no
/// timers in it: what hangs hangs until it is dropped, what is held is held until its [`Gate`] opens.
///
/// ```
/// # #[cfg(feature = "memory")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// use idem_runtime::conformance::faults::{FaultStore, Op};
/// use idem_runtime::{MemoryStore, Store};
///
/// let faults = FaultStore::new(MemoryStore::new());
/// faults.fail_before(Op::Purge, 1);
/// assert!(faults.purge(100).await.is_err());
/// assert!(faults.purge(100).await.is_ok());
/// assert_eq!(faults.count(Op::Purge), 2);
/// # Ok(()) })
/// # }
/// # #[cfg(not(feature = "memory"))]
/// # fn main() {}
/// ```
#[derive(Debug)]
pub struct FaultStore<S> {
    inner: Arc<Inner<S>>,
}

#[derive(Debug)]
struct Inner<S> {
    store: S,
    ops: Mutex<[Script; Op::ALL.len()]>,
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
    /// A store in front of this one, without faults.
    pub fn new(store: S) -> Self {
        Self {
            inner: Arc::new(Inner {
                store,
                ops: Mutex::default(),
            }),
        }
    }

    /// The store behind it, untouched by faults and counts.
    pub fn inner(&self) -> &S {
        &self.inner.store
    }

    /// Plans what happens to the next such call for which nothing is planned yet.
    pub fn next(&self, op: Op, fault: Fault) {
        self.scripts()[op as usize].next.push_back(fault);
    }

    /// Plans what happens to every such call that comes after the planned ones, until [`reset`](Self::reset).
    pub fn always(&self, op: Op, fault: Fault) {
        self.scripts()[op as usize].always = Some(fault);
    }

    /// Lets every call fail as [`Unavailable`](StoreErrorKind::Unavailable), untaken, until [`reset`](Self::reset).
    pub fn outage(&self) {
        for op in Op::ALL {
            self.always(op, Fault::FailBefore(StoreErrorKind::Unavailable));
        }
    }

    /// Lets the next so many calls of this kind fail as [`Unavailable`](StoreErrorKind::Unavailable), untaken.
    pub fn fail_before(&self, op: Op, calls: usize) {
        self.plan(op, calls, &Fault::FailBefore(StoreErrorKind::Unavailable));
    }

    /// Lets the next so many calls of this kind fail as [`Unavailable`](StoreErrorKind::Unavailable) after it was
    /// taken.
    pub fn fail_after(&self, op: Op, calls: usize) {
        self.plan(op, calls, &Fault::FailAfter(StoreErrorKind::Unavailable));
    }

    /// Lets the next so many calls of this kind hang, untaken.
    pub fn hang_before(&self, op: Op, calls: usize) {
        self.plan(op, calls, &Fault::HangBefore);
    }

    /// Lets the next so many calls of this kind hang after it was taken.
    pub fn hang_after(&self, op: Op, calls: usize) {
        self.plan(op, calls, &Fault::HangAfter);
    }

    /// Holds the next such call before it is taken, until the gate opens.
    pub fn hold_before(&self, op: Op) -> Gate {
        let gate = Gate::new();
        self.next(op, Fault::HoldBefore(gate.clone()));
        gate
    }

    /// Holds the next such call after it was taken, until the gate opens.
    pub fn hold_after(&self, op: Op) -> Gate {
        let gate = Gate::new();
        self.next(op, Fault::HoldAfter(gate.clone()));
        gate
    }

    /// How many calls of this kind have begun since the last [`reset`](Self::reset).
    pub fn count(&self, op: Op) -> u64 {
        self.scripts()[op as usize].count
    }

    /// How many calls of any kind have begun since the last [`reset`](Self::reset).
    pub fn total(&self) -> u64 {
        self.scripts().iter().map(|script| script.count).sum()
    }

    /// Forgets plans and counts. Calls that hang or are held stay so.
    pub fn reset(&self) {
        *self.scripts() = Default::default();
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

fn planned(kind: StoreErrorKind) -> StoreError {
    StoreError::new(kind, "a planned fault")
}

/// Where a call is held. Clones are the same gate.
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
    /// A closed gate.
    pub fn new() -> Self {
        Self {
            state: Arc::new(watch::Sender::new(GateState::default())),
        }
    }

    /// Waits until a call has come to the gate.
    ///
    /// # Cancel safety
    /// It may be dropped and called again.
    pub async fn reached(&self) {
        self.until(|state| state.reached).await;
    }

    /// Lets through the call that waits, and each that comes.
    pub fn open(&self) {
        self.state.send_modify(|state| state.open = true);
    }

    async fn pass(&self) {
        self.state.send_modify(|state| state.reached = true);
        self.until(|state| state.open).await;
    }

    async fn until(&self, holds: impl Fn(&GateState) -> bool) {
        // The sender is in `self`, so the wait ends by its condition alone.
        let _ = self.state.subscribe().wait_for(|state| holds(state)).await;
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl<S: Store> Store for FaultStore<S> {
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
        let transition = self.inner().complete(owner, outcome);
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

    async fn purge(&self, limit: u32) -> Result<Purged, StoreError> {
        self.faulty(Op::Purge, self.inner().purge(limit)).await
    }

    fn recovery(&self) -> Option<&dyn RecoveryStore> {
        self.inner().recovery()
    }

    fn steps(&self) -> Option<&dyn StepStore> {
        self.inner().steps().map(|_| self as &dyn StepStore)
    }
}

/// Where the store behind it keeps no steps, both methods fail.
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
