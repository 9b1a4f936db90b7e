//! Why a page cannot be shown.

use crate::error::Error;

/// Reason why a request of an operator failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The console reads for others at the moment.
    Busy,
    /// The store did not answer in time.
    Slow,
    /// The store refused.
    Store(Error),
    /// The operator wrote something that is not valid.
    Input(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}
