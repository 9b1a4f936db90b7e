//! Messages, as handlers and operators see them.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::codec::{Codec, decode};
use crate::error::{DecodeError, StoreError, StoreErrorKind};
use crate::key::Key;
use crate::record::{Payload, Timestamp};
use crate::store::outbox::{BacklogCount, StoredMessage};
use crate::store::{Cursor, Unreadable};

/// A message, as passed to a handler.
pub struct Message<T> {
    /// The enqueued value.
    pub payload: T,
    key: Key,
    topic: String,
    ordering_key: Option<String>,
    headers: BTreeMap<String, String>,
    attempt: u32,
    enqueued_at: Timestamp,
}

impl<T> Message<T> {
    /// Key of the message: the same for each delivery, by any relay. Consumers use it to detect duplicates.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The topic for which the message was enqueued.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Ordering key, if the message has one.
    pub fn ordering_key(&self) -> Option<&str> {
        self.ordering_key.as_deref()
    }

    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// The headers of the message, by name.
    pub fn headers(&self) -> &BTreeMap<String, String> {
        &self.headers
    }

    /// Number of this delivery; the first is 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Time of enqueuing, by the database's clock.
    pub fn enqueued_at(&self) -> Timestamp {
        self.enqueued_at
    }
}

impl<T: DeserializeOwned> Message<T> {
    pub(super) fn read(stored: StoredMessage) -> Result<Self, DecodeError> {
        let headers = match stored.headers {
            None => BTreeMap::new(),
            Some(headers) => decode(&json(headers))?,
        };
        Ok(Self {
            payload: decode(&json(stored.payload))?,
            key: Key::new(stored.key).map_err(|error| {
                DecodeError::new("the message's key is none").with_source(error)
            })?,
            topic: stored.topic,
            ordering_key: stored.ordering_key,
            headers,
            attempt: stored.attempt,
            enqueued_at: stored.enqueued_at,
        })
    }
}

/// Omits the payload, which is the user's, and the keys.
impl<T> fmt::Debug for Message<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("topic", &self.topic)
            .field("attempt", &self.attempt)
            .field("enqueued_at", &self.enqueued_at)
            .finish_non_exhaustive()
    }
}

fn json(text: String) -> Payload {
    Payload {
        codec: Codec::Json.tag().into(),
        bytes: text.into_bytes().into(),
    }
}

/// A parked message: it waits for an operator.
#[derive(Clone)]
pub struct Parked {
    stored: StoredMessage,
    key: Key,
}

impl Parked {
    pub(super) fn new(stored: StoredMessage) -> Result<Self, StoreError> {
        let key = Key::new(stored.key.as_str()).map_err(|error| {
            StoreError::new(
                StoreErrorKind::Corrupt,
                "a row has a key that no outbox writes; repair the key, and the message can be requeued or discarded",
            )
            .with_source(error)
        })?;
        Ok(Self { stored, key })
    }

    /// Key of the message, for [`requeue`](super::OutboxChanges::requeue) and
    /// [`discard`](super::OutboxChanges::discard).
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The topic for which the message was enqueued.
    pub fn topic(&self) -> &str {
        &self.stored.topic
    }

    /// Ordering key, if the message has one.
    pub fn ordering_key(&self) -> Option<&str> {
        self.stored.ordering_key.as_deref()
    }

    /// The enqueued value, as JSON.
    pub fn payload(&self) -> &str {
        &self.stored.payload
    }

    /// Reason for parking: the last error of the handler and its causes, at most 1,000 characters.
    pub fn last_error(&self) -> &str {
        self.stored.last_error.as_deref().unwrap_or_default()
    }

    /// Number of deliveries so far.
    pub fn attempts(&self) -> u32 {
        self.stored.attempt
    }

    /// Time of enqueuing, by the database's clock.
    pub fn enqueued_at(&self) -> Timestamp {
        self.stored.enqueued_at
    }

    /// Time of parking, by the database's clock.
    pub fn parked_at(&self) -> Timestamp {
        self.stored.parked_at.unwrap_or(self.stored.enqueued_at)
    }
}

/// Omits the payload, the keys, and the error, which may quote either.
impl fmt::Debug for Parked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parked")
            .field("topic", &self.topic())
            .field("attempts", &self.attempts())
            .field("parked_at", &self.parked_at())
            .finish_non_exhaustive()
    }
}

/// Page of parked messages.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ParkedPage {
    /// Messages of the page, in the order of enqueuing.
    pub messages: Vec<Parked>,
    /// Messages that cannot be read, by their numbers.
    pub unreadable: Vec<Unreadable>,
    /// Start of the next page, which may be empty; `None` on the last page.
    pub next: Option<Cursor>,
}

/// Backlog of an outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backlog {
    /// Number of messages that are not delivered yet. Includes those in a handler, but not parked ones.
    pub waiting: u64,
    /// Number of parked messages.
    pub parked: u64,
    /// Age of the oldest waiting message; zero if none is waiting.
    pub oldest: Duration,
}

impl From<BacklogCount> for Backlog {
    fn from(counted: BacklogCount) -> Self {
        let BacklogCount {
            waiting,
            parked,
            oldest,
        } = counted;
        Self {
            waiting,
            parked,
            oldest,
        }
    }
}
