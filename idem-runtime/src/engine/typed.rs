//! The thin typed layer: knows the user's types, and is called by expanded macros. All other modules work on bytes.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::runtime::Handle as Runtime;
use tracing::{Instrument, Span};

use super::call::Prepared;
use super::claim::{Claimed, Claimer, Waited};
use super::provenance::{Observer, Source};
use super::running::Guard;
use super::settle::{Settle, SettleResult};
use super::singleflight::{Leader, SharedOutcome};
use super::timing::bounded;
use super::transaction::reentrancy;
use super::{Attempt, Call, Engine, Idem, default_engine};
use crate::codec::{self, Codec, EncodeError, StoredValue};
use crate::error::{DecodeError, Error, InvalidCall};
use crate::fingerprint;
use crate::record::{OnCrash, Outcome, Payload, Record};
use crate::store::{Resolution, Store};

/// Return type of an idempotent function: a `Result`.
#[diagnostic::on_unimplemented(
    message = "an idempotent function returns a `Result`, not `{Self}`",
    label = "not a `Result`",
    note = "write `-> Result<{Self}, E>` with an `E` that is `From<idem_runtime::Error>`, so that a call can be told that its key is in flight, was reused or was interrupted"
)]
pub trait Returns: Sized {
    /// The value that is stored and replayed.
    type Ok;
    /// The error.
    type Err;
    /// Converts the value into the `Result` that it is.
    ///
    /// # Errors
    /// The function's own error.
    fn into_result(self) -> Result<Self::Ok, Self::Err>;
    /// Converts a `Result` back into the function's return type.
    fn from_result(result: Result<Self::Ok, Self::Err>) -> Self;
}

impl<T, E> Returns for Result<T, E> {
    type Ok = T;
    type Err = E;

    fn into_result(self) -> Self {
        self
    }

    fn from_result(result: Self) -> Self {
        result
    }
}

/// An error type that can represent the errors of an idempotent call.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot carry the errors of an idempotent call",
    label = "must be `From<idem_runtime::Error>`",
    note = "add a variant to it, with `#[from] idem_runtime::Error` where it uses thiserror, or `impl From<idem_runtime::Error> for {Self}`"
)]
pub trait CallError: From<Error> {}

#[diagnostic::do_not_recommend]
impl<E: From<Error>> CallError for E {}

/// Classification of an `Err` of the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// Stored and replayed, like a value.
    Terminal,
    /// Proves that nothing was done: the key is released, and the next call runs the body again.
    Transient,
    /// Leaves open whether anything was done: treated like a crash.
    Unknown,
}

/// Result of `reconcile`: the fate of an earlier attempt that crashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reconciled<T> {
    /// The work was done, with this value. The value is stored, and replayed from now on.
    Done(T),
    /// The work was not done: the body runs.
    NotDone,
    /// The fate is unknown: the call returns `Interrupted`, and the next one runs `reconcile` again.
    Unknown,
}

/// Encoding of values of type `T`.
///
/// This type and [`ErrorCodec`] are the only places that require [`StoredValue`] and [`CallError`]. Generated code
/// constructs one of each at the place of the user's type, so a missing bound is reported there, once, without
/// follow-up errors.
pub struct ValueCodec<T> {
    pub(super) encode: fn(&T, Codec, usize) -> Result<Payload, EncodeError>,
    decode: fn(&Payload) -> Result<T, DecodeError>,
}

impl<T> ValueCodec<T> {
    /// Encodes values with their serde implementations.
    pub const fn stored() -> Self
    where
        T: StoredValue,
    {
        Self {
            encode: |value, codec, limit| codec.encode(value, limit),
            decode: codec::decode,
        }
    }

    /// Encodes values with these functions.
    #[cfg(feature = "http")]
    pub(crate) const fn by(
        encode: fn(&T, Codec, usize) -> Result<Payload, EncodeError>,
        decode: fn(&Payload) -> Result<T, DecodeError>,
    ) -> Self {
        Self { encode, decode }
    }
}

/// Conversion of a call's errors into type `E`, and the encoding of stored errors of that type.
pub struct ErrorCodec<E> {
    carry: fn(Error) -> E,
    pub(super) stored: Option<ValueCodec<E>>,
}

impl<E> ErrorCodec<E> {
    /// No errors are stored.
    pub const fn none() -> Self
    where
        E: CallError,
    {
        Self {
            carry: E::from,
            stored: None,
        }
    }

    /// The errors that `replay_err` names are stored.
    #[must_use]
    pub const fn with_stored(self, stored: ValueCodec<E>) -> Self {
        Self {
            carry: self.carry,
            stored: Some(stored),
        }
    }
}

/// Encoding of a function's values and errors.
pub(super) struct Codecs<T, E> {
    pub(super) values: ValueCodec<T>,
    pub(super) errors: ErrorCodec<E>,
}

impl<T, E> Codecs<T, E> {
    /// A refusal, converted to the function's return type.
    pub(super) fn refuse(&self, span: &Span, error: Error) -> Result<T, E> {
        record_refusal(span, &error);
        Err((self.errors.carry)(error))
    }

    /// Decodes the stored result into the caller's types.
    fn decode(&self, outcome: &Outcome) -> Result<Result<T, E>, Error> {
        match (outcome, &self.errors.stored) {
            (Outcome::Completed(payload), _) => Ok(Ok((self.values.decode)(payload)?)),
            (Outcome::Failed(payload), Some(errors)) => Ok(Err((errors.decode)(payload)?)),
            (Outcome::Failed(_), None) => Err(DecodeError::new(
                "an error is stored, but the function no longer names it under `replay_err`",
            )
            .into()),
            (Outcome::Unrecorded, _) => Err(Error::Unrecorded),
        }
    }

    /// Decodes the stored result, and records it in the span and for the observer.
    fn replay(
        &self,
        ended: &SharedOutcome,
        source: Source,
        span: &Span,
        observer: Option<&Observer>,
    ) -> Result<T, E> {
        let result = match self.decode(&ended.outcome) {
            Ok(result) => result,
            Err(error) => return self.refuse(span, error),
        };
        let label = match source {
            Source::Waited => "waited",
            Source::Replayed | Source::Executed => "replayed",
        };
        span.record("attempt", ended.attempt);
        span.record("outcome", label);
        if let Some(observer) = observer {
            observer.tell(source, ended.attempt, ended.at);
        }
        result
    }
}

/// An engine to call, or the reason for its absence.
pub struct Handle(pub(super) Result<Arc<Engine>, Error>);

/// True if a call becomes part of an open transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Joins(pub(super) bool);

/// Returns the engine of a handle. Accepts everything that dereferences to a handle, because generated code passes a
/// borrow.
pub fn handle<S: Store + ?Sized>(idem: &Idem<S>) -> Handle {
    Handle(Ok(Arc::clone(idem.engine())))
}

/// Returns the engine of calls that name no store: the task's default or the process's.
pub fn default_handle() -> Handle {
    Handle(default_engine())
}

/// A body that may run.
pub struct Running<T, E> {
    guard: Guard,
    codecs: Codecs<T, E>,
}

/// A body that may run, or an earlier attempt to reconcile first.
pub enum Entered<T, E> {
    /// The body may run.
    Run(Running<T, E>),
    /// `reconcile` must first say what became of an earlier attempt.
    Reconcile(ReconcileRequest<T, E>),
}

/// A crashed earlier attempt, about which `reconcile` is asked.
pub struct ReconcileRequest<T, E> {
    claimer: Claimer<'static>,
    dead: Box<Record>,
    entry: Entry<T, E>,
}

/// State that a call carries until its body runs.
pub(super) struct Entry<T, E> {
    pub(super) codecs: Codecs<T, E>,
    pub(super) span: Span,
    pub(super) observer: Option<Observer>,
}

/// Claims the record of a call. `Err` is the function's return value if its body does not run.
///
/// The call is turned into a claimer before the future is created, so that the future does not hold the call as well.
pub(crate) fn enter<T, E>(
    handle: Handle,
    call: Call,
    values: ValueCodec<T>,
    errors: ErrorCodec<E>,
) -> impl Future<Output = Result<Running<T, E>, Result<T, E>>> {
    let begun = Entry::begin(handle, call, Codecs { values, errors }, false);
    // Boxed, so that the future of a long-running body does not reserve the memory that only claiming needs.
    Box::pin(async move {
        let (mut claimer, entry) = begun?;
        match claimer.claim().instrument(entry.span.clone()).await {
            Ok(Claimed::Run(attempt, leader)) => Ok(entry.run(attempt, leader)),
            Ok(Claimed::Replay(ended, waited)) => Err(entry.replay(&ended, waited)),
            // Unreachable for a call that cannot ask.
            Ok(Claimed::NeedsReconcile(_)) => Err(entry.refuse(Error::Interrupted)),
            Err(error) => Err(entry.refuse(error)),
        }
    })
}

/// Claims the record of a call with `on_crash = reconcile(...)`.
pub(crate) async fn enter_reconciling<T, E>(
    handle: Handle,
    call: Call,
    values: ValueCodec<T>,
    errors: ErrorCodec<E>,
) -> Result<Entered<T, E>, Result<T, E>> {
    let (mut claimer, entry) = Entry::begin(handle, call, Codecs { values, errors }, true)?;
    let claimed = claimer.claim().instrument(entry.span.clone()).await;
    entry.go_on(claimed, claimer)
}

impl<T, E> Entry<T, E> {
    /// Turns a call into a claimer, with a span.
    fn begin(
        handle: Handle,
        call: Call,
        codecs: Codecs<T, E>,
        can_reconcile: bool,
    ) -> Result<(Claimer<'static>, Self), Result<T, E>> {
        let (call, entry) = Self::prepare(handle, call, codecs, Joins(false))?;
        Ok((Claimer::new(call, can_reconcile), entry))
    }

    /// Validates and freezes a call, with a span.
    pub(super) fn prepare(
        handle: Handle,
        call: Call,
        codecs: Codecs<T, E>,
        joins: Joins,
    ) -> Result<(Arc<Prepared>, Self), Result<T, E>> {
        let span = tracing::info_span!(
            target: "idem",
            "idempotent",
            operation = call.operation(),
            record = tracing::field::Empty,
            attempt = tracing::field::Empty,
            outcome = tracing::field::Empty,
        );
        let prepared = || -> Result<_, Error> {
            let engine = handle.0?;
            let runtime = Runtime::try_current().map_err(|_| Error::NoRuntime)?;
            if joins == Joins(false) && reentrancy::is_polled(&engine) {
                return Err(InvalidCall::InsideTransaction.into());
            }
            call.prepare(engine, runtime)
        };
        let call = match prepared() {
            Ok(call) => call,
            Err(error) => return Err(codecs.refuse(&span, error)),
        };
        if !span.is_disabled() {
            span.record("record", tracing::field::display(call.request.id));
        }
        let entry = Self {
            codecs,
            span,
            observer: Observer::take(),
        };
        Ok((call, entry))
    }

    fn go_on(
        self,
        claimed: Result<Claimed, Error>,
        claimer: Claimer<'static>,
    ) -> Result<Entered<T, E>, Result<T, E>> {
        match claimed {
            Ok(Claimed::Run(attempt, leader)) => Ok(Entered::Run(self.run(attempt, leader))),
            Ok(Claimed::Replay(ended, waited)) => Err(self.replay(&ended, waited)),
            Ok(Claimed::NeedsReconcile(dead)) => Ok(Entered::Reconcile(ReconcileRequest {
                claimer,
                dead,
                entry: self,
            })),
            Err(error) => Err(self.refuse(error)),
        }
    }

    fn run(self, attempt: Attempt, leader: Option<Leader>) -> Running<T, E> {
        self.span.record("attempt", attempt.number());
        Running {
            guard: Guard::new(attempt, leader, self.span, self.observer),
            codecs: self.codecs,
        }
    }

    pub(super) fn replay(&self, ended: &SharedOutcome, waited: Waited) -> Result<T, E> {
        let source = match waited {
            Waited(true) => Source::Waited,
            Waited(false) => Source::Replayed,
        };
        self.codecs
            .replay(ended, source, &self.span, self.observer.as_ref())
    }

    pub(super) fn refuse(&self, error: Error) -> Result<T, E> {
        self.codecs.refuse(&self.span, error)
    }
}

fn record_refusal(span: &Span, error: &Error) {
    span.record(
        "outcome",
        match error {
            Error::InFlight { .. } => "in_flight",
            Error::KeyReused => "key_reused",
            Error::Interrupted => "interrupted",
            Error::LeaseLost => "lease_lost",
            Error::Unrecorded => "unrecorded",
            Error::Store(_) => "store_error",
            Error::Decode(_) => "decode",
            _ => "invalid",
        },
    );
}

impl<T, E> ReconcileRequest<T, E> {
    /// The crashed attempt.
    pub fn attempt(&self) -> Attempt {
        Attempt::abandoned(Arc::clone(self.claimer.call()), &self.dead)
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
        let span = self.entry.span.clone();
        let claimed = match answer {
            Ok(answer) => Box::pin(self.act(answer)).instrument(span).await,
            Err(error) => {
                span.record("outcome", "interrupted");
                return Err(Err(error));
            }
        };
        self.entry.go_on(claimed, self.claimer)
    }

    async fn act(&mut self, answer: Reconciled<T>) -> Result<Claimed, Error> {
        let resolution = match answer {
            Reconciled::NotDone => return self.claimer.take_over(&self.dead).await,
            Reconciled::Done(value) => {
                let policy = &self.claimer.call().engine.policy;
                Resolution::Complete(outcome(
                    (self.entry.codecs.values.encode)(
                        &value,
                        policy.codec,
                        policy.max_result_bytes,
                    ),
                    Outcome::Completed,
                    &self.attempt(),
                ))
            }
            Reconciled::Unknown => Resolution::Interrupt,
        };
        let observed = self.dead.observation();
        if self.claimer.resolve(&observed, &resolution).await?
            && resolution == Resolution::Interrupt
        {
            return Err(Error::Interrupted);
        }
        // Claims once more, so that even the call that stored the result replays it: all callers get the same value.
        self.claimer.claim().await
    }
}

impl<T, E> Running<T, E> {
    /// The running attempt.
    pub fn attempt(&self) -> Attempt {
        self.guard.attempt.clone()
    }

    /// Marks the body as begun: it is about to be called, and may act before it returns its future.
    pub(crate) fn begin(&mut self) {
        self.guard.begin();
    }

    /// Runs the body, and renews the lease while it runs.
    pub fn drive<'a, F: Future + 'a>(
        &'a mut self,
        body: F,
    ) -> impl Future<Output = F::Output> + use<'a, F, T, E> {
        self.guard.drive(body)
    }

    /// Settles the record according to the body's result, and returns the caller's result.
    ///
    /// The result is judged before the future is created, so that the future stays small.
    ///
    /// # Errors
    /// The function's own error, or an error of the call.
    pub fn finish<J>(
        mut self,
        result: Result<T, E>,
        judge: J,
    ) -> impl Future<Output = Result<T, E>> + use<T, E, J>
    where
        J: FnOnce(&E) -> ErrorKind,
    {
        let settle = self.settle(&result, judge);
        let ends = matches!(settle, Some(Settle::End(_)));
        let label = match settle {
            Some(Settle::End(Outcome::Unrecorded)) => "unrecorded",
            Some(Settle::End(_) | Settle::Release) => "executed",
            Some(Settle::Interrupt) | None => "interrupted",
        };
        let mut settlement = settle.and_then(|settle| self.guard.settle(settle));
        // Boxed for the reason given in `enter`.
        Box::pin(async move {
            // Borrowed, because a value moved out of a capture is stored twice in the future.
            if let Some(settlement) = &mut settlement {
                let settled = settlement.settle(&self.guard.span).await;
                if ends && settled == SettleResult::Lost {
                    return Box::pin(self.after_loss()).await;
                }
                if ends && settled == SettleResult::Pending {
                    if !self.guard.attempt.is_live() {
                        return self.codecs.refuse(&self.guard.span, Error::LeaseLost);
                    }
                    warn_unrecorded(&self.guard);
                }
            }
            self.guard.span.record("outcome", label);
            if let Some(observer) = &self.guard.observer {
                let number = self.guard.attempt.number();
                observer.tell(Source::Executed, number, SystemTime::now());
            }
            result
        })
    }

    /// Decides how to settle the record. None if the record is left as after a crash.
    fn settle(&self, result: &Result<T, E>, judge: impl FnOnce(&E) -> ErrorKind) -> Option<Settle> {
        let attempt = &self.guard.attempt;
        let policy = &attempt.engine().policy;
        let (codec, limit) = (policy.codec, policy.max_result_bytes);
        let error = match result {
            Ok(value) => {
                let encoded = (self.codecs.values.encode)(value, codec, limit);
                return Some(Settle::End(outcome(encoded, Outcome::Completed, attempt)));
            }
            Err(error) => error,
        };
        let kind = match (judge(error), attempt.on_crash()) {
            // The function now says `rerun`, where every error may be retried; the record was claimed under another
            // policy.
            (ErrorKind::Transient, OnCrash::Refuse | OnCrash::Reconcile)
                if attempt.call().request.on_crash == OnCrash::Rerun =>
            {
                ErrorKind::Unknown
            }
            (kind, _) => kind,
        };
        match (kind, &self.codecs.errors.stored) {
            (ErrorKind::Terminal, Some(errors)) => {
                let encoded = (errors.encode)(error, codec, limit);
                Some(Settle::End(outcome(encoded, Outcome::Failed, attempt)))
            }
            // Releasing after an unknown step would repeat the step immediately, although it may have been done.
            (ErrorKind::Transient, _) if !attempt.has_unknown_steps() => Some(Settle::Release),
            (ErrorKind::Transient | ErrorKind::Unknown | ErrorKind::Terminal, _) => {
                match attempt.on_crash() {
                    OnCrash::Rerun => None,
                    OnCrash::Refuse | OnCrash::Reconcile => Some(Settle::Interrupt),
                }
            }
        }
    }

    /// Another call took over, and the store refused this call's result: replays the stored result, if there is one.
    async fn after_loss(&self) -> Result<T, E> {
        let (span, observer) = (&self.guard.span, self.guard.observer.as_ref());
        let engine = self.guard.attempt.engine();
        let call = self.guard.attempt.call();
        let read = bounded(
            engine.policy.store_timeout,
            engine.store.get(&call.request.id),
        );
        let ended = match read.instrument(span.clone()).await {
            Ok(Some(record)) => {
                match fingerprint::matches(&record.fingerprint, &call.digest, &engine.secrets) {
                    Ok(true) => SharedOutcome::of(&record),
                    Ok(false) | Err(_) => None,
                }
            }
            Ok(None) | Err(_) => None,
        };
        match ended {
            Some(ended) => self.codecs.replay(&ended, Source::Replayed, span, observer),
            None => self.codecs.refuse(span, Error::LeaseLost),
        }
    }
}

fn warn_unrecorded(guard: &Guard) {
    tracing::warn!(
        target: "idem",
        parent: &guard.span,
        operation = guard.attempt.operation().as_str(),
        record = %guard.attempt.record_id(),
        "the result is given to its caller but could not be recorded yet",
    );
}

/// Outcome of a record, depending on the result of encoding.
pub(super) fn outcome(
    encoded: Result<Payload, EncodeError>,
    ended: fn(Payload) -> Outcome,
    attempt: &Attempt,
) -> Outcome {
    match encoded {
        Ok(payload) => ended(payload),
        Err(error) => {
            tracing::error!(
                target: "idem",
                operation = attempt.operation().as_str(),
                record = %attempt.record_id(),
                error = %error,
                "the work is done, but its result cannot be stored and will not be replayed",
            );
            Outcome::Unrecorded
        }
    }
}

macro_rules! opaque_debug {
    ($($name:ident<$($param:ident),*>),*) => {$(
        impl<$($param),*> fmt::Debug for $name<$($param),*> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}

opaque_debug!(ValueCodec<T>, ErrorCodec<E>, Running<T, E>, Entered<T, E>, ReconcileRequest<T, E>);

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}
