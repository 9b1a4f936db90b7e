//! Errors of stored records and results.

use std::error::Error as StdError;

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
