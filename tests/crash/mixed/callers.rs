//! Callers: services that share the resources of a worker, and make a random call each time.

use std::sync::Arc;
use std::time::Duration;

use idem_runtime::outbox::{Outbox, RelayGuard};
use idem_runtime::record::Timestamp;
use idem_runtime::{Error, Idem, outbox};
use rand::RngExt;
use tokio::sync::Mutex;
use tokio::time::error::Elapsed;

use super::calls::{self, Book, ChargeError};
use super::database::OnePool;
use super::dropping::{Attempted, DropTime, Pace, suspect, until_dropped};
use super::relaying;
use crate::worker::wall_clock;

/// Time for which several workers use a shared key, in milliseconds.
const SHARED_KEY_PERIOD: u64 = 60;
/// Time for which the workers use a key that is locked at times, in milliseconds.
const BUSY_KEY_PERIOD: u64 = 2_000;
/// Time limit for one of the application's own statements, with the server up.
const STATEMENT: Duration = Duration::from_secs(10);
/// Number of messages that the purger and the application's own purge remove in one batch.
const PURGED: u32 = 100;
const ORDERINGS: usize = 4;

/// Runs the application's own statements and waits for them at most [`STATEMENT`]. They run to completion in any case:
/// a statement of the application that is dropped halfway can leave its connection out of step with the server.
async fn in_time<T: Send + 'static>(
    statements: impl Future<Output = T> + Send + 'static,
) -> Result<T, Elapsed> {
    let ended = tokio::time::timeout(STATEMENT, tokio::spawn(statements)).await?;
    Ok(ended.expect("the statements of the application do not panic"))
}

/// Resources that the callers of a worker share.
pub(super) trait Work: Send + Sync + 'static {
    fn book(&self) -> &Book;
    fn idem(&self) -> &Idem;
    fn pace(&self) -> &Pace;

    /// Makes a call, or uses the pool in another way.
    fn call(&self) -> impl Future<Output = ()> + Send;

    /// Makes a call with a key that other workers use too, and that is locked at times.
    fn call_busily(&self) -> impl Future<Output = ()> + Send;

    /// Delivers messages, if there are any.
    fn relay(&self) -> Result<Option<RelayGuard>, Error>;

    /// Checks the connections while no call is in flight. Reports each fault, and returns the number of connections.
    fn inspect_connections(&self) -> impl Future<Output = usize> + Send;
}

/// A service on a store without transactions.
pub(super) struct Plain {
    pub(super) book: Arc<Book>,
    pub(super) idem: Idem,
    pub(super) pace: Pace,
    pub(super) begun_at: u64,
    /// True if the store is a file, which has one writer at a time.
    pub(super) is_one_file: bool,
}

/// A service whose store, outbox and own statements share one pool.
pub(super) struct Shop<S: OnePool> {
    plain: Plain,
    idem: Idem<S>,
    pool: S::Pool,
    outbox: Outbox,
    address: String,
    /// Number of the last message of each ordering key.
    numbers: [Mutex<u64>; ORDERINGS],
}

/// The current key that is locked at times.
pub(super) fn busy_key(begun_at: u64) -> String {
    let age = wall_clock().saturating_sub(begun_at);
    format!("busy-{}", age / BUSY_KEY_PERIOD)
}

impl Plain {
    /// A key that only this worker uses, or the current one of all workers.
    fn some_key(&self) -> String {
        if rand::rng().random_bool(0.9) {
            return self.book.own_key();
        }
        let age = wall_clock().saturating_sub(self.begun_at);
        let number = age / SHARED_KEY_PERIOD + rand::rng().random_range(0..4);
        format!("shared-{number}")
    }

    fn attempted<'a>(&'a self, mode: &'static str, key: &'a str) -> Attempted<'a> {
        Attempted {
            book: &self.book,
            pace: &self.pace,
            mode,
            key,
            is_unrelated: mode != "busy",
            is_bounded: !self.is_one_file,
            acknowledges: mode != "joined" && mode != "brief",
        }
    }

    async fn rerun(&self) {
        let key = self.some_key();
        let call = calls::rerun(&self.idem, &self.book, &key);
        self.attempted("rerun", &key).make(call).await;
    }

    async fn refuse(&self) {
        let key = self.some_key();
        let call = calls::refuse(&self.idem, &self.book, &key);
        self.attempted("refuse", &key).make(call).await;
    }

    async fn brief(&self) {
        let key = self.some_key();
        let call = calls::brief(&self.idem, &self.book, &key);
        self.attempted("brief", &key).make(call).await;
    }

    async fn purge(&self) {
        let purging = self.idem.store().purge(PURGED, Timestamp::MAX);
        until_dropped(DropTime::at_random(), purging).await;
    }
}

impl Work for Plain {
    fn book(&self) -> &Book {
        &self.book
    }

    fn idem(&self) -> &Idem {
        &self.idem
    }

    fn pace(&self) -> &Pace {
        &self.pace
    }

    async fn call(&self) {
        let kind = rand::rng().random_range(0..100);
        match kind {
            0..38 => self.rerun().await,
            38..76 => self.refuse().await,
            76..94 => {
                let key = self.some_key();
                let call = calls::steps(&self.idem, &self.book, &key);
                self.attempted("steps", &key).make(call).await;
            }
            94..99 => self.brief().await,
            _ => self.purge().await,
        }
    }

    async fn call_busily(&self) {
        let key = busy_key(self.begun_at);
        let call = calls::busy(&self.idem, &self.book, &key);
        self.attempted("busy", &key).make(call).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    fn relay(&self) -> Result<Option<RelayGuard>, Error> {
        Ok(None)
    }

    /// A store without a pool has one connection, which answers or not.
    async fn inspect_connections(&self) -> usize {
        let begun_at = wall_clock();
        let id = "0".repeat(64);
        let scope = idem_runtime::Scope::none();
        let found = self
            .idem
            .records()
            .find_scoped("mixed.none", &id, &scope)
            .await;
        if let Err(error) = found {
            suspect(&self.book, "connection", begun_at, &format!("{error:?}"));
        }
        1
    }
}

impl<S: OnePool> Shop<S> {
    pub(super) fn new(plain: Plain, idem: Idem<S>, pool: S::Pool, address: &str) -> Self {
        Self {
            outbox: S::outbox(&pool),
            plain,
            idem,
            pool,
            address: address.to_owned(),
            numbers: Default::default(),
        }
    }

    async fn transactional(&self) {
        let key = self.plain.some_key();
        let call = calls::transactional(&self.idem, &self.plain.book, &key);
        self.plain.attempted("tx", &key).make(call).await;
    }

    async fn steps(&self) {
        let key = self.plain.some_key();
        let call = calls::steps_tx(&self.idem, &self.plain.book, &key);
        self.plain.attempted("steps", &key).make(call).await;
    }

    /// Makes a call that joins the application's own transaction, with a statement before and one after it. Only the
    /// call is dropped: the statements run to their end.
    async fn joined(&self) {
        let begun_at = wall_clock();
        let key = self.plain.some_key();
        let id = self.plain.book.next_id();
        let (pool, name) = (self.pool.clone(), self.plain.book.name.clone());
        let row = format!("outer:{id}.before");
        let before = in_time(async move {
            let mut outer = S::begin_own(&pool).await?;
            S::charge(S::connection(&mut outer), &row, &name).await?;
            Ok::<_, sqlx::Error>(outer)
        });
        let mut outer = match before.await {
            Ok(Ok(outer)) => outer,
            failed => {
                let what = format!("{key}: before the call, {:?}", failed.map(Result::err));
                return self.suspect("statement", begun_at, &what);
            }
        };
        let connection = S::connection(&mut outer);
        let call = calls::joined(&self.idem, connection, &self.plain.book, &id, &key);
        let answer = self.plain.attempted("joined", &key).make(call).await;
        // A database error may have rolled the transaction back: then it cannot continue.
        let is_lost = matches!(
            answer,
            Some(Err(
                ChargeError::Database(_) | ChargeError::Idempotency(Error::Store(_))
            ))
        );
        let commits = !is_lost && rand::rng().random_bool(0.85);
        let (row, name) = (format!("outer:{id}.after"), self.plain.book.name.clone());
        let behind = in_time(async move {
            if is_lost {
                return S::rollback_outer(outer).await;
            }
            S::charge(S::connection(&mut outer), &row, &name).await?;
            match commits {
                true => S::commit_outer(outer).await,
                false => S::rollback_outer(outer).await,
            }
        });
        match behind.await {
            Ok(Ok(())) => {
                let what = if commits { "committed" } else { "rolled-back" };
                let voice = &self.plain.book.voice;
                voice.say(&format!("outer {id} {what}"));
                if let (true, Some(Ok(receipt))) = (commits, &answer) {
                    voice.say(&format!("answer joined {key} {receipt}"));
                }
            }
            _ if is_lost => {}
            failed => {
                let what = format!("{key}: {failed:?} behind {answer:?}");
                self.suspect("statement", begun_at, &what);
            }
        }
    }

    /// Enqueues a message in the application's own transaction, with a row that shows whether it was committed.
    async fn enqueue(&self) {
        let begun_at = wall_clock();
        let which = rand::rng().random_range(0..ORDERINGS);
        let Ok(mut number) = self.numbers[which].try_lock() else {
            return;
        };
        *number += 1;
        let name = &self.plain.book.name;
        let ordering = format!("{name}.{which}");
        let message = self.plain.book.next_id();
        let payload = (message.clone(), *number);
        let drop_time = if rand::rng().random_bool(0.3) {
            DropTime::at_random()
        } else {
            DropTime::Never
        };
        let (pool, row) = (self.pool.clone(), format!("outbox:{message}"));
        let enqueue = in_time(async move {
            let mut outer = S::begin_own(&pool).await?;
            S::charge(S::connection(&mut outer), &row, &ordering).await?;
            let enqueued = outbox::message(relaying::TOPIC, &payload).ordered_by(&ordering);
            let enqueued =
                until_dropped(drop_time, S::enqueue(S::connection(&mut outer), enqueued))
                    .await
                    .0;
            match enqueued {
                Some(Ok(_)) if rand::rng().random_bool(0.85) => S::commit_outer(outer).await?,
                Some(Err(error)) => {
                    let _ = S::rollback_outer(outer).await;
                    return Err(error.into());
                }
                Some(Ok(_)) | None => S::rollback_outer(outer).await?,
            }
            Ok::<_, ChargeError>(())
        });
        let enqueued = enqueue.await;
        if !matches!(enqueued, Ok(Ok(()))) {
            let what = format!("{message}: {enqueued:?} with {drop_time:?}");
            self.suspect("statement", begun_at, &what);
        }
    }

    fn suspect(&self, kind: &str, begun_at: u64, what: &str) {
        suspect(&self.plain.book, kind, begun_at, what);
    }
}

impl<S: OnePool> Work for Shop<S> {
    fn book(&self) -> &Book {
        &self.plain.book
    }

    fn idem(&self) -> &Idem {
        &self.plain.idem
    }

    fn pace(&self) -> &Pace {
        &self.plain.pace
    }

    async fn call(&self) {
        let kind = rand::rng().random_range(0..100);
        match kind {
            0..23 => self.plain.rerun().await,
            23..46 => self.plain.refuse().await,
            46..58 => self.steps().await,
            58..73 => self.transactional().await,
            73..87 => self.joined().await,
            87..95 => self.enqueue().await,
            95..98 => self.plain.brief().await,
            98 => {
                let migrating = self.idem.store().create_tables();
                until_dropped(DropTime::at_random(), migrating).await;
            }
            _ => self.plain.purge().await,
        }
    }

    async fn call_busily(&self) {
        if rand::rng().random_bool(0.5) {
            return self.plain.call_busily().await;
        }
        let key = busy_key(self.plain.begun_at);
        // A transaction in SQLite blocks all other writers.
        let longest = if self.plain.is_one_file { 20 } else { 1_500 };
        let hold = Duration::from_millis(rand::rng().random_range(0..longest));
        let call = calls::busy_tx(&self.idem, &self.plain.book, &key, hold);
        let attempted = self.plain.attempted("busy", &key);
        attempted.make(call).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    fn relay(&self) -> Result<Option<RelayGuard>, Error> {
        relaying::start(&self.outbox, self.plain.book.voice.clone()).map(Some)
    }

    async fn inspect_connections(&self) -> usize {
        super::checks::inspect_pool::<S>(&self.plain.book, &self.pool, &self.address).await
    }
}
