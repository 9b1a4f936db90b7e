//! Entry of a call: prepares it and claims its record.

use std::future::Future;
use std::sync::Arc;

use tokio::runtime::Handle as Runtime;
use tracing::Instrument;

use super::body::Running;
use super::codecs::{Codecs, ErrorCodec};
use super::context::{CallContext, CallReport};
use super::ready_or::ReadyOr;
use super::replay_noter::ReplayNoter;
use crate::codec::value::ValueCodec;
use crate::engine::claim::{CanReconcile, Claimed, Claimer};
use crate::engine::install::default_engine;
use crate::engine::prepared::Prepared;
use crate::engine::provenance::Observer;
use crate::engine::{Call, Engine, Idem, reentrancy};
use crate::error::{Error, InvalidCall};
use crate::metrics::OperationMetrics;
use crate::store::Store;

/// An engine to call, or the reason for its absence.
pub struct EngineRef(Result<Arc<Engine>, Error>);

/// True if a call becomes part of an open transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct Joins(pub(in crate::engine) bool);

/// Returns the engine of a handle.
pub(crate) fn handle<S: Store + ?Sized>(idem: &Idem<S>) -> EngineRef {
    EngineRef(Ok(Arc::clone(idem.engine())))
}

/// Returns the engine of calls that name no store: the task's default or the process's.
pub fn default_handle() -> EngineRef {
    EngineRef(default_engine())
}

/// Claims the record of a call. `Err` is the function's return value if its body does not run.
///
/// The call is turned into a claimer before the future is created, so that the future does not hold the call as well.
/// If the store does not wait, the claim is made then, too. Dropping the future releases it.
pub(crate) fn enter<T, E>(
    engine: EngineRef,
    call: Call,
    values: ValueCodec<T>,
    errors: ErrorCodec<E>,
) -> impl Future<Output = Result<Running<T, E>, Result<T, E>>> + Unpin {
    let codecs = Codecs { values, errors };
    let (call, context) = match prepare(engine, call, codecs, Joins(false)) {
        Ok(prepared) => prepared,
        Err(answer) => return ReadyOr::ready(Err(answer)),
    };
    let mut claimer = Claimer::new(call, CanReconcile(false));
    let claimed = context.report.span.in_scope(|| claimer.claim_at_once());
    match claimed {
        Some(claimed) => ReadyOr::ready(running(claimed, context)),
        None => ReadyOr::waiting(async move {
            let span = context.report.span.clone();
            let claimed = claimer.claim().instrument(span).await;
            running(claimed, context)
        }),
    }
}

/// Next stage of a call after its claim.
fn running<T, E>(
    claimed: Result<Claimed, Error>,
    context: CallContext<T, E>,
) -> Result<Running<T, E>, Result<T, E>> {
    match claimed {
        Ok(Claimed::Run(attempt, leader)) => Ok(Running::new(attempt, leader, context)),
        Ok(Claimed::Replay(ended, waited)) => Err(context.replay(&ended, waited)),
        // Unreachable for a call that cannot reconcile.
        Ok(Claimed::NeedsReconcile(_)) => Err(context.refuse(Error::Interrupted)),
        Err(error) => Err(context.refuse(error)),
    }
}

/// A frozen call, with its context.
type PreparedCall<T, E> = (Arc<Prepared>, CallContext<T, E>);

/// Validates and freezes a call, with a span.
pub(in crate::engine) fn prepare<T, E>(
    engine: EngineRef,
    call: Call,
    codecs: Codecs<T, E>,
    joins: Joins,
) -> Result<PreparedCall<T, E>, Result<T, E>> {
    let metrics = OperationMetrics::of(call.operation());
    let span = tracing::info_span!(
        target: "idem",
        "idempotent",
        idem.operation = call.operation(),
        "code.function.name" = call.function_path(),
        idem.record = tracing::field::Empty,
        idem.attempt = tracing::field::Empty,
        idem.outcome = tracing::field::Empty,
        "error.type" = tracing::field::Empty,
    );
    let mut context = CallContext {
        codecs,
        report: CallReport::new(span, metrics),
        observer: None,
        noter: None,
    };
    match freeze(engine, call, joins, metrics) {
        Ok(call) => {
            if !context.report.span.is_disabled() {
                let id = tracing::field::display(call.request.id);
                context.report.span.record("idem.record", id);
            }
            // A call that is refused leaves the observer to the next one.
            context.observer = Observer::take();
            context.noter = ReplayNoter::new(&call);
            Ok((call, context))
        }
        Err(error) => Err(context.refuse(error)),
    }
}

#[inline]
fn freeze(
    engine: EngineRef,
    call: Call,
    joins: Joins,
    metrics: OperationMetrics,
) -> Result<Arc<Prepared>, Error> {
    let engine = engine.0?;
    let runtime = Runtime::try_current().map_err(|_| Error::NoRuntime)?;
    if joins == Joins(false) && reentrancy::is_polled(&engine) {
        return Err(InvalidCall::InsideTransaction.into());
    }
    let call = call.prepare(engine, runtime, metrics)?;
    if reentrancy::is_running(&call.engine, &call.request.id) {
        return Err(InvalidCall::OwnKey.into());
    }
    Ok(call)
}
