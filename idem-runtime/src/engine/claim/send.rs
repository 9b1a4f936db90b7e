//! Sending a claim, so that its answer is learnt even if the caller goes away.
//!
//! A claim that was sent may be granted at any later time: its statement may still wait for a connection, for a lock or
//! for a commit. A record that is claimed for a caller who has gone stays `RUNNING` for a whole lease, and under `refuse`
//! until an operator resolves it, although nothing ran. Looking once whether the claim was granted is not enough, because
//! the look can overtake the claim. So a claim is never cut off: a task waits for its answer and gives the claim back.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::time::Instant;

use super::give_back::Abandoned;
use crate::engine::call::Prepared;
use crate::engine::singleflight::Leader;
use crate::engine::timing::{Backoff, bounded, later, timed_out, within};
use crate::error::StoreError;
use crate::record::{FencingToken, Observation};
use crate::store::{ClaimOutcome, ClaimRequest};

/// Claims of one handle that may outlive their callers at the same time. A store that answers nobody would otherwise
/// collect one task for each call that ever failed. Beyond the limit a claim is cut off and looked for later.
pub(in crate::engine) const MAX_ORPHANS: usize = 1024;

/// How long an abandoned claim is only waited for. Until then the calls of this process with its key wait as well; then
/// they ask the store themselves, and the claim is looked for.
const ANSWER_SOON: Duration = Duration::from_millis(250);

/// A store call that claims.
type Asking = Pin<Box<dyn Future<Output = Result<ClaimOutcome, StoreError>> + Send>>;

/// The answer to a claim, and when the claim was sent.
pub(super) type Answer = Result<(ClaimOutcome, Instant), StoreError>;

/// What is claimed.
pub(super) enum Ask {
    /// The call's own request.
    Call,
    /// A takeover of what was observed, or a claim with another digest than the call's own.
    Other(Box<(Option<Observation>, ClaimRequest)>),
}

impl Ask {
    /// The store call, which owns all it needs: it may go on without its caller.
    fn send(&self, call: &Arc<Prepared>) -> Asking {
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

/// What was done with a record by the time an unanswered claim of it gets its answer.
enum Decision {
    /// The body runs under this fencing token.
    Uses(FencingToken),
    /// The body runs without protection: a claim is left to its lease, so that no duplicate runs beside the body.
    Leaves,
}

/// The claims of one call that were sent, until it is certain that none of them is left behind.
#[derive(Default)]
pub(super) struct Sent {
    /// The store call that the caller waits for.
    under_way: Option<Asking>,
    /// Store calls that took too long and were followed by another try. Each has a task, which waits for the decision.
    unanswered: Vec<oneshot::Sender<Decision>>,
    /// A claim may have been granted, and nobody works under it.
    in_doubt: bool,
}

impl Sent {
    /// Sends a claim until the store answers or patience is over.
    pub(super) async fn send(
        &mut self,
        call: &Arc<Prepared>,
        ask: &Ask,
        mut now: Option<Instant>,
    ) -> Answer {
        let policy = &call.engine.policy;
        if let Ask::Call = ask
            && call.engine.store.answers_at_once()
        {
            // Nothing can come between the question and the answer, so nothing has to own the question.
            let sent_at = now.take().unwrap_or_else(Instant::now);
            let claim = call.engine.store.claim(&call.request);
            if let Ok(claim) = bounded(policy.store_timeout, claim).await {
                return Ok((claim, sent_at));
            }
        }
        let mut retries = None;
        loop {
            let sent_at = now.take().unwrap_or_else(Instant::now);
            let asking = self.under_way.insert(ask.send(call));
            let answer = within(policy.store_timeout, asking).await;
            let asking = self.under_way.take();
            let error = match answer {
                Some(Ok(claim)) => {
                    if let ClaimOutcome::Granted(granted) = &claim {
                        self.decide(|| Decision::Uses(granted.fencing_token));
                    }
                    self.in_doubt = false;
                    return Ok((claim, sent_at));
                }
                Some(Err(error)) => {
                    self.in_doubt = true;
                    error
                }
                None => {
                    if let Some(asking) = asking {
                        let (decide, decision) = oneshot::channel();
                        self.unanswered.push(decide);
                        outlive(call, asking, Some(decision), None);
                    }
                    timed_out(policy.store_timeout)
                }
            };
            let (retries, give_up_at) = retries.get_or_insert_with(|| {
                let give_up_at = later(sent_at, policy.store_patience);
                (Backoff::of_retries(), give_up_at)
            });
            let pause = retries.pause();
            if !error.is_retryable() || Instant::now() + pause >= *give_up_at {
                return Err(error);
            }
            tracing::debug!(target: "idem", error = ?error.kind(), "the claim failed, trying again");
            Box::pin(tokio::time::sleep(pause)).await;
        }
    }

    /// The claim was granted, and nothing has come of it yet: abandoned from here, it is given back.
    pub(super) fn hesitate(&mut self) {
        self.in_doubt = true;
    }

    /// The body is about to run under the claim that was granted.
    pub(super) fn proceed(&mut self) {
        self.in_doubt = false;
    }

    /// The body runs without a claim. Whatever may have been granted is left to its lease.
    pub(super) fn leave(&mut self) {
        self.decide(|| Decision::Leaves);
        self.in_doubt = false;
    }

    fn decide(&mut self, decision: impl Fn() -> Decision) {
        for unanswered in self.unanswered.drain(..) {
            // A task that has ended needs no decision.
            let _ = unanswered.send(decision());
        }
    }

    /// Gives back what may have been claimed. The tasks of unanswered claims do so by themselves: their decision never
    /// comes.
    pub(super) fn abandon(&mut self, call: &Arc<Prepared>, leader: Option<Leader>) {
        if let Some(asking) = self.under_way.take() {
            outlive(call, asking, None, leader);
        } else if self.in_doubt {
            Abandoned::in_doubt(call, leader).give_back();
        }
    }
}

/// Waits for the answer to a claim in a task, and gives back what it was granted unless the call uses it.
fn outlive(
    call: &Arc<Prepared>,
    mut asking: Asking,
    decision: Option<oneshot::Receiver<Decision>>,
    mut leader: Option<Leader>,
) {
    let orphans: &Arc<Semaphore> = &call.engine.orphans;
    let Ok(permit) = Arc::clone(orphans).try_acquire_owned() else {
        Abandoned::in_doubt(call, leader).give_back();
        return;
    };
    let call = Arc::clone(call);
    let runtime = call.runtime.clone();
    runtime.spawn(async move {
        let _permit = permit;
        let mut answer = within(ANSWER_SOON, &mut asking).await;
        if answer.is_none() {
            leader = None;
        }
        let decision = match decision {
            Some(decision) => decision.await.ok(),
            None => None,
        };
        if answer.is_none() {
            if decision.is_none() {
                // The answer may be lost, or the claim still waits at the server.
                Abandoned::in_doubt(&call, None).give_back();
            }
            answer = within(call.request.lease, &mut asking).await;
        }
        match (answer, decision) {
            (Some(Ok(ClaimOutcome::Granted(granted))), decision)
                if !decision
                    .as_ref()
                    .is_some_and(|it| it.covers(granted.fencing_token)) =>
            {
                Abandoned::granted(&call, granted.fencing_token, leader).give_back();
            }
            (Some(Err(_)), None) => Abandoned::in_doubt(&call, leader).give_back(),
            _ => {}
        }
    });
}

impl Decision {
    /// Whether a claim with this fencing token is in use, or to be left alone.
    fn covers(&self, granted: FencingToken) -> bool {
        match self {
            Self::Uses(used) => *used == granted,
            Self::Leaves => true,
        }
    }
}
