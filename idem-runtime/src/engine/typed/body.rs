//! A body that may run: runs it, and settles the record according to its result.

use std::future::Future;

use tracing::Instrument;

use super::context::CallContext;
use super::ready_or::ReadyOr;
use crate::engine::Attempt;
use crate::engine::decisions::{OwnAnswer, is_past_replay, on_error, own_answer};
use crate::engine::detach::{ShutDown, run_in_a_task};
use crate::engine::progress::SharedOutcome;
use crate::engine::running::RunGuard;
use crate::engine::settle::Settle;
use crate::engine::singleflight::Leader;
use crate::error::Error;
use crate::fingerprint;
use crate::metrics::{CallOutcome, Timed};
use crate::record::{OnCrash, Outcome};
use crate::timing::bounded;

/// Finality of an `Err` of the body, or of a response: decides whether it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Finality {
    /// Stored and replayed, like a value.
    Final,
    /// Proves that nothing was done: the key is released, and the next call runs the body again.
    Transient,
    /// Leaves open whether anything was done: treated like a crash.
    Unknown,
}

/// A body that may run.
///
/// Boxed, because the user's future has room for it several times: as the result of claiming, while the body runs, and
/// as an argument of [`finish`](Self::finish).
pub struct Running<T, E>(Box<RunningCall<T, E>>);

struct RunningCall<T, E> {
    guard: RunGuard,
    context: CallContext<T, E>,
}

impl<T, E> Running<T, E> {
    pub(super) fn new(
        attempt: Attempt,
        leader: Option<Leader>,
        context: CallContext<T, E>,
    ) -> Self {
        context.report.span.record("idem.attempt", attempt.number());
        Self(Box::new(RunningCall {
            guard: RunGuard::new(attempt, leader),
            context,
        }))
    }

    /// The running attempt.
    pub fn attempt(&self) -> Attempt {
        self.0.guard.attempt.clone()
    }

    /// Marks the body as begun: it is about to be called, and may act before it returns its future.
    pub(crate) fn begin(&mut self) {
        self.0.guard.begin();
    }

    /// Runs the body, and renews the lease while it runs.
    pub fn drive<'a, F: Future + 'a>(
        &'a mut self,
        body: F,
    ) -> impl Future<Output = F::Output> + use<'a, F, T, E> {
        let RunningCall { guard, context } = &mut *self.0;
        guard.drive(body, &context.report.span)
    }

    /// Settles the record according to the body's result, and returns the caller's result.
    ///
    /// The result is classified before the future is created, so that the future stays small. If the store does not
    /// wait, the record is settled then, too.
    ///
    /// # Errors
    /// The function's own error, or an error of the call.
    pub fn finish<C>(
        self,
        result: Result<T, E>,
        classify: C,
    ) -> impl Future<Output = Result<T, E>> + use<T, E, C>
    where
        C: FnOnce(&E) -> Finality,
    {
        let Self(mut call) = self;
        let settle = call.settle(&result, classify);
        let ends = matches!(settle, Some(Settle::End(_)));
        let outcome = call.outcome(settle.as_ref());
        call.guard.body_ended();
        let metrics = call.guard.attempt.call().metrics;
        let completing = metrics.start(Timed::Complete);
        let span = &call.context.report.span;
        if let Some(settle) = &settle
            && span.in_scope(|| call.guard.settle_at_once(settle))
        {
            completing.stop();
            call.record_executed(outcome);
            return ReadyOr::ready(result);
        }
        let mut settlement = settle.and_then(|settle| call.guard.settle(settle));
        ReadyOr::waiting(async move {
            // Borrowed, because a value moved out of a capture is stored twice in the future.
            let mut outcome = outcome;
            if let Some(settlement) = &mut settlement {
                let settled = settlement.settle(&call.context.report.span).await;
                completing.stop();
                if settled.is_some_and(|it| it.is_unrecorded) {
                    outcome = CallOutcome::Unrecorded;
                }
                if ends {
                    match own_answer(settled.map(|it| it.written), call.guard.attempt.is_live()) {
                        OwnAnswer::Own => {}
                        OwnAnswer::OwnUnrecorded => {
                            outcome = CallOutcome::Unrecorded;
                            call.warn_unrecorded();
                        }
                        OwnAnswer::Stored => return Box::pin(call.after_loss()).await,
                        OwnAnswer::LeaseLost => return call.context.refuse(Error::LeaseLost),
                    }
                }
            }
            call.record_executed(outcome);
            result
        })
    }

    /// Runs the body and settles the record in a task of its own, which the caller does not cancel.
    ///
    /// # Errors
    /// As for [`finish`](Self::finish), and [`Error::LeaseLost`] if the runtime was shut down.
    pub fn finish_detached<C>(
        mut self,
        body: impl Future<Output = Result<T, E>> + Send + 'static,
        classify: C,
    ) -> impl Future<Output = Result<T, E>>
    where
        T: Send + 'static,
        E: Send + 'static,
        C: FnOnce(&E) -> Finality + Send + 'static,
    {
        let call = self.0.guard.attempt.call();
        let (tasks, runtime) = (call.engine.detached.clone(), call.runtime.clone());
        let carry = self.0.context.codecs.errors.carry();
        let task = async move {
            let result = self.drive(body).await;
            self.finish(result, classify).await
        };
        let task = run_in_a_task(&tasks, &runtime, task);
        async move {
            match task.await {
                Ok(result) => result,
                Err(ShutDown) => Err(carry(Error::LeaseLost)),
            }
        }
    }
}

impl<T, E> RunningCall<T, E> {
    /// Decides how to settle the record. None if the record is left as after a crash.
    fn settle(
        &self,
        result: &Result<T, E>,
        classify: impl FnOnce(&E) -> Finality,
    ) -> Option<Settle> {
        let attempt = &self.guard.attempt;
        let codecs = &self.context.codecs;
        let error = match result {
            Ok(value) => return Some(Settle::End(codecs.completed(value, attempt))),
            Err(error) => error,
        };
        let finality = match (classify(error), attempt.on_crash()) {
            // The function now says `rerun`, where every error may be retried; the record was claimed under another
            // policy.
            (Finality::Transient, OnCrash::Refuse | OnCrash::Reconcile)
                if attempt.call().request.on_crash == OnCrash::Rerun =>
            {
                Finality::Unknown
            }
            (finality, _) => finality,
        };
        if finality == Finality::Final
            && let Some(outcome) = codecs.failed(error, attempt)
        {
            return Some(Settle::End(outcome));
        }
        // Releasing after an unknown step would repeat the step immediately, although it may have been done.
        let is_harmless = finality == Finality::Transient && !attempt.has_unknown_steps();
        Settle::unfinished(on_error(is_harmless, attempt.on_crash()))
    }

    /// Outcome of a call whose attempt is settled this way.
    fn outcome(&self, settle: Option<&Settle>) -> CallOutcome {
        let attempt = &self.guard.attempt;
        match settle {
            Some(Settle::Interrupt) | None => CallOutcome::Interrupted,
            Some(Settle::End(Outcome::Unrecorded)) => CallOutcome::Unrecorded,
            Some(Settle::Release) => CallOutcome::Released,
            Some(Settle::End(_)) if attempt.is_unprotected() => CallOutcome::Unprotected,
            Some(Settle::End(_)) if attempt.has_taken_over() => CallOutcome::TakenOver,
            Some(Settle::End(_)) => CallOutcome::Executed,
        }
    }

    fn record_executed(&self, outcome: CallOutcome) {
        let attempt = &self.guard.attempt;
        let retention = attempt.call().retention();
        self.context
            .record_executed(outcome, attempt.number(), retention);
    }

    /// Another call took over, and the store refused this call's result: replays the stored result, if there is one.
    async fn after_loss(&self) -> Result<T, E> {
        let engine = self.guard.attempt.engine();
        let call = self.guard.attempt.call();
        let limit = engine.policy.store_timeout;
        let read = bounded(limit, engine.store.get(&call.request.id));
        let ended = match read.instrument(self.context.report.span.clone()).await {
            Ok(Some(record)) => {
                match fingerprint::matches(&record.fingerprint, &call.digest, &engine.secrets) {
                    Ok(true) if is_past_replay(&record, call.replay_for()) => {
                        return self.context.refuse(Error::Expired);
                    }
                    Ok(true) => SharedOutcome::of(&record),
                    Ok(false) | Err(_) => None,
                }
            }
            Ok(None) | Err(_) => None,
        };
        match ended {
            Some(ended) => self.context.replay_after_loss(&ended),
            None => self.context.refuse(Error::LeaseLost),
        }
    }

    fn warn_unrecorded(&self) {
        tracing::warn!(
            target: "idem",
            parent: &self.context.report.span,
            operation = self.guard.attempt.operation().as_str(),
            record = %self.guard.attempt.record_id(),
            "the result is given to its caller but could not be recorded yet",
        );
    }
}
