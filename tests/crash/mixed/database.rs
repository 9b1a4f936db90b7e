//! Operations of a database that the mixed mode needs in addition to a [ledger](idem_tests::ledger): a shared pool, the
//! application's own transactions, and sessions that inspect and lock records.

use std::ops::{DerefMut, Range};
use std::time::{Duration, Instant};

use idem_runtime::store::TransactionalStore;
use idem_runtime::{MySqlStore, PostgresStore, SqliteStore};
use idem_tests::ledger::Database;
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgConnectOptions;
use sqlx::{
    Connection as _, MySql, MySqlConnection, PgConnection, Postgres, Sqlite, SqliteConnection,
    SqlitePool, Transaction,
};

/// Number of connections of a process.
pub(super) const CONNECTIONS: usize = 4;
/// Time limit for acquiring one of them.
const ACQUIRED_WITHIN: Duration = Duration::from_secs(10);

pub(super) type Connection<S> = <S as TransactionalStore>::Connection;

/// Payload of a message: its id, and its number within its ordering key.
pub(super) type Payload = (String, u64);

/// A store that shares one pool with its application.
pub(super) trait OnePool:
    Database<Outer: 'static, Lent: DerefMut<Target = Connection<Self>> + 'static>
{
    /// Length of a lock of a record, in milliseconds.
    const LOCKED: Range<u64> = 300..3_000;

    /// Gives the sessions a name at the server, if it has any.
    fn named(options: Self::Options, _name: &str) -> Self::Options {
        options
    }

    /// Opens the store and its pool of [`CONNECTIONS`], whose sessions have this name at the server.
    fn open(
        address: &str,
        name: &str,
    ) -> impl Future<Output = anyhow::Result<(Self, Self::Pool)>> + Send {
        async move {
            let options = Self::named(Self::options_at(address)?, name);
            let pool = Self::pool_within(&options, CONNECTIONS as u32, true, ACQUIRED_WITHIN);
            drop(Self::acquire(&pool).await?);
            Ok((Self::over(&pool), pool))
        }
    }

    /// Begins a transaction of the application.
    fn begin_own(
        pool: &Self::Pool,
    ) -> impl Future<Output = Result<Self::Outer, sqlx::Error>> + Send {
        Self::begin_outer(pool)
    }

    /// Opens a connection outside of every pool.
    fn session(address: &str)
    -> impl Future<Output = Result<Connection<Self>, sqlx::Error>> + Send;

    /// Locks the record of this key until [`unlock`](Self::unlock). On SQLite it locks the whole file. Returns false if
    /// there is no such record.
    fn lock(
        session: &mut Connection<Self>,
        operation: &str,
        key: &str,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    fn unlock(
        session: &mut Connection<Self>,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        Self::execute(session, "ROLLBACK")
    }

    /// Number of these idle connections that are in a transaction, according to the server. `name` is the name given to
    /// [`open`](Self::open).
    fn in_transaction(
        lent: &mut [Self::Lent],
        address: &str,
        name: &str,
    ) -> impl Future<Output = Result<usize, sqlx::Error>> + Send;
}

impl OnePool for SqliteStore {
    const LOCKED: Range<u64> = 50..800;

    async fn begin_own(pool: &SqlitePool) -> Result<Self::Outer, sqlx::Error> {
        begin_writing(pool).await
    }

    async fn session(address: &str) -> Result<SqliteConnection, sqlx::Error> {
        let path = address.trim_start_matches("sqlite://");
        let options = Self::connect_options(path).busy_timeout(Duration::from_secs(30));
        SqliteConnection::connect_with(&options).await
    }

    async fn lock(session: &mut SqliteConnection, _: &str, _: &str) -> Result<bool, sqlx::Error> {
        Self::execute(session, "BEGIN IMMEDIATE").await?;
        Ok(true)
    }

    /// There is no server to ask: a connection in a transaction refuses to begin another one.
    async fn in_transaction(
        lent: &mut [PoolConnection<Sqlite>],
        _: &str,
        _: &str,
    ) -> Result<usize, sqlx::Error> {
        let mut found = 0;
        for connection in lent {
            match Self::execute(connection, "BEGIN").await {
                Ok(()) => Self::execute(connection, "ROLLBACK").await?,
                Err(error) if error.to_string().contains("within a transaction") => found += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}

/// Waits for other writers for as long as the application waits for a connection.
async fn begin_writing(pool: &SqlitePool) -> Result<Transaction<'static, Sqlite>, sqlx::Error> {
    let deadline = Instant::now() + ACQUIRED_WITHIN;
    loop {
        match pool.begin_with("BEGIN IMMEDIATE").await {
            Err(sqlx::Error::Database(error))
                if error.message().contains("locked") && Instant::now() < deadline => {}
            begun => return begun,
        }
    }
}

impl OnePool for PostgresStore {
    fn named(options: PgConnectOptions, name: &str) -> PgConnectOptions {
        options.application_name(name)
    }

    async fn session(address: &str) -> Result<PgConnection, sqlx::Error> {
        PgConnection::connect(address).await
    }

    async fn lock(
        session: &mut PgConnection,
        operation: &str,
        key: &str,
    ) -> Result<bool, sqlx::Error> {
        Self::execute(session, "BEGIN").await?;
        let locked = sqlx::query(
            "SELECT id FROM idem_records WHERE operation = $1 AND idempotency_key = $2 FOR UPDATE",
        );
        let locked = locked.bind(operation).bind(key).fetch_optional(session);
        Ok(locked.await?.is_some())
    }

    async fn in_transaction(
        _: &mut [PoolConnection<Postgres>],
        address: &str,
        name: &str,
    ) -> Result<usize, sqlx::Error> {
        let mut session = Self::session(address).await?;
        let found: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 \
             AND (state LIKE 'idle in transaction%' OR state = 'idle' AND xact_start IS NOT NULL)",
        )
        .bind(name)
        .fetch_one(&mut session)
        .await?;
        session.close().await?;
        Ok(found as usize)
    }
}

impl OnePool for MySqlStore {
    async fn session(address: &str) -> Result<MySqlConnection, sqlx::Error> {
        MySqlConnection::connect(address).await
    }

    async fn lock(
        session: &mut MySqlConnection,
        operation: &str,
        key: &str,
    ) -> Result<bool, sqlx::Error> {
        // By its primary key: any other search locks every row that it reads.
        let id: Option<Vec<u8>> = sqlx::query_scalar(
            "SELECT id FROM idem_records WHERE operation = ? AND idempotency_key = ?",
        )
        .bind(operation)
        .bind(key)
        .fetch_optional(&mut *session)
        .await?;
        let Some(id) = id else {
            return Ok(false);
        };
        Self::execute(session, "BEGIN").await?;
        let locked = sqlx::query("SELECT id FROM idem_records WHERE id = ? FOR UPDATE").bind(id);
        Ok(locked.fetch_optional(session).await?.is_some())
    }

    async fn in_transaction(
        lent: &mut [PoolConnection<MySql>],
        _: &str,
        _: &str,
    ) -> Result<usize, sqlx::Error> {
        // Outside of a transaction, a savepoint ends with its statement. MySQL has no variable that says so.
        const NO_SUCH_SAVEPOINT: u16 = 1305;
        let mut found = 0;
        for connection in lent {
            Self::execute(connection, "SAVEPOINT idem_probe").await?;
            match Self::execute(connection, "RELEASE SAVEPOINT idem_probe").await {
                Ok(()) => found += 1,
                Err(error) if number(&error) == Some(NO_SUCH_SAVEPOINT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}

/// Error number of MySQL or MariaDB.
fn number(error: &sqlx::Error) -> Option<u16> {
    let error = error.as_database_error()?;
    let error = error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>()?;
    Some(error.number())
}
