//! The thin layer that knows the user's types, and what expanded macros call. Everything behind it works on bytes.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::runtime::Handle as Runtime;
use tracing::{Instrument, Span};

use super::claim::{Claimant, Claimed, Waited};
use super::handover::Ended;
use super::provenance::{Observer, Source};
use super::running::Guard;
use super::settle::{Settled, Verdict};
use super::timing::bounded;
use super::{Attempt, Call, Engine, Idem, default_engine};
use crate::codec::{self, Codec, EncodeError, StoredValue};
use crate::error::{DecodeError, Error};
use crate::fingerprint;
use crate::record::{Ending, OnCrash, Payload, Record};
use crate::store::{Resolution, Store};

/// What an idempotent function returns: a `Result`.
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
    /// As the `Result` that it is.
    fn into_result(self) -> Result<Self::Ok, Self::Err>;
    /// Out of the `Result` that it is.
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

/// An error that can carry what an idempotent call may answer.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot carry the errors of an idempotent call",
    label = "must be `From<idem_runtime::Error>`",
    note = "add a variant to it, with `#[from] idem_runtime::Error` where it uses thiserror, or `impl From<idem_runtime::Error> for {Self}`"
)]
pub trait CallError: From<Error> {}

#[diagnostic::do_not_recommend]
impl<E: From<Error>> CallError for E {}

/// What kind an `Err` of the body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// Stored and replayed, like a value.
    Terminal,
    /// Proves that nothing was done: the key is released, the next call runs the body again.
    Transient,
    /// Nobody knows what was done: treated like a crash.
    Unknown,
}

/// What `reconcile` found out about an earlier attempt that died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reconciled<T> {
    /// It was done, with this value, which is stored and replayed from now on.
    Done(T),
    /// It was not done: the body runs.
    NotDone,
    /// Nobody knows: the call answers `Interrupted`, and the next one asks again.
    Unknown,
}

/// How errors of type `E` are stored, where they are.
pub struct ErrorCodec<E>(Option<Coder<E>>);

struct Coder<E> {
    encode: fn(&E, Codec, usize) -> Result<Payload, EncodeError>,
    decode: fn(&Payload) -> Result<E, DecodeError>,
}

impl<E> ErrorCodec<E> {
    /// They are not.
    pub const fn none() -> Self {
        Self(None)
    }

    /// They are stored under `replay_err`.
    pub const fn stored() -> Self
    where
        E: StoredValue,
    {
        Self(Some(Coder {
            encode: |error, codec, limit| codec.encode(error, limit),
            decode: codec::decode,
        }))
    }
}

/// An engine to call, or why there is none.
pub struct Handle(Result<Arc<Engine>, Error>);

impl Handle {
    /// The engine of this handle.
    pub fn of<S: Store + ?Sized>(idem: &Idem<S>) -> Self {
        Self(Ok(Arc::clone(idem.engine())))
    }

    /// The engine of the task's or the process's default handle.
    pub fn of_default() -> Self {
        Self(default_engine())
    }
}

/// A body that may run.
pub struct Running<R: Returns> {
    guard: Guard,
    errors: ErrorCodec<R::Err>,
}

/// A body that may run, or a question to be answered first.
pub enum Asking<R: Returns> {
    /// It may run.
    Run(Running<R>),
    /// First say what became of an earlier attempt.
    Ask(Ask<R>),
}

/// An earlier attempt that died; `reconcile` is to say what it did.
pub struct Ask<R: Returns> {
    claimant: Claimant,
    dead: Box<Record>,
    context: Context,
    errors: ErrorCodec<R::Err>,
}

/// What a call carries along for those who watch it.
struct Context {
    span: Span,
    observer: Option<Observer>,
    runtime: Runtime,
}

/// Claims the record of a call. `Err` is what the function returns without running its body.
pub async fn enter<R>(
    handle: Handle,
    call: Call,
    errors: ErrorCodec<R::Err>,
) -> Result<Running<R>, R>
where
    R: Returns<Ok: StoredValue, Err: CallError>,
{
    let (mut claimant, context) = begin(handle, call, false)?;
    let claimed = claimant.claim().instrument(context.span.clone()).await;
    match claimed {
        Ok(Claimed::Run(attempt, lead)) => Ok(context.run(attempt, lead, errors)),
        Ok(Claimed::Replay(ended, waited)) => Err(context.replay(&ended, waited, &errors)),
        // Never for a call that cannot ask.
        Ok(Claimed::Ask(_)) => Err(context.refuse(Error::Interrupted)),
        Err(error) => Err(context.refuse(error)),
    }
}

/// The same for `on_crash = reconcile(...)`.
pub async fn enter_asking<R>(
    handle: Handle,
    call: Call,
    errors: ErrorCodec<R::Err>,
) -> Result<Asking<R>, R>
where
    R: Returns<Ok: StoredValue, Err: CallError>,
{
    let (mut claimant, context) = begin(handle, call, true)?;
    let claimed = claimant.claim().instrument(context.span.clone()).await;
    go_on(claimed, claimant, context, errors)
}

/// A call becomes a claimant, with a span around it.
fn begin<R>(handle: Handle, call: Call, can_ask: bool) -> Result<(Claimant, Context), R>
where
    R: Returns<Ok: StoredValue, Err: CallError>,
{
    let span = tracing::info_span!(
        target: "idem",
        "idempotent",
        operation = call.operation(),
        record = tracing::field::Empty,
        attempt = tracing::field::Empty,
        outcome = tracing::field::Empty,
    );
    let prepared = (|| {
        let engine = handle.0?;
        let runtime = Runtime::try_current().map_err(|_| Error::NoRuntime)?;
        let call = call.prepare(&engine)?;
        Ok((engine, runtime, call))
    })();
    match prepared {
        Ok((engine, runtime, call)) => {
            if !span.is_disabled() {
                span.record("record", tracing::field::display(call.request.id));
            }
            let context = Context {
                span,
                observer: Observer::take(),
                runtime: runtime.clone(),
            };
            Ok((
                Claimant::new(engine, Arc::new(call), runtime, can_ask),
                context,
            ))
        }
        Err(error) => {
            record_refusal(&span, &error);
            Err(R::from_result(Err(error.into())))
        }
    }
}

fn go_on<R>(
    claimed: Result<Claimed, Error>,
    claimant: Claimant,
    context: Context,
    errors: ErrorCodec<R::Err>,
) -> Result<Asking<R>, R>
where
    R: Returns<Ok: StoredValue, Err: CallError>,
{
    match claimed {
        Ok(Claimed::Run(attempt, lead)) => Ok(Asking::Run(context.run(attempt, lead, errors))),
        Ok(Claimed::Replay(ended, waited)) => Err(context.replay(&ended, waited, &errors)),
        Ok(Claimed::Ask(dead)) => Ok(Asking::Ask(Ask {
            claimant,
            dead,
            context,
            errors,
        })),
        Err(error) => Err(context.refuse(error)),
    }
}

impl Context {
    fn run<R: Returns>(
        self,
        attempt: Attempt,
        lead: Option<super::handover::Lead>,
        errors: ErrorCodec<R::Err>,
    ) -> Running<R> {
        self.span.record("attempt", attempt.number());
        Running {
            guard: Guard::new(attempt, lead, self.runtime, self.span, self.observer),
            errors,
        }
    }

    fn replay<R>(&self, ended: &Ended, waited: Waited, errors: &ErrorCodec<R::Err>) -> R
    where
        R: Returns<Ok: StoredValue, Err: CallError>,
    {
        let source = match waited {
            Waited(true) => Source::Waited,
            Waited(false) => Source::Replayed,
        };
        replay::<R>(ended, source, errors, &self.span, self.observer.as_ref())
    }

    fn refuse<R: Returns<Err: CallError>>(&self, error: Error) -> R {
        record_refusal(&self.span, &error);
        R::from_result(Err(error.into()))
    }
}

/// The result that is stored, in the caller's types.
fn replay<R>(
    ended: &Ended,
    source: Source,
    errors: &ErrorCodec<R::Err>,
    span: &Span,
    observer: Option<&Observer>,
) -> R
where
    R: Returns<Ok: StoredValue, Err: CallError>,
{
    let result = match (&ended.ending, &errors.0) {
        (Ending::Completed(payload), _) => codec::decode(payload).map(Ok).map_err(Error::from),
        (Ending::Failed(payload), Some(coder)) => {
            (coder.decode)(payload).map(Err).map_err(Error::from)
        }
        (Ending::Failed(_), None) => Err(DecodeError::new(
            "an error is stored, but the function no longer names it under `replay_err`",
        )
        .into()),
        (Ending::Unrecorded, _) => Err(Error::Unrecorded),
    };
    match result {
        Ok(result) => {
            span.record("attempt", ended.attempt);
            span.record(
                "outcome",
                match source {
                    Source::Waited => "waited",
                    _ => "replayed",
                },
            );
            if let Some(observer) = observer {
                observer.tell(source, ended.attempt, ended.at);
            }
            R::from_result(result)
        }
        Err(error) => {
            record_refusal(span, &error);
            R::from_result(Err(error.into()))
        }
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

impl<R> Ask<R>
where
    R: Returns<Ok: StoredValue, Err: CallError>,
{
    /// The attempt that died.
    pub fn attempt(&self) -> Attempt {
        Attempt::of_the_dead(
            Arc::clone(self.claimant.engine()),
            Arc::clone(self.claimant.call()),
            &self.dead,
        )
    }

    /// Goes on with what `reconcile` found out. An `Err` of its own is given to the caller, and nothing is changed.
    pub async fn answer(
        mut self,
        answer: Result<Reconciled<R::Ok>, R::Err>,
    ) -> Result<Asking<R>, R> {
        let span = self.context.span.clone();
        let claimed = match answer {
            Ok(answer) => self.act(answer).instrument(span).await,
            Err(error) => {
                span.record("outcome", "interrupted");
                return Err(R::from_result(Err(error)));
            }
        };
        go_on(claimed, self.claimant, self.context, self.errors)
    }

    async fn act(&mut self, answer: Reconciled<R::Ok>) -> Result<Claimed, Error> {
        let resolution = match answer {
            Reconciled::NotDone => return self.claimant.take_over(&self.dead).await,
            Reconciled::Done(value) => {
                let policy = &self.claimant.engine().policy;
                Resolution::Complete(ending(
                    policy.codec.encode(&value, policy.max_result_bytes),
                    Ending::Completed,
                    &self.attempt(),
                ))
            }
            Reconciled::Unknown => Resolution::Interrupt,
        };
        let observed = self.dead.observation();
        if self.claimant.resolve(&observed, &resolution).await?
            && resolution == Resolution::Interrupt
        {
            return Err(Error::Interrupted);
        }
        // The stored result is given even to the call that stored it: all callers get one and the same.
        self.claimant.claim().await
    }
}

impl<R> Running<R>
where
    R: Returns<Ok: StoredValue, Err: CallError>,
{
    /// The running attempt.
    pub fn attempt(&self) -> Attempt {
        self.guard.attempt.clone()
    }

    /// Runs the body, and keeps the lease while it runs.
    pub fn drive<'a, F: Future<Output = R> + 'a>(
        &'a mut self,
        body: F,
    ) -> impl Future<Output = R> + use<'a, F, R> {
        self.guard.drive(body)
    }

    /// Settles the record by what the body returned, and gives the caller what it is owed.
    pub async fn finish(mut self, result: R, judge: impl FnOnce(&R::Err) -> ErrorKind) -> R {
        let result = result.into_result();
        let span = self.guard.span.clone();
        let attempt = self.guard.attempt.clone();
        let Some(verdict) = self.verdict(&attempt, &result, judge) else {
            span.record("outcome", "interrupted");
            return R::from_result(result);
        };
        let outcome = match &verdict {
            Verdict::End(Ending::Unrecorded) => "unrecorded",
            Verdict::Interrupt => "interrupted",
            _ => "executed",
        };
        let ends = matches!(verdict, Verdict::End(_));
        let settled = match self.guard.settle(verdict) {
            Some(settlement) => settlement.settle().instrument(span.clone()).await,
            // Without a record there is nothing to lose.
            None => Settled::Acknowledged,
        };
        if ends && settled == Settled::Lost {
            return Box::pin(self.after_loss(&attempt))
                .instrument(span.clone())
                .await;
        }
        if ends && settled == Settled::Pending {
            if !attempt.is_live() {
                record_refusal(&span, &Error::LeaseLost);
                return R::from_result(Err(Error::LeaseLost.into()));
            }
            tracing::warn!(
                target: "idem",
                parent: &span,
                operation = attempt.operation().as_str(),
                record = %attempt.record_id(),
                "the result is given to its caller but could not be recorded yet",
            );
        }
        span.record("outcome", outcome);
        if let Some(observer) = &self.guard.observer {
            observer.tell(
                Source::Executed,
                attempt.number(),
                std::time::SystemTime::now(),
            );
        }
        R::from_result(result)
    }

    /// What the record is to say. None where it is left as after a crash.
    fn verdict(
        &mut self,
        attempt: &Attempt,
        result: &Result<R::Ok, R::Err>,
        judge: impl FnOnce(&R::Err) -> ErrorKind,
    ) -> Option<Verdict> {
        let policy = &attempt.engine().policy;
        let error = match result {
            Ok(value) => {
                let encoded = policy.codec.encode(value, policy.max_result_bytes);
                return Some(Verdict::End(ending(encoded, Ending::Completed, attempt)));
            }
            Err(error) => error,
        };
        let kind = match (judge(error), attempt.on_crash()) {
            // The function was written for `rerun`, where every error may be tried again; the record was not.
            (ErrorKind::Transient, OnCrash::Refuse | OnCrash::Reconcile)
                if attempt.call().request.on_crash == OnCrash::Rerun =>
            {
                ErrorKind::Unknown
            }
            (kind, _) => kind,
        };
        match (kind, &self.errors.0) {
            (ErrorKind::Terminal, Some(coder)) => {
                let encoded = (coder.encode)(error, policy.codec, policy.max_result_bytes);
                Some(Verdict::End(ending(encoded, Ending::Failed, attempt)))
            }
            (ErrorKind::Transient, _) => Some(Verdict::Release),
            (ErrorKind::Unknown | ErrorKind::Terminal, _) => match attempt.on_crash() {
                OnCrash::Rerun => None,
                OnCrash::Refuse | OnCrash::Reconcile => Some(Verdict::Interrupt),
            },
        }
    }

    /// Another call took over and this one's result was refused: the caller gets the stored one, if there is one.
    async fn after_loss(&self, attempt: &Attempt) -> R {
        let engine = attempt.engine();
        let call = attempt.call();
        let read = bounded(
            engine.policy.store_timeout,
            engine.store.get(&call.request.id),
        );
        let ended = match read.await {
            Ok(Some(record)) => {
                match fingerprint::matches(&record.fingerprint, &call.digest, &engine.secrets) {
                    Ok(true) => Ended::of(&record),
                    Ok(false) | Err(_) => None,
                }
            }
            Ok(None) | Err(_) => None,
        };
        let (span, observer) = (&self.guard.span, self.guard.observer.as_ref());
        match ended {
            Some(ended) => replay::<R>(&ended, Source::Replayed, &self.errors, span, observer),
            None => {
                record_refusal(span, &Error::LeaseLost);
                R::from_result(Err(Error::LeaseLost.into()))
            }
        }
    }
}

/// How a record ends whose result was encoded, or could not be.
fn ending(
    encoded: Result<Payload, EncodeError>,
    ended: fn(Payload) -> Ending,
    attempt: &Attempt,
) -> Ending {
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
            Ending::Unrecorded
        }
    }
}

/// What [`Idem::run_with`] does with the errors of a body, and after a crash.
pub struct Handling<'a, T, E> {
    replay: Option<Matcher<'a, E>>,
    retry: Option<Matcher<'a, E>>,
    errors: ErrorCodec<E>,
    reconcile: Option<Reconciler<'a, T, E>>,
}

type Matcher<'a, E> = Box<dyn Fn(&E) -> bool + Send + Sync + 'a>;
type Reconciler<'a, T, E> = Box<dyn FnMut(Attempt) -> Answer<'a, T, E> + Send + 'a>;
type Answer<'a, T, E> = Pin<Box<dyn Future<Output = Result<Reconciled<T>, E>> + Send + 'a>>;

impl<'a, T, E> Handling<'a, T, E> {
    /// Every `Err` is transient under `rerun` and unknown otherwise.
    pub fn new() -> Self {
        Self {
            replay: None,
            retry: None,
            errors: ErrorCodec::none(),
            reconcile: None,
        }
    }

    /// Errors that this matches are terminal: stored and replayed.
    #[must_use]
    pub fn replay_err(mut self, matches: impl Fn(&E) -> bool + Send + Sync + 'a) -> Self
    where
        E: StoredValue,
    {
        self.replay = Some(Box::new(matches));
        self.errors = ErrorCodec::stored();
        self
    }

    /// Errors that this matches prove that nothing was done: the key is released. For `refuse` and `reconcile`; under
    /// `rerun` every error that is not terminal is treated so.
    #[must_use]
    pub fn retry_err(mut self, matches: impl Fn(&E) -> bool + Send + Sync + 'a) -> Self {
        self.retry = Some(Box::new(matches));
        self
    }

    /// Asks this what became of an attempt that died, and sets the call's `on_crash` to
    /// [`Reconcile`](OnCrash::Reconcile).
    #[must_use]
    pub fn reconcile<F>(mut self, mut ask: impl FnMut(Attempt) -> F + Send + 'a) -> Self
    where
        F: Future<Output = Result<Reconciled<T>, E>> + Send + 'a,
    {
        self.reconcile = Some(Box::new(move |attempt| Box::pin(ask(attempt))));
        self
    }

    fn judge(&self, error: &E, on_crash: OnCrash) -> ErrorKind {
        let matched = |matcher: &Option<Matcher<'_, E>>| {
            matcher.as_ref().is_some_and(|matches| matches(error))
        };
        if matched(&self.replay) {
            ErrorKind::Terminal
        } else if on_crash == OnCrash::Rerun || matched(&self.retry) {
            ErrorKind::Transient
        } else {
            ErrorKind::Unknown
        }
    }
}

impl<T, E> Default for Handling<'_, T, E> {
    fn default() -> Self {
        Self::new()
    }
}

/// The macro-free way in.
pub(super) async fn run<T, E>(
    handle: Handle,
    call: Call,
    mut handling: Handling<'_, T, E>,
    body: impl AsyncFnOnce(Attempt) -> Result<T, E>,
) -> Result<T, E>
where
    T: StoredValue,
    E: From<Error>,
{
    let errors = std::mem::replace(&mut handling.errors, ErrorCodec::none());
    let entered = match handling.reconcile.take() {
        None => enter(handle, call, errors).await,
        Some(mut reconcile) => {
            let call = call.on_crash(OnCrash::Reconcile);
            let mut asking = enter_asking(handle, call, errors).await;
            loop {
                asking = match asking {
                    Ok(Asking::Run(running)) => break Ok(running),
                    Ok(Asking::Ask(ask)) => {
                        let answer = reconcile(ask.attempt()).await;
                        ask.answer(answer).await
                    }
                    Err(answer) => break Err(answer),
                };
            }
        }
    };
    let mut running = match entered {
        Ok(running) => running,
        Err(answer) => return answer,
    };
    let attempt = running.attempt();
    let on_crash = attempt.call().request.on_crash;
    let result = running.drive(body(attempt)).await;
    running
        .finish(result, |error| handling.judge(error, on_crash))
        .await
}

macro_rules! opaque_debug {
    ($($name:ident<$param:ident $(: $bound:ident)?>),*) => {$(
        impl<$param $(: $bound)?> fmt::Debug for $name<$param> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}

opaque_debug!(ErrorCodec<E>, Running<R: Returns>, Asking<R: Returns>, Ask<R: Returns>);

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl<T, E> fmt::Debug for Handling<'_, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handling").finish_non_exhaustive()
    }
}
