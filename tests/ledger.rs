//! A ledger in the database of the records, which shows the effects that were committed with them.

use std::collections::BTreeMap;

use idem_runtime::store::TransactionalStore;
use idem_runtime::{MySqlStore, PostgresStore, SqliteStore};
use sqlx::{
    AssertSqlSafe, MySqlConnection, MySqlPool, PgConnection, PgPool, SqliteConnection, SqlitePool,
};

const TABLE: &str =
    "CREATE TABLE ledger (charge VARCHAR(40) NOT NULL, receipt VARCHAR(40) NOT NULL)";

/// Receipts of the effects, by key: the database does not prevent a key from having two.
pub type Ledger = BTreeMap<String, Vec<String>>;

/// A store with a ledger in its database.
pub trait Database: TransactionalStore + Sized {
    /// Pool of connections to the database.
    type Pool: Send + Sync;

    /// Opens the store at this address: `sqlite://` and the path of a file, or the URL of a server.
    fn connect(address: &str) -> impl Future<Output = anyhow::Result<(Self, Self::Pool)>> + Send;

    /// Creates the tables of the records and the ledger.
    fn make_ledger(&self, pool: &Self::Pool) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Makes the effect.
    fn charge(
        connection: &mut Self::Connection,
        key: &str,
        receipt: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Runs any statement.
    fn execute(
        connection: &mut Self::Connection,
        statement: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Reads the committed effects.
    fn ledger(pool: &Self::Pool) -> impl Future<Output = anyhow::Result<Ledger>> + Send;
}

macro_rules! database {
    ($store:ty, $pool:ty, $connection:ty, $insert:literal, |$address:ident| $connect:expr) => {
        impl Database for $store {
            type Pool = $pool;

            async fn connect($address: &str) -> anyhow::Result<(Self, $pool)> {
                let pool: $pool = $connect;
                Ok((Self::new(pool.clone()), pool))
            }

            async fn make_ledger(&self, pool: &$pool) -> anyhow::Result<()> {
                self.migrate().await?;
                sqlx::query(TABLE).execute(pool).await?;
                Ok(())
            }

            async fn charge(
                connection: &mut $connection,
                key: &str,
                receipt: &str,
            ) -> Result<(), sqlx::Error> {
                let insert = sqlx::query($insert).bind(key).bind(receipt);
                insert.execute(connection).await.map(drop)
            }

            async fn execute(
                connection: &mut $connection,
                statement: &str,
            ) -> Result<(), sqlx::Error> {
                let statement = sqlx::raw_sql(AssertSqlSafe(statement.to_owned()));
                statement.execute(connection).await.map(drop)
            }

            async fn ledger(pool: &$pool) -> anyhow::Result<Ledger> {
                let rows: Vec<(String, String)> =
                    sqlx::query_as("SELECT charge, receipt FROM ledger")
                        .fetch_all(pool)
                        .await?;
                let mut ledger = Ledger::new();
                for (key, receipt) in rows {
                    ledger.entry(key).or_default().push(receipt);
                }
                Ok(ledger)
            }
        }
    };
}

database!(
    SqliteStore,
    SqlitePool,
    SqliteConnection,
    "INSERT INTO ledger (charge, receipt) VALUES (?1, ?2)",
    |address| {
        let path = address.trim_start_matches("sqlite://");
        SqlitePool::connect_with(SqliteStore::connect_options(path)).await?
    }
);
database!(
    PostgresStore,
    PgPool,
    PgConnection,
    "INSERT INTO ledger (charge, receipt) VALUES ($1, $2)",
    |address| PgPool::connect(address).await?
);
database!(
    MySqlStore,
    MySqlPool,
    MySqlConnection,
    "INSERT INTO ledger (charge, receipt) VALUES (?, ?)",
    |address| MySqlPool::connect(address).await?
);
