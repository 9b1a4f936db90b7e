//! A consumer that does the work of each message once, however many times its broker delivers the message.
//!
//! A broker that loses no message delivers some of them twice: acknowledgements are lost, consumers are disconnected or
//! too slow, and producers repeat a message whose confirmation was lost. So the work is an `#[idempotent]` function
//! whose key is the message's id. The result of the function decides how the delivery ends:
//!
//! | result of the function | the delivery |
//! | --- | --- |
//! | done, now or earlier | is acknowledged |
//! | another delivery is in progress; a dependency is unreachable; a retryable failure | comes back after a pause |
//! | a permanent failure, or [`ATTEMPTS`] failed attempts | is copied to the dead letters, once, and acknowledged |
//!
//! Each message has two records. The record of `Bank::handle` counts attempts, also failed ones. Its body may call
//! other services, because no transaction waits for it. `Bank::book` is transactional: its record (the inbox) is in the
//! ledger's database, and one commit contains the record and the row. So a consumer may be killed at any point, and the
//! row is there once. If [`ATTEMPTS`] attempts are killed after that commit, the message is also among the dead
//! letters.
//!
//! Each broker has its own module: `rabbitmq`, `nats` and `kafka`, behind features of these names.

#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
pub mod story;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use idem_runtime::advanced::{ResultSource, with_provenance};
use idem_runtime::{Error, Fingerprint, Idem, Key, SqliteStore, idempotent};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;
use sqlx::sqlite::{SqlitePoolOptions, SqliteSynchronous};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

/// Maximum number of attempts per message. The record counts them over all deliveries of the message, crashed attempts
/// included, in the same way on every broker.
pub const ATTEMPTS: u32 = 3;
/// Time limit for the broker's answer to an acknowledgement or a dead letter.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

// ----------------------------------------------------------------------------------------------- the broker interface

/// Message of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Id of the message, chosen by the producer once per intention and repeated in each retry.
    pub id: Option<String>,
    /// Body, not parsed.
    pub body: Vec<u8>,
}

/// One delivery of a message, which the broker wants to be acknowledged.
pub trait Delivery: Send + Sync + 'static {
    /// Returns the delivered message.
    fn message(&self) -> &Message;

    /// Acknowledges the delivery: the broker does not deliver the message again.
    fn ack(&self) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Asks the broker to deliver the message again after its pause.
    fn later(&self) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Returns the delivery to the broker for immediate redelivery, because no work has begun.
    fn requeue(&self) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Sends a copy to the dead letters, and waits until the broker has stored it.
    fn bury(&self, reason: &str) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// Source of deliveries. When it is dropped, the broker redelivers the messages that were not acknowledged.
pub trait Source: Send {
    /// Type of the deliveries.
    type Delivery: Delivery;

    /// Maximum number of deliveries in progress; [`next`](Self::next) is not called for more.
    fn max_in_flight(&self) -> u32;

    /// Waits for the next delivery. Dropping the future loses no delivery.
    fn next(&mut self) -> impl Future<Output = anyhow::Result<Self::Delivery>> + Send;
}

/// A queue on a broker, and its dead letters.
pub trait Broker: Send + Sync + 'static {
    /// Type of its source.
    type Source: Source;

    /// Sends a message, and waits until the broker has stored it. After an error the broker may have stored it or not.
    fn send(&self, message: &Message) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Starts a consumer.
    fn deliveries(&self) -> impl Future<Output = anyhow::Result<Self::Source>> + Send;

    /// Returns the dead letters that were not taken from the queue yet.
    fn dead_letters(&self) -> impl Future<Output = anyhow::Result<Vec<Message>>> + Send;

    /// Waits until the broker has received each acknowledgement, if acknowledgements are sent in the background.
    fn flush_acks(&self) -> impl Future<Output = anyhow::Result<()>> + Send {
        async { Ok(()) }
    }

    /// Returns the number of messages that are neither acknowledged nor dead, once there are no consumers.
    fn unsettled(&self) -> impl Future<Output = anyhow::Result<u64>> + Send;
}

// -------------------------------------------------------------------------------------------------------- the service

/// Request in a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Fingerprint)]
pub struct Deposit {
    /// Account number.
    pub account: String,
    /// Amount in cents.
    pub cents: u32,
}

/// Reason why a deposit was not booked.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
pub enum DepositError {
    /// Permanent: the account is closed.
    #[error("the account is closed")]
    Closed,
    /// Permanent: the maximum number of attempts was reached.
    #[error("{0} attempts have failed")]
    GaveUp(u32),
    /// Temporary: the account's service is unreachable.
    #[error("the service of the account is unreachable")]
    #[serde(skip)]
    OutOfReach,
    /// The ledger failed.
    #[error("the ledger failed")]
    #[serde(skip)]
    Ledger(#[from] sqlx::Error),
    /// Error of the toolkit.
    #[error(transparent)]
    #[serde(skip)]
    Idempotency(#[from] Error),
}

/// Reason why a dead letter was not written.
#[derive(Debug, thiserror::Error)]
enum BuryError {
    #[error("{0:#}")]
    Broker(#[from] anyhow::Error),
    #[error(transparent)]
    Idempotency(#[from] Error),
}

/// A service that books deposits from one queue.
#[derive(Debug)]
pub struct Bank {
    idem: Idem<SqliteStore>,
    /// Database of the inbox and the ledger. The ledger has no constraint against a second row for a message, so its
    /// row count proves that there was none.
    db: SqlitePool,
    queue: String,
    /// The account whose deposits are held, and the number of waiting deposits.
    held: watch::Sender<Option<String>>,
    waiting: watch::Sender<usize>,
    /// Counts of the deliveries so far.
    pub tally: Tally,
}

/// Table of the bank.
pub const LEDGER: &str = "CREATE TABLE IF NOT EXISTS ledger (
    entry INTEGER PRIMARY KEY, message TEXT NOT NULL, account TEXT NOT NULL, cents INTEGER NOT NULL
)";

/// Counts of deliveries by their end.
#[derive(Debug, Default)]
pub struct Tally {
    /// Acknowledged, work done by this delivery.
    pub done: AtomicU64,
    /// Acknowledged, work done by an earlier delivery.
    pub replayed: AtomicU64,
    /// Returned for a later delivery.
    pub later: AtomicU64,
    /// Acknowledged after a copy was sent to the dead letters.
    pub dead: AtomicU64,
}

impl Bank {
    /// Opens a bank whose database file is in this folder. The queue's name is the scope of the messages' ids.
    ///
    /// # Errors
    ///
    /// The file cannot be opened or created.
    pub async fn open(folder: &Path, queue: &str) -> anyhow::Result<Self> {
        let file = folder.join("bank.sqlite");
        let options = SqliteStore::connect_options(&file).synchronous(SqliteSynchronous::Normal);
        let db = SqlitePoolOptions::new()
            .max_connections(8)
            .test_before_acquire(false)
            .connect_with(options)
            .await
            .with_context(|| format!("cannot open {}", file.display()))?;
        let store = SqliteStore::new(db.clone());
        store.migrate().await?;
        sqlx::raw_sql(LEDGER).execute(&db).await?;
        Ok(Self::on(Idem::new(store), queue))
    }

    /// Creates a bank on this handle, whose database has the [`LEDGER`].
    pub fn on(idem: Idem<SqliteStore>, queue: &str) -> Self {
        Self {
            db: idem.store().pool().clone(),
            idem,
            queue: queue.to_owned(),
            held: watch::Sender::default(),
            waiting: watch::Sender::default(),
            tally: Tally::default(),
        }
    }

    /// Does the work of a message. The `ttl` is longer than the time during which a broker may redeliver. The lease is
    /// the delay after which another consumer takes over from a killed one.
    #[idempotent(
        key = id,
        scope = self.queue,
        ttl = "14d",
        lease = "5s",
        name = "deposits.handle",
        store = self.idem,
        attempt = attempt,
        replay_err = DepositError::Closed | DepositError::GaveUp(_),
    )]
    async fn handle(&self, id: &str, deposit: &Deposit) -> Result<i64, DepositError> {
        if attempt.number() > ATTEMPTS {
            return Err(DepositError::GaveUp(ATTEMPTS));
        }
        Self::reach(&deposit.account)?;
        self.book(id, deposit).await
    }

    /// Writes the ledger row and its record in one transaction. If an earlier attempt whose lease has lapsed is still
    /// inside, this attempt waits for that attempt's outcome. An immediate error would count as a failed attempt.
    #[idempotent(
        key = id,
        scope = self.queue,
        ttl = "14d",
        wait = "30s",
        name = "deposits.book",
        store = self.idem,
        tx = tx,
    )]
    async fn book(&self, id: &str, deposit: &Deposit) -> Result<i64, DepositError> {
        let booked = sqlx::query("INSERT INTO ledger (message, account, cents) VALUES (?, ?, ?)")
            .bind(id)
            .bind(&deposit.account)
            .bind(deposit.cents)
            .execute(&mut *tx)
            .await?;
        self.wait_while_held(&deposit.account).await;
        Ok(booked.last_insert_rowid())
    }

    /// Writes the dead letter of a message. This is idempotent too, so that all deliveries of a message together write
    /// one letter. Only a crash between the letter and its record causes a second letter. The body is part of the key,
    /// because an id that was used for two messages is a reason for a dead letter.
    #[idempotent(
        key = Key::derive([message.id.as_deref().unwrap_or("").as_bytes(), &message.body]),
        scope = self.queue,
        ttl = "14d",
        name = "deposits.bury",
        store = self.idem,
        skip_all,
    )]
    async fn bury(
        &self,
        message: &Message,
        delivery: &impl Delivery,
        reason: &str,
    ) -> Result<(), BuryError> {
        Ok(delivery.bury(reason).await?)
    }

    /// Returns the number of rows in the ledger, and the number of messages that have a row.
    ///
    /// # Errors
    ///
    /// The ledger cannot be read.
    pub async fn booked(&self) -> anyhow::Result<(i64, i64)> {
        let counts = "SELECT count(*), count(DISTINCT message) FROM ledger";
        Ok(sqlx::query_as(counts).fetch_one(&self.db).await?)
    }

    /// Makes deposits of this account wait between their row and its commit. Deposits of the previously held account
    /// continue.
    pub fn hold(&self, account: Option<&str>) {
        self.held.send_replace(account.map(str::to_owned));
    }

    /// Waits until a deposit is held.
    pub async fn until_one_waits(&self) {
        // This cannot fail: the sender is in `self`.
        let _ = self.waiting.subscribe().wait_for(|it| *it > 0).await;
    }

    /// Simulates the service that a deposit depends on, and its failures.
    fn reach(account: &str) -> Result<(), DepositError> {
        match account {
            "closed" => Err(DepositError::Closed),
            "cursed" => Err(DepositError::OutOfReach),
            _ => Ok(()),
        }
    }

    async fn wait_while_held(&self, account: &str) {
        self.waiting.send_modify(|it| *it += 1);
        let is_free = |held: &Option<String>| held.as_deref() != Some(account);
        let _ = self.held.subscribe().wait_for(is_free).await;
        self.waiting.send_modify(|it| *it -= 1);
    }
}

// ------------------------------------------------------------------------------------------------------- the consumer

/// End of a delivery.
#[derive(Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Acknowledge: the work is done.
    Ack,
    /// Redeliver: a later attempt may succeed.
    Later,
    /// Dead letter: no attempt will succeed, for this reason.
    Dead(String),
}

impl Disposition {
    /// Maps the result of the work to the end of the delivery. An error of the message makes a dead letter. An error of
    /// the service does not, because otherwise an outage would make every message a dead letter.
    pub fn of<T>(result: &Result<T, DepositError>) -> Self {
        let Err(error) = result else {
            return Self::Ack;
        };
        match error {
            // The work was done, and only its result is unknown.
            DepositError::Idempotency(Error::Unrecorded) => Self::Ack,
            DepositError::Closed
            | DepositError::GaveUp(_)
            | DepositError::Idempotency(
                Error::KeyReused
                | Error::Interrupted
                | Error::InvalidKey(_)
                | Error::Fingerprint(_)
                | Error::Decode(_),
            ) => Self::Dead(error.to_string()),
            _ => Self::Later,
        }
    }
}

/// Handles deliveries concurrently until `stop` is set or the source fails, and then waits until the deliveries in
/// progress are settled.
///
/// # Errors
///
/// The source failed, for example because its connection was cut. The broker redelivers unacknowledged messages to
/// another consumer.
///
/// # Cancel safety
///
/// Dropping the future does not cancel work that has begun.
pub async fn consume(
    bank: &Arc<Bank>,
    mut source: impl Source,
    mut stop: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let limit = source.max_in_flight();
    let slots = Arc::new(Semaphore::new(limit as usize));
    let ended = loop {
        let slot = Arc::clone(&slots).acquire_owned().await?;
        let delivery = tokio::select! {
            biased;
            _ = stop.wait_for(|is_set| *is_set) => break Ok(()),
            next = source.next() => match next {
                Ok(delivery) => delivery,
                Err(error) => break Err(error),
            },
        };
        if *stop.borrow() {
            break delivery.requeue().await;
        }
        // Each delivery has its own task, because a cut connection must not cancel work in progress. The work then
        // completes, its acknowledgement fails, and the next delivery replays the result.
        let bank = Arc::clone(bank);
        tokio::spawn(async move {
            if let Err(error) = receive(&bank, &Bounded(delivery)).await {
                eprintln!("a delivery was not settled and will be redelivered: {error:#}");
            }
            drop(slot);
        });
    };
    let _ = slots.acquire_many(limit).await?;
    ended
}

/// Does the work of a delivery, and then acknowledges, returns or buries the delivery.
///
/// # Errors
///
/// The broker could not be reached. It will deliver the message again.
pub async fn receive(bank: &Bank, delivery: &impl Delivery) -> anyhow::Result<()> {
    let message = delivery.message();
    let (disposition, origin) = match parse(message) {
        Err(error) => (Disposition::Dead(format!("{error:#}")), None),
        Ok((id, deposit)) => {
            let (result, provenance) = with_provenance(bank.handle(id, &deposit)).await;
            let origin = provenance.map(|it| it.source);
            (Disposition::of(&result), origin)
        }
    };
    let tally = match disposition {
        Disposition::Ack => {
            delivery.ack().await?;
            match origin {
                Some(ResultSource::Executed) => &bank.tally.done,
                _ => &bank.tally.replayed,
            }
        }
        Disposition::Later => {
            delivery.later().await?;
            &bank.tally.later
        }
        Disposition::Dead(reason) => match bank.bury(message, delivery, &reason).await {
            Ok(()) => {
                delivery.ack().await?;
                &bank.tally.dead
            }
            Err(error) => {
                eprintln!("a dead letter was not written and will be retried: {error}");
                delivery.later().await?;
                &bank.tally.later
            }
        },
    };
    tally.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// A delivery with a time limit for each answer of the broker, so that a broker that does not answer cannot block the
/// consumer.
struct Bounded<D>(D);

impl<D: Delivery> Delivery for Bounded<D> {
    fn message(&self) -> &Message {
        self.0.message()
    }

    async fn ack(&self) -> anyhow::Result<()> {
        timeout(ANSWER_LIMIT, self.0.ack()).await?
    }

    async fn later(&self) -> anyhow::Result<()> {
        timeout(ANSWER_LIMIT, self.0.later()).await?
    }

    async fn requeue(&self) -> anyhow::Result<()> {
        timeout(ANSWER_LIMIT, self.0.requeue()).await?
    }

    async fn bury(&self, reason: &str) -> anyhow::Result<()> {
        timeout(ANSWER_LIMIT, self.0.bury(reason)).await?
    }
}

fn parse(message: &Message) -> anyhow::Result<(&str, Deposit)> {
    let id = message.id.as_deref().context("the message has no id")?;
    let deposit = serde_json::from_slice(&message.body).context("the message is not a deposit")?;
    Ok((id, deposit))
}
