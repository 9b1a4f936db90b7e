//! Outbox messages in a SQL database. As with records, each transition is one atomic statement by the database's clock.
//! This module never sees a codec, a handler or a user's type.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Mutex, OnceCell};

use crate::error::{StoreError, StoreErrorKind};
use crate::key::Key;
use crate::random;
use crate::record::{ClaimId, Timestamp, micros};
use crate::store::ManualChange;
use crate::store::operator::MigrationPlan;
use crate::store::sql::{Connections, Query, Readable, Statement, Table, span};

mod dialect;
mod enqueue;
mod messages;
mod statements;

use dialect::OutboxDialect;
pub use enqueue::Connection;
pub(crate) use enqueue::{Enqueued, Inserts};
pub(crate) use messages::{
    BATCH, BacklogCount, Due, MessageChange, MessageLease, Messages, NextKey, StoredMessage,
};
pub use messages::{MessageAction, MessageAuditFilter, MessageEntry};
use statements::OutboxStatements;
pub(crate) use statements::Polling;

/// Default name of the table.
const DEFAULT_TABLE: &str = "idem_outbox";

/// Name of the table, and of its schema.
#[derive(Debug, Clone)]
pub(crate) struct TableName(Table);

impl TableName {
    pub(crate) fn named(&self, name: &str) -> Result<Self, StoreError> {
        Table::new(self.0.schema.as_deref(), name).map(Self)
    }

    pub(crate) fn in_schema(&self, schema: &str) -> Result<Self, StoreError> {
        Table::new(Some(schema), &self.0.name).map(Self)
    }
}

#[cfg(feature = "metrics")]
impl TableName {
    /// Name of the table, without its schema.
    pub(crate) fn as_str(&self) -> &str {
        &self.0.name
    }
}

impl Default for TableName {
    fn default() -> Self {
        Self(Table {
            schema: None,
            name: DEFAULT_TABLE.into(),
        })
    }
}

/// Number of ordered messages of a topic that one statement reads, because a million may be due behind a parked one.
const WINDOW: usize = 128;

/// Message to be enqueued.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Envelope<'a> {
    pub(crate) key: &'a str,
    pub(crate) topic: &'a str,
    pub(crate) ordering_key: Option<&'a str>,
    pub(crate) payload: &'a str,
    pub(crate) headers: Option<&'a str>,
    pub(crate) delay: Duration,
}

/// Pool of connections to a database that can have an outbox. Made from a pool of sqlx, or from a store of this crate.
#[derive(Debug, Clone)]
pub struct Database(AnyPool);

#[derive(Debug, Clone)]
enum AnyPool {
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::SqlitePool),
    #[cfg(feature = "postgres")]
    Postgres(sqlx::PgPool),
    #[cfg(feature = "mysql")]
    MySql(sqlx::MySqlPool),
}

macro_rules! from_pool {
    ($($feature:literal: $variant:ident, $pool:ty, $store:ty;)*) => {$(
        #[cfg(feature = $feature)]
        impl From<$pool> for Database {
            fn from(pool: $pool) -> Self {
                Self(AnyPool::$variant(pool))
            }
        }

        /// Uses the connections of the store, but not the table and schema that were chosen for its records.
        #[cfg(feature = $feature)]
        impl From<&$store> for Database {
            fn from(store: &$store) -> Self {
                store.pool().clone().into()
            }
        }
    )*};
}

from_pool! {
    "sqlite": Sqlite, sqlx::SqlitePool, crate::store::sqlite::SqliteStore;
    "postgres": Postgres, sqlx::PgPool, crate::store::postgres::PostgresStore;
    "mysql": MySql, sqlx::MySqlPool, crate::store::mysql::MySqlStore;
}

impl Database {
    pub(crate) fn messages(&self, table: &TableName) -> Arc<dyn Messages> {
        let table = &table.0;
        match self.0.clone() {
            #[cfg(feature = "sqlite")]
            AnyPool::Sqlite(pool) => Arc::new(Pooled::new(Connections::to_file(pool), table)),
            #[cfg(feature = "postgres")]
            AnyPool::Postgres(pool) => Arc::new(Pooled::new(Connections::to_server(pool), table)),
            #[cfg(feature = "mysql")]
            AnyPool::MySql(pool) => Arc::new(Pooled::new(Connections::to_server(pool), table)),
        }
    }
}

/// Table of messages, and the connections to it.
#[derive(Debug)]
struct Pooled<DB: OutboxDialect> {
    pool: Connections<DB>,
    table: Table,
    statements: OutboxStatements,
    /// For databases with one writer at a time: the writers of this process wait here, in order, instead of polling.
    writer: Option<Mutex<()>>,
    /// Set once the settings of a connection were found usable.
    has_usable_settings: OnceCell<()>,
}

impl<DB: OutboxDialect> Pooled<DB> {
    fn new(pool: Connections<DB>, table: &Table) -> Self {
        Self {
            pool,
            statements: OutboxStatements::new::<DB>(table),
            table: table.clone(),
            writer: DB::ONE_WRITER.then(Mutex::default),
            has_usable_settings: OnceCell::new(),
        }
    }

    /// Refuses settings of the connections, under which for example nothing would be committed. They are read before the
    /// first statement.
    async fn examine(&self) -> Result<(), StoreError> {
        let examine = || DB::examine(&self.pool, &self.table);
        let examined = self.has_usable_settings.get_or_try_init(examine).await;
        examined.copied()
    }

    async fn read(&self, query: Query<'_>) -> Result<Vec<DB::Row>, StoreError> {
        self.examine().await?;
        DB::rows(&self.pool, &query).await
    }

    async fn write(&self, query: Query<'_>) -> Result<u64, StoreError> {
        self.examine().await?;
        let _turn = self.turn().await;
        DB::run(&self.pool, &query).await
    }

    async fn change(&self, query: Query<'_>) -> Result<bool, StoreError> {
        Ok(self.write(query).await? > 0)
    }

    async fn turn(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        match &self.writer {
            Some(writer) => Some(writer.lock().await),
            None => None,
        }
    }

    /// Claims the messages that a query selects.
    async fn claimed(
        &self,
        query: Query<'_>,
        claim_id: &ClaimId,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        let rows = if DB::RETURNS_ROWS {
            let _turn = self.turn().await;
            self.read(query).await?
        } else {
            self.claim_read_ids(query, claim_id, lease, limit).await?
        };
        let mut claimed: Vec<StoredMessage> = rows.iter().map(stored).collect::<Result<_, _>>()?;
        claimed.sort_unstable_by_key(|message| message.id);
        Ok(claimed)
    }

    /// Reads claimable messages, claims those that are still unclaimed, and reads the claimed ones. A read that locked
    /// would make enqueuing transactions wait. A transaction around all three could be left open when the future is
    /// dropped.
    async fn claim_read_ids(
        &self,
        candidates: Query<'_>,
        claim_id: &ClaimId,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<DB::Row>, StoreError> {
        let mut ids = Vec::new();
        for row in self.read(candidates).await? {
            ids.push(row.number(0).map_err(unreadable)?);
        }
        if ids.is_empty() {
            return Ok(vec![]);
        }
        // Concurrent relays read the same ids. Each takes a random selection, so that most of them take different ones.
        while ids.len() > limit {
            ids.swap_remove(random::number() as usize % ids.len());
        }
        ids.sort_unstable();
        let take = of_batch(self.statements.take.query(), &ids);
        let take = take.bytes(&claim_id.as_bytes()[..]).number(span(lease));
        if self.write(take).await? == 0 {
            return Ok(vec![]);
        }
        let taken = of_batch(self.statements.taken.query(), &ids);
        self.read(taken.bytes(&claim_id.as_bytes()[..])).await
    }
}

/// Binds as many ids as a batch has, so that one statement serves all lengths. The last id is repeated for the missing
/// ones.
fn of_batch<'q>(query: Query<'q>, ids: &[i64]) -> Query<'q> {
    let last = ids.last().copied().unwrap_or_default();
    (0..BATCH).fold(query, |query, at| {
        query.number(ids.get(at).copied().unwrap_or(last))
    })
}

#[async_trait]
impl<DB: OutboxDialect> Messages for Pooled<DB> {
    async fn migrate(&self) -> Result<(), StoreError> {
        self.examine().await?;
        let _turn = self.turn().await;
        DB::migrate(&self.pool, &self.table).await
    }

    async fn migration_plan(&self) -> Result<MigrationPlan, StoreError> {
        DB::migration_plan(&self.pool, &self.table).await
    }

    fn polling(&self, topics: &[&str], skip_parked: bool) -> Polling {
        Polling::new::<DB>(&self.table, topics, skip_parked)
    }

    async fn due(&self, polling: &Polling) -> Result<Due, StoreError> {
        let query = polling
            .topics
            .iter()
            .fold(polling.due.query(), |query, topic| query.text(&**topic));
        let mut due = Due::default();
        for row in self.read(query).await? {
            let number = |column| row.number(column).map_err(unreadable);
            let (unordered, first, seen) = (number(1)?, number(2)?, number(3)?);
            if unordered + first > 0 {
                due.topics.push(row.text(0).map_err(unreadable)?.to_owned());
            }
            due.crowded |= seen >= WINDOW as i64 && first < BATCH as i64;
        }
        Ok(due)
    }

    async fn next_key(
        &self,
        polling: &Polling,
        after: &str,
    ) -> Result<Option<NextKey>, StoreError> {
        let query = polling
            .topics
            .iter()
            .fold(polling.next_key.query().text(after), |query, topic| {
                query.text(&**topic)
            });
        let rows = self.read(query).await?;
        let next = |row: &DB::Row| {
            Ok(NextKey {
                name: row.text(0).map_err(unreadable)?.to_owned(),
                is_due: row.number(1).map_err(unreadable)? > 0,
            })
        };
        rows.first().map(next).transpose()
    }

    async fn claim(
        &self,
        polling: &Polling,
        topic: &str,
        claim_id: &ClaimId,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        let limit = limit.min(BATCH);
        let query = polling
            .claim
            .query()
            .text(topic)
            .bytes(&claim_id.as_bytes()[..])
            .number(span(lease))
            .number(limit as i64);
        self.claimed(query, claim_id, lease, limit).await
    }

    async fn claim_next(
        &self,
        polling: &Polling,
        ordering_key: &str,
        claim_id: &ClaimId,
        lease: Duration,
    ) -> Result<Option<StoredMessage>, StoreError> {
        let query = polling
            .claim_next
            .query()
            .text(ordering_key)
            .bytes(&claim_id.as_bytes()[..])
            .number(span(lease));
        let query = polling
            .topics
            .iter()
            .fold(query, |query, topic| query.text(&**topic));
        Ok(self.claimed(query, claim_id, lease, 1).await?.pop())
    }

    async fn renew(&self, claimed: MessageLease, lease: Duration) -> Result<bool, StoreError> {
        let query = leased(&self.statements.renew, &claimed);
        self.change(query.number(span(lease))).await
    }

    async fn deliver(
        &self,
        claimed: MessageLease,
        retention: Option<Duration>,
    ) -> Result<bool, StoreError> {
        let query = match retention {
            None => leased(&self.statements.delete, &claimed),
            Some(retention) => leased(&self.statements.deliver, &claimed).number(span(retention)),
        };
        self.change(query).await
    }

    async fn give_back(
        &self,
        claimed: MessageLease,
        pause: Duration,
        error: &str,
    ) -> Result<bool, StoreError> {
        let query = leased(&self.statements.give_back, &claimed);
        self.change(query.number(span(pause)).text(error)).await
    }

    async fn park(&self, claimed: MessageLease, error: &str) -> Result<bool, StoreError> {
        let query = leased(&self.statements.park, &claimed);
        self.change(query.text(error)).await
    }

    async fn attempt(&self, id: i64) -> Result<Option<u32>, StoreError> {
        let rows = self
            .read(self.statements.attempt.query().number(id))
            .await?;
        let attempt = |row: &DB::Row| row.number(0).map_err(unreadable);
        let attempt = rows.first().map(attempt).transpose()?;
        Ok(attempt.map(|attempt| u32::try_from(attempt).unwrap_or(u32::MAX)))
    }

    async fn parked(&self, after: i64, limit: u32) -> Result<Vec<StoredMessage>, StoreError> {
        let query = self.statements.parked.query();
        let rows = self
            .read(query.number(after).number(i64::from(limit)))
            .await?;
        rows.iter().map(stored).collect()
    }

    async fn change_manually(&self, change: &MessageChange<'_>) -> Result<bool, StoreError> {
        let statement = match change.action {
            MessageAction::Requeued => &self.statements.requeue,
            MessageAction::Discarded => &self.statements.discard,
        };
        let entry = as_parked(&self.statements.write_entry, change)
            .text(change.by.actor())
            .text(change.by.reason())
            .text(change.action.as_str());
        self.examine().await?;
        let _turn = self.turn().await;
        DB::run_together(&self.pool, &[entry, as_parked(statement, change)]).await
    }

    async fn audit(
        &self,
        filter: &MessageAuditFilter,
        before: i64,
        limit: u32,
    ) -> Result<Vec<(i64, Result<MessageEntry, StoreError>)>, StoreError> {
        let query = self
            .statements
            .audit
            .query()
            .number(before)
            .text(filter.key.as_deref())
            .text(filter.actor.as_deref())
            .number(filter.within.map(micros))
            .number(i64::from(limit));
        let rows = self.read(query).await?;
        let entries = rows.iter().map(|row| {
            let number = row.number(0).map_err(unreadable)?;
            Ok((number, entry(row)))
        });
        entries.collect()
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        let rows = self.read(self.statements.now.query()).await?;
        let now = rows.first().map(|row| row.number(0).map_err(unreadable));
        let now = now.transpose()?.map(Timestamp::from_micros);
        now.ok_or_else(|| unreadable(sqlx::Error::RowNotFound))
    }

    async fn purge(&self, limit: u32, as_of: Timestamp) -> Result<u64, StoreError> {
        let query = self.statements.purge.query().number(i64::from(limit));
        self.write(query.number(as_of.as_micros())).await
    }

    async fn count(&self) -> Result<BacklogCount, StoreError> {
        let rows = self.read(self.statements.count.query()).await?;
        let mut counted = [0; 3];
        if let Some(row) = rows.first() {
            for (column, count) in counted.iter_mut().enumerate() {
                let number = row.number(column).map_err(unreadable)?;
                *count = number.max(0).cast_unsigned();
            }
        }
        let [waiting, parked, oldest] = counted;
        Ok(BacklogCount {
            waiting,
            parked,
            oldest: Duration::from_micros(oldest),
        })
    }
}

/// Binds parameters 1 and 2 of a manual change.
fn as_parked<'q>(statement: &'q Statement, change: &'q MessageChange<'_>) -> Query<'q> {
    let parked_at = change.parked_at.map(Timestamp::as_micros);
    statement.query().text(change.key).number(parked_at)
}

/// Binds parameters 1 and 2.
fn leased<'q>(statement: &'q Statement, claimed: &'q MessageLease) -> Query<'q> {
    let query = statement.query().number(claimed.id);
    query.bytes(&claimed.claim_id.as_bytes()[..])
}

/// Reads the message in a row of the part `columns` of the statements.
fn stored<R: Readable>(row: &R) -> Result<StoredMessage, StoreError> {
    let text = |column| row.text(column).map(str::to_owned).map_err(unreadable);
    let text_or_null = |column| {
        let text = row.text_or_null(column).map_err(unreadable)?;
        Ok::<_, StoreError>(text.map(str::to_owned))
    };
    let number = |column| row.number(column).map_err(unreadable);
    let parked_at = row.number_or_null(8).map_err(unreadable)?;
    Ok(StoredMessage {
        id: number(0)?,
        key: text(1)?,
        topic: text(2)?,
        ordering_key: text_or_null(3)?,
        payload: text(4)?,
        headers: text_or_null(5)?,
        attempt: u32::try_from(number(6)?).unwrap_or(u32::MAX),
        enqueued_at: Timestamp::from_micros(number(7)?),
        parked_at: parked_at.map(Timestamp::from_micros),
        last_error: text_or_null(9)?,
    })
}

/// Reads an entry of the audit.
fn entry<R: Readable>(row: &R) -> Result<MessageEntry, StoreError> {
    let text = |column| row.text(column).map_err(unreadable);
    let number = |column| row.number(column).map_err(unreadable);
    let ordering_key = row.text_or_null(7).map_err(unreadable)?;
    Ok(MessageEntry {
        at: Timestamp::from_micros(number(1)?),
        change: ManualChange::new(text(2)?, text(3)?).map_err(|_| not_an_entry())?,
        action: MessageAction::from_stored(text(4)?).ok_or_else(not_an_entry)?,
        key: Key::new(text(5)?).map_err(|_| not_an_entry())?,
        topic: text(6)?.to_owned(),
        ordering_key: ordering_key.map(str::to_owned),
        attempts: u32::try_from(number(8)?).unwrap_or(u32::MAX),
        enqueued_at: Timestamp::from_micros(number(9)?),
    })
}

fn not_an_entry() -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        "a row of the audit holds a value that no outbox writes; repair it from a backup or the database's log",
    )
}

fn unreadable(source: sqlx::Error) -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        "a row holds a value of a type that no outbox writes; repair it from a backup or the database's log",
    )
    .with_source(source)
}
