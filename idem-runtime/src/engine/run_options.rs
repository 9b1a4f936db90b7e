//! The macro-free entry point, with its options for errors and crashes.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use super::transaction::InTransaction;
use super::typed::{
    Entered, ErrorCodec, ErrorKind, Handle, Reconciled, ValueCodec, enter, enter_reconciling,
};
use super::{Attempt, Call};
use crate::codec::StoredValue;
use crate::error::{Error, InvalidCall};
use crate::record::OnCrash;
use crate::store::TransactionalStore;

/// Options of [`Idem::run_with`](super::Idem::run_with) for the errors of a body, and for crashes.
pub struct RunOptions<'a, T, E> {
    judge: Judge<'a, E>,
    stored: Option<ValueCodec<E>>,
    reconcile: Option<Reconciler<'a, T, E>>,
}

/// Classifier of the body's errors.
pub(super) struct Judge<'a, E> {
    replay: Option<Matcher<'a, E>>,
    retry: Option<Matcher<'a, E>>,
}

type Matcher<'a, E> = Box<dyn Fn(&E) -> bool + Send + Sync + 'a>;
type Reconciler<'a, T, E> = Box<dyn FnMut(Attempt) -> Answer<'a, T, E> + Send + 'a>;
type Answer<'a, T, E> = Pin<Box<dyn Future<Output = Result<Reconciled<T>, E>> + Send + 'a>>;

impl<'a, T, E> RunOptions<'a, T, E> {
    /// Options under which every `Err` is transient under `rerun` and unknown otherwise.
    pub fn new() -> Self {
        Self {
            judge: Judge {
                replay: None,
                retry: None,
            },
            stored: None,
            reconcile: None,
        }
    }

    /// Marks matching errors as terminal: they are stored and replayed.
    #[must_use]
    pub fn replay_err(mut self, matches: impl Fn(&E) -> bool + Send + Sync + 'a) -> Self
    where
        E: StoredValue,
    {
        self.judge.replay = Some(Box::new(matches));
        self.stored = Some(ValueCodec::stored());
        self
    }

    /// Marks matching errors as proof that nothing was done: the key is released. Meant for `refuse` and `reconcile`;
    /// under `rerun` every error that is not terminal is treated this way.
    #[must_use]
    pub fn retry_err(mut self, matches: impl Fn(&E) -> bool + Send + Sync + 'a) -> Self {
        self.judge.retry = Some(Box::new(matches));
        self
    }

    /// Sets the function that says what became of a crashed attempt, and sets the call's `on_crash` to
    /// [`Reconcile`](OnCrash::Reconcile).
    #[must_use]
    pub fn reconcile<F>(mut self, mut ask: impl FnMut(Attempt) -> F + Send + 'a) -> Self
    where
        F: Future<Output = Result<Reconciled<T>, E>> + Send + 'a,
    {
        self.reconcile = Some(Box::new(move |attempt| Box::pin(ask(attempt))));
        self
    }
}

impl<E> Judge<'_, E> {
    fn kind_of(&self, error: &E, on_crash: OnCrash) -> ErrorKind {
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

impl<T, E> Default for RunOptions<'_, T, E> {
    fn default() -> Self {
        Self::new()
    }
}

/// Runs a call without the macro.
pub(super) async fn run<T, E>(
    handle: Handle,
    call: Call,
    options: RunOptions<'_, T, E>,
    body: impl AsyncFnOnce(Attempt) -> Result<T, E>,
) -> Result<T, E>
where
    T: StoredValue,
    E: From<Error>,
{
    let RunOptions {
        judge,
        stored,
        reconcile,
    } = options;
    let values = ValueCodec::stored();
    let mut errors = ErrorCodec::none();
    if let Some(stored) = stored {
        errors = errors.with_stored(stored);
    }
    let entered = match reconcile {
        None => enter(handle, call, values, errors).await,
        // Boxed, so that calls without `reconcile` do not carry its size.
        Some(mut reconcile) => {
            Box::pin(async move {
                let call = call.on_crash(OnCrash::Reconcile);
                let mut entered = enter_reconciling(handle, call, values, errors).await;
                loop {
                    entered = match entered {
                        Ok(Entered::Run(running)) => break Ok(running),
                        Ok(Entered::Reconcile(request)) => {
                            let answer = reconcile(request.attempt()).await;
                            request.answer(answer).await
                        }
                        Err(answer) => break Err(answer),
                    };
                }
            })
            .await
        }
    };
    let mut running = match entered {
        Ok(running) => running,
        Err(answer) => return answer,
    };
    let attempt = running.attempt();
    let on_crash = attempt.call().request.on_crash;
    running.begin();
    let result = running.drive(body(attempt)).await;
    running
        .finish(result, |error| judge.kind_of(error, on_crash))
        .await
}

/// A call for a transaction, the codecs of its results, and the classifier of its errors.
type InTransactionCall<'a, T, E> = (Call, ValueCodec<T>, ErrorCodec<E>, Judge<'a, E>);

impl<'a, T, E> RunOptions<'a, T, E> {
    /// Converts the options for a call in a transaction, which a crash never leaves undecided.
    pub(super) fn in_transaction(self, call: Call) -> InTransactionCall<'a, T, E>
    where
        T: StoredValue,
        E: From<Error>,
    {
        let mut errors = ErrorCodec::none();
        if let Some(stored) = self.stored {
            errors = errors.with_stored(stored);
        }
        let stray = match (&self.reconcile, &self.judge.retry) {
            (Some(_), _) => Some("reconcile"),
            (None, Some(_)) => Some("retry_err"),
            (None, None) => None,
        };
        let call = match stray {
            Some(option) => call.failed(InvalidCall::NotTransactional(option).into()),
            None => call,
        };
        (call, ValueCodec::stored(), errors, self.judge)
    }
}

/// Runs a body without the macro, in a transaction that was entered.
pub(super) async fn run_in_transaction<S: TransactionalStore, T, E>(
    entered: Result<InTransaction<'_, S, T, E>, Result<T, E>>,
    judge: Judge<'_, E>,
    body: impl AsyncFnOnce(&mut S::Connection, Attempt) -> Result<T, E>,
) -> Result<T, E> {
    let mut running = match entered {
        Ok(running) => running,
        Err(answer) => return answer,
    };
    let attempt = running.attempt();
    let (driver, connection) = running.parts();
    // The closure may act before it returns its future.
    let body = async { body(connection, attempt).await };
    let result = driver.drive(body).await;
    running
        .finish(result, |error| judge.kind_of(error, OnCrash::Rerun))
        .await
}

impl<T, E> fmt::Debug for RunOptions<'_, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunOptions").finish_non_exhaustive()
    }
}
