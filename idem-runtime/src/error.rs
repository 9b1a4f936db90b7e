//! What a call can fail with. Messages are fragments that never hold a raw key or a stored result.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

/// What an idempotent call can answer instead of the function's own result.
///
/// | variant | what happened | what a caller does |
/// | --- | --- | --- |
/// | [`InFlight`](Self::InFlight) | another call with this key is running | ask again, same key, after `retry_after` |
/// | [`KeyReused`](Self::KeyReused) | the key was first used with another request | mend the caller; a new request needs a new key |
/// | [`Interrupted`](Self::Interrupted) | an earlier call died and nobody knows whether its effect happened | a person (or `reconcile`) decides, then ask again |
/// | [`LeaseLost`](Self::LeaseLost) | this call was believed dead and another one took over | ask again, same key, for the stored result |
/// | [`Unrecorded`](Self::Unrecorded) | the work was done, but its result could not be stored | look the result up elsewhere; it is not run again |
/// | [`InvalidKey`](Self::InvalidKey) | key or scope is malformed | mend the caller |
/// | [`InvalidCall`](Self::InvalidCall) | operation name, ttl or lease is malformed | mend the service |
/// | [`Fingerprint`](Self::Fingerprint) | the request has no canonical form | mend the request |
/// | [`Decode`](Self::Decode) | a record was written by code that this build does not understand | deploy a build that does; it is not run again |
/// | [`Store`](Self::Store) | the store could not answer; nothing was run, or the error says so | ask again, same key, where [`StoreError::is_retryable`] |
/// | [`NotInstalled`](Self::NotInstalled), [`NoRuntime`](Self::NoRuntime) | the process is not set up | mend the service |
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another call with this key is running and its lease holds.
    #[error("a call with this key is under way, ask again in {retry_after:?}")]
    InFlight {
        /// How long to wait before asking again.
        retry_after: Duration,
    },
    /// The key was first used with a different request.
    #[error("this key was first used with a different request")]
    KeyReused,
    /// An earlier call with this key ended in a way that nobody knows the outcome of.
    #[error("an earlier call with this key was interrupted and its outcome is unknown")]
    Interrupted,
    /// This call's lease ran out, another call took over, and no stored result is there yet.
    #[error("the lease of this call was lost to another one")]
    LeaseLost,
    /// The work was done, but its result could not be stored, so it cannot be given again.
    #[error("the work for this key was done but its result could not be stored")]
    Unrecorded,
    /// The key or the scope is malformed.
    #[error("the idempotency key is invalid")]
    InvalidKey(#[from] InvalidKey),
    /// The operation's name, ttl or lease is malformed.
    #[error("the idempotent call is set up wrongly")]
    InvalidCall(#[from] InvalidCall),
    /// The request has no canonical form.
    #[error("the request could not be fingerprinted")]
    Fingerprint(#[from] FingerprintError),
    /// A record is there, but this build cannot read it.
    #[error("the stored record could not be decoded")]
    Decode(#[from] DecodeError),
    /// The store could not do what was asked.
    #[error("the idempotency store failed")]
    Store(#[from] StoreError),
    /// No `store` was named and no process default is installed.
    #[error("no store is installed, name one with `store = ...` or call `Idem::install` at start")]
    NotInstalled,
    /// The call was made outside of a tokio runtime, which renews the lease.
    #[error("there is no tokio runtime to renew the lease on")]
    NoRuntime,
}

impl Error {
    /// Whether the same call with the same key may succeed later without anybody mending anything.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::InFlight { .. } | Self::LeaseLost => true,
            Self::Store(error) => error.is_retryable(),
            _ => false,
        }
    }
}

/// Why a text is no key or no scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidKey {
    /// Nothing in it.
    #[error("a key has 1 to 255 characters, this one is empty")]
    Empty,
    /// More than 255 bytes.
    #[error("a key has at most 255 bytes, this one has {0}; `Key::derive` takes longer text")]
    TooLong(usize),
    /// A byte that is not printable ASCII.
    #[error(
        "a key is printable ASCII, byte {0} of this one is not; `Key::derive` takes other text"
    )]
    NotPrintable(usize),
    /// A scope of no characters.
    #[error("a scope has 1 to 255 bytes, this one is empty")]
    EmptyScope,
    /// A scope of more than 255 bytes.
    #[error("a scope has at most 255 bytes, this one has {0}")]
    ScopeTooLong(usize),
    /// A control character in a scope.
    #[error("a scope has no control characters, byte {0} of this one begins one")]
    ScopeControl(usize),
}

/// What is wrong with how a call is set up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidCall {
    /// The operation's name is empty, over 255 bytes, or has control characters.
    #[error("an operation's name has 1 to 255 bytes and no control characters")]
    Name,
    /// The default name, module path and function name, does not identify this function.
    #[error(
        "this is not a free function, so its default name `{0}` may belong to another one as well; \
         give it one of its own with `name = \"...\"`"
    )]
    AmbiguousName(String),
    /// The retention is less than a microsecond.
    #[error("the ttl is zero, so no result would be kept")]
    ZeroTtl,
    /// The lease is less than a microsecond.
    #[error("the lease is zero, so no owner would ever be believed")]
    ZeroLease,
    /// The secret that seals fingerprints is shorter than 16 bytes.
    #[error("a secret that seals fingerprints has at least 16 random bytes, this one has {0}")]
    ShortSecret(usize),
}

/// Why a request has no canonical form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct FingerprintError {
    message: std::borrow::Cow<'static, str>,
}

impl FingerprintError {
    /// An error with this message: a lowercase fragment without the request's own values.
    pub fn new(message: impl Into<std::borrow::Cow<'static, str>>) -> Self {
        Self {
            message: message.into(),
        }
    }
}

/// Why a stored record could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct DecodeError {
    message: String,
    #[source]
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl DecodeError {
    /// An error with this message: a lowercase fragment without any stored value.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            source: None,
        }
    }

    /// The same, with what caused it.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
}

/// Why a store could not do what was asked: opaque, with a kind to act on and the backend's own error as its source.
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: std::borrow::Cow<'static, str>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// What kind of failure a [`StoreError`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// Out of reach: no connection, connection lost, pool exhausted.
    Unavailable,
    /// No answer within the handle's time-out; whether the store acted is unknown.
    Timeout,
    /// The store's own concurrency control gave up (busy, deadlock, serialization failure).
    Conflict,
    /// No room for another record or byte.
    Full,
    /// The store refuses writes.
    ReadOnly,
    /// Wrong credentials or missing privileges.
    Denied,
    /// A table, column or script is missing or of another version: run `migrate()`.
    Schema,
    /// The store answered with something that no idem store writes.
    Corrupt,
    /// Anything else.
    Other,
}

impl StoreError {
    /// An error of this kind. The message is a lowercase fragment that says what to do where that is known.
    pub fn new(kind: StoreErrorKind, message: impl Into<std::borrow::Cow<'static, str>>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// The same, with what caused it.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What kind of failure this is.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the same request may succeed later without anybody mending anything.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.kind,
            StoreErrorKind::Unavailable | StoreErrorKind::Timeout | StoreErrorKind::Conflict
        )
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for StoreError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source
            .as_deref()
            .map(|source| source as &(dyn StdError + 'static))
    }
}
