//! What is particular to an event source: keys, order and the form of the answer.

#[cfg(feature = "dynamodb")]
mod dynamodb;
#[cfg(feature = "kinesis")]
mod kinesis;
#[cfg(feature = "sqs")]
mod sqs;

use idem_runtime::Key;
#[cfg(any(feature = "sqs", feature = "kinesis", feature = "dynamodb"))]
use idem_runtime::{Scope, error::InvalidKey};

/// A batch of records that Lambda delivers together: `SqsEvent`, `KinesisEvent` and the `Event` of DynamoDB streams, of the
/// crate `aws_lambda_events`.
pub trait BatchEvent: Source {}

impl<S: Source> BatchEvent for S {}

/// The part of [`BatchEvent`] that only this crate implements.
pub trait Source {
    /// Record of the event.
    type Record;
    /// Answer with the records that failed.
    type Response;

    /// The records, in the order of the event.
    #[doc(hidden)]
    fn into_items(self) -> Vec<Item<Self::Record>>;

    /// The answer that reports these records as failed. They are in the order of the event.
    #[doc(hidden)]
    fn response(failed: Vec<String>) -> Self::Response;
}

/// A record, and what the batch needs to know of it.
#[derive(Debug)]
pub struct Item<R> {
    pub(crate) record: R,
    /// Identifier in the answer. Lambda takes an empty one as the failure of the whole batch.
    pub(crate) identifier: String,
    /// None if the event lacks an id or the ARN of its source.
    pub(crate) key: Option<Key>,
    pub(crate) order: Order,
}

/// Order of a record in its batch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Order {
    /// Independent of all others.
    None,
    /// After the earlier records of the same group.
    Group(String),
}

/// The key of these parts, in the scope of an event source.
#[cfg(any(feature = "sqs", feature = "kinesis", feature = "dynamodb"))]
pub(crate) fn key_in(source: Option<&str>, parts: &[&str]) -> Result<Key, InvalidKey> {
    let source = source.unwrap_or_default();
    let scope = match Scope::new(source) {
        // The stream of a table with a long name.
        Err(InvalidKey::ScopeTooLong(_)) => Scope::new(Key::derive([source]).as_str())?,
        scope => scope?,
    };
    let key = match parts {
        [id] => Key::new(*id)?,
        parts => Key::derive(parts.iter().copied()),
    };
    Ok(key.scoped(&scope))
}
