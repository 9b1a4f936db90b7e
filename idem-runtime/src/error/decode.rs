//! Errors of stored records and results.

use std::error::Error as StdError;

/// Reason for which a stored record could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct DecodeError {
    message: String,
    is_of_newer_version: bool,
    #[source]
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl DecodeError {
    /// Creates an error with this message: a lowercase fragment without any stored value.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            is_of_newer_version: false,
            source: None,
        }
    }

    /// Creates an error for a value that a newer version of its type has written.
    pub(crate) fn of_newer_version(message: String) -> Self {
        Self {
            is_of_newer_version: true,
            ..Self::new(message)
        }
    }

    /// True if a newer version of the result type wrote the value, as during a rolling deploy: a process of the newer
    /// build can read it.
    pub fn is_of_newer_version(&self) -> bool {
        self.is_of_newer_version
    }

    /// Adds the cause of the error.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
}
