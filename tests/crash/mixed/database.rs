//! Operations of a database that the mixed mode needs in addition to a [ledger](idem_tests::ledger): a shared pool, the
//! application's own transactions, and sessions that inspect and lock records.

use std::ops::DerefMut;
use std::time::{Duration, Instant};

use idem_runtime::outbox::{NewMessage, Outbox};
use idem_runtime::store::TransactionalStore;
use idem_runtime::{Error, MySqlStore, PostgresStore, SqliteStore, StoreError};
use idem_tests::ledger::Database;
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{
    Connection as _, MySql, MySqlConnection, MySqlPool, PgConnection, PgPool, Postgres, Sqlite,
    SqliteConnection, SqlitePool, Transaction,
};

/// Number of connections of a process.
pub(super) const CONNECTIONS: usize = 4;
/// Time limit for acquiring one of them.
const ACQUIRED_WITHIN: Duration = Duration::from_secs(10);

pub(super) type Connection<S> = <S as TransactionalStore>::Connection;

/// Payload of a message: its id, and its number within its ordering key.
pub(super) type Payload = (String, u64);

/// A store that shares one pool with its application.
pub(super) trait OnePool: Database<Pool: Clone + 'static> {
    /// A transaction of the application.
    type Outer: Send + 'static;
    /// A connection from the pool.
    type Lent: DerefMut<Target = Self::Connection> + Send + 'static;

    /// Opens the store and its pool of [`CONNECTIONS`], whose sessions have this name at the server.
    fn open(
        address: &str,
        name: &str,
    ) -> impl Future<Output = anyhow::Result<(Self, Self::Pool)>> + Send;

    fn migrate_again(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    fn outbox(pool: &Self::Pool) -> Outbox;

    fn acquire(pool: &Self::Pool) -> impl Future<Output = Result<Self::Lent, sqlx::Error>> + Send;

    fn begin_own(
        pool: &Self::Pool,
    ) -> impl Future<Output = Result<Self::Outer, sqlx::Error>> + Send;

    fn connection(outer: &mut Self::Outer) -> &mut Connection<Self>;

    fn commit_own(outer: Self::Outer) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    fn rollback_own(outer: Self::Outer) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    fn enqueue(
        outer: &mut Self::Outer,
        message: NewMessage<'_, Payload>,
    ) -> impl Future<Output = Result<(), Error>> + Send;

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

macro_rules! one_pool {
    ($database:ty, $pool:ty, |$begun:ident| $begin:expr) => {
        type Outer = Transaction<'static, $database>;
        type Lent = PoolConnection<$database>;

        async fn migrate_again(&self) -> Result<(), StoreError> {
            self.migrate().await
        }

        fn outbox(pool: &$pool) -> Outbox {
            Outbox::new(pool.clone())
        }

        async fn acquire(pool: &$pool) -> Result<Self::Lent, sqlx::Error> {
            pool.acquire().await
        }

        async fn begin_own($begun: &$pool) -> Result<Self::Outer, sqlx::Error> {
            $begin.await
        }

        fn connection(outer: &mut Self::Outer) -> &mut Connection<Self> {
            outer
        }

        async fn commit_own(outer: Self::Outer) -> Result<(), sqlx::Error> {
            outer.commit().await
        }

        async fn rollback_own(outer: Self::Outer) -> Result<(), sqlx::Error> {
            outer.rollback().await
        }

        async fn enqueue(
            outer: &mut Self::Outer,
            message: NewMessage<'_, Payload>,
        ) -> Result<(), Error> {
            message.enqueue(&mut **outer).await.map(drop)
        }
    };
}

impl OnePool for SqliteStore {
    one_pool!(Sqlite, SqlitePool, |pool| begin_writing(pool));

    async fn open(address: &str, _: &str) -> anyhow::Result<(Self, SqlitePool)> {
        let path = address.trim_start_matches("sqlite://");
        let pool = SqlitePoolOptions::new()
            .max_connections(CONNECTIONS as u32)
            .acquire_timeout(ACQUIRED_WITHIN)
            .connect_with(Self::connect_options(path))
            .await?;
        Ok((Self::new(pool.clone()), pool))
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
    one_pool!(Postgres, PgPool, |pool| pool.begin());

    async fn open(address: &str, name: &str) -> anyhow::Result<(Self, PgPool)> {
        let options: PgConnectOptions = address.parse()?;
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS as u32)
            .acquire_timeout(ACQUIRED_WITHIN)
            .connect_with(options.application_name(name))
            .await?;
        Ok((Self::new(pool.clone()), pool))
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
    one_pool!(MySql, MySqlPool, |pool| pool.begin());

    async fn open(address: &str, _: &str) -> anyhow::Result<(Self, MySqlPool)> {
        let options: MySqlConnectOptions = address.parse()?;
        let pool = MySqlPoolOptions::new()
            .max_connections(CONNECTIONS as u32)
            .acquire_timeout(ACQUIRED_WITHIN)
            .connect_with(options)
            .await?;
        Ok((Self::new(pool.clone()), pool))
    }

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
        let mut found = 0;
        for connection in lent {
            let open: i64 = sqlx::query_scalar("SELECT CAST(@@in_transaction AS SIGNED)")
                .fetch_one(&mut **connection)
                .await?;
            found += usize::from(open != 0);
        }
        Ok(found)
    }
}
