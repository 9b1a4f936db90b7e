//! A store that records the calls of one process, and fails, stops or dies on demand.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use async_trait::async_trait;
use idem_runtime::error::{StoreError, StoreErrorKind};
use idem_runtime::key::RecordId;
use idem_runtime::record::{
    ClaimId, Observation, Outcome, Owner, Payload, Record, RecordState, Timestamp,
};
use idem_runtime::store::{
    AttemptStore, AuditStore, ClaimOutcome, ClaimRequest, FencedWrite, Filter, ImmediateStore,
    Page, PageRequest, Purged, RecoveryStore, Resolution, Resolved, SavedStep, StepStore, Store,
};
use idem_runtime::{Key, MemoryStore, OnCrash};
use tokio::sync::watch;

use crate::log::{Log, lock};

/// Method of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is the method of its name")]
pub enum StoreMethod {
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

/// How a store call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The call has no effect.
    Before,
    /// The call takes effect, and its answer is lost.
    After,
}

/// Disturbance of one store call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disturbance {
    Fails(Failure),
    /// The process dies at the call.
    Dies(Failure),
}

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

/// Controls the store of one process. Clones share everything.
#[derive(Clone)]
pub(crate) struct Control(Arc<ControlInner>);

struct ControlInner {
    name: char,
    log: Log,
    power: watch::Sender<Power>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Power {
    On,
    Frozen,
    Dead,
}

/// What the store of a process has seen.
#[derive(Debug, Default)]
struct Seen {
    calls: Vec<StoreMethod>,
    /// Records that the process asked for, in order, since the last [`Control::begin_call`].
    ids: Vec<RecordId>,
    granted: Vec<Grant>,
    outcomes: Vec<(RecordId, RecordState)>,
    released: u32,
    steps: Vec<(RecordId, String)>,
    failures: Vec<(StoreMethod, Failure)>,
    crashed: Vec<ClaimId>,
    disturbance: Option<(u32, Disturbance)>,
    away_from: Option<u32>,
    is_away: bool,
    waker: Option<Waker>,
}

/// A claim that the store granted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    pub(crate) lease: Duration,
    pub(crate) retention: Duration,
    pub(crate) on_crash: OnCrash,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").finish_non_exhaustive()
    }
}

impl Control {
    pub(crate) fn new(name: char, log: Log) -> Self {
        Self(Arc::new(ControlInner {
            name,
            log,
            power: watch::Sender::new(Power::On),
            seen: Mutex::default(),
        }))
    }

    pub(crate) fn name(&self) -> char {
        self.0.name
    }

    pub(crate) fn disturb(&self, call: u32, disturbance: Disturbance) {
        lock(&self.0.seen).disturbance = Some((call, disturbance));
    }

    pub(crate) fn go_away_from(&self, call: u32) {
        lock(&self.0.seen).away_from = Some(call);
    }

    pub(crate) fn is_away(&self) -> bool {
        lock(&self.0.seen).is_away
    }

    pub(crate) fn come_back(&self) {
        let mut seen = lock(&self.0.seen);
        seen.is_away = false;
        seen.away_from = None;
    }

    pub(crate) fn freeze(&self) {
        self.0.power.send_replace(Power::Frozen);
    }

    pub(crate) fn resume(&self) {
        self.0.power.send_replace(Power::On);
    }

    pub(crate) fn kill(&self) {
        self.0.power.send_replace(Power::Dead);
        if let Some(waker) = lock(&self.0.seen).waker.take() {
            waker.wake();
        }
    }

    /// Returns true once the process is dead. Wakes the waker when it dies.
    pub(crate) fn is_dead(&self, waker: &Waker) -> bool {
        lock(&self.0.seen).waker = Some(waker.clone());
        *self.0.power.borrow() == Power::Dead
    }

    /// Forgets the records that the process asked for.
    pub(crate) fn begin_call(&self) {
        lock(&self.0.seen).ids.clear();
    }

    /// First record that the process asked for since [`begin_call`](Self::begin_call).
    pub(crate) fn first_id(&self) -> Option<RecordId> {
        lock(&self.0.seen).ids.first().copied()
    }

    pub(crate) fn calls(&self) -> u32 {
        lock(&self.0.seen).calls.len() as u32
    }

    pub(crate) fn grants(&self) -> Vec<Grant> {
        lock(&self.0.seen).granted.clone()
    }

    pub(crate) fn outcomes(&self) -> Vec<(RecordId, RecordState)> {
        lock(&self.0.seen).outcomes.clone()
    }

    pub(crate) fn released(&self) -> u32 {
        lock(&self.0.seen).released
    }

    pub(crate) fn steps(&self) -> Vec<(RecordId, String)> {
        lock(&self.0.seen).steps.clone()
    }

    fn note(&self, text: impl fmt::Display) {
        self.0.log.note(format!("process {} {text}", self.0.name));
    }

    /// Waits for ever if the owner has crashed.
    async fn alive(&self, owner: &Owner) {
        let crashed = lock(&self.0.seen).crashed.contains(&owner.claim_id);
        if crashed {
            std::future::pending::<()>().await;
        }
    }

    /// Waits while the process is frozen, and for ever once it is dead.
    async fn powered(&self) {
        let mut power = self.0.power.subscribe();
        // The sender is in `self`, so the wait ends only when the process runs.
        let _ = power.wait_for(|power| *power == Power::On).await;
    }

    fn begin(&self, method: StoreMethod, id: Option<&RecordId>) -> Option<Disturbance> {
        let mut seen = lock(&self.0.seen);
        seen.calls.push(method);
        seen.ids.extend(id);
        let number = seen.calls.len() as u32;
        if seen.away_from.is_some_and(|from| from <= number) && !seen.is_away {
            seen.is_away = true;
            self.0.log.note("the store is away");
        }
        if seen.is_away {
            return Some(Disturbance::Fails(Failure::Before));
        }
        if let Some((call, disturbance)) = seen.disturbance
            && call == number
        {
            return Some(disturbance);
        }
        let planned = seen.failures.iter().position(|(it, _)| *it == method)?;
        Some(Disturbance::Fails(seen.failures.remove(planned).1))
    }

    async fn through<T>(
        &self,
        method: StoreMethod,
        id: Option<&RecordId>,
        transition: impl Future<Output = Result<T, StoreError>> + Send,
        note: impl FnOnce(&T) + Send,
    ) -> Result<T, StoreError> {
        self.powered().await;
        let disturbance = self.begin(method, id);
        match disturbance {
            Some(Disturbance::Fails(Failure::Before)) => {
                if !self.is_away() {
                    self.note(format_args!(
                        "gets an error from the store: {method:?} had no effect"
                    ));
                }
                return Err(planned());
            }
            Some(Disturbance::Dies(Failure::Before)) => {
                self.note(format_args!("dies before its {method:?} reaches the store"));
                self.kill();
            }
            _ => {}
        }
        self.powered().await;
        let answer = transition.await;
        if let Ok(answer) = &answer {
            note(answer);
        }
        match disturbance {
            Some(Disturbance::Fails(Failure::After)) => {
                self.note(format_args!(
                    "gets an error from the store: the answer of {method:?} is lost"
                ));
                return answer.and(Err(planned()));
            }
            Some(Disturbance::Dies(Failure::After)) => {
                self.note(format_args!("dies after its {method:?} took effect"));
                self.kill();
            }
            _ => {}
        }
        self.powered().await;
        answer
    }

    fn note_claim(&self, claim: &ClaimRequest, outcome: &ClaimOutcome) {
        match outcome {
            ClaimOutcome::Granted(granted) => {
                lock(&self.0.seen).granted.push(Grant {
                    lease: claim.lease,
                    retention: claim.retention,
                    on_crash: granted.on_crash,
                });
                self.note(format_args!(
                    "claims {}: attempt {}",
                    claim.identity.operation.as_str(),
                    granted.attempt
                ));
            }
            ClaimOutcome::Existing(record) => self.note_found(record),
        }
    }

    fn note_found(&self, record: &Record) {
        let state = if record.is_lapsed() {
            "running, but lapsed"
        } else {
            record.state.as_str()
        };
        self.note(format_args!("finds the record {state}"));
    }
}

fn planned() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unavailable,
        "the test has planned this failure",
    )
}

impl TestStore {
    /// Creates an empty store in memory.
    pub fn new() -> Self {
        Self::over(Arc::new(MemoryStore::new()))
    }

    /// Wraps a store.
    pub fn over(store: Arc<dyn Store>) -> Self {
        Self::watching(store, Control::new('A', Log::default()))
    }

    pub(crate) fn watching(inner: Arc<dyn Store>, control: Control) -> Self {
        Self { inner, control }
    }

    /// The calls of the store so far, in order.
    pub fn calls(&self) -> Vec<StoreMethod> {
        lock(&self.control.0.seen).calls.clone()
    }

    /// Plans the failure of the next call of this method that has no planned failure yet. The engine repeats what may be
    /// repeated, so a single failure is often invisible to callers.
    pub fn fail_next(&self, method: StoreMethod, failure: Failure) {
        lock(&self.control.0.seen).failures.push((method, failure));
    }

    /// Makes each call fail until [`come_back`](Self::come_back).
    pub fn go_away(&self) {
        lock(&self.control.0.seen).is_away = true;
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
            lock(&self.control.0.seen).crashed.extend(record.claim_id);
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
        self.control.alive(owner).await;
        let note = |write: &FencedWrite| match write {
            FencedWrite::Applied => {
                lock(&self.control.0.seen)
                    .outcomes
                    .push((owner.id, outcome.state()));
                self.control.note(match outcome {
                    Outcome::Completed(_) => "stores the result",
                    Outcome::Failed(_) => "stores the error",
                    Outcome::Unrecorded => "cannot store the result: the record says `unrecorded`",
                });
            }
            FencedWrite::Fenced => self.control.note("is refused: it lost its lease"),
        };
        let transition = self.inner.complete(owner, outcome);
        self.control
            .through(StoreMethod::Complete, None, transition, note)
            .await
    }

    async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        self.control.alive(owner).await;
        let note = |write: &FencedWrite| {
            if *write == FencedWrite::Applied {
                lock(&self.control.0.seen).released += 1;
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

    fn recovery(&self) -> Option<&dyn RecoveryStore> {
        self.inner.recovery()
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
                let mut seen = lock(&self.control.0.seen);
                let step = (owner.id, name.to_owned());
                // A save whose answer was lost is sent again.
                if !seen.steps.contains(&step) {
                    seen.steps.push(step);
                }
                drop(seen);
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
