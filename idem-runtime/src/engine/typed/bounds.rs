//! Traits of the user's types. The compiler reports a type that does not fit with what to write instead.

use crate::error::Error;

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
    note = "a call may also fail because its key is in flight, was reused or was interrupted: an error enum of your own gets a variant for it: with thiserror `#[error(transparent)] Idempotency(#[from] idem_runtime::Error)`, by hand with `impl From<idem_runtime::Error>`",
    note = "a type of another crate or of the standard library cannot: return an enum of your own that has a variant for `{Self}` as well, or `anyhow::Error`"
)]
pub trait CallError: From<Error> {}

#[diagnostic::do_not_recommend]
impl<E: From<Error>> CallError for E {}
