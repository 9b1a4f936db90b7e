//! Stores in SQL databases, each with a ledger next to the records.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::FutureExt as _;
use idem_runtime::operator::OperatorStore;
use idem_runtime::outbox::Outbox;
use idem_runtime::{Idem, MySqlStore, PostgresStore, SqliteStore, Store};
use idem_tests::ledger;
use idem_tests::sql::Sql;
use sqlx::{MySql, MySqlPool, PgPool, Postgres, Row as _, Sqlite, SqlitePool};

use crate::origins::{AnyFixture, CONNECTIONS, ConnectionState, Fixture, Origin, Place, handle};
use crate::poll::{Boxed, message};
use crate::trace::Traces;

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
pub(crate) trait Database: Sql + OperatorStore {
    /// Statement that answers a number.
    const ECHO: &'static str;
    /// Statement that answers the number of its session.
    const SESSION: &'static str;

    /// Checks that none of these connections is in a transaction, by their sessions.
    fn none_is_in_a_transaction(
        lent: &mut [Self::Lent],
        sessions: Vec<i64>,
        witness: &Self::Pool,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Creates all tables.
    fn prepare(pool: &Self::Pool) -> impl Future<Output = Result<()>> + Send {
        async move {
            ledger::Database::make_ledger(&Self::over(pool), pool).await?;
            Self::outbox(pool).migrate().await?;
            Ok(())
        }
    }

    /// Makes the effect.
    fn charge(
        connection: &mut Self::Connection,
        key: &str,
        receipt: &str,
        text: Text,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        async move {
            match text {
                Text::Prepared => {
                    let insert = "INSERT INTO ledger (charge, receipt) VALUES (?, ?)";
                    Self::run(connection, insert, &[key.into(), receipt.into()]).await
                }
                Text::Plain => {
                    let values = format!("('{key}', '{receipt}')");
                    let insert = format!("INSERT INTO ledger (charge, receipt) VALUES {values}");
                    Self::text(connection, &insert).await
                }
            }
        }
    }

    /// Receipts of the committed effects.
    fn charges(
        pool: &Self::Pool,
        key: &str,
    ) -> impl Future<Output = Result<Vec<String>, sqlx::Error>> + Send {
        let select = "SELECT receipt FROM ledger WHERE charge = ?";
        async move { Self::texts(pool, select, &[key.into()]).await }
    }

    /// Number of messages with this key in the outbox.
    fn messages(
        pool: &Self::Pool,
        key: &str,
    ) -> impl Future<Output = Result<i64, sqlx::Error>> + Send {
        let count = "SELECT count(*) FROM idem_outbox WHERE message_key = ?";
        async move { Self::number(pool, count, &[key.into()]).await }
    }

    /// Acquires all connections at the same time and queries each, see [`AnyFixture::inspect`].
    fn inspect(pool: Self::Pool, witness: Self::Pool) -> impl Future<Output = Result<u64>> + Send {
        async move {
            let mut lent = Vec::new();
            for n in 0..CONNECTIONS {
                let acquired = asked(Self::acquire(&pool)).await;
                lent.push(
                    acquired.with_context(|| format!("only {n} connections can be acquired"))?,
                );
            }
            let mut sessions = Vec::new();
            for (n, connection) in (0_i64..).zip(&mut lent) {
                let connection = Self::lent(connection);
                let answer = asked(Self::ask(connection, Self::ECHO, &[n.into()])).await?;
                ensure!(answer == n, "a connection answered {answer} to SELECT {n}");
                sessions.push(asked(Self::ask(connection, Self::SESSION, &[])).await?);
            }
            Self::none_is_in_a_transaction(&mut lent, sessions, &witness).await?;
            Ok(lent.len() as u64)
        }
    }
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
        let store: Arc<dyn Store> = Arc::new(S::over(pool));
        Self {
            base: Fixture::new(store, traces, inspect),
            idem: handle(S::over(pool)),
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
pub(crate) struct InDatabase<S: Database> {
    options: S::Options,
    witness: S::Pool,
}

impl<S: Database> Place for InDatabase<S> {
    type Store = S;
    type Fixture = DatabaseFixture<S>;

    async fn open(origin: &Origin<S>) -> Result<Self> {
        let home = origin.home().await?;
        let options = S::options(&home);
        S::close(home).await;
        let witness = S::pool(&options, CONNECTIONS, true);
        S::prepare(&witness).await?;
        Ok(Self { options, witness })
    }

    fn connection_states(&self) -> &'static [ConnectionState] {
        &[
            ConnectionState::Warm,
            ConnectionState::Uncached,
            ConnectionState::Cold,
        ]
    }

    async fn fixture(
        &self,
        connection_state: ConnectionState,
        traces: &Arc<Traces>,
    ) -> Result<DatabaseFixture<S>> {
        let cached = connection_state != ConnectionState::Uncached;
        let pool = S::pool(&self.options, CONNECTIONS, cached);
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

impl Database for SqliteStore {
    const ECHO: &'static str = "SELECT CAST(? AS INTEGER)";
    const SESSION: &'static str = "SELECT 0";

    /// SQLite rejects a BEGIN on a connection that is in a transaction, and a writer while another connection writes.
    async fn none_is_in_a_transaction(
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
}

impl Database for PostgresStore {
    const ECHO: &'static str = "SELECT ?::BIGINT";
    const SESSION: &'static str = "SELECT pg_backend_pid()::BIGINT";

    async fn none_is_in_a_transaction(
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
}

impl Database for MySqlStore {
    const ECHO: &'static str = "SELECT CAST(? AS SIGNED)";
    const SESSION: &'static str = "SELECT CAST(CONNECTION_ID() AS SIGNED)";

    /// Only its own session sees a transaction that has not used a table yet, and only MariaDB reports it.
    async fn none_is_in_a_transaction(
        lent: &mut [sqlx::pool::PoolConnection<MySql>],
        sessions: Vec<i64>,
        witness: &MySqlPool,
    ) -> Result<()> {
        let version = sqlx::query_scalar::<_, String>("SELECT CAST(VERSION() AS CHAR)");
        if asked(version.fetch_one(witness)).await?.contains("MariaDB") {
            for connection in lent {
                let inside =
                    sqlx::query_scalar::<_, i64>("SELECT CAST(@@in_transaction AS SIGNED)");
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
