//! The outbox, on every database: enqueuing, delivery, failures and crashes.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem_runtime::outbox::{Message, NewMessage, Outbox, OutboxChanges, Relay};
use idem_runtime::store::ManualChange;
use idem_runtime::{Error, Key};
use idem_tests::places::{Files, Place};
use idem_tests::sql::{AnyPool as Pool, AnyTransaction as Tx, Sql};
use idem_tests::until;
use serde::{Deserialize, Serialize};

mod backlog;
mod console;
mod crashes;
mod enqueuing;
mod failures;
mod hanging;
mod manual;
mod order;
mod payloads;
mod relays;
mod sequences;
mod tables;

/// Payload of the messages in the tests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Placed {
    customer: String,
    order: u64,
}

fn placed(order: u64) -> Placed {
    Placed {
        customer: "ann".to_owned(),
        order,
    }
}

const TOPIC: &str = "order.placed";

/// A dedicated database with an outbox.
struct Database {
    pool: Pool,
    outbox: Outbox,
    change: ManualChange,
    _files: Files,
}

impl Database {
    async fn open<S: Sql>(place: Place<S>) -> Self {
        let pool = place.home().await.unwrap();
        let outbox = S::outbox(&pool);
        outbox.migrate().await.unwrap();
        Self {
            pool: S::any(&pool),
            outbox,
            change: ManualChange::new("ann", "a test").unwrap(),
            _files: place.files(),
        }
    }

    /// Changes of messages by an operator.
    fn manually(&self) -> OutboxChanges<'_> {
        self.outbox.by(&self.change)
    }

    async fn begin(&self) -> Tx {
        self.pool.begin().await.unwrap()
    }

    /// Enqueues a message in its own transaction.
    async fn enqueue<T: Serialize + Sync + ?Sized>(&self, message: NewMessage<'_, T>) -> Key {
        self.try_enqueue(message).await.unwrap()
    }

    async fn try_enqueue<T: Serialize + Sync + ?Sized>(
        &self,
        message: NewMessage<'_, T>,
    ) -> Result<Key, Error> {
        let mut tx = self.begin().await;
        let key = tx.enqueue(message).await?;
        tx.commit().await.unwrap();
        Ok(key)
    }

    async fn execute(&self, statement: &str) {
        self.pool.execute(statement).await.unwrap();
    }

    async fn number(&self, statement: &str) -> i64 {
        self.pool.number(statement).await.unwrap()
    }

    /// All texts in the result of the last of these statements.
    async fn texts(&self, statements: &str) -> Vec<String> {
        self.pool.texts(statements).await.unwrap()
    }

    async fn rows(&self) -> i64 {
        self.number("SELECT count(*) FROM idem_outbox").await
    }

    /// A relay for tests: it polls often and has a short back-off.
    fn relay(&self) -> Relay {
        Relay::new(&self.outbox)
            .poll_interval(Duration::from_millis(20))
            .backoff(Duration::from_millis(1), Duration::from_millis(20))
    }
}

/// Entries that handlers add, in the order of the calls.
#[derive(Debug)]
struct Log<T>(Arc<Mutex<Vec<T>>>);

impl<T> Clone for Log<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Clone + Debug> Log<T> {
    fn new() -> Self {
        Self(Arc::default())
    }

    fn push(&self, entry: T) {
        self.0.lock().unwrap().push(entry);
    }

    fn entries(&self) -> Vec<T> {
        self.0.lock().unwrap().clone()
    }

    /// Waits for this number of entries.
    async fn reached(&self, count: usize) -> Vec<T> {
        until(async || self.entries().len() >= count).await;
        self.entries()
    }
}

/// The parts of a message that a handler records.
type Seen = (String, u64, u32);

fn seen(message: &Message<Placed>) -> Seen {
    let key = message.key().as_str().to_owned();
    (key, message.payload.order, message.attempt())
}
