//! Messages as handlers and people see them.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::codec::{Codec, decode};
use crate::error::{DecodeError, StoreError, StoreErrorKind};
use crate::key::Key;
use crate::record::{Payload, Timestamp};
use crate::store::outbox::{BacklogCount, StoredMessage};

/// A message, as a handler is given it.
pub struct Message<T> {
    /// What was enqueued.
    pub payload: T,
    key: Key,
    topic: String,
    ordering_key: Option<String>,
    headers: BTreeMap<String, String>,
    attempt: u32,
    enqueued_at: Timestamp,
}

impl<T> Message<T> {
    /// The message's key: the same each time it is handed out, by whatever relay. What a consumer tells duplicates by.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The topic it was enqueued for.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// What it is ordered by, if anything.
    pub fn ordering_key(&self) -> Option<&str> {
        self.ordering_key.as_deref()
    }

    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// Its headers, by name.
    pub fn headers(&self) -> &BTreeMap<String, String> {
        &self.headers
    }

    /// How often it was handed out, this time included.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// When it was enqueued, by the database's clock.
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

/// Without the payload, which is the user's, and the keys.
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

/// A message that waits for a person.
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
                "a row has a key that no outbox writes, repair or delete it",
            )
            .with_source(error)
        })?;
        Ok(Self { stored, key })
    }

    pub(super) fn number(&self) -> i64 {
        self.stored.id
    }

    /// Its key, for [`Outbox::requeue`](super::Outbox::requeue) and [`Outbox::discard`](super::Outbox::discard).
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The topic it was enqueued for.
    pub fn topic(&self) -> &str {
        &self.stored.topic
    }

    /// What it is ordered by, if anything.
    pub fn ordering_key(&self) -> Option<&str> {
        self.stored.ordering_key.as_deref()
    }

    /// What was enqueued, as JSON.
    pub fn payload(&self) -> &str {
        &self.stored.payload
    }

    /// Why it was parked: the last error of its handler and what caused that, at most 1,000 characters.
    pub fn last_error(&self) -> &str {
        self.stored.last_error.as_deref().unwrap_or_default()
    }

    /// How often it was handed out.
    pub fn attempts(&self) -> u32 {
        self.stored.attempt
    }

    /// When it was enqueued, by the database's clock.
    pub fn enqueued_at(&self) -> Timestamp {
        self.stored.enqueued_at
    }

    /// When it was parked, by the database's clock.
    pub fn parked_at(&self) -> Timestamp {
        self.stored.parked_at.unwrap_or(self.stored.enqueued_at)
    }
}

/// Without the payload, the keys, and the error, which may quote either.
impl fmt::Debug for Parked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parked")
            .field("topic", &self.topic())
            .field("attempts", &self.attempts())
            .field("parked_at", &self.parked_at())
            .finish_non_exhaustive()
    }
}

/// How much is in an outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backlog {
    /// How many messages are yet to be delivered, those that are being handled included and parked ones not.
    pub waiting: u64,
    /// How many are parked.
    pub parked: u64,
    /// How long the oldest of the waiting ones has been there; zero where none is.
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
