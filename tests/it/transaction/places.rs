//! Databases with a table of orders next to the records.

use std::sync::Arc;
use std::time::Duration;

use idem_runtime::store::TransactionalStore;
use idem_runtime::{MySqlStore, PostgresStore, SqliteStore};
use idem_tests::backends;
use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{MySqlConnection, MySqlPool, PgConnection, PgPool, SqliteConnection, SqlitePool};

/// Connection of a body in this place.
pub(super) type Connection<P> = <<P as Place>::Store as TransactionalStore>::Connection;

pub(super) const TABLE: &str =
    "CREATE TABLE orders (id VARCHAR(40) NOT NULL, amount BIGINT NOT NULL)";

/// Operations of a database that the cases use.
pub(super) trait Place: Clone + Send + Sync + 'static {
    type Store: TransactionalStore + Migrate;
    type Outer: Send;
    type Lent: Send;

    fn open() -> impl Future<Output = Self> + Send;

    fn store(&self) -> Self::Store;

    fn order(
        tx: &mut Connection<Self>,
        key: &str,
        amount: i64,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Runs a statement as SQL text.
    fn text(tx: &mut Connection<Self>, sql: &'static str) -> impl Future<Output = ()> + Send;

    /// Runs a statement that the database rejects.
    fn order_nothing(
        tx: &mut Connection<Self>,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Changes orders, which locks them until the transaction ends.
    fn add(
        tx: &mut Connection<Self>,
        key: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Closes the connection, as a crash of the server would.
    fn cut_off(tx: &mut Connection<Self>) -> impl Future<Output = ()> + Send;

    /// Number of committed orders for a key.
    fn orders(&self, key: &str) -> impl Future<Output = i64> + Send;

    /// Adds a unique index, so that statements find and lock single rows.
    fn make_ids_unique(&self) -> impl Future<Output = ()> + Send;

    /// Begins a transaction of the caller.
    fn begin(&self) -> impl Future<Output = Self::Outer> + Send;
    fn connection(outer: &mut Self::Outer) -> &mut Connection<Self>;
    fn commit(outer: Self::Outer) -> impl Future<Output = ()> + Send;
    fn rollback(outer: Self::Outer) -> impl Future<Output = ()> + Send;

    /// Acquires a connection without a transaction.
    fn acquire(&self) -> impl Future<Output = Self::Lent> + Send;
    fn lent(lent: &mut Self::Lent) -> &mut Connection<Self>;
}

/// A store that creates its tables.
pub(super) trait Migrate {
    fn migrate_for_tests(&self) -> impl Future<Output = ()> + Send;
}

/// Orders in SQLite, with one file for each case.
#[derive(Debug, Clone)]
pub(super) struct Sqlite {
    pool: SqlitePool,
    _directory: Arc<tempfile::TempDir>,
}

/// Orders in PostgreSQL, with one database for each case.
#[derive(Debug, Clone)]
pub(super) struct Postgres(pub(super) PgPool);

/// Orders in PostgreSQL, beside records in the portable form, with one database for each case.
#[derive(Debug, Clone)]
pub(super) struct PortablePostgres(pub(super) PgPool);

/// Orders in MySQL, with one database for each case.
#[derive(Debug, Clone)]
pub(super) struct MySql(pub(super) MySqlPool);

macro_rules! place {
    ($place:ty, $store:ident, $connection:ty, $database:ty, $insert:literal, $update:literal, $count:literal, |$this:ident| $pool:expr) => {
        type Store = $store;
        type Outer = sqlx::Transaction<'static, $database>;
        type Lent = sqlx::pool::PoolConnection<$database>;

        fn store(&self) -> $store {
            let $this = self;
            $store::new($pool.clone())
        }

        async fn order(tx: &mut $connection, key: &str, amount: i64) -> Result<(), sqlx::Error> {
            let insert = sqlx::query($insert).bind(key).bind(amount);
            insert.execute(tx).await.map(drop)
        }

        async fn text(tx: &mut $connection, sql: &'static str) {
            sqlx::raw_sql(sql).execute(tx).await.unwrap();
        }

        async fn add(tx: &mut $connection, key: &str) -> Result<(), sqlx::Error> {
            let update = sqlx::query($update).bind(key);
            update.execute(tx).await.map(drop)
        }

        async fn order_nothing(tx: &mut $connection) -> Result<(), sqlx::Error> {
            let insert = sqlx::query($insert).bind("nothing").bind(None::<i64>);
            insert.execute(tx).await.map(drop)
        }

        async fn orders(&self, key: &str) -> i64 {
            let $this = self;
            sqlx::query_scalar($count)
                .bind(key)
                .fetch_one(&$pool)
                .await
                .unwrap()
        }

        async fn make_ids_unique(&self) {
            let $this = self;
            let index = sqlx::query("CREATE UNIQUE INDEX orders_by_id ON orders (id)");
            index.execute(&$pool).await.unwrap();
        }

        async fn begin(&self) -> Self::Outer {
            let $this = self;
            $pool.begin().await.unwrap()
        }

        fn connection(outer: &mut Self::Outer) -> &mut $connection {
            outer
        }

        async fn commit(outer: Self::Outer) {
            outer.commit().await.unwrap();
        }

        async fn rollback(outer: Self::Outer) {
            outer.rollback().await.unwrap();
        }

        async fn acquire(&self) -> Self::Lent {
            let $this = self;
            $pool.acquire().await.unwrap()
        }

        fn lent(lent: &mut Self::Lent) -> &mut $connection {
            lent
        }
    };
}

impl Sqlite {
    pub(super) fn pool(&self) -> &SqlitePool {
        &self.pool
    }
}

impl Place for Sqlite {
    place!(
        Sqlite,
        SqliteStore,
        SqliteConnection,
        sqlx::Sqlite,
        "INSERT INTO orders (id, amount) VALUES (?1, ?2)",
        "UPDATE orders SET amount = amount + 1 WHERE id = ?1",
        "SELECT count(*) FROM orders WHERE id = ?1",
        |this| this.pool
    );

    async fn open() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = SqliteStore::connect_options(directory.path().join("shop.db"));
        let pool = SqlitePoolOptions::new()
            .max_connections(8)
            .acquire_timeout(Duration::from_secs(30))
            .connect_with(options)
            .await
            .unwrap();
        sqlx::query(TABLE).execute(&pool).await.unwrap();
        Self {
            pool,
            _directory: Arc::new(directory),
        }
    }

    async fn cut_off(_: &mut SqliteConnection) {
        panic!("there is no server to be cut off from");
    }
}

impl Place for Postgres {
    place!(
        Postgres,
        PostgresStore,
        PgConnection,
        sqlx::Postgres,
        "INSERT INTO orders (id, amount) VALUES ($1, $2)",
        "UPDATE orders SET amount = amount + 1 WHERE id = $1",
        "SELECT count(*) FROM orders WHERE id = $1",
        |this| this.0
    );

    async fn open() -> Self {
        let pool = backends::postgres().await.unwrap();
        sqlx::query(TABLE).execute(&pool).await.unwrap();
        Self(pool)
    }

    async fn cut_off(tx: &mut PgConnection) {
        let end = sqlx::query("SELECT pg_terminate_backend(pg_backend_pid())");
        end.execute(tx).await.unwrap_err();
    }
}

impl Place for PortablePostgres {
    place!(
        PortablePostgres,
        PostgresStore,
        PgConnection,
        sqlx::Postgres,
        "INSERT INTO orders (id, amount) VALUES ($1, $2)",
        "UPDATE orders SET amount = amount + 1 WHERE id = $1",
        "SELECT count(*) FROM orders WHERE id = $1",
        |this| this.0
    );

    async fn open() -> Self {
        let pool = backends::postgres_portable().await.unwrap();
        sqlx::query(TABLE).execute(&pool).await.unwrap();
        Self(pool)
    }

    async fn cut_off(tx: &mut PgConnection) {
        let end = sqlx::query("SELECT pg_terminate_backend(pg_backend_pid())");
        end.execute(tx).await.unwrap_err();
    }
}

impl Place for MySql {
    place!(
        MySql,
        MySqlStore,
        MySqlConnection,
        sqlx::MySql,
        "INSERT INTO orders (id, amount) VALUES (?, ?)",
        "UPDATE orders SET amount = amount + 1 WHERE id = ?",
        "SELECT count(*) FROM orders WHERE id = ?",
        |this| this.0
    );

    async fn open() -> Self {
        let pool = backends::mariadb().await.unwrap();
        sqlx::query(TABLE).execute(&pool).await.unwrap();
        Self(pool)
    }

    async fn cut_off(tx: &mut MySqlConnection) {
        sqlx::raw_sql("KILL CONNECTION_ID()")
            .execute(tx)
            .await
            .unwrap_err();
    }
}

impl Migrate for SqliteStore {
    async fn migrate_for_tests(&self) {
        self.migrate().await.unwrap();
    }
}

impl Migrate for PostgresStore {
    async fn migrate_for_tests(&self) {
        self.migrate().await.unwrap();
    }
}

impl Migrate for MySqlStore {
    async fn migrate_for_tests(&self) {
        self.migrate().await.unwrap();
    }
}
