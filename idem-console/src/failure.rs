//! Why a page cannot be shown.

use std::borrow::Cow;

use http::StatusCode;
use idem_runtime::error::Error;

/// Reason why a request of an operator failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The console reads for others at the moment.
    Busy,
    /// The store did not answer in time.
    Slow,
    /// The store found too few matching records in the order of age in time.
    SlowOrder,
    /// The store refused.
    Store(Error),
    /// There is no such thing, or the operator may not see it.
    NotFound(&'static str),
    /// The operator wrote something that is not valid.
    Input(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl Failure {
    /// Status of the response, and what the operator reads.
    pub(super) fn told(&self) -> (StatusCode, Cow<'_, str>) {
        match self {
            Self::Busy => (
                StatusCode::SERVICE_UNAVAILABLE,
                "Too many pages are being read. Load the page again.".into(),
            ),
            Self::Slow => (
                StatusCode::SERVICE_UNAVAILABLE,
                "The store did not answer in time. Load the page again.".into(),
            ),
            Self::SlowOrder => (
                StatusCode::SERVICE_UNAVAILABLE,
                "The store did not find enough matching records in the order of age in time. Choose the order of the store, or \
                 name an age."
                    .into(),
            ),
            Self::Store(error) => (
                StatusCode::SERVICE_UNAVAILABLE,
                format!("The store reports an error: {error}.").into(),
            ),
            Self::NotFound(text) => (StatusCode::NOT_FOUND, (*text).into()),
            Self::Input(text) => (StatusCode::BAD_REQUEST, text.into()),
        }
    }
}
