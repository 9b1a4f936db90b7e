//! Encoding of the user's values and errors.

use super::bounds::CallError;
use crate::codec::value::ValueCodec;
use crate::codec::version::StoredResult;
use crate::engine::Attempt;
use crate::engine::progress::SharedOutcome;
use crate::error::{DecodeError, Error};
use crate::record::{Outcome, Payload};

/// Conversion of a call's errors into type `E`, and the encoding of stored errors of that type.
pub struct ErrorCodec<E> {
    carry: fn(Error) -> E,
    stored: Option<ValueCodec<E>>,
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

    /// Conversion of a call's errors.
    pub(super) fn carry(&self) -> fn(Error) -> E {
        self.carry
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
pub(in crate::engine) struct Codecs<T, E> {
    pub(in crate::engine) values: ValueCodec<T>,
    pub(in crate::engine) errors: ErrorCodec<E>,
}

impl<T, E> Codecs<T, E> {
    /// Outcome of an attempt that returned this value.
    pub(in crate::engine) fn completed(&self, value: &T, attempt: &Attempt) -> Outcome {
        self.values.outcome(value, Outcome::Completed, attempt)
    }

    /// Outcome of an attempt that returned this error. None if errors are not stored.
    pub(in crate::engine) fn failed(&self, error: &E, attempt: &Attempt) -> Option<Outcome> {
        let errors = self.errors.stored.as_ref()?;
        Some(errors.outcome(error, Outcome::Failed, attempt))
    }

    /// True if the errors that `replay_err` names are stored.
    pub(in crate::engine) fn store_errors(&self) -> bool {
        self.errors.stored.is_some()
    }

    /// Converts an error of the call into the function's error type.
    pub(super) fn carry(&self, error: Error) -> E {
        self.errors.carry()(error)
    }

    /// Decodes the stored result into the caller's types.
    pub(super) fn decode(&self, ended: &SharedOutcome) -> Result<Result<T, E>, Error> {
        match (&ended.outcome, &self.errors.stored) {
            (Outcome::Completed(payload), _) => {
                let stored = StoredResult::new(payload, ended.kept_for);
                Ok(Ok((self.values.decode)(stored)?))
            }
            (Outcome::Failed(payload), Some(errors)) => {
                let stored = StoredResult::new(payload, ended.kept_for);
                Ok(Err((errors.decode)(stored)?))
            }
            (Outcome::Failed(_), None) => Err(DecodeError::new(
                "an error is stored, but the function no longer names it under `replay_err`",
            )
            .into()),
            (Outcome::Unrecorded, _) => Err(Error::Unrecorded),
        }
    }
}

impl<T> ValueCodec<T> {
    /// Encodes the value as an outcome. A value that cannot be encoded is unrecorded.
    fn outcome(&self, value: &T, ended: fn(Payload) -> Outcome, attempt: &Attempt) -> Outcome {
        let policy = &attempt.engine().policy;
        match (self.encode)(value, policy.codec, policy.max_result_bytes) {
            Ok(payload) => ended(payload),
            Err(error) => {
                attempt.report_unrecorded(&error);
                Outcome::Unrecorded
            }
        }
    }
}
