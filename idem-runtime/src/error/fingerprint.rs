//! Errors of fingerprints.

use std::borrow::Cow;

/// Reason for which a request has no canonical form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct FingerprintError {
    message: Cow<'static, str>,
}

impl FingerprintError {
    /// Creates an error with this message: a lowercase fragment without the request's own values.
    pub fn new(message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            message: message.into(),
        }
    }
}
