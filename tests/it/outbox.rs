//! The outbox, on every database: enqueuing, delivery, failures and crashes.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use idem_runtime::outbox::{Message, NewMessage, Outbox, OutboxChanges, Relay};
use idem_runtime::store::ManualChange;
use idem_runtime::{Error, Key, SqliteStore};
use idem_tests::backends;
use serde::{Deserialize, Serialize};
use sqlx::{
    AssertSqlSafe, MySql, MySqlPool, PgPool, Postgres, Row, Sqlite, SqlitePool, Transaction,
};
use tempfile::TempDir;

mod backlog;
mod by_hand;
mod console;
mod crashes;
mod enqueuing;
mod failures;
mod hanging;
mod order;
mod payloads;
mod relays;
mod sequences;
mod tables;

/// Runs each case on every database.
macro_rules! on_every_database {
    ($($case:ident),* $(,)?) => {
        mod sqlite {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $case() {
                    super::$case(crate::outbox::Database::sqlite().await).await;
                }
            )*
        }

        mod postgres {
            $(
                #[tokio::test(flavor = "multi_thread")]
                #[ignore = "needs PostgreSQL: cargo xtask test runs it"]
                async fn $case() {
                    super::$case(crate::outbox::Database::postgres().await).await;
                }
            )*
        }

        mod mysql {
            $(
                #[tokio::test(flavor = "multi_thread")]
                #[ignore = "needs MySQL or MariaDB: cargo xtask test runs it"]
                async fn $case() {
                    super::$case(crate::outbox::Database::mysql().await).await;
                }
            )*
        }
    };
}
use on_every_database;

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
    _directory: Option<TempDir>,
}

enum Pool {
    Sqlite(SqlitePool),
    Postgres(PgPool),
    MySql(MySqlPool),
}

enum Tx {
    Sqlite(Transaction<'static, Sqlite>),
    Postgres(Transaction<'static, Postgres>),
    MySql(Transaction<'static, MySql>),
}

impl Database {
    async fn sqlite() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = SqliteStore::connect_options(directory.path().join("outbox.db"))
            .synchronous(sqlx::sqlite::SqliteSynchronous::Off);
        let pool = SqlitePool::connect_with(options).await.unwrap();
        let outbox = Outbox::new(pool.clone());
        Self::migrated(Pool::Sqlite(pool), outbox, Some(directory)).await
    }

    async fn postgres() -> Self {
        let pool = backends::postgres().await.unwrap();
        let outbox = Outbox::new(pool.clone());
        Self::migrated(Pool::Postgres(pool), outbox, None).await
    }

    async fn mysql() -> Self {
        let pool = backends::mariadb().await.unwrap();
        let outbox = Outbox::new(pool.clone());
        Self::migrated(Pool::MySql(pool), outbox, None).await
    }

    async fn migrated(pool: Pool, outbox: Outbox, directory: Option<TempDir>) -> Self {
        outbox.migrate().await.unwrap();
        Self {
            pool,
            outbox,
            change: ManualChange::new("ann", "a test").unwrap(),
            _directory: directory,
        }
    }

    /// Changes of messages by an operator.
    fn by_hand(&self) -> OutboxChanges<'_> {
        self.outbox.by(&self.change)
    }

    async fn begin(&self) -> Tx {
        match &self.pool {
            Pool::Sqlite(pool) => Tx::Sqlite(pool.begin_with("BEGIN IMMEDIATE").await.unwrap()),
            Pool::Postgres(pool) => Tx::Postgres(pool.begin().await.unwrap()),
            Pool::MySql(pool) => Tx::MySql(pool.begin().await.unwrap()),
        }
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
        tx.commit().await;
        Ok(key)
    }

    async fn execute(&self, statement: &str) {
        let statement = AssertSqlSafe(statement.to_owned());
        let done = match &self.pool {
            Pool::Sqlite(pool) => sqlx::raw_sql(statement).execute(pool).await.map(drop),
            Pool::Postgres(pool) => sqlx::raw_sql(statement).execute(pool).await.map(drop),
            Pool::MySql(pool) => sqlx::raw_sql(statement).execute(pool).await.map(drop),
        };
        done.unwrap();
    }

    async fn number(&self, statement: &str) -> i64 {
        let statement = AssertSqlSafe(statement.to_owned());
        let number = match &self.pool {
            Pool::Sqlite(pool) => sqlx::query_scalar(statement).fetch_one(pool).await,
            Pool::Postgres(pool) => sqlx::query_scalar(statement).fetch_one(pool).await,
            Pool::MySql(pool) => sqlx::query_scalar(statement).fetch_one(pool).await,
        };
        number.unwrap()
    }

    /// All texts in the result of the last of these statements.
    async fn texts(&self, statements: &str) -> Vec<String> {
        fn of<R: Row>(rows: &[R]) -> Vec<String>
        where
            usize: sqlx::ColumnIndex<R>,
            for<'r> String: sqlx::Decode<'r, R::Database> + sqlx::Type<R::Database>,
        {
            let columns = |row: &R| -> Vec<String> {
                (0..row.len())
                    .filter_map(|at| row.try_get(at).ok())
                    .collect()
            };
            rows.iter().flat_map(columns).collect()
        }
        let statements = AssertSqlSafe(statements.to_owned());
        match &self.pool {
            Pool::Sqlite(pool) => of(&sqlx::raw_sql(statements).fetch_all(pool).await.unwrap()),
            Pool::Postgres(pool) => of(&sqlx::raw_sql(statements).fetch_all(pool).await.unwrap()),
            Pool::MySql(pool) => of(&sqlx::raw_sql(statements).fetch_all(pool).await.unwrap()),
        }
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

impl Tx {
    async fn enqueue<T: Serialize + Sync + ?Sized>(
        &mut self,
        message: NewMessage<'_, T>,
    ) -> Result<Key, Error> {
        match self {
            Self::Sqlite(tx) => message.enqueue(&mut **tx).await,
            Self::Postgres(tx) => message.enqueue(&mut **tx).await,
            Self::MySql(tx) => message.enqueue(&mut **tx).await,
        }
    }

    async fn commit(self) {
        match self {
            Self::Sqlite(tx) => tx.commit().await,
            Self::Postgres(tx) => tx.commit().await,
            Self::MySql(tx) => tx.commit().await,
        }
        .unwrap();
    }

    async fn rollback(self) {
        match self {
            Self::Sqlite(tx) => tx.rollback().await,
            Self::Postgres(tx) => tx.rollback().await,
            Self::MySql(tx) => tx.rollback().await,
        }
        .unwrap();
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

async fn until(mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "it never came true"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
