//! Returns the result of a call: to its caller, to its span and to its observer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use tracing::Span;

use super::codecs::Codecs;
use super::replay_noter::ReplayNoter;
use crate::engine::claim::Waited;
use crate::engine::progress::SharedOutcome;
use crate::engine::provenance::{Observer, Provenance, ResultSource};
use crate::error::Error;
use crate::metrics::{CallOutcome, OperationMetrics};

/// Parts of a call that last until it has returned its result.
pub(in crate::engine) struct CallContext<T, E> {
    pub(in crate::engine) codecs: Codecs<T, E>,
    pub(in crate::engine) report: CallReport,
    pub(super) observer: Option<Observer>,
    /// None if the handle notes no replays.
    pub(super) noter: Option<ReplayNoter>,
}

/// Reports the outcome of a call, once: in its span and as a metric. Dropping the report before that means that the call
/// was dropped.
pub(in crate::engine) struct CallReport {
    pub(in crate::engine) span: Span,
    metrics: OperationMetrics,
    is_ended: AtomicBool,
}

impl CallReport {
    pub(super) fn new(span: Span, metrics: OperationMetrics) -> Self {
        Self {
            span,
            metrics,
            is_ended: AtomicBool::new(false),
        }
    }

    /// Reports the outcome of the call.
    pub(in crate::engine) fn end(&self, outcome: CallOutcome) {
        if !self.is_ended.swap(true, Ordering::Relaxed) {
            self.span.record("idem.outcome", outcome.as_str());
            if outcome.is_error() {
                self.span.record("error.type", outcome.as_str());
            }
            self.metrics.count(outcome);
        }
    }
}

impl Drop for CallReport {
    fn drop(&mut self) {
        if !*self.is_ended.get_mut() {
            self.end(CallOutcome::of_dropped());
        }
    }
}

impl<T, E> CallContext<T, E> {
    /// A refusal, converted to the function's return type.
    pub(in crate::engine) fn refuse(&self, error: Error) -> Result<T, E> {
        self.report.end(CallOutcome::of(&error));
        Err(self.codecs.carry(error))
    }

    /// Decodes the stored result, and records it in the span and for the observer.
    pub(in crate::engine) fn replay(&self, ended: &SharedOutcome, waited: Waited) -> Result<T, E> {
        let outcome = match waited {
            Waited(true) => CallOutcome::Waited,
            Waited(false) => CallOutcome::Replayed,
        };
        self.replay_as(outcome, ended, waited.into())
    }

    /// Decodes the result of the call that took over from this one.
    pub(super) fn replay_after_loss(&self, ended: &SharedOutcome) -> Result<T, E> {
        self.replay_as(CallOutcome::Superseded, ended, ResultSource::Replayed)
    }

    fn replay_as(
        &self,
        outcome: CallOutcome,
        ended: &SharedOutcome,
        source: ResultSource,
    ) -> Result<T, E> {
        let result = match self.codecs.decode(ended) {
            Ok(result) => result,
            Err(error) => return self.refuse(error),
        };
        self.report.span.record("idem.attempt", ended.attempt);
        self.report.end(outcome);
        tracing::debug!(
            target: "idem",
            parent: &self.report.span,
            attempt = ended.attempt,
            "the stored result was replayed",
        );
        if let Some(observer) = &self.observer {
            observer.record(ended.provenance(source));
        }
        if let (Some(noter), Some(token)) = (&self.noter, ended.fencing_token) {
            noter.note(token);
        }
        result
    }

    /// Records in the span and for the observer that the call ran its body.
    pub(in crate::engine) fn record_executed(
        &self,
        outcome: CallOutcome,
        attempt: u32,
        retention: Duration,
    ) {
        self.report.end(outcome);
        if let Some(observer) = &self.observer {
            let is_stored = matches!(outcome, CallOutcome::Executed | CallOutcome::TakenOver);
            observer.record(Provenance {
                source: ResultSource::Executed,
                attempt,
                made_at: SystemTime::now(),
                kept_for: is_stored.then_some(retention),
            });
        }
    }
}
