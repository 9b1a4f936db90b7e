//! Controls one process: its store fails, stops or dies on demand, and so do its transactions.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Duration;

use idem_runtime::OnCrash;
use idem_runtime::error::{StoreError, StoreErrorKind};
use idem_runtime::key::RecordId;
use idem_runtime::record::{ClaimId, Owner, Record, RecordState};
use idem_runtime::store::{ClaimOutcome, ClaimRequest};
use idem_runtime::testing::{AnyConnection, Interference, Interfering, TransactionCall, undo};
use tokio::sync::watch;

use crate::log::{Log, lock};
use crate::method::{Failure, StoreMethod};

/// Disturbance of one store call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disturbance {
    Fails(Failure),
    /// The process dies at the call.
    Dies(Failure),
    /// The process stops after the call took effect.
    Stops,
    /// The server has undone the transaction before the call.
    Undone,
}

/// Controls the store of one process. Clones share everything.
#[derive(Clone)]
pub(crate) struct Control(Arc<ControlInner>);

struct ControlInner {
    name: char,
    log: Log,
    /// True if the time of the store cannot be moved.
    is_real_time: bool,
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
pub(crate) struct Seen {
    pub(crate) calls: Vec<StoreMethod>,
    /// Records that the process asked for, in order, since the last [`Control::begin_call`].
    ids: Vec<RecordId>,
    /// All records that the process asked for.
    all_ids: Vec<RecordId>,
    granted: Vec<Grant>,
    /// Retention of the first claim in a transaction.
    retention: Option<Duration>,
    pub(crate) outcomes: Vec<(RecordId, RecordState)>,
    pub(crate) released: u32,
    pub(crate) steps: Vec<(RecordId, String)>,
    /// Records whose recovery input was saved.
    pub(crate) inputs: Vec<RecordId>,
    pub(crate) failures: Vec<(StoreMethod, Failure)>,
    pub(crate) crashed: Vec<ClaimId>,
    disturbance: Option<(u32, Disturbance)>,
    /// The last claim in a transaction found the record taken.
    pub(crate) is_taken: bool,
    /// Disturbance of the call in a transaction that is under way.
    in_transaction: Option<Disturbance>,
    away_from: Option<u32>,
    pub(crate) is_away: bool,
    /// True once the leases of the process have ended although its clock says otherwise.
    leases_have_ended: bool,
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
    pub(crate) fn new(name: char, log: Log, is_real_time: bool) -> Self {
        Self(Arc::new(ControlInner {
            name,
            log,
            is_real_time,
            power: watch::Sender::new(Power::On),
            seen: Mutex::default(),
        }))
    }

    pub(crate) fn name(&self) -> char {
        self.0.name
    }

    pub(crate) fn is_real_time(&self) -> bool {
        self.0.is_real_time
    }

    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.0.seen)
    }

    pub(crate) fn disturb(&self, call: u32, disturbance: Disturbance) {
        self.seen().disturbance = Some((call, disturbance));
    }

    pub(crate) fn go_away_from(&self, call: u32) {
        self.seen().away_from = Some(call);
    }

    pub(crate) fn come_back(&self) {
        let mut seen = self.seen();
        seen.is_away = false;
        seen.away_from = None;
    }

    /// Stops the process for longer than its leases last.
    pub(crate) fn freeze(&self) {
        self.seen().leases_have_ended = self.0.is_real_time;
        self.switch_off(Power::Frozen);
    }

    pub(crate) fn resume(&self) {
        self.0.power.send_replace(Power::On);
    }

    pub(crate) fn kill(&self) {
        self.switch_off(Power::Dead);
    }

    fn switch_off(&self, power: Power) {
        self.0.power.send_replace(power);
        let waker = self.seen().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns true while the process is stopped or dead. Wakes the waker when that begins.
    pub(crate) fn is_down(&self, waker: &Waker) -> bool {
        self.seen().waker = Some(waker.clone());
        *self.0.power.borrow() != Power::On
    }

    /// Forgets the records that the process asked for.
    pub(crate) fn begin_call(&self) {
        self.seen().ids.clear();
    }

    /// First record that the process asked for since [`begin_call`](Self::begin_call).
    pub(crate) fn first_id(&self) -> Option<RecordId> {
        self.seen().ids.first().copied()
    }

    /// All records that the process asked for.
    pub(crate) fn all_ids(&self) -> Vec<RecordId> {
        self.seen().all_ids.clone()
    }

    pub(crate) fn calls(&self) -> Vec<StoreMethod> {
        self.seen().calls.clone()
    }

    pub(crate) fn grants(&self) -> Vec<Grant> {
        self.seen().granted.clone()
    }

    /// Retention of the first claim, in a transaction or not.
    pub(crate) fn retention(&self) -> Option<Duration> {
        let seen = self.seen();
        let granted = seen.granted.first().map(|grant| grant.retention);
        granted.or(seen.retention)
    }

    pub(crate) fn note(&self, text: impl fmt::Display) {
        self.0.log.note(format!("process {} {text}", self.0.name));
    }

    /// Waits for ever if the owner has crashed.
    pub(crate) async fn alive(&self, owner: &Owner) {
        let crashed = self.seen().crashed.contains(&owner.claim_id);
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
        let mut seen = self.seen();
        seen.calls.push(method);
        seen.ids.extend(id);
        seen.all_ids.extend(id);
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

    /// A call leaves for the store. After an error it does not arrive there.
    async fn send(
        &self,
        method: StoreMethod,
        id: Option<&RecordId>,
    ) -> Result<Option<Disturbance>, StoreError> {
        self.powered().await;
        let disturbance = self.begin(method, id);
        match disturbance {
            Some(Disturbance::Fails(Failure::Before)) => {
                if !self.seen().is_away {
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
        Ok(disturbance)
    }

    /// The answer of a call arrives. An error means that it is lost.
    async fn receive(
        &self,
        method: StoreMethod,
        disturbance: Option<Disturbance>,
    ) -> Result<(), StoreError> {
        match disturbance {
            Some(Disturbance::Fails(Failure::After)) => {
                self.note(format_args!(
                    "gets an error from the store: the answer of {method:?} is lost"
                ));
                return Err(planned());
            }
            Some(Disturbance::Dies(Failure::After)) => {
                self.note(format_args!("dies after its {method:?} took effect"));
                self.kill();
            }
            Some(Disturbance::Stops) => {
                self.note(format_args!("stops after its {method:?} took effect"));
                self.freeze();
            }
            _ => {}
        }
        self.powered().await;
        Ok(())
    }

    pub(crate) async fn through<T>(
        &self,
        method: StoreMethod,
        id: Option<&RecordId>,
        transition: impl Future<Output = Result<T, StoreError>> + Send,
        note: impl FnOnce(&T) + Send,
    ) -> Result<T, StoreError> {
        let disturbance = self.send(method, id).await?;
        let answer = transition.await;
        if let Ok(answer) = &answer {
            note(answer);
        }
        let received = self.receive(method, disturbance).await;
        answer.and_then(|answer| received.map(|()| answer))
    }

    pub(crate) fn note_claim(&self, claim: &ClaimRequest, outcome: &ClaimOutcome) {
        match outcome {
            ClaimOutcome::Granted(granted) => {
                self.seen().granted.push(Grant {
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

    pub(crate) fn note_found(&self, record: &Record) {
        let state = if record.is_lapsed() {
            "running, but lapsed"
        } else {
            record.state.as_str()
        };
        self.note(format_args!("finds the record {state}"));
    }

    pub(crate) fn note_step(&self, owner: &Owner, name: &str) {
        let mut seen = self.seen();
        let step = (owner.id, name.to_owned());
        // A save whose answer was lost is sent again.
        if !seen.steps.contains(&step) {
            seen.steps.push(step);
        }
    }

    fn note_in_transaction(&self, call: TransactionCall<'_>, took_effect: bool) {
        if let TransactionCall::Claim(_) = call {
            self.seen().is_taken = !took_effect;
        }
        match (call, took_effect) {
            (TransactionCall::Claim(claim), true) => self.note(format_args!(
                "claims {} in a transaction",
                claim.identity.operation.as_str()
            )),
            (TransactionCall::Claim(_), false) => self.note("finds the record of another call"),
            (TransactionCall::Complete(..), true) => {
                self.note("writes the result into its transaction");
            }
            (TransactionCall::Complete(..), false) => {
                self.note("cannot write the result: its transaction is gone");
            }
            (TransactionCall::SaveStep(owner, name), _) => {
                self.note_step(owner, name);
                self.note("saves a step in a transaction");
            }
            (TransactionCall::Commit, _) => self.note("commits"),
        }
    }
}

/// Method of a call in a transaction.
fn method(call: TransactionCall<'_>) -> StoreMethod {
    match call {
        TransactionCall::Claim(_) => StoreMethod::ClaimIn,
        TransactionCall::Complete(..) => StoreMethod::CompleteIn,
        TransactionCall::SaveStep(..) => StoreMethod::SaveStepIn,
        TransactionCall::Commit => StoreMethod::Commit,
    }
}

impl Interference for Control {
    fn leases_have_ended(&self) -> bool {
        self.seen().leases_have_ended
    }

    fn before<'a>(
        &'a self,
        call: TransactionCall<'a>,
        connection: Option<AnyConnection<'a>>,
    ) -> Interfering<'a> {
        Box::pin(async move {
            let claim = match call {
                TransactionCall::Claim(claim) => Some(claim),
                _ => None,
            };
            if let Some(claim) = claim {
                self.seen().retention.get_or_insert(claim.retention);
            }
            let disturbance = self
                .send(method(call), claim.map(|claim| &claim.id))
                .await?;
            self.seen().in_transaction = disturbance;
            if let (Some(Disturbance::Undone), Some(connection)) = (disturbance, connection)
                && undo(connection, matches!(call, TransactionCall::Commit)).await?
            {
                self.note("has an open transaction, which the server undoes");
            }
            Ok(())
        })
    }

    fn after<'a>(&'a self, call: TransactionCall<'a>, took_effect: bool) -> Interfering<'a> {
        Box::pin(async move {
            self.note_in_transaction(call, took_effect);
            let disturbance = self.seen().in_transaction.take();
            self.receive(method(call), disturbance).await
        })
    }
}

fn planned() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unavailable,
        "the test has planned this failure",
    )
}
