//! A record of a batch.

use std::ops::Deref;

use idem_runtime::Key;
use idem_runtime::advanced::Deadline;

/// A record of a batch, with the key and the deadline of its call. It dereferences to the record of the event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record<R> {
    pub(crate) record: R,
    pub(crate) key: Key,
    pub(crate) deadline: Deadline,
}

impl<R> Record<R> {
    /// Key of the record, for the option `key` of `#[idempotent]`. Its scope is the ARN of the queue or stream.
    /// [`Batch`](crate::Batch) says what it is made of.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Deadline of the call, for the option `deadline` of `#[idempotent]`.
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// The record of the event.
    pub fn into_inner(self) -> R {
        self.record
    }
}

impl<R> Deref for Record<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.record
    }
}
