//! Outcomes of calls, as spans and metrics name them.

use crate::error::{Error, InvalidKey};

macro_rules! outcomes {
    ($($(#[doc = $doc:literal])+ $name:ident = $word:literal,)*) => {
        /// Outcome of a call: in its span, and as the label `outcome` of `idem_calls_total`. Each call has exactly one.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum CallOutcome {
            $($(#[doc = $doc])+ $name,)*
        }

        impl CallOutcome {
            /// All outcomes.
            #[cfg(feature = "metrics")]
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The word for the outcome.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }
        }
    };
}

outcomes! {
    /// `executed`: the body ran, and its value or final error was stored.
    Executed = "executed",
    /// `taken_over`: like `executed`, after the call took the record over from an owner that crashed.
    TakenOver = "taken_over",
    /// `released`: the body returned an error that is not stored. The key is free again, or the transaction was rolled
    /// back.
    Released = "released",
    /// `unrecorded`: the body ran, and the caller got its value, but the result could not be stored.
    Unrecorded = "unrecorded",
    /// `unprotected`: the body ran without a claim, because the store could not be reached (`on_store_error = run`).
    Unprotected = "unprotected",
    /// `interrupted`: the body ended with an error that leaves open whether anything was done.
    Interrupted = "interrupted",
    /// `superseded`: the body ran, but another call had taken over, and the caller got the result of that call. The
    /// effect may have happened twice.
    Superseded = "superseded",
    /// `lease_lost`: the body ran, but another call had taken over and has no result yet. The effect may happen twice.
    LeaseLost = "lease_lost",
    /// `replayed`: the caller got the stored result.
    Replayed = "replayed",
    /// `waited`: the caller waited for another call, and got its result.
    Waited = "waited",
    /// `in_flight`: another call with the key was running, and the caller's time to wait was over.
    InFlight = "in_flight",
    /// `overloaded`: the call could not begin before its deadline, or too many calls waited for the store.
    Overloaded = "overloaded",
    /// `key_reused`: the key was first used with another request.
    KeyReused = "key_reused",
    /// `refused`: it is unknown what an earlier call did, and an operator or `reconcile` must say.
    Refused = "refused",
    /// `no_result`: an earlier call did the work, but its result was never recorded.
    NoResult = "no_result",
    /// `expired`: the outcome is no longer kept and the key is remembered, the key is too old to be new, or an issued key
    /// has expired.
    Expired = "expired",
    /// `invalid`: the call, its key or its request is malformed.
    Invalid = "invalid",
    /// `decode_error`: this build cannot read the stored result.
    DecodeError = "decode_error",
    /// `store_error`: the store could not answer.
    StoreError = "store_error",
    /// `cancelled`: the caller dropped the call before it had a result.
    Cancelled = "cancelled",
    /// `panicked`: the body panicked.
    Panicked = "panicked",
}

impl CallOutcome {
    /// The outcome of a call that returns this error.
    pub(crate) fn of(error: &Error) -> Self {
        match error {
            Error::InFlight { .. } => Self::InFlight,
            Error::Overloaded { .. } => Self::Overloaded,
            Error::KeyReused => Self::KeyReused,
            Error::Interrupted => Self::Refused,
            Error::LeaseLost => Self::LeaseLost,
            Error::Unrecorded => Self::NoResult,
            Error::Store(_) => Self::StoreError,
            Error::Decode(_) => Self::DecodeError,
            Error::Expired | Error::InvalidKey(InvalidKey::Expired) => Self::Expired,
            Error::InvalidKey(_)
            | Error::InvalidCall(_)
            | Error::Fingerprint(_)
            | Error::InvalidOutbox(_)
            | Error::NotInstalled
            | Error::NoRuntime => Self::Invalid,
        }
    }

    /// The outcome of a call that was dropped before it had a result.
    pub(crate) fn of_dropped() -> Self {
        match std::thread::panicking() {
            true => Self::Panicked,
            false => Self::Cancelled,
        }
    }

    /// True if the caller has no result: the span of such a call has an `error.type`.
    pub(crate) fn is_error(self) -> bool {
        match self {
            Self::Executed
            | Self::TakenOver
            | Self::Unrecorded
            | Self::Unprotected
            | Self::Superseded
            | Self::Replayed
            | Self::Waited => false,
            Self::Released
            | Self::Interrupted
            | Self::LeaseLost
            | Self::InFlight
            | Self::Overloaded
            | Self::KeyReused
            | Self::Refused
            | Self::NoResult
            | Self::Expired
            | Self::Invalid
            | Self::DecodeError
            | Self::StoreError
            | Self::Cancelled
            | Self::Panicked => true,
        }
    }
}
