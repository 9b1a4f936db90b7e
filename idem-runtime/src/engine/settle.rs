//! Writes the outcome of a body into its record, even if the caller is dropped or the store fails for a while.

use std::pin::Pin;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::{Instrument, Span};

use super::Attempt;
use super::decisions::Unfinished;
use super::singleflight::Leader;
use crate::error::{StoreError, StoreErrorKind};
use crate::metrics::Raised;
use crate::policy::Policy;
use crate::record::{Outcome, Owner};
use crate::store::FencedWrite;
use crate::timing::{Retries, bounded, caught, later};

/// The write that settles the record of an ended attempt.
#[derive(Debug, Clone)]
pub(super) enum Settle {
    /// The body ended with a final outcome.
    End(Outcome),
    /// Nothing was done: the key is free again.
    Release,
    /// The effect of the body is unknown.
    Interrupt,
}

impl Settle {
    /// The write that settles an attempt without an outcome. None if its record is left as after a crash.
    pub(super) fn unfinished(unfinished: Unfinished) -> Option<Self> {
        match unfinished {
            Unfinished::Release => Some(Self::Release),
            Unfinished::Interrupt => Some(Self::Interrupt),
            Unfinished::Leave => None,
        }
    }

    /// Settles the record of an attempt in a store that does not wait. Returns true if the store has acknowledged the
    /// write; otherwise a [`Settlement`] repeats it, or makes it if the payload is kept for a time of its own.
    pub(super) fn at_once(&self, attempt: &Attempt, leader: &mut Option<Leader>) -> bool {
        let (Some(store), Some(owner)) = (attempt.engine().store.immediate(), attempt.owner())
        else {
            return false;
        };
        if matches!(self, Self::End(_)) && attempt.call().forgetting().is_some() {
            return false;
        }
        let written = caught(|| match self {
            Self::End(outcome) => store.complete_now(&owner, outcome),
            Self::Release => store.release_now(&owner),
            Self::Interrupt => store.interrupt_now(&owner),
        });
        let is_acknowledged = matches!(written, Ok(FencedWrite::Applied));
        if is_acknowledged {
            self.conclude(attempt, leader.take(), FencedWrite::Applied, None);
        }
        is_acknowledged
    }

    fn write<'a>(&'a self, attempt: &'a Attempt, owner: &'a Owner) -> Write<'a> {
        let store = &attempt.engine().store;
        match self {
            Self::End(outcome) => match attempt.call().forgetting() {
                None => store.complete(owner, outcome),
                Some((store, payload_for)) => store.complete_for(owner, outcome, payload_for),
            },
            Self::Release => store.release(owner),
            Self::Interrupt => store.interrupt(owner),
        }
    }

    /// Publishes to the waiters only what the store acknowledged. `sent_at` is the time at which the write was sent; none
    /// if the store has answered at once.
    fn conclude(
        &self,
        attempt: &Attempt,
        leader: Option<Leader>,
        fenced: FencedWrite,
        sent_at: Option<Instant>,
    ) {
        if fenced == FencedWrite::Fenced {
            attempt.lose();
        }
        let over = !matches!(self, Self::Interrupt);
        if !over && fenced == FencedWrite::Applied {
            attempt.call().warn_interrupted();
        }
        match (leader, fenced, self) {
            (Some(leader), FencedWrite::Applied, Self::End(outcome)) => {
                leader.share(sent_at, || attempt.share(outcome.clone()));
            }
            (leader, ..) => drop(leader),
        }
        if over {
            // Tasks that the body left running must not treat the record as theirs any more. Set after the waiters were
            // woken: a waiter that saw it earlier would ask the store.
            attempt.lose();
        }
    }
}

/// Future of a store call that settles a record.
type Write<'a> = Pin<Box<dyn Future<Output = Result<FencedWrite, StoreError>> + Send + 'a>>;

/// The store's answer to the write that settles an attempt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settled {
    pub(super) written: FencedWrite,
    /// True if the store refused the result, and acknowledged only that the work was done.
    pub(super) is_unrecorded: bool,
}

/// An attempt that is being settled in the store. If it is dropped, settling continues in the background: the outcome
/// of a body is never lost because its caller was dropped.
pub(super) struct Settlement {
    task: Option<SettleTask>,
}

/// The write of one attempt, with what it publishes.
struct SettleTask {
    attempt: Attempt,
    owner: Owner,
    leader: Option<Leader>,
    /// Held until the store has answered or the task gives up.
    _lease: Option<Raised>,
    settle: Settle,
}

impl Settlement {
    /// None if there is no record to settle, because the body ran without protection.
    pub(super) fn new(
        attempt: Attempt,
        leader: Option<Leader>,
        lease: Option<Raised>,
        settle: Settle,
    ) -> Option<Self> {
        Some(Self {
            task: Some(SettleTask {
                owner: attempt.owner()?,
                attempt,
                leader,
                _lease: lease,
                settle,
            }),
        })
    }

    /// Writes to the store, and waits for its acknowledgement for as long as the handle's patience and the lease last.
    ///
    /// Returns `None` without an answer in time: settling then continues in the background. A release or an interruption is
    /// tried only once here; no caller needs to wait for it.
    pub(super) async fn settle(&mut self, span: &Span) -> Option<Settled> {
        let task = self.task.as_ref()?;
        let policy = &task.attempt.engine().policy;
        let now = Instant::now();
        let until = later(now, patience(policy, task.attempt.live_until(), now));
        let limit = policy.store_timeout.min(until - now);
        match bounded(limit, task.write()).instrument(span.clone()).await {
            Ok(written) => {
                if let Some(task) = self.task.take() {
                    task.conclude(written, now);
                }
                Some(Settled {
                    written,
                    is_unrecorded: false,
                })
            }
            Err(error) => {
                tracing::debug!(
                    target: "idem",
                    parent: span,
                    error = ?error.kind(),
                    "the outcome could not be recorded, trying again",
                );
                Box::pin(self.settle_in_background(until)).await
            }
        }
    }

    async fn settle_in_background(&mut self, until: Instant) -> Option<Settled> {
        let ends = self
            .task
            .as_ref()
            .is_some_and(|task| matches!(task.settle, Settle::End(_)));
        let (answer, answered) = oneshot::channel();
        self.continue_in_background(Some(answer));
        if !ends {
            return None;
        }
        tokio::time::timeout_at(until, answered).await.ok()?.ok()
    }

    fn continue_in_background(&mut self, answer: Option<oneshot::Sender<Settled>>) {
        if let Some(task) = self.task.take() {
            let runtime = task.attempt.call().runtime.clone();
            runtime.spawn(task.persist(answer));
        }
    }
}

/// Maximum time that a caller waits for the store to acknowledge its result. While enough of the lease is left, waiting
/// ends before the lease does, so that the caller can still get a value that could not be recorded. With less left,
/// only the store can say which call's result counts.
fn patience(policy: &Policy, live_until: Option<Instant>, now: Instant) -> Duration {
    const ENOUGH: Duration = Duration::from_millis(500);
    let left = live_until.map_or(Duration::ZERO, |end| end.saturating_duration_since(now));
    if left < ENOUGH {
        policy.store_patience
    } else {
        policy.store_patience.min(left - left / 10)
    }
}

impl Drop for Settlement {
    fn drop(&mut self) {
        self.continue_in_background(None);
    }
}

impl SettleTask {
    fn write(&self) -> Write<'_> {
        self.settle.write(&self.attempt, &self.owner)
    }

    /// Retries until the store answers, for the rest of the lease and one lease more. The store accepts an owner whose
    /// lease has lapsed, unless another call took over.
    ///
    /// A store may refuse the result permanently, for example because it is full. It is then asked to record only that
    /// the work was done: the result is lost, but the work is not done twice. This happens while the lease is valid,
    /// because another call would take the lapsed record over and do the work again. A result that is too large for
    /// the store stays too large, so no time is spent on it.
    async fn persist(mut self, answer: Option<oneshot::Sender<Settled>>) {
        let policy = self.attempt.engine().policy.clone();
        let lease = self.attempt.call().request.lease;
        let now = Instant::now();
        let lapses = self.attempt.live_until().unwrap_or(now).max(now);
        // The other half of the lease is left for the write without the result.
        let result_until = later(now, policy.store_patience.min((lapses - now) / 2));
        let give_up_at = later(lapses, lease.max(policy.store_patience));
        let mut retries = Retries::until(give_up_at);
        loop {
            let sent_at = Instant::now();
            let written = bounded(policy.store_timeout, self.write()).await;
            let may_drop_result = |error: &StoreError| {
                error.kind() == StoreErrorKind::TooLarge
                    || !error.is_retryable() && Instant::now() >= result_until
            };
            let written = match written {
                Err(error) if may_drop_result(&error) => {
                    self.record_without_result().await.unwrap_or(Err(error))
                }
                written => written,
            };
            let error = match written {
                Ok(written) => {
                    let is_unrecorded = matches!(self.settle, Settle::End(Outcome::Unrecorded));
                    self.conclude(written, sent_at);
                    if let Some(answer) = answer {
                        // The caller may have stopped waiting.
                        let _ = answer.send(Settled {
                            written,
                            is_unrecorded,
                        });
                    }
                    return;
                }
                Err(error) => error,
            };
            let pause = retries.pause_after_any(error);
            let paused = match Instant::now() < result_until {
                // The pause must not last into the time that is left for the write without the result.
                true => tokio::time::timeout_at(result_until, pause)
                    .await
                    .unwrap_or(Ok(())),
                false => pause.await,
            };
            if let Err(error) = paused {
                tracing::error!(
                    target: "idem",
                    operation = self.attempt.operation().as_str(),
                    record = %self.attempt.record_id(),
                    error = ?error.kind(),
                    "gave up recording what became of an attempt; the record is as after a crash",
                );
                return;
            }
        }
    }

    /// Records that the work was done, without its result. None if there is no result to leave out.
    async fn record_without_result(&mut self) -> Option<Result<FencedWrite, StoreError>> {
        if !matches!(
            self.settle,
            Settle::End(Outcome::Completed(_) | Outcome::Failed(_))
        ) {
            return None;
        }
        let store = &self.attempt.engine().store;
        let limit = self.attempt.engine().policy.store_timeout;
        let unrecorded = bounded(limit, store.complete(&self.owner, &Outcome::Unrecorded)).await;
        // The store takes either write for a repetition of the other. Only a read says which one counts, so the waiters
        // of the process ask the store.
        self.leader = None;
        if matches!(unrecorded, Ok(FencedWrite::Applied)) {
            tracing::error!(
                target: "idem",
                operation = self.attempt.operation().as_str(),
                record = %self.attempt.record_id(),
                "the work is done, but the store refuses its result, which will not be replayed",
            );
            self.settle = Settle::End(Outcome::Unrecorded);
        }
        Some(unrecorded)
    }

    fn conclude(mut self, fenced: FencedWrite, sent_at: Instant) {
        self.settle
            .conclude(&self.attempt, self.leader.take(), fenced, Some(sent_at));
    }
}
