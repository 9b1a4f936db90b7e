//! Errors of stores, and of the values that they are asked with. Messages are fragments that never contain a raw key or
//! a stored result.

use std::error::Error as StdError;
use std::fmt;

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

/// Reason for which a text is not the name of an operation: it is empty, over 255 bytes, or has control characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an operation's name has 1 to 255 bytes and no control characters")]
#[non_exhaustive]
pub struct InvalidOperation;

/// Reason for which a manual change lacks a valid actor or reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidChange {
    /// A part is empty.
    #[error("the {part} of a manual change is missing, it is stored in the audit")]
    Empty {
        /// `actor` or `reason`.
        part: &'static str,
    },
    /// A part is too long.
    #[error("the {part} of a manual change has at most {limit} bytes, this one has {length}")]
    TooLong {
        /// `actor` or `reason`.
        part: &'static str,
        /// Largest length in bytes.
        limit: usize,
        /// Length in bytes.
        length: usize,
    },
    /// A part has control characters, such as a line break.
    #[error("the {part} of a manual change has control characters, write it in one line")]
    Control {
        /// `actor` or `reason`.
        part: &'static str,
    },
}

/// Reason for which a text is not a label of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidOwnerLabel {
    /// The label is empty.
    #[error("a label of an owner has 1 to 120 bytes, this one is empty")]
    Empty,
    /// The label has more than 120 bytes.
    #[error("a label of an owner has at most 120 bytes, this one has {0}; shorten it")]
    TooLong(usize),
    /// The label has a control character.
    #[error("a label of an owner has no control characters, byte {0} of this one begins one")]
    Control(usize),
}

/// Reason for which a text is not the id of a record: it is not 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the id of a record is 64 hexadecimal digits")]
#[non_exhaustive]
pub struct InvalidRecordId;

/// Reason for which a text is not an observation: it is not what `Observation` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this text is not an observation of a record: send it as it was printed, unchanged")]
#[non_exhaustive]
pub struct InvalidObservation;

/// Failure of a store: opaque, with a kind to act on and the backend's own error as its source.
///
/// `Debug` shows the texts of the causes (`Display`). It does not show their `Debug`, in which drivers print whole requests
/// and answers, and thereby keys and stored values.
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
    /// One value is larger than the store or its connection can take, whatever room there is.
    TooLarge,
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

    /// Adds the cause of the error. Its text reaches logs, and so do the texts of its own causes. Drivers may quote keys and
    /// stored values there: then convert the cause to an error without them first.
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

impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut causes = Vec::new();
        let mut source = StdError::source(self);
        while let Some(cause) = source {
            causes.push(cause.to_string());
            source = cause.source();
        }
        f.debug_struct("StoreError")
            .field("kind", &self.kind)
            .field("message", &self.message)
            .field("retryable", &self.retryable)
            .field("causes", &causes)
            .finish()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Error of a driver whose `Debug` shows the answer of the server.
    #[derive(Debug, thiserror::Error)]
    #[error("the answer has another form")]
    struct Unexpected {
        _answer: &'static str,
    }

    #[test]
    fn debug_shows_the_texts_of_causes_and_not_what_they_hold() {
        let source = Unexpected {
            _answer: "stored value",
        };
        let error = StoreError::new(StoreErrorKind::Other, "it failed").with_source(source);
        let debug = format!("{error:?} {error:#?}");
        assert!(
            debug.contains("another form") && !debug.contains("stored value"),
            "{debug}"
        );
    }
}
