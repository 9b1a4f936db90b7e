//! Enqueues messages in an open transaction.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;
use std::time::Duration;

use serde::Serialize;

use super::wake;
use crate::codec::{Codec, EncodeError};
use crate::error::{Error, InvalidOutbox};
use crate::fingerprint;
use crate::key::{Key, MAX_LEN, ToKey};
use crate::store::outbox::{Connection, Enqueued, Envelope, Inserts, TableName};

/// Default limit on payloads in bytes: 1 MiB.
pub const MAX_PAYLOAD_BYTES: usize = 1024 * 1024;
const MAX_HEADER_BYTES: usize = 64 * 1024;

/// Enqueues a message in the transaction that is open on this connection: the message is sent if and only if the
/// transaction commits. Without a transaction it is sent immediately. Returns the message's key.
///
/// The message goes into the table `idem_outbox`; use [`Outbox::enqueue`](super::Outbox::enqueue) for another table. Use
/// [`message`](fn@message) to set an ordering key, a delay or your own key.
///
/// ```no_run
/// # #[derive(serde::Serialize)] struct OrderPlaced;
/// # async fn example(pool: sqlx::SqlitePool, placed: OrderPlaced) -> Result<(), Box<dyn std::error::Error>> {
/// use idem_runtime::outbox;
///
/// let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
/// outbox::enqueue(&mut *tx, "order.placed", &placed).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// As [`NewMessage::enqueue`].
///
/// # Cancel safety
/// As [`NewMessage::enqueue`].
pub async fn enqueue<C: Connection + ?Sized, T: Serialize + Sync + ?Sized>(
    connection: &mut C,
    topic: &str,
    payload: &T,
) -> Result<Key, Error> {
    message(topic, payload).enqueue(connection).await
}

/// Builds a message for the table `idem_outbox`, to be given options and then [enqueued](NewMessage::enqueue).
///
/// ```no_run
/// # #[derive(serde::Serialize)] struct OrderPlaced;
/// # async fn example(tx: &mut sqlx::SqliteConnection, placed: OrderPlaced) -> Result<(), Box<dyn std::error::Error>> {
/// use idem_runtime::outbox;
///
/// outbox::message("order.placed", &placed)
///     .ordered_by("customer-17")
///     .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
///     .enqueue(tx)
///     .await?;
/// # Ok(()) }
/// ```
pub fn message<'a, T: Serialize + Sync + ?Sized>(
    topic: &'a str,
    payload: &'a T,
) -> NewMessage<'a, T> {
    static INSERTS: LazyLock<Inserts> = LazyLock::new(|| Inserts::new(TableName::default()));
    NewMessage::new(&INSERTS, MAX_PAYLOAD_BYTES, topic, payload)
}

/// A message that is about to be enqueued.
#[must_use = "it is not enqueued yet"]
pub struct NewMessage<'a, T: ?Sized> {
    inserts: &'a Inserts,
    topic: &'a str,
    payload: &'a T,
    ordering_key: Option<&'a str>,
    key: Result<Option<Key>, Error>,
    delay: Duration,
    headers: BTreeMap<&'a str, &'a str>,
    max_payload_bytes: usize,
}

impl<'a, T: Serialize + Sync + ?Sized> NewMessage<'a, T> {
    pub(super) fn new(
        inserts: &'a Inserts,
        max_payload_bytes: usize,
        topic: &'a str,
        payload: &'a T,
    ) -> Self {
        Self {
            inserts,
            topic,
            payload,
            ordering_key: None,
            key: Ok(None),
            delay: Duration::ZERO,
            headers: BTreeMap::new(),
            max_payload_bytes,
        }
    }

    /// Sets the ordering key: the message is delivered only after all earlier ones with the same ordering key, of any
    /// topic. Typically names a customer or an account. 1 to 255 bytes.
    pub fn ordered_by(mut self, ordering_key: &'a str) -> Self {
        self.ordering_key = Some(ordering_key);
        self
    }

    /// Sets the message's own key, instead of a random one. Enqueuing the same message again with the same key has no
    /// effect while the message is in the table. It is in the table until it is delivered, or longer if the relay
    /// [keeps it](super::Relay::keep_delivered). A different message with that key is [`Error::KeyReused`]. A key in a scope
    /// is replaced by one that is derived from both.
    pub fn key(mut self, key: &(impl ToKey + ?Sized)) -> Self {
        self.key = key.to_key().map(Some).map_err(Error::from);
        self
    }

    /// Delays the message by at least this time. Later messages of its ordering key wait as well.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Adds a header that is sent with the payload, such as a trace context. A second value of a name replaces the
    /// first.
    pub fn header(mut self, name: &'a str, value: &'a str) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Enqueues the message in the transaction that is open on this connection, and returns its key.
    ///
    /// The handler gets exactly the enqueued value. A value that JSON cannot represent (NaN, an infinity, `Some(None)`)
    /// is an error. The type that will decode the payload is not known here. A type that buffers (internally tagged and
    /// untagged enums, flattened fields) decodes neither 128-bit integers nor map keys that are not strings, so the
    /// message is parked. An untagged variant of a float accepts integers beyond 64 bits. Encode such values as
    /// strings.
    ///
    /// # Errors
    /// - [`Error::InvalidOutbox`] if topic, ordering key or headers are malformed, or if the payload cannot be encoded
    ///   or is over the limit;
    /// - [`Error::InvalidKey`] if the key is malformed;
    /// - [`Error::KeyReused`] if another message has the key;
    /// - [`Error::Store`] if the database fails. PostgreSQL then aborts the whole transaction.
    ///
    /// # Cancel safety
    /// After dropping the future, the transaction may contain the message or not: roll it back.
    pub async fn enqueue<C: Connection + ?Sized>(self, connection: &mut C) -> Result<Key, Error> {
        if !is_name(self.topic) {
            return Err(InvalidOutbox::Topic.into());
        }
        if self.ordering_key.is_some_and(|key| !is_name(key)) {
            return Err(InvalidOutbox::OrderingKey.into());
        }
        let key = match self.key? {
            None => Key::generate_v4(),
            Some(key) if key.scope().is_none() => key,
            Some(key) => Key::derive([key.scope().as_str(), key.as_str()]),
        };
        let payload = encode(self.payload, self.max_payload_bytes)?;
        let headers = match self.headers.is_empty() {
            true => None,
            false => Some(encode_headers(&self.headers)?),
        };
        let envelope = Envelope {
            key: key.as_str(),
            topic: self.topic,
            ordering_key: self.ordering_key,
            payload: &payload,
            headers: headers.as_deref(),
            delay: self.delay,
        };
        let enqueued = self
            .inserts
            .enqueue(connection, &envelope, is_same_json)
            .await?;
        wake::wake();
        match enqueued {
            Enqueued::New | Enqueued::Again => Ok(key),
            Enqueued::Differs => Err(Error::KeyReused),
        }
    }
}

/// Omits the payload, which is the user's, and the keys.
impl<T: ?Sized> fmt::Debug for NewMessage<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewMessage")
            .field("topic", &self.topic)
            .field("delay", &self.delay)
            .finish_non_exhaustive()
    }
}

/// True if this can be a topic or an ordering key. Surrounding white space is refused, because some databases ignore
/// trailing spaces in comparisons.
pub(super) fn is_name(text: &str) -> bool {
    (1..=MAX_LEN).contains(&text.len())
        && !text.chars().any(char::is_control)
        && text.trim() == text
}

fn encode<T: Serialize + ?Sized>(payload: &T, limit: usize) -> Result<String, InvalidOutbox> {
    let payload = Codec::Json
        .encode_unread(payload, limit)
        .map_err(|error| match error {
            EncodeError::TooLarge { limit } => InvalidOutbox::TooLarge { limit },
            EncodeError::Codec(source) => InvalidOutbox::Payload(source),
            error @ (EncodeError::Inexact(_)
            | EncodeError::MemberMissing(_)
            | EncodeError::Panicked) => InvalidOutbox::Payload(error.into()),
        })?;
    let text = std::str::from_utf8(&payload.bytes);
    Ok(text
        .map_err(|error| InvalidOutbox::Payload(error.into()))?
        .to_owned())
}

fn encode_headers(headers: &BTreeMap<&str, &str>) -> Result<String, InvalidOutbox> {
    let named = |name: &&str| (1..=MAX_LEN).contains(&name.len());
    if !headers.keys().all(named) {
        return Err(InvalidOutbox::Headers);
    }
    encode(headers, MAX_HEADER_BYTES).map_err(|_| InvalidOutbox::Headers)
}

/// Compares JSON texts regardless of the order of map entries, which may differ each time. Numbers are compared as
/// written, also beyond 64 bits.
fn is_same_json(one: &str, other: &str) -> bool {
    let digest = |text: &str| fingerprint::digest(&fingerprint::json(text.as_bytes())).ok();
    one == other || digest(one).is_some_and(|one| Some(one) == digest(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_neither_control_characters_nor_blanks_around_them() {
        for name in ["a", "order.placed", "customer 17", "ä", &"a".repeat(255)] {
            assert!(is_name(name), "{name:?}");
        }
        for name in ["", " a", "a ", "a\n", "a\0b", &"a".repeat(256)] {
            assert!(!is_name(name), "{name:?}");
        }
    }

    #[test]
    fn the_order_of_members_makes_no_other_payload() {
        assert!(is_same_json(r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#));
        assert!(!is_same_json(r#"{"a":1}"#, r#"{"a":2}"#));
        let large = "1000000000000000000000";
        assert!(is_same_json(
            &format!("[{large}, 1]"),
            &format!("[{large},1]")
        ));
        assert!(!is_same_json(large, "1000000000000000000001"));
        assert!(!is_same_json("no JSON", "neither"));
    }
}
