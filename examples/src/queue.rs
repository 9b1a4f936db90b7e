//! A consumer that does the work of each message once, however often its broker delivers it.
//!
//! A broker that loses no message delivers some of them twice: its acknowledgements are lost, its consumers are cut off
//! or too slow, and its producers send again what they got no answer for. So the work is an `#[idempotent]` function
//! whose key is the message's id, and what the function says decides what becomes of the delivery:
//!
//! | the function says | the delivery |
//! | --- | --- |
//! | done, now or earlier | is acknowledged |
//! | another delivery of it is at work; out of reach; failed, and may do better | comes back after a pause |
//! | will never succeed, or has failed [`ATTEMPTS`] times | is copied to the dead letters, once, and acknowledged |
//!
//! There are two records of a message. `Bank::handle` counts attempts, which outlast those that fail, and reaches out
//! to others, for which no transaction is kept waiting. `Bank::book` is transactional: its record, the inbox, is in the
//! ledger's database, and one commit holds it and the row. So a consumer may be killed anywhere, and the row is there
//! once. (Killed [`ATTEMPTS`] times behind that commit, the message is among the dead letters besides.)
//!
//! What is particular to a broker is in a module each: `rabbitmq`, `nats` and `kafka`, behind features of these names.

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
use idem_runtime::{
    Error, Fingerprint, Idem, Key, Source as Origin, SqliteStore, idempotent, with_provenance,
};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;
use sqlx::sqlite::{SqlitePoolOptions, SqliteSynchronous};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

/// How often the work of a message is tried. The record counts: over all deliveries of the message, crashed ones
/// included, and on every broker alike.
pub const ATTEMPTS: u32 = 3;
/// How long a broker is waited for when it is told what became of a delivery.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

// ------------------------------------------------------------------------------------------------ what a broker gives

/// What was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Given by the producer, once per intention; the same in everything that it sends again.
    pub id: Option<String>,
    /// As it came.
    pub body: Vec<u8>,
}

/// A message that a broker delivered, and waits to hear about.
pub trait Delivery: Send + Sync + 'static {
    /// What was sent.
    fn message(&self) -> &Message;

    /// It is done with: never again.
    fn ack(&self) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// It is to come back after the broker's pause.
    fn later(&self) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// It is to come back at once, because nothing was begun.
    fn give_back(&self) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Puts a copy to the dead letters, and waits until the broker has it.
    fn bury(&self, reason: &str) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// Where deliveries come from. When it goes, the broker delivers again what was not acknowledged.
pub trait Source: Send {
    /// What comes.
    type Delivery: Delivery;

    /// How many deliveries may be under way at once; [`next`](Self::next) is not asked for more.
    fn at_once(&self) -> u32;

    /// The next one, as soon as there is one. Dropping the future loses none.
    fn next(&mut self) -> impl Future<Output = anyhow::Result<Self::Delivery>> + Send;
}

/// A queue on a broker, with its dead letters.
pub trait Broker: Send + Sync + 'static {
    /// Where its deliveries come from.
    type Source: Source;

    /// Sends a message, and waits until the broker has it. On an error it may have it or not.
    fn send(&self, message: &Message) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Begins to consume.
    fn deliveries(&self) -> impl Future<Output = anyhow::Result<Self::Source>> + Send;

    /// The dead letters that nobody has taken yet.
    fn dead_letters(&self) -> impl Future<Output = anyhow::Result<Vec<Message>>> + Send;

    /// Waits until the broker has heard of each acknowledgement, where it is told in the background.
    fn until_told(&self) -> impl Future<Output = anyhow::Result<()>> + Send {
        async { Ok(()) }
    }

    /// How many messages are neither acknowledged nor dead, once nobody consumes.
    fn unsettled(&self) -> impl Future<Output = anyhow::Result<u64>> + Send;
}

// -------------------------------------------------------------------------------------------------------- the service

/// What a message asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Fingerprint)]
pub struct Deposit {
    /// Whose money it is.
    pub account: String,
    /// How much.
    pub cents: u32,
}

/// Why a deposit was not booked.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
pub enum DepositError {
    /// It never will be.
    #[error("the account is closed")]
    Closed,
    /// It might have been, but enough is enough.
    #[error("{0} attempts have failed")]
    GaveUp(u32),
    /// Another time, perhaps.
    #[error("the account cannot be reached")]
    #[serde(skip)]
    OutOfReach,
    /// The ledger failed.
    #[error("the ledger failed")]
    #[serde(skip)]
    Ledger(#[from] sqlx::Error),
    /// What the toolkit itself has to say.
    #[error(transparent)]
    #[serde(skip)]
    Idempotency(#[from] Error),
}

/// Why a dead letter was not written.
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
    /// The inbox and the ledger. Nothing in the ledger stops a second row for a message: its count is the witness.
    db: SqlitePool,
    queue: String,
    /// The account whose deposits wait, and how many do.
    held: watch::Sender<Option<String>>,
    waiting: watch::Sender<usize>,
    /// What became of the deliveries so far.
    pub tally: Tally,
}

/// Counts of deliveries, by what became of them.
#[derive(Debug, Default)]
pub struct Tally {
    /// Acknowledged, for work that was done now.
    pub done: AtomicU64,
    /// Acknowledged, for work that was done earlier.
    pub replayed: AtomicU64,
    /// To come back.
    pub later: AtomicU64,
    /// Acknowledged, with a copy among the dead letters.
    pub dead: AtomicU64,
}

impl Bank {
    /// A bank with its file in a folder. The queue's name is the scope of the messages' ids.
    ///
    /// # Errors
    ///
    /// The file cannot be opened or made.
    pub async fn open(folder: &Path, queue: &str) -> anyhow::Result<Self> {
        let file = folder.join("bank.sqlite");
        let options = SqliteStore::connect_options(&file).synchronous(SqliteSynchronous::Normal);
        let db = SqlitePoolOptions::new()
            .max_connections(8)
            .test_before_acquire(false)
            .connect_with(options)
            .await
            .with_context(|| format!("{} cannot be opened", file.display()))?;
        let store = SqliteStore::new(db.clone());
        store.migrate().await?;
        sqlx::raw_sql(
            "CREATE TABLE IF NOT EXISTS ledger (
                entry INTEGER PRIMARY KEY, message TEXT NOT NULL, account TEXT NOT NULL, cents INTEGER NOT NULL
            )",
        )
        .execute(&db)
        .await?;
        Ok(Self {
            idem: Idem::new(store),
            db,
            queue: queue.to_owned(),
            held: watch::Sender::default(),
            waiting: watch::Sender::default(),
            tally: Tally::default(),
        })
    }

    /// The work of a message. Its retention outlasts whatever a broker may hold back and deliver again; its lease is how
    /// long a consumer that was killed keeps the next one waiting.
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

    /// The effect and its record, in one transaction. An attempt that finds an earlier one here, which was believed dead,
    /// waits for what becomes of it: to give up would count as one that failed.
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

    /// Writes the dead letter of a message: that is idempotent too, so that all deliveries of a message together leave
    /// one. (A crash between the letter and its record leaves a second.) The body is part of the key, because an id that
    /// was used for two messages is a reason to bury one of them.
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

    /// How many rows the ledger has, and for how many messages.
    ///
    /// # Errors
    ///
    /// The ledger cannot be read.
    pub async fn booked(&self) -> anyhow::Result<(i64, i64)> {
        let counts = "SELECT count(*), count(DISTINCT message) FROM ledger";
        Ok(sqlx::query_as(counts).fetch_one(&self.db).await?)
    }

    /// Makes the deposits of this account wait between their row and its commit, and those of the one before go on.
    pub fn hold(&self, account: Option<&str>) {
        self.held.send_replace(account.map(str::to_owned));
    }

    /// Returns once a deposit waits.
    pub async fn until_one_waits(&self) {
        // The sender is in `self`, so it cannot go.
        let _ = self.waiting.subscribe().wait_for(|it| *it > 0).await;
    }

    /// What stands for the other side of a deposit, and its moods.
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

/// What becomes of a delivery.
#[derive(Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Its work is done.
    Ack,
    /// Its work may be done another time.
    Later,
    /// Its work will never be done, for this reason.
    Dead(String),
}

impl Disposition {
    /// By what the work came to. What is wrong with a message buries it; what is wrong with the service does not, or
    /// an outage would bury every message.
    pub fn of<T>(result: &Result<T, DepositError>) -> Self {
        let Err(error) = result else {
            return Self::Ack;
        };
        match error {
            // The work was done, only what it came to is not known.
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

/// Handles deliveries, several at once, until it is told to stop or the source fails; then until those are settled that
/// it has begun.
///
/// # Errors
///
/// The source failed, as it does when its connection is cut. The broker delivers again what was not acknowledged, to
/// whoever consumes next.
///
/// # Cancel safety
///
/// Dropping the future cancels no work that has begun.
pub async fn consume(
    bank: &Arc<Bank>,
    mut source: impl Source,
    mut stop: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let at_once = source.at_once();
    let slots = Arc::new(Semaphore::new(at_once as usize));
    let ended = loop {
        let slot = Arc::clone(&slots).acquire_owned().await?;
        let delivery = tokio::select! {
            biased;
            _ = stop.wait_for(|told| *told) => break Ok(()),
            next = source.next() => match next {
                Ok(delivery) => delivery,
                Err(error) => break Err(error),
            },
        };
        if *stop.borrow() {
            break delivery.give_back().await;
        }
        // In a task of its own: a connection that is cut must not cancel work on its way. The work is done then, its
        // acknowledgement fails, and the next delivery finds it done.
        let bank = Arc::clone(bank);
        tokio::spawn(async move {
            if let Err(error) = receive(&bank, &Bounded(delivery)).await {
                eprintln!("a delivery was not settled and will come again: {error:#}");
            }
            drop(slot);
        });
    };
    let _ = slots.acquire_many(at_once).await?;
    ended
}

/// Does the work of a delivery, and tells the broker what became of it.
///
/// # Errors
///
/// The broker could not be told; it will deliver again.
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
                Some(Origin::Executed) => &bank.tally.done,
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
                eprintln!("a dead letter has to wait: {error}");
                delivery.later().await?;
                &bank.tally.later
            }
        },
    };
    tally.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// A delivery whose broker answers in time or counts as out of reach, lest one that says nothing holds up the consumer.
struct Bounded<D>(D);

impl<D: Delivery> Delivery for Bounded<D> {
    fn message(&self) -> &Message {
        self.0.message()
    }

    async fn ack(&self) -> anyhow::Result<()> {
        timeout(ANSWERS_WITHIN, self.0.ack()).await?
    }

    async fn later(&self) -> anyhow::Result<()> {
        timeout(ANSWERS_WITHIN, self.0.later()).await?
    }

    async fn give_back(&self) -> anyhow::Result<()> {
        timeout(ANSWERS_WITHIN, self.0.give_back()).await?
    }

    async fn bury(&self, reason: &str) -> anyhow::Result<()> {
        timeout(ANSWERS_WITHIN, self.0.bury(reason)).await?
    }
}

fn parse(message: &Message) -> anyhow::Result<(&str, Deposit)> {
    let id = message.id.as_deref().context("the message has no id")?;
    let deposit = serde_json::from_slice(&message.body).context("the message is no deposit")?;
    Ok((id, deposit))
}
