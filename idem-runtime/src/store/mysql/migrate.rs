//! Versions of the tables, and the migration of a database from one to the next.

use sqlx::{AssertSqlSafe, MySqlConnection, MySqlPool};

use super::{error, statements::DIALECT};
use crate::error::{StoreError, StoreErrorKind};
use crate::store::sql::{self, Migrations, Table};

/// Migrations of the tables of records. MySQL commits each statement that defines an object on its own. Each statement
/// must therefore be repeatable, in case of a crash half way.
pub(super) const RECORDS: Migrations = Migrations {
    table: Table::DEFAULT,
    versions: &[include_str!("../../../migrations/mysql/0001_records.sql")],
};

/// Longest wait for another process that migrates, in seconds.
const PATIENCE: i64 = 60;

/// Runs the migrations to their end, even if the caller is cancelled: a statement that is dropped half way would leave
/// a connection of the pool out of step.
pub(in crate::store) async fn run(
    pool: &MySqlPool,
    table: &Table,
    migrations: &'static Migrations,
) -> Result<(), StoreError> {
    let (pool, table) = (pool.clone(), table.clone());
    sql::run_to_completion(async move { migrate(&pool, &table, migrations).await }).await
}

async fn migrate(
    pool: &MySqlPool,
    table: &Table,
    migrations: &Migrations,
) -> Result<(), StoreError> {
    let mut connection = pool.acquire().await.map_err(error)?;
    require_autocommit(&mut connection).await?;
    if missing(&mut connection, table, migrations)
        .await?
        .is_empty()
    {
        return Ok(());
    }
    // The lock belongs to the session. If the future is dropped half way, the connection must not return to the pool
    // with it.
    let mut connection = connection.detach();
    let locked: Option<i64> = sqlx::query_scalar(
        "SELECT GET_LOCK(CONCAT('idem ', SHA1(CONCAT_WS('.', COALESCE(?, DATABASE()), ?))), ?)",
    )
    .bind(table.schema.as_deref())
    .bind(&*table.name)
    .bind(PATIENCE)
    .fetch_one(&mut connection)
    .await
    .map_err(error)?;
    if locked != Some(1) {
        return Err(StoreError::new(
            StoreErrorKind::Conflict,
            "another process has been migrating the tables for a minute, try again",
        ));
    }
    let applied = apply(&mut connection, table, migrations).await;
    // Closing the connection releases the lock. An error of the close loses nothing.
    let _ = sqlx::Connection::close(connection).await;
    applied
}

/// Rejects connections without autocommit: each transition of a record is a statement that has to commit on its own, so
/// nothing would ever be committed.
async fn require_autocommit(connection: &mut MySqlConnection) -> Result<(), StoreError> {
    let autocommit: i64 = sqlx::query_scalar("SELECT @@autocommit")
        .fetch_one(connection)
        .await
        .map_err(error)?;
    if autocommit == 1 {
        return Ok(());
    }
    Err(StoreError::new(
        StoreErrorKind::Other,
        "autocommit is off on the connections of the pool, so nothing that the store writes would ever be committed: \
         turn it on (look at `init_connect` and at the pool's `after_connect`)",
    ))
}

/// Ten processes may start concurrently, and all of them find the same version missing. The lock admits one at a time,
/// which checks the versions again first.
async fn apply(
    connection: &mut MySqlConnection,
    table: &Table,
    migrations: &Migrations,
) -> Result<(), StoreError> {
    for version in missing(connection, table, migrations).await? {
        let log = log(table);
        let make = format!(
            "CREATE TABLE IF NOT EXISTS {log} \
             (version INT NOT NULL PRIMARY KEY, applied_at BIGINT NOT NULL) ENGINE = InnoDB"
        );
        let statements = migrations.versions[version].replace(
            &format!("`{}", migrations.table),
            table.quoted(DIALECT.quote, "").trim_end_matches('`'),
        );
        let enter = format!(
            "INSERT INTO {log} (version, applied_at) VALUES ({}, {})",
            version + 1,
            DIALECT.now
        );
        for statements in [make, statements, enter] {
            sqlx::raw_sql(AssertSqlSafe(statements))
                .execute(&mut *connection)
                .await
                .map_err(error)?;
        }
    }
    Ok(())
}

/// Indices of the versions that are not applied yet.
async fn missing(
    connection: &mut MySqlConnection,
    table: &Table,
    migrations: &Migrations,
) -> Result<std::ops::Range<usize>, StoreError> {
    let statement = format!("SELECT count(*) FROM {}", log(table));
    let applied = match sqlx::query_scalar::<_, i64>(AssertSqlSafe(statement))
        .fetch_one(connection)
        .await
        .map_err(error)
    {
        Ok(applied) => applied as usize,
        Err(error) if is_about_a_table(&error) => 0,
        Err(error) => return Err(error),
    };
    sql::missing(applied, migrations.versions.len())
}

fn is_about_a_table(error: &StoreError) -> bool {
    std::error::Error::source(error)
        .and_then(|source| source.downcast_ref::<sqlx::Error>())
        .and_then(super::number)
        == Some(super::NO_SUCH_TABLE)
}

/// Name of the table of applied versions.
fn log(table: &Table) -> String {
    table.quoted(DIALECT.quote, "_migrations")
}
