//! Sends a claim, and receives its answer even if the caller is dropped.
//!
//! A claim may be granted at any time after it was sent: its statement may still wait for a connection, for a lock or
//! for a commit. A record claimed for a dropped caller stays `RUNNING` for a whole lease, although nothing ran. Under
//! `refuse` it then stays until an operator resolves it. Checking once whether the claim was granted is not enough,
//! because the read can overtake the claim. A dropped caller's claim is therefore not cancelled: a task waits for its
//! answer and releases the claim.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use crate::engine::admission::{Admission, Permit};
use crate::engine::decisions::ClaimUse;
use crate::engine::give_back::AbandonedClaim;
use crate::engine::prepared::Prepared;
use crate::engine::progress::Phase;
use crate::engine::shared::ANSWER_SOON;
use crate::engine::singleflight::Leader;
use crate::error::{Error, StoreError};
use crate::metrics::{Level, Timed};
use crate::record::{FencingToken, Observation, Record};
use crate::store::{ClaimOutcome, ClaimRequest, ImmediateStore};
use crate::timing::{Caught, Retries, bounded, caught, later, within};

/// Future of a store call that claims.
type ClaimCall = Pin<Box<dyn Future<Output = Result<ClaimOutcome, StoreError>> + Send>>;

/// A claim that was sent, and its permit. A store that does not wait needs none.
struct PendingClaim {
    answer: ClaimCall,
    permit: Option<Permit>,
}

/// Answer to a claim, and the time at which the claim was sent.
pub(super) type ClaimAnswer = Result<(ClaimOutcome, Instant), Error>;

/// Content of a claim.
pub(super) enum ClaimMessage {
    /// The call's own request.
    Call,
    /// A takeover of the observed record, or a claim with another digest than the call's own.
    Other(Box<(Option<Observation>, ClaimRequest)>),
}

impl ClaimMessage {
    /// The ended record of the call, if a cache has it. It needs no permit, because the store does no work for it.
    async fn cached(&self, call: &Prepared) -> Option<Record> {
        let store = &call.engine.store;
        let cached = async { Ok(store.cached(&call.request.id).await) };
        let limit = call.time_left(call.engine.policy.store_timeout);
        match self {
            Self::Call => bounded(limit, Box::pin(cached)).await.ok().flatten(),
            Self::Other(_) => None,
        }
    }

    /// Creates the store call. It owns everything it needs, because it may outlive its caller.
    fn send(&self, call: &Arc<Prepared>) -> ClaimCall {
        let call = Arc::clone(call);
        match self {
            Self::Call => Box::pin(async move { call.engine.store.claim(&call.request).await }),
            Self::Other(other) => {
                let (observed, request) = (**other).clone();
                Box::pin(async move {
                    match &observed {
                        None => call.engine.store.claim(&request).await,
                        Some(observed) => call.engine.store.take_over(observed, &request).await,
                    }
                })
            }
        }
    }
}

/// The claims of one call that were sent, until it is certain that all of them are accounted for.
#[derive(Default)]
pub(super) struct SentClaims {
    /// The store call that the caller waits for.
    under_way: Option<PendingClaim>,
    /// Store calls that took too long and were followed by a retry. Each has a task, which waits for the decision.
    unanswered: Vec<oneshot::Sender<ClaimUse>>,
    /// Fencing token of a granted claim under which no body runs.
    unused: Option<FencingToken>,
    /// A try that failed may still be granted.
    in_doubt: bool,
}

impl SentClaims {
    /// Claims from a store that does not wait. None if the store failed: [`send`](Self::send) tries again.
    pub(super) fn send_at_once(
        &mut self,
        store: &dyn ImmediateStore,
        call: &Prepared,
        sent_at: Instant,
    ) -> Option<ClaimOutcome> {
        let claim = caught(|| store.claim_now(&call.request)).ok()?;
        self.unused = granted_token(&claim);
        call.metrics.start_at(Timed::Claim, sent_at).stop();
        Some(claim)
    }

    /// Sends a claim, once it is admitted, until the store answers or patience runs out.
    pub(super) async fn send(
        &mut self,
        call: &Arc<Prepared>,
        message: &ClaimMessage,
        mut now: Option<Instant>,
    ) -> ClaimAnswer {
        let mut retries = None;
        let mut first_sent_at = None;
        loop {
            let permit = match admit_at_once(call) {
                Some(permit) => permit,
                None => {
                    let asked_at = Instant::now();
                    if let Some(record) = Box::pin(message.cached(call)).await {
                        return Ok((ClaimOutcome::Existing(Box::new(record)), asked_at));
                    }
                    let permit =
                        wait_for_admission(call, &call.engine.admission, || capacity(call));
                    Some(Box::pin(permit).await?)
                }
            };
            call.check_deadline()?;
            if permit.as_ref().is_some_and(|permit| permit.waited) {
                now = None;
            }
            let sent_at = now.take().unwrap_or_else(Instant::now);
            let first_sent_at = *first_sent_at.get_or_insert(sent_at);
            let timer = || call.metrics.start_at(Timed::Claim, first_sent_at);
            let error = match self.send_once(call, message, permit).await {
                Ok(claim) => {
                    timer().stop();
                    return Ok((claim, sent_at));
                }
                Err(error) => error,
            };
            if let Err(late) = call.check_deadline() {
                timer().stop();
                return Err(late);
            }
            let patience = later(sent_at, call.engine.policy.store_patience);
            let retries = retries.get_or_insert_with(|| Retries::until(call.by_deadline(patience)));
            // Boxed, because a timer is larger than the rest of a waiting call's state.
            if let Err(error) = Box::pin(retries.pause_after(error)).await {
                timer().stop();
                return Err(error.into());
            }
        }
    }

    /// Sends a claim, and waits for the answer within the time limit of a store call. Without an answer, a task goes on
    /// waiting.
    async fn send_once(
        &mut self,
        call: &Arc<Prepared>,
        message: &ClaimMessage,
        permit: Option<Permit>,
    ) -> Result<ClaimOutcome, StoreError> {
        let limit = call.time_left(call.engine.policy.store_timeout);
        let answer = message.send(call);
        let pending = self.under_way.insert(PendingClaim { answer, permit });
        let answer = within(limit, &mut pending.answer).await;
        let pending = self.under_way.take();
        match answer {
            Some(Ok(claim)) => {
                if let Some(permit) = pending.and_then(|it| it.permit) {
                    permit.answered();
                }
                self.unused = granted_token(&claim);
                if let Some(granted) = self.unused {
                    self.decide(|| ClaimUse::Uses(granted));
                }
                Ok(claim)
            }
            Some(Err(error)) => {
                self.in_doubt = true;
                Err(error)
            }
            None => {
                if let Some(mut pending) = pending {
                    if limit >= call.engine.policy.store_timeout {
                        // The store may have lost the claim: others need not wait for it.
                        pending.permit = None;
                    }
                    match try_orphan(call) {
                        Some(orphan) => {
                            let (decide, decision) = oneshot::channel();
                            self.unanswered.push(decide);
                            outlive(orphan, call, pending, Some(decision), None);
                        }
                        // Not searched for yet: the retry has the same claim id, so a search would release its claim.
                        None => self.in_doubt = true,
                    }
                }
                Err(call.engine.no_answer(limit))
            }
        }
    }

    /// Marks the granted claim as used: the body is about to run under it.
    pub(super) fn mark_used(&mut self) {
        self.unused = None;
        self.in_doubt = false;
    }

    /// Leaves every claim that may have been granted to its lease: the body runs without a claim.
    pub(super) fn leave_to_lease(&mut self) {
        self.decide(|| ClaimUse::Leaves);
        self.in_doubt = false;
    }

    fn decide(&mut self, decision: impl Fn() -> ClaimUse) {
        for unanswered in self.unanswered.drain(..) {
            // A task that has ended needs no decision.
            let _ = unanswered.send(decision());
        }
    }

    /// Releases every claim that may have been granted. The tasks of unanswered claims release theirs, because their
    /// decision never arrives.
    pub(super) fn abandon(&mut self, call: &Arc<Prepared>, mut leader: Option<Leader>) {
        if let Some(pending) = self.under_way.take() {
            match try_orphan(call) {
                Some(orphan) => outlive(orphan, call, pending, None, leader.take()),
                None => self.in_doubt = true,
            }
        }
        if let Some(granted) = self.unused {
            let claim = AbandonedClaim::granted(&call.request, granted, leader.take());
            give_back(call, claim);
        }
        if self.in_doubt {
            give_back(call, AbandonedClaim::in_doubt(&call.request, leader));
        }
    }
}

/// Permission to send a claim now. None if the call has to wait. A store that does not wait has no queue, and needs no
/// permit.
fn admit_at_once(call: &Prepared) -> Option<Option<Permit>> {
    match call.engine.store.immediate() {
        Some(_) => Some(None),
        None => call.engine.admission.try_admit(capacity(call)).map(Some),
    }
}

/// Waits until this call may send a claim, of which the store works on `capacity` at the same time. The caller boxes it,
/// like everything that a call does not need below the capacity of the store.
pub(super) async fn wait_for_admission(
    call: &Prepared,
    admission: &Arc<Admission>,
    capacity: impl Fn() -> usize,
) -> Result<Permit, Error> {
    let _queued = call.metrics.raise(Level::QueuedCalls);
    let operation = &call.request.identity.operation;
    // Duplicates stay behind this call for as long as it is polled.
    let waits_until = |until| {
        let next_look_by = later(until, call.engine.policy.store_timeout);
        call.progress.publish(Phase::Queued { next_look_by });
    };
    let admitted = admission.admit(operation, call.begin_by(), waits_until);
    let permit = admitted
        .await
        .map_err(|refused| call.engine.refusal(refused))?;
    call.progress.publish(Phase::Claiming);
    // It may have learnt more about its server in the meantime.
    admission.set_capacity(capacity());
    Ok(permit)
}

/// Number of claims that the store works on at the same time.
fn capacity(call: &Prepared) -> usize {
    call.engine.store.claim_concurrency().max(1)
}

/// The fencing token of a granted claim.
fn granted_token(claim: &ClaimOutcome) -> Option<FencingToken> {
    match claim {
        ClaimOutcome::Granted(granted) => Some(granted.fencing_token),
        ClaimOutcome::Existing(_) => None,
    }
}

/// Permission for one more task that waits for the answer to a claim. None if the handle has too many of them.
fn try_orphan(call: &Prepared) -> Option<OwnedSemaphorePermit> {
    Arc::clone(&call.engine.orphans).try_acquire_owned().ok()
}

/// Spawns a task that waits for the answer to a claim.
fn outlive(
    orphan: OwnedSemaphorePermit,
    call: &Arc<Prepared>,
    pending: PendingClaim,
    decision: Option<oneshot::Receiver<ClaimUse>>,
    leader: Option<Leader>,
) {
    let release = release_unless_used(Arc::clone(call), pending, decision, leader);
    call.runtime.spawn(async move {
        let _orphan = orphan;
        release.await;
    });
}

/// Waits for the answer to a claim, and releases a granted claim unless the call uses it.
async fn release_unless_used(
    call: Arc<Prepared>,
    mut pending: PendingClaim,
    decision: Option<oneshot::Receiver<ClaimUse>>,
    mut leader: Option<Leader>,
) {
    let mut answer = within(ANSWER_SOON, &mut pending.answer).await;
    // Given back with the answer, or with the first doubt that there will be one.
    pending.permit = None;
    if answer.is_none() {
        leader = None;
    }
    let decision = match decision {
        Some(mut decision) => {
            let mut answering = Caught(&mut pending.answer);
            // The store call is polled meanwhile: it may hold a connection, or the turn to write.
            let decision = poll_fn(|cx| {
                if answer.is_none()
                    && let Poll::Ready(late) = Pin::new(&mut answering).poll(cx)
                {
                    answer = Some(late);
                }
                Pin::new(&mut decision).poll(cx)
            });
            decision.await.ok()
        }
        None => None,
    };
    if answer.is_none() {
        if decision.is_none() {
            // The answer may be lost, or the claim may still be waiting at the server.
            give_back(&call, AbandonedClaim::in_doubt(&call.request, None));
        }
        answer = within(call.request.lease, &mut pending.answer).await;
    }
    match (answer, decision) {
        (Some(Ok(ClaimOutcome::Granted(granted))), decision)
            if !decision
                .as_ref()
                .is_some_and(|it| it.covers(granted.fencing_token)) =>
        {
            let claim = AbandonedClaim::granted(&call.request, granted.fencing_token, leader);
            give_back(&call, claim);
        }
        (Some(Err(_)), None) => {
            give_back(&call, AbandonedClaim::in_doubt(&call.request, leader));
        }
        _ => {}
    }
}

/// Passes an abandoned claim to the handle's task.
fn give_back(call: &Prepared, claim: AbandonedClaim) {
    if !call.engine.give_back.add(claim, &call.runtime)
        && let Some(claims) = call.engine.left_to_lease.occurs()
    {
        tracing::warn!(
            target: "idem",
            operation = call.request.identity.operation.as_str(),
            claims,
            "too many claims wait to be given back: these are left to their leases, and their keys answer `InFlight` until then",
        );
    }
}
