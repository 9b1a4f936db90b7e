//! The errors of a call. Messages are fragments that never contain a raw key or a stored result.

mod call;
pub(crate) mod causes;
mod decode;
mod fingerprint;
mod outbox;

use std::fmt;
use std::time::Duration;

pub use self::call::InvalidCall;
pub use self::decode::DecodeError;
pub use self::fingerprint::FingerprintError;
pub use self::outbox::InvalidOutbox;
pub use idem_store::error::{
    InvalidChange, InvalidKey, InvalidOperation, StoreError, StoreErrorKind,
};

/// Error: a process-wide default handle is already installed. The existing one is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a default handle is installed already")]
pub struct AlreadyInstalled;

/// An error that an idempotent call returns instead of the function's own result.
///
/// | variant | what happened | what a caller does |
/// | --- | --- | --- |
/// | [`InFlight`](Self::InFlight) | another call with this key is running | retry with the same key after `retry_after` |
/// | [`Overloaded`](Self::Overloaded) | too many calls wait for the store, or this one's deadline has passed; this try did nothing | retry with the same key after `retry_after` |
/// | [`KeyReused`](Self::KeyReused) | the key was first used with another request | send a retry exactly as the first try; other work needs a key of its own |
/// | [`Interrupted`](Self::Interrupted) | an earlier call crashed, and it is unknown whether its effect happened | an operator (or `reconcile`) decides, then retry |
/// | [`LeaseLost`](Self::LeaseLost) | this call's lease lapsed, and another call took over | retry with the same key to get the stored result |
/// | [`Unrecorded`](Self::Unrecorded) | the work was done, but its result could not be stored | look the result up elsewhere; the body does not run again |
/// | [`Expired`](Self::Expired) | the work of this key was done longer ago than outcomes are kept, or the key is too old to be new | look the result up elsewhere; the body does not run again |
/// | [`InvalidCall`](Self::InvalidCall) | operation name, ttl, lease or step is malformed | fix the service |
/// | [`InvalidKey`](Self::InvalidKey) | key or scope is malformed; or an issued key is required, and this one was not issued or has expired | fix the caller, or request an issued key |
/// | [`Fingerprint`](Self::Fingerprint) | the request has no canonical form | fix the request |
/// | [`Decode`](Self::Decode) | a record was written by code that this build does not understand | deploy a build that does; the body does not run again. If [a newer version](DecodeError::is_of_newer_version) of the result type wrote it, retry with the same key, until a process of the newer build answers |
/// | [`Store`](Self::Store) | the store could not answer; nothing ran, unless the error says otherwise | retry with the same key if [`StoreError::is_retryable`] |
/// | [`InvalidOutbox`](Self::InvalidOutbox) | a message or a relay is malformed | fix the service |
/// | [`NotInstalled`](Self::NotInstalled), [`NoRuntime`](Self::NoRuntime) | the process is not set up | fix the service |
///
/// ```
/// use idem_runtime::Error;
///
/// fn advice(error: &Error) -> &'static str {
///     match error {
///         Error::KeyReused => "send a retry exactly as the first try",
///         Error::Interrupted => "an operator has to look",
///         error if error.is_retryable() => "send it again, with the same key",
///         _ => "the service needs a fix",
///     }
/// }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Another call with this key is running, and its lease is valid.
    InFlight {
        /// Time to wait before the retry.
        retry_after: Duration,
    },
    /// The call could not begin before its deadline, or too many calls of this handle wait for the store. This try did nothing;
    /// an earlier one with the same key may have done the work.
    Overloaded {
        /// Time to wait before the retry.
        retry_after: Duration,
    },
    /// The key was first used with a different request.
    KeyReused,
    /// An earlier call with this key was interrupted, and its outcome is unknown.
    Interrupted,
    /// The lease of this call lapsed, another call took over, and there is no stored result yet.
    LeaseLost,
    /// The work was done, but its result could not be stored, so it cannot be replayed.
    Unrecorded,
    /// The work of this key is done, and its outcome is no longer kept ([`Call::remember`](crate::Call::remember)). Or the key
    /// has no record, and is older than records are kept ([`Call::refuse_old_keys`](crate::Call::refuse_old_keys)).
    Expired,
    /// The key or the scope is malformed, or an issued key is required and this one is not.
    InvalidKey(InvalidKey),
    /// The operation's name, ttl, lease or a step of the body is malformed.
    InvalidCall(InvalidCall),
    /// The request has no canonical form.
    Fingerprint(FingerprintError),
    /// A record exists, but this build cannot read it.
    Decode(DecodeError),
    /// The store could not complete a request.
    Store(StoreError),
    /// A message cannot be enqueued in this form, or a relay cannot be started.
    InvalidOutbox(InvalidOutbox),
    /// No `store` was named and no process default is installed.
    NotInstalled,
    /// The call was made outside of a tokio runtime, which renews the lease.
    NoRuntime,
}

impl Error {
    /// True if the same call with the same key may succeed later without any intervention.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::InFlight { .. } | Self::Overloaded { .. } | Self::LeaseLost => true,
            Self::Store(error) => error.is_retryable(),
            Self::Decode(error) => error.is_of_newer_version(),
            _ => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InFlight { retry_after } => {
                write!(f, "a call with this key is running, retry in {retry_after:?}")
            }
            Self::Overloaded { retry_after } => write!(
                f,
                "the call could not begin in time, and this try did nothing; retry in {retry_after:?}"
            ),
            Self::KeyReused => f.write_str("this key was first used with a different request"),
            Self::Interrupted => f.write_str(
                "an earlier call with this key was interrupted and its outcome is unknown",
            ),
            Self::LeaseLost => f.write_str("the lease of this call was lost to another one"),
            Self::Unrecorded => f.write_str(
                "the work for this key was done but its result could not be stored",
            ),
            Self::Expired => f.write_str(
                "this key is remembered, or is too old to be new, and its outcome is no longer kept; look the result up, \
                 and give new work a new key",
            ),
            Self::InvalidKey(reason) => write!(f, "the idempotency key is invalid: {reason}"),
            Self::InvalidCall(reason) => {
                write!(f, "the idempotent call is set up wrongly: {reason}")
            }
            Self::Fingerprint(reason) => {
                write!(f, "the request could not be fingerprinted: {reason}")
            }
            Self::Decode(reason) => write!(f, "the stored record could not be decoded: {reason}"),
            Self::Store(reason) => write!(f, "the idempotency store failed: {reason}"),
            Self::InvalidOutbox(reason) => write!(f, "the outbox is used wrongly: {reason}"),
            Self::NotInstalled => f.write_str(
                "no store is installed, name one with `store = ...` or call `Idem::install` at start",
            ),
            Self::NoRuntime => f.write_str("there is no tokio runtime to renew the lease on"),
        }
    }
}

/// The reason of an error is part of its text. Its source is therefore the cause of that reason, so that a chain of
/// errors names each of them once.
impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Decode(reason) => reason.source(),
            Self::Store(reason) => reason.source(),
            Self::InvalidOutbox(reason) => reason.source(),
            _ => None,
        }
    }
}

macro_rules! from_reason {
    ($($variant:ident($reason:ty)),*) => {$(
        impl From<$reason> for Error {
            fn from(reason: $reason) -> Self {
                Self::$variant(reason)
            }
        }
    )*};
}

from_reason!(
    InvalidKey(InvalidKey),
    InvalidCall(InvalidCall),
    Fingerprint(FingerprintError),
    Decode(DecodeError),
    Store(StoreError),
    InvalidOutbox(InvalidOutbox)
);

impl From<InvalidOperation> for Error {
    fn from(error: InvalidOperation) -> Self {
        Self::InvalidCall(error.into())
    }
}
