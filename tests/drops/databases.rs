//! Stores in SQL databases, each with a table of charges next to the records.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::FutureExt as _;
use idem_runtime::outbox::Outbox;
use idem_runtime::store::TransactionalStore;
use idem_runtime::{Error, Idem, Key, MySqlStore, PostgresStore, SqliteStore, Store};
use idem_tests::backends::{self, MARIADB, POSTGRES};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{
    AssertSqlSafe, MySql, MySqlConnection, MySqlPool, PgConnection, PgPool, Postgres, Row as _,
    Sqlite, SqliteConnection, SqlitePool,
};
use tempfile::TempDir;

use crate::places::{AnyFixture, CONNECTIONS, ConnectionState, Fixture, Place, handle};
use crate::poll::{Boxed, message};
use crate::trace::Traces;

const TABLE: &str = "CREATE TABLE charges (id VARCHAR(80) NOT NULL, receipt VARCHAR(80) NOT NULL)";

/// Time limit for an answer of a healthy connection on a loaded machine.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Time after which no session may be in a transaction of a client that has gone.
const END_LIMIT: Duration = Duration::from_secs(3);

/// Protocol with which a body sends its statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Text {
    Prepared,
    /// As text. If a user's statement is dropped while MySQL prepares it, the user's connection is out of step with the
    /// server, and only sqlx could repair that.
    Plain,
}

/// Operations of a database that the cases use.
pub(crate) trait Database: TransactionalStore + Sized {
    const NAME: &'static str;
    const NEEDS: Option<&'static str>;
    type Options: Send + Sync;
    type Pool: Clone + Send + Sync + 'static;
    /// A transaction of the caller.
    type Outer: Send;

    /// Creates a database, for tables in the portable form if the store has one.
    fn make(portable: bool) -> impl Future<Output = Result<Self::Options>> + Send;
    fn pool(options: &Self::Options, cached: bool) -> Self::Pool;
    fn on(pool: &Self::Pool) -> Self;
    fn outbox(pool: &Self::Pool) -> Outbox;
    /// Creates all tables.
    fn prepare(pool: &Self::Pool) -> impl Future<Output = Result<()>> + Send;
    /// Migrates the tables of the records to the current version.
    fn migrate_again(&self) -> impl Future<Output = Result<(), idem_runtime::StoreError>> + Send;
    fn close(pool: Self::Pool) -> Boxed<'static, ()>;

    fn begin_outer(
        pool: &Self::Pool,
    ) -> impl Future<Output = Result<Self::Outer, sqlx::Error>> + Send;
    fn connection(outer: &mut Self::Outer) -> &mut Self::Connection;
    fn commit_outer(outer: Self::Outer) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
    fn rollback_outer(outer: Self::Outer) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Makes the effect.
    fn charge(
        connection: &mut Self::Connection,
        key: &str,
        receipt: &str,
        text: Text,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Receipts of the committed effects.
    fn charges(
        pool: &Self::Pool,
        key: &str,
    ) -> impl Future<Output = Result<Vec<String>, sqlx::Error>> + Send;

    /// Number of messages with this key in the outbox.
    fn messages(
        pool: &Self::Pool,
        key: &str,
    ) -> impl Future<Output = Result<i64, sqlx::Error>> + Send;

    fn enqueue(
        connection: &mut Self::Connection,
        outbox: &Outbox,
        topic: &str,
        key: &str,
    ) -> impl Future<Output = Result<Key, Error>> + Send;

    /// Acquires all connections at the same time and queries each, see [`AnyFixture::inspect`].
    fn inspect(pool: Self::Pool, witness: Self::Pool) -> impl Future<Output = Result<u64>> + Send;
}

/// A fixture whose records are in a database, with the pool of that database.
pub(crate) struct DatabaseFixture<S: Database> {
    base: Fixture,
    pub(crate) idem: Idem<S>,
    pub(crate) pool: S::Pool,
    pub(crate) outbox: Outbox,
}

impl<S: Database> DatabaseFixture<S> {
    pub(crate) fn new<F>(
        pool: &S::Pool,
        traces: &Arc<Traces>,
        inspect: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<u64>> + Send + 'static,
    {
        let store: Arc<dyn Store> = Arc::new(S::on(pool));
        Self {
            base: Fixture::new(store, traces, inspect),
            idem: handle(S::on(pool)),
            outbox: S::outbox(pool),
            pool: pool.clone(),
        }
    }
}

impl<S: Database> Clone for DatabaseFixture<S> {
    fn clone(&self) -> Self {
        Self {
            base: self.base.clone(),
            idem: self.idem.clone(),
            pool: self.pool.clone(),
            outbox: self.outbox.clone(),
        }
    }
}

impl<S: Database> AnyFixture for DatabaseFixture<S> {
    fn base(&self) -> &Fixture {
        &self.base
    }

    /// A pool that has permanently lost a connection cannot be closed; its inspection has reported that.
    fn close(&self) -> Boxed<'static, ()> {
        let closing = tokio::time::timeout(ANSWER_LIMIT, S::close(self.pool.clone()));
        Box::pin(async move { drop(closing.await) })
    }
}

/// A dedicated database for one case.
pub(crate) struct InDatabase<S: Database, const PORTABLE: bool> {
    options: S::Options,
    witness: S::Pool,
}

impl<S: Database, const PORTABLE: bool> Place for InDatabase<S, PORTABLE> {
    const NAME: &'static str = match PORTABLE {
        true => "postgres_portable",
        false => S::NAME,
    };
    const NEEDS: Option<&'static str> = S::NEEDS;
    const CONNECTION_STATES: &'static [ConnectionState] = &[
        ConnectionState::Warm,
        ConnectionState::Uncached,
        ConnectionState::Cold,
    ];
    type Fixture = DatabaseFixture<S>;

    async fn open() -> Result<Self> {
        let options = S::make(PORTABLE).await?;
        let witness = S::pool(&options, true);
        S::prepare(&witness).await?;
        Ok(Self { options, witness })
    }

    async fn fixture(
        &self,
        connection_state: ConnectionState,
        traces: &Arc<Traces>,
    ) -> Result<DatabaseFixture<S>> {
        let pool = S::pool(&self.options, connection_state != ConnectionState::Uncached);
        let (asked, witness) = (pool.clone(), self.witness.clone());
        let inspect = move || S::inspect(asked.clone(), witness.clone());
        if connection_state != ConnectionState::Cold {
            inspect().await?;
        }
        Ok(DatabaseFixture::new(&pool, traces, inspect))
    }
}

/// Makes a query that takes no time, and turns each failure into an error, including a panic of the driver.
async fn asked<T>(question: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T> {
    let question = std::panic::AssertUnwindSafe(question).catch_unwind();
    let answer = tokio::time::timeout(ANSWER_LIMIT, question);
    match answer.await {
        Ok(Ok(answer)) => answer.context("a connection of the pool cannot answer"),
        Ok(Err(panic)) => bail!("a connection of the pool panicked: {}", message(&*panic)),
        Err(_) => bail!("a connection of the pool does not answer"),
    }
}

/// Polls until another session counts zero.
async fn until_none<F>(what: &str, count: impl Fn() -> F) -> Result<()>
where
    F: Future<Output = Result<i64, sqlx::Error>>,
{
    let began = Instant::now();
    loop {
        let count = asked(count()).await.context("the witness cannot count")?;
        if count == 0 {
            return Ok(());
        }
        ensure!(began.elapsed() < END_LIMIT, "{count} {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

macro_rules! database {
    (
        $store:ident, $database:ident, $pool:ty, $pool_options:ident, $connection:ty, $options:ty, $name:literal,
        $needs:expr, $insert:literal, $select:literal, $messages:literal, $echo:literal, $session:literal, $seen:ident
    ) => {
        const NAME: &'static str = $name;
        const NEEDS: Option<&'static str> = $needs;
        type Pool = $pool;
        type Outer = sqlx::Transaction<'static, $database>;

        fn on(pool: &$pool) -> Self {
            Self::new(pool.clone())
        }

        fn outbox(pool: &$pool) -> Outbox {
            Outbox::new(pool.clone())
        }

        async fn prepare(pool: &$pool) -> Result<()> {
            Self::new(pool.clone()).migrate().await?;
            Outbox::new(pool.clone()).migrate().await?;
            sqlx::query(TABLE).execute(pool).await?;
            Ok(())
        }

        async fn migrate_again(&self) -> Result<(), idem_runtime::StoreError> {
            self.migrate().await
        }

        fn close(pool: $pool) -> Boxed<'static, ()> {
            Box::pin(async move { pool.close().await })
        }

        async fn begin_outer(pool: &$pool) -> Result<Self::Outer, sqlx::Error> {
            pool.begin().await
        }

        fn connection(outer: &mut Self::Outer) -> &mut $connection {
            outer
        }

        async fn commit_outer(outer: Self::Outer) -> Result<(), sqlx::Error> {
            outer.commit().await
        }

        async fn rollback_outer(outer: Self::Outer) -> Result<(), sqlx::Error> {
            outer.rollback().await
        }

        async fn charge(
            connection: &mut $connection,
            key: &str,
            receipt: &str,
            text: Text,
        ) -> Result<(), sqlx::Error> {
            match text {
                Text::Prepared => {
                    let insert = sqlx::query($insert).bind(key).bind(receipt);
                    insert.execute(connection).await.map(drop)
                }
                Text::Plain => {
                    let insert = format!("INSERT INTO charges VALUES ('{key}', '{receipt}')");
                    let insert = sqlx::raw_sql(AssertSqlSafe(insert));
                    insert.execute(connection).await.map(drop)
                }
            }
        }

        async fn charges(pool: &$pool, key: &str) -> Result<Vec<String>, sqlx::Error> {
            sqlx::query_scalar($select).bind(key).fetch_all(pool).await
        }

        async fn messages(pool: &$pool, key: &str) -> Result<i64, sqlx::Error> {
            sqlx::query_scalar($messages)
                .bind(key)
                .fetch_one(pool)
                .await
        }

        async fn enqueue(
            connection: &mut $connection,
            outbox: &Outbox,
            topic: &str,
            key: &str,
        ) -> Result<Key, Error> {
            let message = outbox.message(topic, "charged").key(key);
            message.enqueue(connection).await
        }

        async fn inspect(pool: $pool, witness: $pool) -> Result<u64> {
            let mut lent = Vec::new();
            for n in 0..CONNECTIONS {
                let acquired = asked(pool.acquire()).await;
                lent.push(
                    acquired.with_context(|| format!("only {n} connections can be acquired"))?,
                );
            }
            let mut sessions = Vec::new();
            for (n, connection) in (0_i64..).zip(&mut lent) {
                let echo = sqlx::query_scalar::<_, i64>($echo).bind(n);
                let answer = asked(echo.fetch_one(&mut **connection)).await?;
                ensure!(answer == n, "a connection answered {answer} to SELECT {n}");
                let session = sqlx::query_scalar::<_, i64>($session);
                sessions.push(asked(session.fetch_one(&mut **connection)).await?);
            }
            $seen(&mut lent, sessions, &witness).await?;
            Ok(lent.len() as u64)
        }
    };
}

impl Database for SqliteStore {
    database!(
        SqliteStore,
        Sqlite,
        SqlitePool,
        SqlitePoolOptions,
        SqliteConnection,
        SqliteConnectOptions,
        "sqlite",
        None,
        "INSERT INTO charges VALUES (?1, ?2)",
        "SELECT receipt FROM charges WHERE id = ?1",
        "SELECT count(*) FROM idem_outbox WHERE message_key = ?1",
        "SELECT CAST(?1 AS INTEGER)",
        "SELECT 0",
        none_writes_on_sqlite
    );

    type Options = (SqliteConnectOptions, TempDir);

    async fn make(_: bool) -> Result<Self::Options> {
        let directory = tempfile::tempdir()?;
        let options = Self::connect_options(directory.path().join("drops.db"));
        Ok((options, directory))
    }

    fn pool(options: &Self::Options, cached: bool) -> SqlitePool {
        let (options, _) = options;
        let options = match cached {
            true => options.clone(),
            false => options.clone().statement_cache_capacity(0),
        };
        SqlitePoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(ANSWER_LIMIT)
            .connect_lazy_with(options)
    }
}

impl Database for PostgresStore {
    database!(
        PostgresStore,
        Postgres,
        PgPool,
        PgPoolOptions,
        PgConnection,
        PgConnectOptions,
        "postgres",
        Some(POSTGRES),
        "INSERT INTO charges VALUES ($1, $2)",
        "SELECT receipt FROM charges WHERE id = $1",
        "SELECT count(*) FROM idem_outbox WHERE message_key = $1",
        "SELECT $1::BIGINT",
        "SELECT pg_backend_pid()::BIGINT",
        none_is_in_a_transaction_of_postgres
    );

    type Options = PgConnectOptions;

    async fn make(portable: bool) -> Result<PgConnectOptions> {
        let pool = match portable {
            true => backends::postgres_portable().await?,
            false => backends::postgres().await?,
        };
        let options = (*pool.connect_options()).clone();
        pool.close().await;
        Ok(options)
    }

    fn pool(options: &PgConnectOptions, cached: bool) -> PgPool {
        let options = match cached {
            true => options.clone(),
            false => options.clone().statement_cache_capacity(0),
        };
        PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(ANSWER_LIMIT)
            .connect_lazy_with(options)
    }
}

impl Database for MySqlStore {
    database!(
        MySqlStore,
        MySql,
        MySqlPool,
        MySqlPoolOptions,
        MySqlConnection,
        MySqlConnectOptions,
        "mysql",
        Some(MARIADB),
        "INSERT INTO charges VALUES (?, ?)",
        "SELECT receipt FROM charges WHERE id = ?",
        "SELECT count(*) FROM idem_outbox WHERE message_key = ?",
        "SELECT CAST(? AS SIGNED)",
        "SELECT CAST(CONNECTION_ID() AS SIGNED)",
        none_is_in_a_transaction_of_mysql
    );

    type Options = MySqlConnectOptions;

    async fn make(_: bool) -> Result<MySqlConnectOptions> {
        let pool = backends::mariadb().await?;
        let options = (*pool.connect_options()).clone();
        pool.close().await;
        Ok(options)
    }

    fn pool(options: &MySqlConnectOptions, cached: bool) -> MySqlPool {
        let options = match cached {
            true => options.clone(),
            false => options.clone().statement_cache_capacity(0),
        };
        MySqlPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(ANSWER_LIMIT)
            .connect_lazy_with(options)
    }
}

/// SQLite rejects a BEGIN on a connection that is in a transaction, and a writer while another connection writes.
async fn none_writes_on_sqlite(
    lent: &mut [sqlx::pool::PoolConnection<Sqlite>],
    _: Vec<i64>,
    witness: &SqlitePool,
) -> Result<()> {
    for connection in lent {
        for statement in ["BEGIN", "ROLLBACK"] {
            let done = sqlx::raw_sql(statement).execute(&mut **connection);
            asked(done)
                .await
                .context("a connection refuses BEGIN, it may be in a transaction")?;
        }
    }
    let write = async {
        let transaction = witness.begin_with("BEGIN IMMEDIATE").await?;
        transaction.rollback().await
    };
    asked(write)
        .await
        .context("another connection cannot write")
}

async fn none_is_in_a_transaction_of_postgres(
    _: &mut [sqlx::pool::PoolConnection<Postgres>],
    sessions: Vec<i64>,
    witness: &PgPool,
) -> Result<()> {
    until_none("pooled connections are in a transaction", || {
        let seen = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY($1) AND (xact_start IS NOT NULL OR state <> 'idle')",
        );
        seen.bind(&sessions).fetch_one(witness)
    })
    .await
}

/// Only its own session sees a transaction that has not used a table yet, and only MariaDB reports it.
async fn none_is_in_a_transaction_of_mysql(
    lent: &mut [sqlx::pool::PoolConnection<MySql>],
    sessions: Vec<i64>,
    witness: &MySqlPool,
) -> Result<()> {
    let version = sqlx::query_scalar::<_, String>("SELECT CAST(VERSION() AS CHAR)");
    if asked(version.fetch_one(witness)).await?.contains("MariaDB") {
        for connection in lent {
            let inside = sqlx::query_scalar::<_, i64>("SELECT CAST(@@in_transaction AS SIGNED)");
            let inside = asked(inside.fetch_one(&mut **connection)).await?;
            ensure!(inside == 0, "a pooled connection is in a transaction");
        }
    }
    // The table `innodb_trx` is a cache that is not refreshed while clients keep reading it.
    until_none(
        "pooled connections are in a transaction of InnoDB",
        async || {
            let status = sqlx::raw_sql("SHOW ENGINE INNODB STATUS");
            let row = status.fetch_one(witness).await?;
            let status: String = row.try_get("Status")?;
            let inside = active_sessions(&status);
            let ours = inside.filter(|it| sessions.contains(it));
            Ok(ours.count() as i64)
        },
    )
    .await
}

/// Sessions whose transactions InnoDB calls active.
fn active_sessions(status: &str) -> impl Iterator<Item = i64> {
    let transactions = status.split("---TRANSACTION ").skip(1);
    let active =
        transactions.filter(|it| it.lines().next().is_some_and(|it| it.contains("ACTIVE")));
    active.filter_map(|it| {
        let (_, session) = it.split_once("thread id ")?;
        session.split_once(',')?.0.parse().ok()
    })
}
