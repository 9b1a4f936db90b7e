//! Transactional outbox: messages that are sent if and only if a transaction commits.
//!
//! A service that changes its database and then notifies others can crash between the two: the change is made, but the
//! notification is lost. With an outbox the message is a row that is written in the **same transaction** as the change,
//! so both exist or neither. A *relay*, started in one line, passes each message to your handler, and retries until the
//! message is handled.
//!
#![cfg_attr(
    feature = "sqlite",
    doc = r#"
```
use idem_runtime::outbox::{self, Message, Outbox};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct OrderPlaced { order: u64, customer: String }

# #[tokio::main(flavor = "current_thread")]
# async fn main() -> Result<(), Box<dyn std::error::Error>> {
# let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await?;
# sqlx::query("CREATE TABLE orders (customer TEXT)").execute(&pool).await?;
# let (sent, mut handled) = tokio::sync::mpsc::unbounded_channel();
let outbox = Outbox::new(pool.clone());
outbox.migrate().await?;

// The message is sent if and only if the order is committed.
let mut tx = pool.begin().await?;
sqlx::query("INSERT INTO orders (customer) VALUES ('ann')").execute(&mut *tx).await?;
let placed = OrderPlaced { order: 1, customer: "ann".into() };
outbox::enqueue(&mut *tx, "order.placed", &placed).await?;
tx.commit().await?;

let relay = outbox
    .relay()
    .on("order.placed", move |message: Message<OrderPlaced>| {
        let sent = sent.clone();
        async move { sent.send(message.payload.order) }
    })
    .start()?;
assert_eq!(handled.recv().await, Some(1));
relay.shutdown().await; // finishes what it has begun
# Ok(())
# }
```
"#
)]
//!
//! # What is guaranteed
//!
//! - **At least once.** A message is delivered again until its handler returns `Ok`, even if relays and machines crash.
//!   If a relay crashes between the end of the handler's work and the record of it, the message is delivered again.
//! - **A stable key.** [`Message::key`] is the same for each delivery. A consumer that uses it for deduplication does
//!   its work **exactly once**. With this crate that takes one attribute, see below.
//! - **One at a time.** Of all relays only one has a message, while its lease is valid. The lease is kept in the
//!   database, measured by the database's clock, and renewed at a third of its length while the handler runs. A relay
//!   that was paused for longer, or cut off from the database, may still be running the handler when another relay
//!   begins.
//! - **Order per key.** A message is not delivered while an earlier one with the same ordering key
//!   ([`NewMessage::ordered_by`]) is undelivered, also across topics. Messages with different ordering keys, and
//!   those without one, are delivered concurrently. *Earlier* is the order of enqueuing. If two concurrent transactions
//!   enqueue for one ordering key, either may be first. To fix their order, lock the entity behind the key (for example
//!   the customer's row) before enqueuing.
//! - **Nothing is dropped.** A message that cannot be handled is *parked* and kept: see below.
//!
//! Not guaranteed: that a handler runs exactly once, an order between ordering keys, and a time of delivery. A handler
//! runs outside of any transaction, and holds no connection.
//!
#![cfg_attr(
    all(feature = "macros", feature = "memory"),
    doc = r#"
# Exactly once: a consumer that deduplicates

```
use idem_runtime::outbox::Message;
use idem_runtime::{Error, Fingerprint, Idem, Key, MemoryStore, idempotent};
# use serde::{Deserialize, Serialize};

#[derive(Fingerprint, Serialize, Deserialize)]
struct OrderPlaced { order: u64, customer: String }

#[idempotent(key = key, ttl = "7d", name = "parcels.send", store = idem)]
async fn send_parcel(idem: &Idem<MemoryStore>, key: &Key, placed: &OrderPlaced) -> Result<(), Error> {
    println!("a parcel for {}", placed.customer);
    Ok(())
}

// The handler: a message that is delivered again is a retry with the same key.
async fn on_order_placed(idem: Idem<MemoryStore>, message: Message<OrderPlaced>) -> Result<(), Error> {
    send_parcel(&idem, message.key(), &message.payload).await
}
```

Choose a `ttl` longer than the longest time until delivery, including the time for which a message may be parked.
"#
)]
//!
//! # Failures
//!
//! If a handler returns an error or panics, its message is retried with exponential back-off and full jitter
//! (<https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/>). After [`Relay::max_attempts`] the
//! message is **parked**. A parked message is kept, listed by [`Outbox::parked`] with the last error, and delivered
//! again only after an operator calls [`Outbox::requeue`]. A message that kills the process, and so never ends an
//! attempt, is parked after the same number of attempts. A payload that cannot be decoded as the handler's type is
//! parked immediately.
//!
//! A parked message **blocks later ones of its ordering key** until it is requeued or discarded ([`Outbox::discard`]),
//! because they may depend on it. With [`Relay::skip_parked`] the later ones are delivered without it. Messages of
//! other ordering keys do not wait: a relay never reads the whole queue behind one message. If more than a hundred due
//! messages of a topic wait behind others, the relay visits the ordering keys in turn, 64 in each poll, until it has
//! visited all of them.
//!
//! A relay takes only topics for which it has a handler. Other topics wait for a relay that has one, so a new topic can
//! be enqueued before its consumer is deployed.
//!
//! # The database
//!
//! One table, `idem_outbox`, in the application's own database, created by [`Outbox::migrate`] or by the application's
//! own migrations. The SQL is in `migrations/{sqlite,postgres,mysql}/outbox` of this crate. Enqueuing is one statement.
//! Handling a message without a failure takes two more: one to claim it (up to 32 messages at a time) and one to delete
//! it. On MySQL a claim takes three, because it reads first. An idle relay reads once in each [`Relay::poll_interval`],
//! without a lock. After an enqueue in the same process, it polls a few more times soon after.
//!
//! - **SQLite**: begin a transaction that writes with `BEGIN IMMEDIATE` (`pool.begin_with("BEGIN IMMEDIATE")`). A
//!   transaction that reads first and then writes fails immediately if a relay has written since its read.
//! - **PostgreSQL**: relays claim with `FOR UPDATE SKIP LOCKED`. There is no `NOTIFY`, because committing one takes a
//!   lock that all transactions of the database share.
//! - **MySQL, MariaDB**: relays read without a lock and claim by compare-and-swap, so a relay never blocks a
//!   transaction that enqueues. On Galera enqueue through one node, because numbers of different nodes have no order.
//!
//! # Events
//!
//! Handlers run in a `tracing` span `outbox` (target `idem`) with `topic`, `message` (its number in the table) and
//! `attempt`. Warnings report failures, parking and lost leases. No span or event contains a key, a payload or the text
//! of a handler's error. That text is stored in the table.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;

use crate::codec::{Codec, EncodeError};
use crate::error::{Error, InvalidOutbox, StoreError};
use crate::fingerprint;
use crate::key::{Key, MAX_LEN, ToKey};
use crate::store::outbox::{Enqueued, Envelope, Inserts, Messages, TableName};

mod deliver;
mod message;
mod poll_loop;
mod relay;

pub use self::message::{Backlog, Message, Parked};
pub use self::relay::{Relay, RelayGuard, RelayStats};
pub use crate::store::outbox::{Connection, Database};

/// Default limit on payloads in bytes: 1 MiB.
pub const MAX_PAYLOAD_BYTES: usize = 1024 * 1024;
const MAX_HEADER_BYTES: usize = 64 * 1024;

/// Enqueues a message in the transaction that is open on this connection: the message is sent if and only if the
/// transaction commits. Without a transaction it is sent immediately. Returns the message's key.
///
/// The message goes into the table `idem_outbox`; use [`Outbox::enqueue`] for another table. Use
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
    NewMessage {
        inserts: &INSERTS,
        topic,
        payload,
        ordering_key: None,
        key: Ok(None),
        delay: Duration::ZERO,
        headers: BTreeMap::new(),
        max_payload_bytes: MAX_PAYLOAD_BYTES,
    }
}

/// A table of messages. Creates relays, and gives operators access to parked messages. Cloning is cheap and shares the
/// connections.
#[derive(Debug, Clone)]
pub struct Outbox {
    database: Database,
    table: TableName,
    messages: Arc<dyn Messages>,
    inserts: Arc<Inserts>,
    max_payload_bytes: usize,
}

impl Outbox {
    /// Creates an outbox in this database: a pool of sqlx (`SqlitePool`, `PgPool`, `MySqlPool`), or a store of this
    /// crate by reference. No statement runs before the outbox is used; call [`migrate`](Self::migrate) first.
    pub fn new(database: impl Into<Database>) -> Self {
        Self::on(database.into(), TableName::default())
    }

    /// Uses a table with this name instead of `idem_outbox`. Its indexes, and the table of applied migrations, are
    /// named after it.
    ///
    /// # Errors
    /// [`StoreErrorKind::Schema`](crate::StoreErrorKind::Schema) if the name is not 1 to 48 ASCII letters, digits and
    /// underscores, begins with a digit, or is reserved.
    pub fn with_table(self, name: &str) -> Result<Self, StoreError> {
        let table = self.table.named(name)?;
        Ok(self.at(table))
    }

    /// Uses this schema of PostgreSQL, or database of MySQL, which must exist. SQLite has no schemas.
    ///
    /// # Errors
    /// As [`with_table`](Self::with_table), for the name of the schema.
    pub fn with_schema(self, schema: &str) -> Result<Self, StoreError> {
        let table = self.table.in_schema(schema)?;
        Ok(self.at(table))
    }

    /// Sets the limit on payloads, in bytes. Default [`MAX_PAYLOAD_BYTES`].
    #[must_use]
    pub fn max_payload_bytes(mut self, limit: usize) -> Self {
        self.max_payload_bytes = limit;
        self
    }

    fn on(database: Database, table: TableName) -> Self {
        Self {
            messages: database.messages(&table),
            inserts: Arc::new(Inserts::new(table.clone())),
            max_payload_bytes: MAX_PAYLOAD_BYTES,
            database,
            table,
        }
    }

    fn at(self, table: TableName) -> Self {
        Self::on(self.database, table).max_payload_bytes(self.max_payload_bytes)
    }

    /// Creates the table, or migrates it to the current version. Safe to call at every start, and concurrently from
    /// many processes. The applied migrations are recorded in a separate table (`idem_outbox_migrations`), apart from
    /// the application's own migrations.
    ///
    /// # Errors
    /// [`StoreErrorKind::Schema`](crate::StoreErrorKind::Schema) if a later version of this crate created the table,
    /// and the errors of any write.
    ///
    /// # Cancel safety
    /// Dropping the future leaves each migration either applied or not; call this again.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        self.messages.migrate().await
    }

    /// Enqueues a message into the table of this outbox, like [`enqueue`]. The connection must be to the outbox's
    /// database.
    ///
    /// # Errors
    /// As [`NewMessage::enqueue`].
    ///
    /// # Cancel safety
    /// As [`NewMessage::enqueue`].
    pub async fn enqueue<C: Connection + ?Sized, T: Serialize + Sync + ?Sized>(
        &self,
        connection: &mut C,
        topic: &str,
        payload: &T,
    ) -> Result<Key, Error> {
        self.message(topic, payload).enqueue(connection).await
    }

    /// Builds a message for the table of this outbox, like [`message`](fn@message).
    pub fn message<'a, T: Serialize + Sync + ?Sized>(
        &'a self,
        topic: &'a str,
        payload: &'a T,
    ) -> NewMessage<'a, T> {
        NewMessage {
            inserts: &self.inserts,
            max_payload_bytes: self.max_payload_bytes,
            ..message(topic, payload)
        }
    }

    /// Creates a relay for this outbox, to be given [handlers](Relay::on) and started.
    pub fn relay(&self) -> Relay {
        Relay::new(Arc::clone(&self.messages))
    }

    /// Lists up to `limit` parked messages in the order of enqueuing: those after `after`, or from the first one.
    ///
    /// # Errors
    /// The errors of any read.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn parked(
        &self,
        after: Option<&Parked>,
        limit: u32,
    ) -> Result<Vec<Parked>, StoreError> {
        let after = after.map_or(i64::MIN, Parked::number);
        let parked = self.messages.parked(after, limit).await?;
        parked.into_iter().map(Parked::new).collect()
    }

    /// Makes a parked message eligible for delivery again, with as many attempts as a new one. The message keeps its
    /// place in the order. False if no parked message has this key.
    ///
    /// # Errors
    /// The errors of any write.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the message requeued or not.
    pub async fn requeue(&self, key: &Key) -> Result<bool, StoreError> {
        let requeued = self.messages.requeue(key.as_str()).await?;
        wake();
        Ok(requeued)
    }

    /// Deletes a parked message, which is then never handled. False if no parked message has this key.
    ///
    /// # Errors
    /// The errors of any write.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the message deleted or not.
    pub async fn discard(&self, key: &Key) -> Result<bool, StoreError> {
        let discarded = self.messages.discard(key.as_str()).await?;
        wake();
        Ok(discarded)
    }

    /// Counts waiting and parked messages, and the age of the oldest one; for use in alerts.
    ///
    /// # Errors
    /// The errors of any read.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn backlog(&self) -> Result<Backlog, StoreError> {
        Ok(self.messages.count().await?.into())
    }
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
    /// Sets the ordering key: the message is delivered only after all earlier ones with the same ordering key, of any
    /// topic. Typically names a customer or an account. 1 to 255 bytes.
    pub fn ordered_by(mut self, ordering_key: &'a str) -> Self {
        self.ordering_key = Some(ordering_key);
        self
    }

    /// Sets the message's own key, instead of a random one. Enqueuing the same message again with the same key has no
    /// effect while the message is in the table. It is in the table until it is delivered, or longer if the relay
    /// [keeps it](Relay::keep_delivered). A different message with that key is [`Error::KeyReused`]. A key in a scope
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
            None => random_key()?,
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
        wake();
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
fn is_name(text: &str) -> bool {
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
            error @ (EncodeError::Inexact(_) | EncodeError::Panicked) => {
                InvalidOutbox::Payload(error.into())
            }
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

/// A random UUID (version 4, RFC 9562).
fn random_key() -> Result<Key, Error> {
    let mut bytes: [u8; 16] = rand::random();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = crate::key::hex(&bytes);
    let [a, b, c, d, e] = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &hex[part]);
    Ok(Key::new(format!("{a}-{b}-{c}-{d}-{e}"))?)
}

/// Wakes the relays of this process: a message is, or will soon be, in the table.
fn wake() {
    ENQUEUED.send_replace(());
}

static ENQUEUED: LazyLock<watch::Sender<()>> = LazyLock::new(watch::Sender::default);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_keys_are_uuids_of_version_4() {
        let key = random_key().unwrap();
        let parts: Vec<_> = key.as_str().split('-').collect();
        let lengths: Vec<_> = parts.iter().map(|part| part.len()).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert!(parts[2].starts_with('4'), "{parts:?}");
        assert!(parts[3].starts_with(['8', '9', 'a', 'b']), "{parts:?}");
        assert_ne!(random_key().unwrap(), key);
    }

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
