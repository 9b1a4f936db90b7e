//! Options for errors and crashes of calls without the macro.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use super::typed::{ErrorCodec, Finality, Reconciled};
use super::{Attempt, Call};
use crate::codec::StoredValue;
use crate::codec::value::ValueCodec;
use crate::codec::version::Versioned;
use crate::error::{Error, InvalidCall};
use crate::record::OnCrash;

/// Options of [`Idem::run_with`](super::Idem::run_with) for the errors of a body, and for crashes.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use std::time::Duration;
/// use idem_runtime::advanced::RunOptions;
/// use idem_runtime::{Call, Error, Idem, MemoryStore};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// enum PayError {
///     Declined,
///     #[serde(skip)]
///     Idempotency(Error),
/// }
///
/// impl From<Error> for PayError {
///     fn from(error: Error) -> Self {
///         Self::Idempotency(error)
///     }
/// }
///
/// let idem = Idem::new(MemoryStore::new());
/// for attempts in [1, 0] {
///     let mut ran = 0;
///     let call = Call::new("payments.take", "order-1", &500_u64, Duration::from_secs(3600));
///     let options = RunOptions::new().replay_err(|error| matches!(error, PayError::Declined));
///     let paid: Result<u64, _> = idem
///         .run_with(call, options, async |_| {
///             ran += 1;
///             Err(PayError::Declined)
///         })
///         .await;
///     // The second call gets the stored error, and does not run the body.
///     assert!(matches!(paid, Err(PayError::Declined)));
///     assert_eq!(ran, attempts);
/// }
/// # }
/// ```
pub struct RunOptions<'a, T, E> {
    pub(super) classifier: ErrorClassifier<'a, E>,
    pub(super) values: Option<ValueCodec<T>>,
    pub(super) stored: Option<ValueCodec<E>>,
    pub(super) reconcile: Option<Reconciler<'a, T, E>>,
}

/// Classifier of the body's errors.
pub(super) struct ErrorClassifier<'a, E> {
    replay: Option<Matcher<'a, E>>,
    release: Option<Matcher<'a, E>>,
}

type Matcher<'a, E> = Box<dyn Fn(&E) -> bool + Send + Sync + 'a>;
/// Function that says what became of a crashed attempt.
pub(super) type Reconciler<'a, T, E> =
    Box<dyn FnMut(Attempt) -> ReconcileFuture<'a, T, E> + Send + 'a>;
type ReconcileFuture<'a, T, E> =
    Pin<Box<dyn Future<Output = Result<Reconciled<T>, E>> + Send + 'a>>;

impl<'a, T, E> RunOptions<'a, T, E> {
    /// Options under which every `Err` is transient under `rerun` and unknown otherwise.
    pub fn new() -> Self {
        Self {
            classifier: ErrorClassifier {
                replay: None,
                release: None,
            },
            values: None,
            stored: None,
            reconcile: None,
        }
    }

    /// Stores values with the [version](Versioned::VERSION) of their type, and reads the values of other versions. Errors
    /// have no versions.
    #[must_use]
    pub fn versioned(mut self) -> Self
    where
        T: Versioned,
    {
        self.values = Some(ValueCodec::versioned());
        self
    }

    /// Marks matching errors as final: they are stored and replayed.
    #[must_use]
    pub fn replay_err(mut self, matches: impl Fn(&E) -> bool + Send + Sync + 'a) -> Self
    where
        E: StoredValue,
    {
        self.classifier.replay = Some(Box::new(matches));
        self.stored = Some(ValueCodec::stored());
        self
    }

    /// Marks matching errors as proof that nothing was done: the key is released. Meant for `refuse` and `reconcile`;
    /// under `rerun` every error that is not final is treated this way.
    #[must_use]
    pub fn release_err(mut self, matches: impl Fn(&E) -> bool + Send + Sync + 'a) -> Self {
        self.classifier.release = Some(Box::new(matches));
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

impl<E> ErrorClassifier<'_, E> {
    pub(super) fn classify(&self, error: &E, on_crash: OnCrash) -> Finality {
        let matched = |matcher: &Option<Matcher<'_, E>>| {
            matcher.as_ref().is_some_and(|matches| matches(error))
        };
        if matched(&self.replay) {
            Finality::Final
        } else if on_crash == OnCrash::Rerun || matched(&self.release) {
            Finality::Transient
        } else {
            Finality::Unknown
        }
    }
}

impl<T, E> Default for RunOptions<'_, T, E> {
    fn default() -> Self {
        Self::new()
    }
}

/// A call for a transaction, the codecs of its results, and the classifier of its errors.
type InTransactionCall<'a, T, E> = (Call, ValueCodec<T>, ErrorCodec<E>, ErrorClassifier<'a, E>);

impl<'a, T, E> RunOptions<'a, T, E> {
    /// Converts the options for a call in a transaction, which a crash never leaves undecided.
    pub(super) fn in_transaction(self, call: Call) -> InTransactionCall<'a, T, E>
    where
        T: StoredValue,
        E: From<Error>,
    {
        let errors = error_codec(self.stored);
        let stray = match (&self.reconcile, &self.classifier.release) {
            (Some(_), _) => Some("reconcile"),
            (None, Some(_)) => Some("release_err"),
            (None, None) => None,
        };
        let call = match stray {
            Some(option) => call.failed(InvalidCall::NotTransactional(option).into()),
            None => call,
        };
        let values = self.values.unwrap_or(ValueCodec::stored());
        (call, values, errors, self.classifier)
    }
}

/// Codec of a call's errors.
pub(super) fn error_codec<E: From<Error>>(stored: Option<ValueCodec<E>>) -> ErrorCodec<E> {
    let errors = ErrorCodec::none();
    match stored {
        Some(stored) => errors.with_stored(stored),
        None => errors,
    }
}

impl<T, E> fmt::Debug for RunOptions<'_, T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunOptions").finish_non_exhaustive()
    }
}
