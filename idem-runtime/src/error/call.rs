//! Errors of the setup of a call.

use idem_store::error::InvalidOperation;

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
    #[error("this store keeps no steps; use one that does, or make the body a single effect")]
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
    #[error(
        "this store cannot save recovery inputs; use a store that is a `RecoveryStore`, such as those on SQL databases"
    )]
    NoRecovery,
    /// The call is under `refuse`, and the store keeps no audit, so that nobody could resolve its record after a crash.
    #[error(
        "after a crash nobody could resolve the record of this call, because the store keeps no audit; use a store that \
         does, or another `on_crash`"
    )]
    NobodyResolves,
    /// The pauses of a recovery are so short that other processes would count running calls as failed.
    #[error("the pauses between recoveries are too short, give them 1 ms or more, better seconds")]
    ShortPause,
    /// A recovery was started without a handler.
    #[error("a recovery retries calls with handlers, give it one with `on`")]
    NoHandler,
    /// A recovery was given two handlers for one operation.
    #[error("a recovery has one handler for an operation, and two were given for `{0}`")]
    TwoHandlers(String),
    /// A recovery has a concurrency of zero.
    #[error("the recovery would make no call, let it make at least one at a time")]
    ZeroConcurrency,
    /// The retention is less than a microsecond.
    #[error("the ttl is zero, so no result would be kept")]
    ZeroTtl,
    /// The time of `remember` is not longer than the `ttl`.
    #[error(
        "the key is to be remembered for no longer than its outcome, so `remember` has no effect; make it longer than the \
         `ttl`, or leave it out"
    )]
    ShortRemember,
    /// The lease is less than a microsecond.
    #[error("the lease is zero, so every claim would lapse immediately")]
    ZeroLease,
    /// An operator was to store a result for a record of another operation.
    #[error(
        "the record belongs to the operation `{found}`, and a result of `{expected}` was to be stored: give the \
         `TypedOperation` of its function"
    )]
    OtherOperation {
        /// Operation whose result was given.
        expected: &'static str,
        /// Operation of the record.
        found: String,
    },
    /// An operator was to correct an outcome that was not set manually.
    #[error(
        "the outcome of this record was not set manually, so callers may rely on it and it stays; only an outcome that an \
         operator set can be corrected"
    )]
    NotSetManually,
    /// The call uses issued keys, and the handle has no secret to sign them with.
    #[error("issued keys are signed, give the handle a secret with `fingerprint_secret`")]
    NoSecret,
    /// The call stores digests of the members of its request, and the handle has no secret to sign them with.
    #[error(
        "without a secret, a reader of the store could guess each member of the request: give the handle one with \
         `fingerprint_secret`, or leave out `member_digests`"
    )]
    NoMemberSecret,
    /// The call was made in the body of a transactional call, or of a [`step_tx`](crate::Attempt::step_tx), on the same
    /// store, and does not join its transaction. The same applies to a step.
    #[error(
        "this call is made inside of a transaction on the same store, for which it would wait, and which could not \
         take it back: make it before or after, or let it join by `tx = ...` naming an argument that is the connection"
    )]
    InsideTransaction,
    /// The call was made in the body of a call with the same operation, scope and key.
    #[error(
        "this call is made in the body of a call with the same operation and key, for which it would wait; call the \
         function's inner work directly, or give this call a key of its own"
    )]
    OwnKey,
    /// The call was to join the transaction of a connection that is in none, or in one that was begun by SQL text.
    #[error(
        "the connection is in no transaction that sqlx knows of: begin one with sqlx's `begin()`, not by SQL text, and \
         commit it after the call, or leave out the connection to have the call begin one"
    )]
    NoTransaction,
    /// The call is transactional, and transactional calls do not have this option.
    #[error("a transactional call has no `{0}`: the database decides, by committing or not")]
    NotTransactional(&'static str),
    /// A statement of a transactional body committed the transaction half way. What the body did before is committed, and
    /// the record is INTERRUPTED.
    #[error(
        "a statement of the body committed the transaction half way, as statements that define tables do on MySQL and \
         MariaDB: move it out of the body; part of the work is done, and an operator decides about the record"
    )]
    CommittedInBody,
    /// The secret that signs fingerprints is shorter than 16 bytes.
    #[error("a secret that signs fingerprints has at least 16 random bytes, this one has {0}")]
    ShortSecret(usize),
}

impl From<InvalidOperation> for InvalidCall {
    fn from(_: InvalidOperation) -> Self {
        Self::Name
    }
}
