//! A ledger in the database of the records, which shows the effects that were committed with them.

use std::collections::BTreeMap;

use idem_runtime::store::TransactionalStore;
use idem_runtime::{MySqlStore, PostgresStore, SqliteStore};
use sqlx::postgres::PgConnectOptions;
use sqlx::{
    AssertSqlSafe, MySqlConnection, MySqlPool, PgConnection, PgPool, Row as _, SqliteConnection,
    SqlitePool,
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
    ///
    /// `pgbouncer://` is the address of a PgBouncer in transaction mode.
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
    ($store:ty, $pool:ty, $connection:ty, $insert:expr, |$address:ident| $connect:expr) => {
        impl Database for $store {
            type Pool = $pool;

            async fn connect($address: &str) -> anyhow::Result<(Self, $pool)> {
                $connect
            }

            async fn make_ledger(&self, pool: &$pool) -> anyhow::Result<()> {
                self.migrate().await?;
                sqlx::raw_sql(TABLE).execute(pool).await?;
                Ok(())
            }

            async fn charge(
                connection: &mut $connection,
                key: &str,
                receipt: &str,
            ) -> Result<(), sqlx::Error> {
                let insert = $insert.bind(key).bind(receipt);
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
                let rows = sqlx::raw_sql("SELECT charge, receipt FROM ledger")
                    .fetch_all(pool)
                    .await?;
                let mut ledger = Ledger::new();
                for row in rows {
                    let effects: &mut Vec<String> = ledger.entry(row.try_get(0)?).or_default();
                    effects.push(row.try_get(1)?);
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
    sqlx::query("INSERT INTO ledger (charge, receipt) VALUES (?1, ?2)"),
    |address| {
        let path = address.trim_start_matches("sqlite://");
        let pool = SqlitePool::connect_with(SqliteStore::connect_options(path)).await?;
        Ok((Self::new(pool.clone()), pool))
    }
);
database!(
    PostgresStore,
    PgPool,
    PgConnection,
    // A pooler that shares connections between transactions would mix up named statements.
    sqlx::query("INSERT INTO ledger (charge, receipt) VALUES ($1, $2)").persistent(false),
    |address| {
        let Some(rest) = address.strip_prefix("pgbouncer://") else {
            let pool = PgPool::connect(address).await?;
            return Ok((Self::new(pool.clone()), pool));
        };
        let options: PgConnectOptions = format!("postgres://{rest}").parse()?;
        let pool = PgPool::connect_with(options.extra_float_digits(None)).await?;
        let store = Self::new(pool.clone()).without_prepared_statements();
        Ok((store, pool))
    }
);
database!(
    MySqlStore,
    MySqlPool,
    MySqlConnection,
    sqlx::query("INSERT INTO ledger (charge, receipt) VALUES (?, ?)"),
    |address| {
        let pool = MySqlPool::connect(address).await?;
        Ok((Self::new(pool.clone()), pool))
    }
);
