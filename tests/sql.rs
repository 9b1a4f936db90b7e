//! SQL databases as the tests use them: the store in each, and the statements of a test beside it.

use std::fmt::Debug;
use std::time::Duration;

use anyhow::Context as _;
use idem_runtime::outbox::{NewMessage, Outbox};
use idem_runtime::store::TransactionalStore;
use idem_runtime::{Error, Key, MySqlStore, PostgresStore, SqliteStore};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, MySql, MySqlConnection, MySqlPool, PgConnection, PgPool,
    Postgres, Row, Sqlite, SqliteConnection, SqlitePool, Transaction,
};

/// Longest wait for a connection.
pub(crate) const CONNECTED_WITHIN: Duration = Duration::from_secs(30);

/// A value in a statement.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// A text.
    Text(&'a str),
    /// A number.
    Number(i64),
    /// A number that is missing.
    Null,
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Value<'_> {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

/// A store in an SQL database, and the database itself. A `?` in a statement stands for a value.
pub trait Sql: TransactionalStore + Clone + Sized {
    /// The statement with which a session ends itself, if there is a server.
    const END_SESSION: Option<&'static str>;

    /// Connections to the database.
    type Pool: Clone + Debug + Send + Sync + 'static;
    /// Settings of a connection.
    type Options: Clone + Send + Sync + 'static;
    /// A transaction of the test.
    type Outer: Send;
    /// A connection outside of a transaction.
    type Lent: Send;

    /// Creates a store on these connections.
    fn over(pool: &Self::Pool) -> Self;

    /// Creates the tables of the store.
    fn create_tables(&self) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Creates an outbox on these connections.
    fn outbox(pool: &Self::Pool) -> Outbox;

    /// The connections without their type.
    fn any(pool: &Self::Pool) -> AnyPool;

    /// The settings of a connection to this [address](crate::backends::open).
    ///
    /// # Errors
    ///
    /// The address is not one of such a database.
    fn options_at(address: &str) -> anyhow::Result<Self::Options>;

    /// The store without named statements, which it cannot use behind PgBouncer in transaction mode.
    fn unprepared(self) -> Self {
        self
    }

    /// The settings of these connections.
    fn options(pool: &Self::Pool) -> Self::Options;

    /// Turns off what an application may have turned off: SQLite's foreign keys, a setting of each connection.
    fn without_help(options: Self::Options) -> Self::Options;

    /// Opens other connections to the database. Without a cache, a connection prepares each statement each time.
    fn pool(options: &Self::Options, connections: u32, cached: bool) -> Self::Pool {
        Self::pool_within(options, connections, cached, CONNECTED_WITHIN)
    }

    /// Opens other connections to the database, which are acquired within this time.
    fn pool_within(
        options: &Self::Options,
        connections: u32,
        cached: bool,
        acquired: Duration,
    ) -> Self::Pool;

    /// Opens other connections to the database, which are not pinged before they are used.
    fn pool_without_pings(options: &Self::Options, connections: u32) -> Self::Pool;

    /// Closes the connections.
    fn close(pool: Self::Pool) -> impl Future<Output = ()> + Send;

    /// Begins a transaction of the test.
    fn begin_outer(
        pool: &Self::Pool,
    ) -> impl Future<Output = Result<Self::Outer, sqlx::Error>> + Send;

    /// The connection of a transaction of the test.
    fn connection(outer: &mut Self::Outer) -> &mut Self::Connection;

    /// Commits a transaction of the test.
    fn commit_outer(outer: Self::Outer) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Rolls a transaction of the test back.
    fn rollback_outer(outer: Self::Outer) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Acquires a connection.
    fn acquire(pool: &Self::Pool) -> impl Future<Output = Result<Self::Lent, sqlx::Error>> + Send;

    /// A connection that was acquired.
    fn lent(lent: &mut Self::Lent) -> &mut Self::Connection;

    /// Runs a prepared statement.
    fn run(
        connection: &mut Self::Connection,
        statement: &str,
        values: &[Value<'_>],
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Runs a prepared statement, which has no name where a pooler may share the connection. Elsewhere it keeps its name:
    /// MySQL's connection would hang if the caller dropped one of many preparations.
    fn run_unnamed(
        connection: &mut Self::Connection,
        statement: &str,
        values: &[Value<'_>],
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        Self::run(connection, statement, values)
    }

    /// Reads a number with a prepared statement on this connection.
    fn ask(
        connection: &mut Self::Connection,
        statement: &str,
        values: &[Value<'_>],
    ) -> impl Future<Output = Result<i64, sqlx::Error>> + Send;

    /// Sends statements as text.
    fn text(
        connection: &mut Self::Connection,
        statements: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Reads a number with a prepared statement.
    fn number(
        pool: &Self::Pool,
        statement: &str,
        values: &[Value<'_>],
    ) -> impl Future<Output = Result<i64, sqlx::Error>> + Send;

    /// Reads a column of texts with a prepared statement.
    fn texts(
        pool: &Self::Pool,
        statement: &str,
        values: &[Value<'_>],
    ) -> impl Future<Output = Result<Vec<String>, sqlx::Error>> + Send;

    /// Enqueues a message in the transaction of this connection.
    fn enqueue<T: serde::Serialize + Sync + ?Sized>(
        connection: &mut Self::Connection,
        message: NewMessage<'_, T>,
    ) -> impl Future<Output = Result<Key, Error>> + Send;
}

/// Writes the placeholders of PostgreSQL.
fn numbered(statement: &str) -> String {
    let mut parts = statement.split('?');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.zip(1..).fold(first, |text, (part, number)| {
        format!("{text}${number}{part}")
    })
}

macro_rules! bound {
    ($query:expr, $values:expr) => {
        $values.iter().fold($query, |query, value| match value {
            Value::Text(text) => query.bind((*text).to_owned()),
            Value::Number(number) => query.bind(*number),
            Value::Null => query.bind(None::<i64>),
        })
    };
}

macro_rules! sql {
    (
        $store:ident, $any:ident, $pool:ident, $pool_options:ident, $options:ty, $connection:ident,
        $database:ident, $placeholders:expr, $without_help:expr, $end_session:expr,
        |$address:ident| $options_at:expr $(, $own:item)*
    ) => {
        impl Sql for $store {
            const END_SESSION: Option<&'static str> = $end_session;

            type Pool = $pool;
            type Options = $options;
            type Outer = Transaction<'static, $database>;
            type Lent = sqlx::pool::PoolConnection<$database>;

            fn over(pool: &$pool) -> Self {
                Self::new(pool.clone())
            }

            async fn create_tables(&self) -> anyhow::Result<()> {
                Ok(self.migrate().await?)
            }

            fn outbox(pool: &$pool) -> Outbox {
                Outbox::new(pool.clone())
            }

            fn any(pool: &$pool) -> AnyPool {
                AnyPool::$any(pool.clone())
            }

            fn options_at($address: &str) -> anyhow::Result<$options> {
                $options_at
            }

            $($own)*

            fn options(pool: &$pool) -> $options {
                (*pool.connect_options()).clone()
            }

            fn without_help(options: $options) -> $options {
                $without_help(options)
            }

            fn pool_within(
                options: &$options,
                connections: u32,
                cached: bool,
                acquired: Duration,
            ) -> $pool {
                let options = match cached {
                    true => options.clone(),
                    false => options.clone().statement_cache_capacity(0),
                };
                $pool_options::new()
                    .max_connections(connections)
                    .acquire_timeout(acquired)
                    .connect_lazy_with(options)
            }

            fn pool_without_pings(options: &$options, connections: u32) -> $pool {
                $pool_options::new()
                    .max_connections(connections)
                    .acquire_timeout(CONNECTED_WITHIN)
                    .test_before_acquire(false)
                    .connect_lazy_with(options.clone())
            }

            async fn close(pool: $pool) {
                pool.close().await;
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

            async fn acquire(pool: &$pool) -> Result<Self::Lent, sqlx::Error> {
                pool.acquire().await
            }

            fn lent(lent: &mut Self::Lent) -> &mut $connection {
                lent
            }

            async fn run(
                connection: &mut $connection,
                statement: &str,
                values: &[Value<'_>],
            ) -> Result<(), sqlx::Error> {
                let query = sqlx::query(AssertSqlSafe($placeholders(statement)));
                bound!(query, values).execute(connection).await.map(drop)
            }

            async fn ask(
                connection: &mut $connection,
                statement: &str,
                values: &[Value<'_>],
            ) -> Result<i64, sqlx::Error> {
                let query = sqlx::query_scalar(AssertSqlSafe($placeholders(statement)));
                bound!(query, values).fetch_one(connection).await
            }

            async fn text(
                connection: &mut $connection,
                statements: &str,
            ) -> Result<(), sqlx::Error> {
                let statements = sqlx::raw_sql(AssertSqlSafe(statements.to_owned()));
                statements.execute(connection).await.map(drop)
            }

            async fn number(
                pool: &$pool,
                statement: &str,
                values: &[Value<'_>],
            ) -> Result<i64, sqlx::Error> {
                let query = sqlx::query_scalar(AssertSqlSafe($placeholders(statement)));
                bound!(query, values).fetch_one(pool).await
            }

            async fn texts(
                pool: &$pool,
                statement: &str,
                values: &[Value<'_>],
            ) -> Result<Vec<String>, sqlx::Error> {
                let query = sqlx::query_scalar(AssertSqlSafe($placeholders(statement)));
                bound!(query, values).fetch_all(pool).await
            }

            async fn enqueue<T: serde::Serialize + Sync + ?Sized>(
                connection: &mut $connection,
                message: NewMessage<'_, T>,
            ) -> Result<Key, Error> {
                message.enqueue(connection).await
            }
        }
    };
}

sql!(
    SqliteStore,
    Sqlite,
    SqlitePool,
    SqlitePoolOptions,
    SqliteConnectOptions,
    SqliteConnection,
    Sqlite,
    str::to_owned,
    |options: SqliteConnectOptions| options.foreign_keys(false),
    None,
    |address| {
        let path = address.trim_start_matches("sqlite://");
        Ok(Self::connect_options(path))
    }
);
sql!(
    PostgresStore,
    Postgres,
    PgPool,
    PgPoolOptions,
    PgConnectOptions,
    PgConnection,
    Postgres,
    numbered,
    std::convert::identity,
    Some("SELECT pg_terminate_backend(pg_backend_pid())"),
    |address| match address.strip_prefix("pgbouncer://") {
        None => Ok(address.parse()?),
        Some(rest) => {
            let options: PgConnectOptions = format!("postgres://{rest}").parse()?;
            Ok(options.extra_float_digits(None))
        }
    },
    fn unprepared(self) -> Self {
        self.without_prepared_statements()
    },
    async fn run_unnamed(
        connection: &mut PgConnection,
        statement: &str,
        values: &[Value<'_>],
    ) -> Result<(), sqlx::Error> {
        let query = sqlx::query(AssertSqlSafe(numbered(statement)));
        let query = bound!(query.persistent(false), values);
        query.execute(connection).await.map(drop)
    }
);
sql!(
    MySqlStore,
    MySql,
    MySqlPool,
    MySqlPoolOptions,
    MySqlConnectOptions,
    MySqlConnection,
    MySql,
    str::to_owned,
    std::convert::identity,
    Some("KILL CONNECTION_ID()"),
    |address| Ok(address.parse()?)
);

/// Runs code with the type of the SQL store at an [address](crate::backends::open), or other code if its store is none.
///
/// ```ignore
/// at_database!(&address, S => work_on::<S>(&address).await?, else work_plainly().await?)
/// ```
#[macro_export]
macro_rules! at_database {
    ($address:expr, $store:ident => $then:expr, else $otherwise:expr) => {
        match $address.split(':').next() {
            Some("sqlite") => {
                type $store = idem_runtime::SqliteStore;
                $then
            }
            Some("postgres" | "pgbouncer") => {
                type $store = idem_runtime::PostgresStore;
                $then
            }
            Some("mysql") => {
                type $store = idem_runtime::MySqlStore;
                $then
            }
            _ => $otherwise,
        }
    };
}

/// Statement after which all recovery inputs are due.
pub const INPUTS_DUE: &str = "UPDATE idem_records_recovery SET recover_after = 1";

/// Connections to a database of any kind, for tests that write in its dialect.
#[derive(Debug, Clone)]
pub enum AnyPool {
    /// SQLite.
    Sqlite(SqlitePool),
    /// PostgreSQL.
    Postgres(PgPool),
    /// MySQL or MariaDB.
    MySql(MySqlPool),
}

/// A transaction in a database of any kind. One of SQLite has its write lock from the beginning.
#[derive(Debug)]
pub enum AnyTransaction {
    /// SQLite.
    Sqlite(Transaction<'static, Sqlite>),
    /// PostgreSQL.
    Postgres(Transaction<'static, Postgres>),
    /// MySQL or MariaDB.
    MySql(Transaction<'static, MySql>),
}

/// Does the same in each kind of database.
macro_rules! in_each {
    ($any:expr, $kind:ident($it:ident) => $then:expr) => {
        match $any {
            $kind::Sqlite($it) => $then,
            $kind::Postgres($it) => $then,
            $kind::MySql($it) => $then,
        }
    };
}

impl AnyPool {
    /// URL of the database, which may contain a password.
    pub fn url(&self) -> String {
        match self {
            Self::Sqlite(pool) => {
                let options = pool.connect_options();
                format!("sqlite://{}", options.get_filename().display())
            }
            Self::Postgres(pool) => pool.connect_options().to_url_lossy().into(),
            Self::MySql(pool) => pool.connect_options().to_url_lossy().into(),
        }
    }

    /// Begins a transaction.
    ///
    /// # Errors
    ///
    /// The database refuses.
    pub async fn begin(&self) -> anyhow::Result<AnyTransaction> {
        Ok(match self {
            Self::Sqlite(pool) => AnyTransaction::Sqlite(pool.begin_with("BEGIN IMMEDIATE").await?),
            Self::Postgres(pool) => AnyTransaction::Postgres(pool.begin().await?),
            Self::MySql(pool) => AnyTransaction::MySql(pool.begin().await?),
        })
    }

    /// Closes the connections, once none of them is in use.
    pub async fn close(&self) {
        in_each!(self, AnyPool(pool) => pool.close().await);
    }

    /// Begins a transaction on a connection, and leaves it open there. sqlx does not know of it.
    ///
    /// # Errors
    ///
    /// The connection may have such a transaction already.
    pub async fn leave_open(&self) -> anyhow::Result<()> {
        self.execute("BEGIN").await
    }

    /// Runs statements.
    ///
    /// # Errors
    ///
    /// A statement fails.
    pub async fn execute(&self, statements: &str) -> anyhow::Result<()> {
        let sql = sqlx::raw_sql(AssertSqlSafe(statements.to_owned()));
        let done = in_each!(self, AnyPool(pool) => sql.execute(pool).await.map(drop));
        done.with_context(|| statements.to_owned())
    }

    /// Ends all leases by hand, as if their owners had crashed long ago. All recovery inputs are due.
    ///
    /// # Errors
    ///
    /// A statement fails.
    pub async fn end_leases(&self) -> anyhow::Result<()> {
        // An input that is due before the lease has ended would be postponed.
        self.execute("UPDATE idem_records SET lease_until = first_claimed_at")
            .await?;
        self.execute(INPUTS_DUE).await
    }

    /// Lets the records with this key expire, whether they have ended or not.
    ///
    /// # Errors
    ///
    /// A statement fails.
    pub async fn expire(&self, key: &str) -> anyhow::Result<()> {
        let expire = format!(
            "UPDATE idem_records SET lease_until = first_claimed_at, retention = 0, purge_after = first_claimed_at \
             WHERE idempotency_key = '{key}'"
        );
        self.execute(&expire).await
    }

    /// Moves the times of all records into the past by hand, as if this much time had passed.
    ///
    /// # Errors
    ///
    /// The statement fails.
    pub async fn age(&self, by: Duration) -> anyhow::Result<()> {
        let micros = by.as_micros();
        self.execute(&format!(
            "UPDATE idem_records SET first_claimed_at = first_claimed_at - {micros}, lease_until = lease_until - {micros}, \
             ended_at = ended_at - {micros}, purge_after = purge_after - {micros}"
        ))
        .await
    }

    /// Reads a number.
    ///
    /// # Errors
    ///
    /// The statement fails or has another result.
    pub async fn number(&self, statement: &str) -> anyhow::Result<i64> {
        let sql = AssertSqlSafe(statement.to_owned());
        let number = in_each!(self, AnyPool(pool) => sqlx::query_scalar(sql).fetch_one(pool).await);
        number.with_context(|| statement.to_owned())
    }

    /// Reads all texts in the result of the last of these statements.
    ///
    /// # Errors
    ///
    /// A statement fails.
    pub async fn texts(&self, statements: &str) -> anyhow::Result<Vec<String>> {
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
        let sql = sqlx::raw_sql(AssertSqlSafe(statements.to_owned()));
        Ok(in_each!(self, AnyPool(pool) => of(&sql.fetch_all(pool).await?)))
    }
}

impl AnyTransaction {
    /// Enqueues a message.
    ///
    /// # Errors
    ///
    /// Those of [`NewMessage::enqueue`].
    pub async fn enqueue<T: serde::Serialize + Sync + ?Sized>(
        &mut self,
        message: NewMessage<'_, T>,
    ) -> Result<Key, Error> {
        in_each!(self, Self(tx) => message.enqueue(&mut **tx).await)
    }

    /// Commits the transaction.
    ///
    /// # Errors
    ///
    /// The commit fails.
    pub async fn commit(self) -> anyhow::Result<()> {
        Ok(in_each!(self, Self(tx) => tx.commit().await)?)
    }

    /// Rolls the transaction back.
    ///
    /// # Errors
    ///
    /// The connection is lost.
    pub async fn rollback(self) -> anyhow::Result<()> {
        Ok(in_each!(self, Self(tx) => tx.rollback().await)?)
    }
}
