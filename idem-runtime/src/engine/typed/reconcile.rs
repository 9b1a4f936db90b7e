//! Entry of a call with `on_crash = reconcile(...)`.

use std::sync::Arc;

use tracing::Instrument;

use super::body::Running;
use super::codecs::{Codecs, ErrorCodec};
use super::context::CallContext;
use super::entry::{EngineRef, Joins, prepare};
use crate::codec::value::ValueCodec;
use crate::engine::claim::{CanReconcile, Claimed, Claimer};
use crate::engine::{Attempt, Call};
use crate::error::Error;
use crate::metrics::CallOutcome;
use crate::record::Record;
use crate::store::Resolution;

/// Result of `reconcile`: the fate of an earlier attempt that crashed.
///
/// ```
/// use idem_runtime::Reconciled;
///
/// /// Asks a list of parcels what became of an order.
/// fn look_up(parcels: &[(u64, u64)], order: u64) -> Reconciled<u64> {
///     match parcels.iter().find(|(of, _)| *of == order) {
///         Some((_, parcel)) => Reconciled::Done(*parcel),
///         None => Reconciled::NotDone, // the list is complete; otherwise `Unknown`
///     }
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reconciled<T> {
    /// The work was done, with this value. The value is stored, and replayed from now on.
    Done(T),
    /// The work was not done: the body runs.
    NotDone,
    /// The fate is unknown: the call returns `Interrupted`, and the next one runs `reconcile` again.
    Unknown,
}

/// A body that may run, or an earlier attempt to reconcile first.
#[expect(
    clippy::large_enum_variant,
    reason = "a call has one of them, for a short time"
)]
pub enum Entered<T, E> {
    /// The body may run.
    Run(Running<T, E>),
    /// `reconcile` must first say what became of an earlier attempt.
    Reconcile(ReconcileRequest<T, E>),
}

/// A crashed earlier attempt, about which `reconcile` is asked.
pub struct ReconcileRequest<T, E> {
    claimer: Claimer<'static>,
    crashed: Box<Record>,
    context: CallContext<T, E>,
}

/// Claims the record of a call with `on_crash = reconcile(...)`.
pub(crate) async fn enter_reconciling<T, E>(
    engine: EngineRef,
    call: Call,
    values: ValueCodec<T>,
    errors: ErrorCodec<E>,
) -> Result<Entered<T, E>, Result<T, E>> {
    let codecs = Codecs { values, errors };
    let (call, context) = prepare(engine, call, codecs, Joins(false))?;
    let mut claimer = Claimer::new(call, CanReconcile(true));
    let at_once = context.report.span.in_scope(|| claimer.claim_at_once());
    let claimed = match at_once {
        Some(claimed) => claimed,
        None => {
            let span = context.report.span.clone();
            claimer.claim().instrument(span).await
        }
    };
    entered(claimed, claimer, context)
}

/// Next stage of a call after its claim.
fn entered<T, E>(
    claimed: Result<Claimed, Error>,
    claimer: Claimer<'static>,
    context: CallContext<T, E>,
) -> Result<Entered<T, E>, Result<T, E>> {
    match claimed {
        Ok(Claimed::Run(attempt, leader)) => {
            Ok(Entered::Run(Running::new(attempt, leader, context)))
        }
        Ok(Claimed::Replay(ended, waited)) => Err(context.replay(&ended, waited)),
        Ok(Claimed::NeedsReconcile(crashed)) => Ok(Entered::Reconcile(ReconcileRequest {
            claimer,
            crashed,
            context,
        })),
        Err(error) => Err(context.refuse(error)),
    }
}

impl<T, E> ReconcileRequest<T, E> {
    /// The crashed attempt.
    pub fn attempt(&self) -> Attempt {
        Attempt::crashed(Arc::clone(self.claimer.call()), &self.crashed)
    }

    /// Continues with the answer of `reconcile`. An `Err` of `reconcile` is returned to the caller, and nothing is
    /// changed.
    ///
    /// # Errors
    /// The function's return value if its body does not run.
    pub async fn answer(
        mut self,
        answer: Result<Reconciled<T>, E>,
    ) -> Result<Entered<T, E>, Result<T, E>> {
        let span = self.context.report.span.clone();
        let claimed = match answer {
            Ok(answer) => Box::pin(self.act(answer)).instrument(span).await,
            Err(error) => {
                self.context.report.end(CallOutcome::Refused);
                return Err(Err(error));
            }
        };
        entered(claimed, self.claimer, self.context)
    }

    async fn act(&mut self, answer: Reconciled<T>) -> Result<Claimed, Error> {
        let resolution = match answer {
            Reconciled::NotDone => return self.claimer.take_over(&self.crashed).await,
            Reconciled::Done(value) => {
                let codecs = &self.context.codecs;
                Resolution::Complete(codecs.completed(&value, &self.attempt()))
            }
            Reconciled::Unknown => Resolution::Interrupt,
        };
        let observed = self.crashed.observation();
        if self.claimer.resolve(&observed, &resolution).await?
            && resolution == Resolution::Interrupt
        {
            return Err(Error::Interrupted);
        }
        // Claims once more, so that even the call that stored the result replays it: all callers get the same value.
        self.claimer.claim().await
    }
}
