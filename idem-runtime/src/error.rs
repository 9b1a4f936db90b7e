//! The errors of a call. Messages are fragments that never contain a raw key or a stored result.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

/// An error that an idempotent call returns instead of the function's own result.
///
/// | variant | what happened | what a caller does |
/// | --- | --- | --- |
/// | [`InFlight`](Self::InFlight) | another call with this key is running | retry with the same key after `retry_after` |
/// | [`KeyReused`](Self::KeyReused) | the key was first used with another request | fix the caller; a new request needs a new key |
/// | [`Interrupted`](Self::Interrupted) | an earlier call crashed, and it is unknown whether its effect happened | an operator (or `reconcile`) decides, then retry |
/// | [`LeaseLost`](Self::LeaseLost) | this call's lease lapsed, and another call took over | retry with the same key to get the stored result |
/// | [`Unrecorded`](Self::Unrecorded) | the work was done, but its result could not be stored | look the result up elsewhere; the body does not run again |
/// | [`InvalidCall`](Self::InvalidCall) | operation name, ttl, lease or step is malformed | fix the service |
/// | [`InvalidKey`](Self::InvalidKey) | key or scope is malformed; or an issued key is required, and this one was not issued or has expired | fix the caller, or request an issued key |
/// | [`Fingerprint`](Self::Fingerprint) | the request has no canonical form | fix the request |
/// | [`Decode`](Self::Decode) | a record was written by code that this build does not understand | deploy a build that does; the body does not run again |
/// | [`Store`](Self::Store) | the store could not answer; nothing ran, unless the error says otherwise | retry with the same key if [`StoreError::is_retryable`] |
/// | [`InvalidOutbox`](Self::InvalidOutbox) | a message or a relay is malformed | fix the service |
/// | [`NotInstalled`](Self::NotInstalled), [`NoRuntime`](Self::NoRuntime) | the process is not set up | fix the service |
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another call with this key is running, and its lease is valid.
    #[error("a call with this key is running, retry in {retry_after:?}")]
    InFlight {
        /// Time to wait before the retry.
        retry_after: Duration,
    },
    /// The key was first used with a different request.
    #[error("this key was first used with a different request")]
    KeyReused,
    /// An earlier call with this key was interrupted, and its outcome is unknown.
    #[error("an earlier call with this key was interrupted and its outcome is unknown")]
    Interrupted,
    /// The lease of this call lapsed, another call took over, and there is no stored result yet.
    #[error("the lease of this call was lost to another one")]
    LeaseLost,
    /// The work was done, but its result could not be stored, so it cannot be replayed.
    #[error("the work for this key was done but its result could not be stored")]
    Unrecorded,
    /// The key or the scope is malformed, or an issued key is required and this one is not.
    #[error("the idempotency key is invalid")]
    InvalidKey(#[from] InvalidKey),
    /// The operation's name, ttl, lease or a step of the body is malformed.
    #[error("the idempotent call is set up wrongly")]
    InvalidCall(#[from] InvalidCall),
    /// The request has no canonical form.
    #[error("the request could not be fingerprinted")]
    Fingerprint(#[from] FingerprintError),
    /// A record exists, but this build cannot read it.
    #[error("the stored record could not be decoded")]
    Decode(#[from] DecodeError),
    /// The store could not complete a request.
    #[error("the idempotency store failed")]
    Store(#[from] StoreError),
    /// A message cannot be enqueued in this form, or a relay cannot be started.
    #[error("the outbox is used wrongly")]
    InvalidOutbox(#[from] InvalidOutbox),
    /// No `store` was named and no process default is installed.
    #[error("no store is installed, name one with `store = ...` or call `Idem::install` at start")]
    NotInstalled,
    /// The call was made outside of a tokio runtime, which renews the lease.
    #[error("there is no tokio runtime to renew the lease on")]
    NoRuntime,
}

impl Error {
    /// True if the same call with the same key may succeed later without any intervention.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::InFlight { .. } | Self::LeaseLost => true,
            Self::Store(error) => error.is_retryable(),
            _ => false,
        }
    }
}

/// Reason for which a text is not a key or scope, or a key is not valid for this operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidKey {
    /// The key is empty.
    #[error("a key has 1 to 255 characters, this one is empty")]
    Empty,
    /// The key has more than 255 bytes.
    #[error("a key has at most 255 bytes, this one has {0}; `Key::derive` takes longer text")]
    TooLong(usize),
    /// The key has a byte that is not printable ASCII.
    #[error(
        "a key is printable ASCII, byte {0} of this one is not; `Key::derive` takes other text"
    )]
    NotPrintable(usize),
    /// The operation requires an issued key, and this key was not issued by this service for this operation and scope.
    #[error("this key was not issued for this operation and scope")]
    NotIssued,
    /// The key was issued, and has expired. It may have been used before it expired: the record of its use expires too.
    #[error(
        "the time that this key was issued for is over: make sure that the key was not used before, then issue a new one"
    )]
    Expired,
    /// The scope is empty.
    #[error("a scope has 1 to 255 bytes, this one is empty")]
    EmptyScope,
    /// The scope has more than 255 bytes.
    #[error("a scope has at most 255 bytes, this one has {0}")]
    ScopeTooLong(usize),
    /// The scope has a control character.
    #[error("a scope has no control characters, byte {0} of this one begins one")]
    ScopeControl(usize),
}

/// Reason for which a call's setup is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidCall {
    /// The operation's name is empty, over 255 bytes, or has control characters.
    #[error("an operation's name has 1 to 255 bytes and no control characters")]
    Name,
    /// A step's name is empty, over 255 bytes, or has control characters.
    #[error("a step's name has 1 to 255 bytes and no control characters")]
    StepName,
    /// Two steps of one run have the same name.
    #[error("the step name `{0}` was already used in this run, give each step its own name")]
    StepReused(String),
    /// The body has steps, and the store does not support them.
    #[error("this store keeps no steps, take one that does or put the body's effects into one")]
    StepsUnsupported,
    /// A step was to run in a transaction of a store other than the call's.
    #[error(
        "a step and its effect are committed by the store of its call: give `step_tx` the handle that the call was \
         made with, or a clone of it"
    )]
    OtherStore,
    /// The result of a step in a transaction cannot be stored, for this reason.
    #[error(
        "what the step `{step}` did was rolled back, because its result cannot be stored: {reason}"
    )]
    StepResult {
        /// The step's name.
        step: String,
        /// Reason for which its result cannot be stored.
        reason: String,
    },
    /// The default name, module path and function name, does not identify this function.
    #[error(
        "this is not a free function, so its default name `{0}` may belong to another one as well; \
         give it one of its own with `name = \"...\"`"
    )]
    AmbiguousName(String),
    /// The recovery input of the call cannot be stored, for this reason.
    #[error("the recovery input cannot be stored: {0}")]
    RecoveryInput(String),
    /// The store cannot save recovery inputs.
    #[error("this store cannot save recovery inputs; use a SQL store")]
    NoRecovery,
    /// The pauses of a recovery are so short that other processes would count running calls as failed.
    #[error("the pauses between recoveries are too short, give them 1 ms or more, better seconds")]
    ShortPause,
    /// The retention is less than a microsecond.
    #[error("the ttl is zero, so no result would be kept")]
    ZeroTtl,
    /// The lease is less than a microsecond.
    #[error("the lease is zero, so every claim would lapse immediately")]
    ZeroLease,
    /// The call uses issued keys, and the handle has no secret to sign them with.
    #[error("issued keys are signed, give the handle a secret with `fingerprint_secret`")]
    NoSecret,
    /// The call was made in the body of a transactional call, or of a [`step_tx`](crate::Attempt::step_tx), on the same
    /// store, and does not join its transaction. The same applies to a step.
    #[error(
        "this call is made inside of a transaction on the same store, for which it would wait, and which could not \
         take it back: make it before or after, or let it join by `tx = ...` naming an argument that is the connection"
    )]
    InsideTransaction,
    /// The call was to join the transaction of a connection that is in none, or in one that was begun by SQL text.
    #[error(
        "the connection is in no transaction that sqlx knows of: begin one with sqlx's `begin()`, not by SQL text, and \
         commit it after the call, or leave out the connection to have the call begin one"
    )]
    NoTransaction,
    /// The call is transactional, and transactional calls do not have this option.
    #[error("a transactional call has no `{0}`: the database decides, by committing or not")]
    NotTransactional(&'static str),
    /// The secret that signs fingerprints is shorter than 16 bytes.
    #[error("a secret that signs fingerprints has at least 16 random bytes, this one has {0}")]
    ShortSecret(usize),
}

/// Reason for which a message for an outbox, or a relay, is invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidOutbox {
    /// The topic is empty, over 255 bytes, has control characters, or white space around it.
    #[error("a topic has 1 to 255 bytes, no control characters and no white space around it")]
    Topic,
    /// The ordering key is empty, over 255 bytes, has control characters, or white space around it.
    #[error(
        "an ordering key has 1 to 255 bytes, no control characters and no white space around it"
    )]
    OrderingKey,
    /// The name of a header is empty or over 255 bytes, or there are over 64 KiB of headers.
    #[error(
        "a header's name has 1 to 255 bytes, and the headers of a message at most 65536 in all"
    )]
    Headers,
    /// The payload is over the limit.
    #[error(
        "the payload is over the limit of {limit} bytes, enqueue where its data is instead of the data, or raise the \
         limit"
    )]
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// The payload's `Serialize` implementation failed.
    #[error("the payload cannot be encoded as JSON")]
    Payload(#[source] Box<dyn StdError + Send + Sync>),
    /// A relay was started without a handler.
    #[error("a relay hands messages to handlers, give it one with `on`")]
    NoHandler,
    /// A relay was given two handlers for one topic.
    #[error("a relay has one handler for a topic, and two were given for `{0}`")]
    TwoHandlers(String),
    /// A relay was given handlers for over 100 topics.
    #[error("a relay polls for at most 100 topics, start several relays")]
    TooManyTopics,
    /// The lease of a relay is shorter than a millisecond.
    #[error("the lease is too short to handle a message, give it a second or more")]
    ZeroLease,
    /// A relay has a concurrency of zero.
    #[error("the relay would handle no message, let it handle at least one at once")]
    ZeroConcurrency,
}

/// Reason for which a request has no canonical form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct FingerprintError {
    message: std::borrow::Cow<'static, str>,
}

impl FingerprintError {
    /// Creates an error with this message: a lowercase fragment without the request's own values.
    pub fn new(message: impl Into<std::borrow::Cow<'static, str>>) -> Self {
        Self {
            message: message.into(),
        }
    }
}

/// Reason for which a stored record could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct DecodeError {
    message: String,
    #[source]
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl DecodeError {
    /// Creates an error with this message: a lowercase fragment without any stored value.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            source: None,
        }
    }

    /// Adds the cause of the error.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
}

/// Failure of a store: opaque, with a kind to act on and the backend's own error as its source.
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: std::borrow::Cow<'static, str>,
    retryable: bool,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// Kind of failure of a [`StoreError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The store is unreachable: no connection, connection lost, pool exhausted.
    Unavailable,
    /// There was no answer within the handle's time-out; it is unknown whether the store acted.
    Timeout,
    /// The store's own concurrency control gave up (busy, deadlock, serialization failure).
    Conflict,
    /// The store has no room for another record or byte.
    Full,
    /// The store refuses writes.
    ReadOnly,
    /// Wrong credentials or missing privileges.
    Denied,
    /// A table, column or script is missing or of another version: run `migrate()`.
    Schema,
    /// The store returned data that no idem store writes.
    Corrupt,
    /// Any other failure.
    Other,
}

impl StoreError {
    /// Creates an error of this kind. The message is a lowercase fragment that also says what to do, if that is known.
    pub fn new(kind: StoreErrorKind, message: impl Into<std::borrow::Cow<'static, str>>) -> Self {
        Self {
            kind,
            message: message.into(),
            retryable: matches!(
                kind,
                StoreErrorKind::Unavailable | StoreErrorKind::Timeout | StoreErrorKind::Conflict
            ),
            source: None,
        }
    }

    /// Marks the error as retryable, regardless of its kind: the store expects the failure to end without intervention.
    #[must_use]
    pub fn retryable(mut self) -> Self {
        self.retryable = true;
        self
    }

    /// Adds the cause of the error.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Kind of failure.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// True if the same request may succeed later without any intervention. This is so for
    /// [`Unavailable`](StoreErrorKind::Unavailable), [`Timeout`](StoreErrorKind::Timeout) and
    /// [`Conflict`](StoreErrorKind::Conflict), and for other errors that the store marked as
    /// [`retryable`](Self::retryable).
    pub fn is_retryable(&self) -> bool {
        self.retryable
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
