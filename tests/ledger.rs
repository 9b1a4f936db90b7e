//! A ledger in the database of the records, which shows the effects that were committed with them.

use std::collections::BTreeMap;

use idem_runtime::Error;

use crate::sql::{AnyPool, Sql};

const TABLE: &str =
    "CREATE TABLE ledger (charge VARCHAR(80) NOT NULL, receipt VARCHAR(80) NOT NULL)";
/// Table on MySQL and MariaDB. Without a key of its own, rows would be appended. The gap after the last row stays locked
/// when a savepoint is rolled back, and every other insertion would wait for it. Group Replication demands a key.
const TABLE_WITH_KEY: &str = "CREATE TABLE ledger (id CHAR(64) NOT NULL DEFAULT (SHA2(UUID(), 256)) PRIMARY KEY, \
                              charge VARCHAR(80) NOT NULL, receipt VARCHAR(80) NOT NULL)";

/// Maximum of connections of a pool.
const CONNECTIONS: u32 = 10;

/// Errors of a charge whose body does nothing else.
#[derive(Debug, thiserror::Error)]
pub enum ChargeError {
    /// No call, or its outcome is unknown.
    #[error(transparent)]
    Idempotency(#[from] Error),
    /// The effect failed.
    #[error(transparent)]
    Ledger(#[from] sqlx::Error),
}

/// Receipts of the effects, by key: the database does not prevent a key from having two.
pub type Ledger = BTreeMap<String, Vec<String>>;

/// A store with a ledger in its database.
pub trait Database: Sql {
    /// Opens the store at this [address](crate::backends::open).
    fn connect(address: &str) -> impl Future<Output = anyhow::Result<(Self, Self::Pool)>> + Send {
        async move {
            let pool = Self::pool(&Self::options_at(address)?, CONNECTIONS, true);
            drop(Self::acquire(&pool).await?);
            let store = match address.starts_with("pgbouncer://") {
                true => Self::over(&pool).unprepared(),
                false => Self::over(&pool),
            };
            Ok((store, pool))
        }
    }

    /// Creates the tables of the records and the ledger.
    fn make_ledger(&self, pool: &Self::Pool) -> impl Future<Output = anyhow::Result<()>> + Send {
        async move {
            self.create_tables().await?;
            let pool = Self::any(pool);
            let table = match pool {
                AnyPool::MySql(_) => TABLE_WITH_KEY,
                AnyPool::Sqlite(_) | AnyPool::Postgres(_) => TABLE,
            };
            pool.execute(table).await
        }
    }

    /// Makes the effect. The statement has no name, because a pooler that shares connections between transactions would mix
    /// up named ones.
    fn charge(
        connection: &mut Self::Connection,
        key: &str,
        receipt: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        let insert = "INSERT INTO ledger (charge, receipt) VALUES (?, ?)";
        async move { Self::run_unnamed(connection, insert, &[key.into(), receipt.into()]).await }
    }

    /// Runs any statement.
    fn execute(
        connection: &mut Self::Connection,
        statement: &str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        Self::text(connection, statement)
    }

    /// Reads the committed effects.
    fn ledger(pool: &Self::Pool) -> impl Future<Output = anyhow::Result<Ledger>> + Send {
        async move {
            let read = "SELECT charge, receipt FROM ledger";
            let texts = Self::any(pool).texts(read).await?;
            let mut ledger = Ledger::new();
            for row in texts.chunks_exact(2) {
                let effects: &mut Vec<String> = ledger.entry(row[0].clone()).or_default();
                effects.push(row[1].clone());
            }
            Ok(ledger)
        }
    }
}

impl<S: Sql> Database for S {}
