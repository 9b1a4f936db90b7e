//! Messages that go out exactly when a transaction commits.
//!
//! A service that changes its database and then tells others of it can die in between: the change is there and nobody
//! was told. With an outbox the message is a row that is written in the **same transaction** as the change: both are
//! there or neither. A *relay*, started in one line, hands each message to a handler of yours, again and again until it
//! was handled.
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

// The message goes out if and only if the order is there.
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
//! - **At least once.** A message is handed out until its handler returns `Ok`, also when relays and machines die. A
//!   relay that dies after the handler has done its work and before that was recorded hands the message out again.
//! - **A stable key.** [`Message::key`] is the same each time. A consumer that is idempotent by it does its work
//!   **exactly once**; with this crate that is one attribute, see below.
//! - **One at a time.** Among any number of relays one has a message, as long as its lease holds. The lease is the
//!   database's, by the database's clock, and renewed at a third of it while the handler runs. A relay that was paused
//!   for longer, or cut off from the database, may still be at work when another one begins.
//! - **Order per key.** A message is not handed out while an earlier one with the same ordering key
//!   ([`NewMessage::ordered_by`]) is undelivered, whatever their topics. Messages of different keys, and those without,
//!   go out side by side. *Earlier* is the order of enqueuing; of two transactions that enqueue for one key at the same
//!   time, either may be first, so lock what the key stands for (the customer's row, say) before enqueuing.
//! - **Nothing is dropped.** What cannot be handled is *parked* and kept: see below.
//!
//! Not promised: exactly one run of a handler; an order between keys; a time. A handler runs outside of any
//! transaction, and no connection is held for it.
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

// The handler: a message that comes again is a retry with the same key.
async fn on_order_placed(idem: Idem<MemoryStore>, message: Message<OrderPlaced>) -> Result<(), Error> {
    send_parcel(&idem, message.key(), &message.payload).await
}
```

Keep the `ttl` longer than a message may be on its way, the time in which it is parked included.
"#
)]
//!
//! # Failures
//!
//! A handler that returns an error or panics is tried again after a pause, which grows exponentially and is drawn at
//! random below that (full jitter, <https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/>). After
//! [`Relay::max_attempts`] the message is **parked**: kept, listed by [`Outbox::parked`] with the last error, and
//! handed out again only when a person says so ([`Outbox::requeue`]). A message that is handed out so often without any
//! end, because it kills the process, is parked too; so is at once a payload that the handler's type cannot be read
//! from.
//!
//! A parked message **blocks later ones of its ordering key**, until it is requeued or discarded ([`Outbox::discard`]):
//! what comes after it may build on it. With [`Relay::skip_parked`] they go on without it. Messages of other keys do
//! not wait for them: a relay never reads all that waits behind one message. Where over a hundred due messages of a
//! topic are behind others, it goes from ordering key to ordering key, 64 at each look, until it has been at all of
//! them.
//!
//! A relay takes only topics that it has a handler for. Others wait for a relay that knows them, so a new topic can be
//! enqueued before its consumer is deployed.
//!
//! # The database
//!
//! One table, `idem_outbox`, in the application's own database, made by [`Outbox::migrate`] or by the application's own
//! migrations: the SQL is in `migrations/{sqlite,postgres,mysql}/outbox` of this crate. Enqueuing is one statement, and
//! what is handled without any failure takes two more, one to claim (which takes up to 32 messages at a time) and one
//! to delete it; reading first makes MySQL's claims three. An idle relay reads once in each [`Relay::poll_interval`],
//! without a lock; where something was enqueued in the same process, it looks a few times soon after.
//!
//! - **SQLite**: begin a transaction that writes with `BEGIN IMMEDIATE` (`pool.begin_with("BEGIN IMMEDIATE")`). One
//!   that reads first and then writes fails at once when a relay wrote in between.
//! - **PostgreSQL**: relays claim with `FOR UPDATE SKIP LOCKED`. There is no `NOTIFY`, because committing one takes a
//!   lock that all transactions of the database share.
//! - **MySQL, MariaDB**: relays read without a lock and claim conditionally, so no relay ever keeps a transaction that
//!   enqueues waiting. On Galera enqueue through one node, since numbers of different nodes have no order.
//!
//! # Events
//!
//! Handlers run in a `tracing` span `outbox` (target `idem`) with `topic`, `message` (its number in the table) and
//! `attempt`. Warnings tell of failures, of parking and of lost leases. No span or event has a key, a payload or the
//! text of a handler's error, which stands in the table.

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

/// The largest payload in bytes where nobody chose another limit: 1 MiB.
pub const MAX_PAYLOAD_BYTES: usize = 1024 * 1024;
const MAX_HEADER_BYTES: usize = 64 * 1024;

/// Enqueues a message in the transaction that is open on this connection: it goes out if and only if that commits.
/// Without a transaction it goes out at once. Gives the message's key.
///
/// Into the table `idem_outbox`; for another one, [`Outbox::enqueue`]. For an ordering key, a delay or a key of your
/// own, [`message`](fn@message).
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

/// A message for the table `idem_outbox`, to be given options and then [enqueued](NewMessage::enqueue).
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

/// A table of messages: makes relays, and is what an operator looks at. Cloning is cheap and shares the
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
    /// The outbox in this database: a pool of sqlx (`SqlitePool`, `PgPool`, `MySqlPool`), or a store of this crate by
    /// reference. It does nothing until it is used; call [`migrate`](Self::migrate) first.
    pub fn new(database: impl Into<Database>) -> Self {
        Self::on(database.into(), TableName::default())
    }

    /// The same outbox in a table of this name instead of `idem_outbox`. Its indexes, and the table of what was
    /// migrated, are named after it.
    ///
    /// # Errors
    /// [`StoreErrorKind::Schema`](crate::StoreErrorKind::Schema) where the name is not 1 to 48 ASCII letters, digits
    /// and underscores, begins with a digit, or is reserved.
    pub fn with_table(self, name: &str) -> Result<Self, StoreError> {
        let table = self.table.named(name)?;
        Ok(self.at(table))
    }

    /// The same outbox in this schema of PostgreSQL, or database of MySQL, which must exist. SQLite has none.
    ///
    /// # Errors
    /// As [`with_table`](Self::with_table), for the name of the schema.
    pub fn with_schema(self, schema: &str) -> Result<Self, StoreError> {
        let table = self.table.in_schema(schema)?;
        Ok(self.at(table))
    }

    /// The same outbox with another limit on payloads, in bytes; [`MAX_PAYLOAD_BYTES`] where nothing is said.
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

    /// Makes the table, or brings it up to date. Safe to call at every start, and from many processes at once. What was
    /// applied is kept in a table of its own (`idem_outbox_migrations`), apart from the application's own migrations.
    ///
    /// # Errors
    /// [`StoreErrorKind::Schema`](crate::StoreErrorKind::Schema) where a later version of this crate made the table,
    /// and those of any write.
    ///
    /// # Cancel safety
    /// Dropped, it leaves each migration applied or not applied; call it again.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        self.messages.migrate().await
    }

    /// As [`enqueue`], into the table of this outbox. The connection has to be to its database.
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

    /// As [`message`](fn@message), for the table of this outbox.
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

    /// A relay for this outbox, to be given [handlers](Relay::on) and started.
    pub fn relay(&self) -> Relay {
        Relay::new(Arc::clone(&self.messages))
    }

    /// Up to `limit` parked messages behind this one, or from the first on, in the order of enqueuing.
    ///
    /// # Errors
    /// Those of any read.
    ///
    /// # Cancel safety
    /// It changes nothing.
    pub async fn parked(
        &self,
        after: Option<&Parked>,
        limit: u32,
    ) -> Result<Vec<Parked>, StoreError> {
        let after = after.map_or(i64::MIN, Parked::number);
        let parked = self.messages.parked(after, limit).await?;
        parked.into_iter().map(Parked::new).collect()
    }

    /// Lets a parked message be handed out again, as often as a new one. It has the place in the order that it had.
    /// False where no parked message has this key.
    ///
    /// # Errors
    /// Those of any write.
    ///
    /// # Cancel safety
    /// Dropped, it has happened or not.
    pub async fn requeue(&self, key: &Key) -> Result<bool, StoreError> {
        let requeued = self.messages.requeue(key.as_str()).await?;
        wake();
        Ok(requeued)
    }

    /// Deletes a parked message: nobody will handle it. False where no parked message has this key.
    ///
    /// # Errors
    /// Those of any write.
    ///
    /// # Cancel safety
    /// Dropped, it has happened or not.
    pub async fn discard(&self, key: &Key) -> Result<bool, StoreError> {
        let discarded = self.messages.discard(key.as_str()).await?;
        wake();
        Ok(discarded)
    }

    /// How many messages wait, and for how long; what an alert looks at.
    ///
    /// # Errors
    /// Those of any read.
    ///
    /// # Cancel safety
    /// It changes nothing.
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
    /// Hands this message out only after all earlier ones with the same ordering key, of any topic: a customer, an
    /// account, whatever it is handled. 1 to 255 bytes.
    pub fn ordered_by(mut self, ordering_key: &'a str) -> Self {
        self.ordering_key = Some(ordering_key);
        self
    }

    /// The message's own key, instead of a random one. Enqueued again with the same key, the same message is there once
    /// for as long as it is in the table, which is until it was delivered unless the relay
    /// [keeps it](Relay::keep_delivered); another message with that key is [`Error::KeyReused`]. A key in a scope is
    /// replaced by one that is derived from both.
    pub fn key(mut self, key: &(impl ToKey + ?Sized)) -> Self {
        self.key = key.to_key().map(Some).map_err(Error::from);
        self
    }

    /// Hands it out no earlier than this. Later ones of its ordering key wait as well.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Something that goes along with the payload, such as a trace context. A second value of a name replaces the
    /// first.
    pub fn header(mut self, name: &'a str, value: &'a str) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Enqueues it in the transaction that is open on this connection, and gives its key.
    ///
    /// The handler gets the very value. What JSON cannot carry (NaN, an infinity, `Some(None)`) is an error. Which type
    /// will read it is not known here: one that buffers (internally tagged and untagged enums, flattened fields) reads
    /// neither 128-bit integers nor keys of maps that are not texts, and parks the message; an untagged variant of a
    /// float takes integers beyond 64 bits. Write those as texts.
    ///
    /// # Errors
    /// [`Error::InvalidOutbox`] where topic, ordering key or headers are malformed, or the payload cannot be encoded or
    /// is over the limit; [`Error::InvalidKey`] for the key; [`Error::KeyReused`] where another message has it;
    /// [`Error::Store`] where the database fails, for which PostgreSQL gives up the whole transaction.
    ///
    /// # Cancel safety
    /// Dropped, the transaction may have the message or not: roll it back.
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

/// Without the payload, which is the user's, and the keys.
impl<T: ?Sized> fmt::Debug for NewMessage<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewMessage")
            .field("topic", &self.topic)
            .field("delay", &self.delay)
            .finish_non_exhaustive()
    }
}

/// Whether this can be a topic or an ordering key. Some databases leave blanks at the end out of a comparison.
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

/// Maps may come in another order each time. Numbers are compared as they are written, also beyond 64 bits.
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

/// Tells the relays of this process that something will be there soon, or is.
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
