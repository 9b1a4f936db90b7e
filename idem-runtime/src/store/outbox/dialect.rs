//! The differences between the databases that can have an outbox, as a trait.

use std::future::ready;

use sqlx::Pool;

use crate::error::StoreError;
use crate::store::operator::MigrationPlan;
use crate::store::outbox::DEFAULT_TABLE;
use crate::store::sql::{
    Cancellation, Connections, Dialect, Migrations, OpenTransaction, Query, Readable, Table,
    Template,
};

/// The operations of an outbox that differ between databases.
pub(super) trait OutboxDialect: sqlx::Database<Row: Readable> + Cancellation {
    const DIALECT: Dialect;
    /// File with the parts and statements of this dialect.
    const SQL: &'static str;
    /// True if a statement that writes can return rows.
    const RETURNS_ROWS: bool;
    /// True if only one writer at a time can write to the database.
    const ONE_WRITER: bool;
    const MIGRATIONS: &'static Migrations;

    /// Template for statements on messages.
    fn template(table: &Table) -> Template {
        Self::DIALECT
            .template()
            .with_parts(include_str!("statements.sql"))
            .with_parts(Self::SQL)
            .with("messages", table.quoted(Self::DIALECT.quote, ""))
            .with("message_audit", table.quoted(Self::DIALECT.quote, "_audit"))
    }

    /// Refuses settings of the connections of a pool that an outbox cannot work with.
    fn examine(
        _pool: &Connections<Self>,
        _table: &Table,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        ready(Ok(()))
    }

    /// Runs a statement and returns its rows. The statement is driven to its end even if one row is enough: the commit
    /// comes after the last row.
    fn rows(
        pool: &Connections<Self>,
        query: &Query<'_>,
    ) -> impl Future<Output = Result<Vec<Self::Row>, StoreError>> + Send;

    /// Runs a statement and returns the number of rows that it matched.
    fn run(
        pool: &Connections<Self>,
        query: &Query<'_>,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Runs statements in one transaction. If one of them matches no row, rolls back and returns false.
    fn run_together(
        pool: &Connections<Self>,
        queries: &[Query<'_>],
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Creates the tables or migrates them to the current version.
    fn migrate(
        pool: &Pool<Self>,
        table: &Table,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Compares the tables with the current version.
    fn migration_plan(
        pool: &Pool<Self>,
        table: &Table,
    ) -> impl Future<Output = Result<MigrationPlan, StoreError>> + Send;
}

/// Runs a statement on the pool, and returns its rows or the number of rows that it matched. Statements of MySQL run to
/// their end, even if the caller is cancelled.
macro_rules! on_pool {
    (mysql, rows, $pool:ident, $query:ident) => {
        async {
            let answer = crate::store::mysql::run($pool, $query).await?;
            Ok(answer.rows)
        }
    };
    (mysql, affected, $pool:ident, $query:ident) => {
        async {
            let answer = crate::store::mysql::run($pool, $query).await?;
            Ok(answer.done.rows_affected())
        }
    };
    ($module:ident, rows, $pool:ident, $query:ident) => {
        $pool.watch(async {
            let mut connection = $pool.acquire().await?;
            let rows = $query.build::<Self>().fetch_all(&mut *connection).await;
            connection.note(&rows);
            rows
        })
    };
    ($module:ident, affected, $pool:ident, $query:ident) => {
        $pool.watch(async {
            let mut connection = $pool.acquire().await?;
            let done = $query.build::<Self>().execute(&mut *connection).await;
            connection.note(&done);
            Ok(done?.rows_affected())
        })
    };
}

macro_rules! outbox_dialect {
    ($name:literal, $sql:literal, $database:ty, $module:ident, $retry:ident, $returns_rows:literal,
     $one_writer:literal, $begin:expr $(, $examine:ident)?) => {
        #[cfg(feature = $name)]
        impl OutboxDialect for $database {
            const DIALECT: Dialect = crate::store::$module::statements::DIALECT;
            const SQL: &'static str = include_str!($sql);
            const RETURNS_ROWS: bool = $returns_rows;
            const ONE_WRITER: bool = $one_writer;
            const MIGRATIONS: &'static Migrations = &Migrations {
                table: DEFAULT_TABLE,
                versions: &[
                    include_str!(concat!(
                        "../../../migrations/",
                        $name,
                        "/outbox/0001_outbox.sql"
                    )),
                    include_str!(concat!(
                        "../../../migrations/",
                        $name,
                        "/outbox/0002_audit.sql"
                    )),
                ],
            };

            $(
                async fn examine(
                    pool: &Connections<Self>,
                    table: &Table,
                ) -> Result<(), StoreError> {
                    use crate::store::$module::{$examine, error};
                    $examine(pool, table).await.map_err(error)
                }
            )?

            async fn rows(
                pool: &Connections<Self>,
                query: &Query<'_>,
            ) -> Result<Vec<Self::Row>, StoreError> {
                use crate::store::$module::{error, $retry};
                $retry(|| on_pool!($module, rows, pool, query))
                    .await
                    .map_err(error)
            }

            async fn run(pool: &Connections<Self>, query: &Query<'_>) -> Result<u64, StoreError> {
                use crate::store::$module::{error, $retry};
                $retry(|| on_pool!($module, affected, pool, query))
                    .await
                    .map_err(error)
            }

            async fn run_together(
                pool: &Connections<Self>,
                queries: &[Query<'_>],
            ) -> Result<bool, StoreError> {
                use crate::store::$module::{error, $retry};
                let begin = || $begin.map(sqlx::SqlStr::from_static);
                let run = || async {
                    let mut transaction = OpenTransaction::<Self>::begin(pool, begin()).await?;
                    for query in queries {
                        let done = query.build::<Self>().execute(&mut *transaction).await?;
                        if done.rows_affected() == 0 {
                            transaction.rollback().await?;
                            return Ok(false);
                        }
                    }
                    transaction.commit().await?;
                    Ok(true)
                };
                $retry(run).await.map_err(error)
            }

            async fn migrate(pool: &Pool<Self>, table: &Table) -> Result<(), StoreError> {
                crate::store::$module::migrate::run(pool, table, Self::MIGRATIONS).await
            }

            async fn migration_plan(
                pool: &Pool<Self>,
                table: &Table,
            ) -> Result<MigrationPlan, StoreError> {
                crate::store::$module::migrate::plan(pool, table, Self::MIGRATIONS).await
            }
        }
    };
}

outbox_dialect!(
    "sqlite",
    "sqlite.sql",
    sqlx::Sqlite,
    sqlite,
    retry_busy,
    true,
    true,
    Some("BEGIN IMMEDIATE")
);
outbox_dialect!(
    "postgres",
    "postgres.sql",
    sqlx::Postgres,
    postgres,
    retry_conflicts,
    true,
    false,
    Some(crate::store::postgres::BEGIN),
    examine
);
outbox_dialect!(
    "mysql",
    "mysql.sql",
    sqlx::MySql,
    mysql,
    retry_undone,
    false,
    false,
    None,
    examine
);
