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
use idem_runtime::outbox::{self, Message, Outbox, Relay};
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

let relay = Relay::new(&outbox)
    .on("order.placed", move |message: Message<OrderPlaced>| {
        let sent = sent.clone();
        async move { sent.send(message.payload.order) }
    })
    .start()?;
assert_eq!(handled.recv().await, Some(1));
relay.stop().await; // finishes what it has begun
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
//! again only after an operator [requeues](OutboxChanges::requeue) it. A message that kills the process, and so never ends an
//! attempt, is parked after the same number of attempts. A payload that cannot be decoded as the handler's type is
//! parked immediately.
//!
//! A parked message **blocks later ones of its ordering key** until it is requeued or [discarded](OutboxChanges::discard),
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
//! A table `idem_outbox` in the application's own database, and one beside it for the audit of manual changes, created by [`Outbox::migrate`] or by the application's
//! own migrations. The SQL is in `migrations/{sqlite,postgres,mysql}/outbox` of this crate. Enqueuing is one statement.
//! Handling a message without a failure takes two more: one to claim it (up to 32 messages at a time) and one to delete
//! it. On MySQL a claim takes three, because it reads first. An idle relay reads once in each [`Relay::poll_interval`],
//! without a lock. After an enqueue in the same process, it polls a few more times soon after.
//!
//! An outbox reads the settings of a connection of its pool before its first statement. Like a store, it refuses those under
//! which nothing would be committed or texts would be changed, such as `autocommit = 0` on MySQL, with
//! [`StoreErrorKind::Other`]. The book has
//! [the list](https://idem-rs.github.io/idem/pools.html#settings-that-the-store-refuses).
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
//! Handlers run in a `tracing` span `outbox` (target `idem`) with the attributes of OpenTelemetry for messaging:
//! `messaging.destination.name` is the topic, and `messaging.message.id` the number in the table. Warnings report failures, parking and lost leases. No span or event contains a key, a payload or the text
//! of a handler's error. That text is stored in the table.

use std::sync::Arc;

use serde::Serialize;

use crate::error::{Error, StoreError, StoreErrorKind};
use crate::key::Key;
use crate::store::operator::MigrationPlan;
use crate::store::outbox::{Inserts, Messages, TableName};
use crate::store::{Cursor, ManualChange, PageRequest, Unreadable};

mod deliver;
mod enqueue;
mod manual;
mod message;
mod relay;
#[cfg(feature = "metrics")]
mod report;
mod search;
mod shared;
mod wake;

pub use self::enqueue::{MAX_PAYLOAD_BYTES, NewMessage, enqueue, message};
pub use self::manual::{MessageAuditPage, OutboxChanges};
pub use self::message::{Backlog, Message, Parked, ParkedPage};
pub use self::relay::{Relay, RelayGuard, RelayStats};
#[cfg(feature = "metrics")]
pub use self::report::BacklogReporter;
pub use crate::store::outbox::{
    Connection, Database, MessageAction, MessageAuditFilter, MessageEntry,
};

/// A table of messages. Gives operators access to parked messages. Cloning is cheap and shares the connections.
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
    /// [`StoreErrorKind::Schema`] if the name is not 1 to 48 ASCII letters, digits and
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

    /// Creates the tables, or migrates them to the current version. Safe to call at every start, and concurrently from
    /// many processes. The applied migrations are recorded in a separate table (`idem_outbox_migrations`), apart from
    /// the application's own migrations.
    ///
    /// # Errors
    /// [`StoreErrorKind::Schema`] if a later version of this crate created the table,
    /// [`Other`](StoreErrorKind::Other) if the connections have settings that an outbox cannot work with, and the errors of
    /// any write.
    ///
    /// # Cancel safety
    /// Dropping the future leaves each migration either applied or not; call this again.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        self.messages.migrate().await
    }

    /// Compares the tables with those that this build needs, for operators. Nothing is changed.
    ///
    /// # Errors
    /// [`StoreErrorKind::Schema`] if a later version of this crate created the tables, and
    /// the errors of any read.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn migration_plan(&self) -> Result<MigrationPlan, StoreError> {
        self.messages.migration_plan().await
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
        NewMessage::new(&self.inserts, self.max_payload_bytes, topic, payload)
    }

    /// Lists up to `limit` parked messages in the order of enqueuing: those after the position with which a page ended, or
    /// from the first one. A message that cannot be read is passed over and named in [`ParkedPage::unreadable`].
    ///
    /// # Errors
    /// The errors of any read.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn parked(
        &self,
        after: Option<&Cursor>,
        limit: u32,
    ) -> Result<ParkedPage, StoreError> {
        let number = match after {
            None => i64::MIN,
            Some(cursor) => cursor.as_str().parse().map_err(|_| {
                StoreError::new(
                    StoreErrorKind::Other,
                    "this is no position in a list of parked messages; begin again without one",
                )
            })?,
        };
        let limit = limit.max(1);
        let parked = self.messages.parked(number, limit).await?;
        let last = parked.last().filter(|_| parked.len() >= limit as usize);
        let next = last.map(|last| Cursor::new(last.id.to_string()));
        let named = parked
            .into_iter()
            .map(|stored| (stored.id.to_string(), Parked::new(stored)));
        let (messages, unreadable) = Unreadable::sort(named)?;
        Ok(ParkedPage {
            messages,
            unreadable,
            next,
        })
    }

    /// Changes parked messages manually. Each change writes who made it and why into the audit of the outbox, in the
    /// same transaction.
    pub fn by<'a>(&'a self, change: &'a ManualChange) -> OutboxChanges<'a> {
        OutboxChanges::new(self, change)
    }

    /// Reads a page of the audit of manual changes, the newest entries first.
    ///
    /// # Errors
    /// The errors of any read, and [`StoreErrorKind::Other`] if the cursor is not one of
    /// this outbox.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn audit(
        &self,
        filter: &MessageAuditFilter,
        page: &PageRequest,
    ) -> Result<MessageAuditPage, StoreError> {
        MessageAuditPage::read(self, filter, page).await
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
