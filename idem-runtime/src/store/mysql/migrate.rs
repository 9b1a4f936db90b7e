//! Versions of the tables, and the migration of a database from one to the next.

use std::ops::Range;
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, MySql, MySqlConnection, MySqlPool, SqlSafeStr as _, SqlStr};

use super::errors::{self, error};
use super::galera::Cluster;
use super::statements::DIALECT;
use crate::error::{StoreError, StoreErrorKind};
use crate::store::operator::MigrationPlan;
use crate::store::sql::{self, Migrations, Query, Readable as _, Table, declare_statements};

/// Migrations of the tables of records. MySQL commits each statement that defines an object on its own. Each statement
/// must therefore be repeatable, in case of a crash half way.
pub(super) const RECORDS: Migrations = Migrations {
    table: Table::DEFAULT,
    versions: &[
        include_str!("../../../migrations/mysql/0001_records.sql"),
        include_str!("../../../migrations/mysql/0002_attempts.sql"),
        include_str!("../../../migrations/mysql/0003_audit.sql"),
        include_str!("../../../migrations/mysql/0004_payload_for.sql"),
        include_str!("../../../migrations/mysql/0005_operations.sql"),
        include_str!("../../../migrations/mysql/0006_audit_values.sql"),
    ],
};

declare_statements! {
    /// Statements on the table of applied versions.
    struct LogStatements {}
    from "migrate.sql" {
        count,
        compatible_since,
        create,
        reserve,
        free,
        free_abandoned,
        enter,
    }
}

impl LogStatements {
    fn new(table: &Table) -> Self {
        let log = table.quoted(DIALECT.quote, "_migrations");
        Self::from_template(&DIALECT.template().with("log", log))
    }
}

/// Longest wait for another process that migrates.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause before the next look whether another process still migrates.
const LOCK_POLL: Duration = Duration::from_millis(50);
/// Number of tries of a statement that conflicts with the migration of another node.
const TRIES: u32 = 20;

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
    let connections = sql::Connections::to_server(pool.clone());
    // Before this takes a connection: the pool may have no other.
    let cluster = Cluster::of(&connections).await?;
    let mut connection = pool.acquire().await.map_err(error)?;
    if missing(&mut connection, table, migrations)
        .await?
        .is_empty()
    {
        return Ok(());
    }
    // The lock belongs to the session. If the future is dropped half way, the connection must not return to the pool
    // with it.
    let mut connection = connection.detach();
    if !lock(&mut connection, table).await.map_err(error)? {
        return Err(others_migrate());
    }
    let applied = match cluster {
        Cluster::GroupOfPrimaries => apply_in_group(&mut connection, table, migrations).await,
        Cluster::None | Cluster::Galera | Cluster::Group => {
            apply(&mut connection, table, migrations).await
        }
    };
    // Closing the connection releases the lock. An error of the close loses nothing.
    let _ = sqlx::Connection::close(connection).await;
    applied
}

fn others_migrate() -> StoreError {
    let message = "another process has been migrating the tables for a minute, try again";
    StoreError::new(StoreErrorKind::Conflict, message)
}

/// Waits until no other process migrates. Returns false if that takes too long. A statement that waits in the server for
/// a second would be logged as slow.
///
/// The name of a lock has at most 64 characters. `SHA1` and `MD5` would be shorter than `SHA2`, but MySQL 9.6 has moved
/// them into a component that is not installed.
async fn lock(connection: &mut MySqlConnection, table: &Table) -> Result<bool, sqlx::Error> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let locked: Option<i64> = sqlx::query_scalar(
            "SELECT GET_LOCK(CONCAT('idem ', LEFT(SHA2(CONCAT_WS('.', COALESCE(?, DATABASE()), ?), 256), 40)), 0)",
        )
        .bind(table.schema.as_deref())
        .bind(&*table.name)
        .fetch_one(&mut *connection)
        .await?;
        if locked == Some(1) || Instant::now() >= deadline {
            return Ok(locked == Some(1));
        }
        tokio::time::sleep(LOCK_POLL).await;
    }
}

/// Ten processes may start concurrently, and all of them find the same version missing. The lock admits one at a time,
/// which checks the versions again first. The lock only saves work, and decides nothing: on Galera each node has its own,
/// so a version may be applied on two nodes concurrently. Each statement is therefore repeatable, and a version may have
/// been entered already.
async fn apply(
    connection: &mut MySqlConnection,
    table: &Table,
    migrations: &Migrations,
) -> Result<(), StoreError> {
    for version in missing(connection, table, migrations).await? {
        let log = LogStatements::new(table);
        let statements = text(table, migrations, version);
        let enter = enter(&log, migrations, version);
        for statements in [
            log.create.text(),
            AssertSqlSafe(statements).into_sql_str(),
            enter,
        ] {
            apply_one(connection, statements).await?;
        }
    }
    Ok(())
}

/// As [`apply`], and no process on another member of the group migrates meanwhile. The members do not look for conflicts
/// between statements that define tables: if two of them add a column, each fails to apply what the other has committed,
/// and leaves the group.
///
/// A row of the table of versions is the lock. Who commits it first migrates. Who commits it next has applied what the one
/// before had committed, because a member commits in the order of its group.
async fn apply_in_group(
    connection: &mut MySqlConnection,
    table: &Table,
    migrations: &Migrations,
) -> Result<(), StoreError> {
    let log = LogStatements::new(table);
    let deadline = Instant::now() + PATIENCE;
    apply_one(connection, log.create.text()).await?;
    loop {
        let reserved = sqlx::raw_sql(log.reserve.text()).execute(&mut *connection);
        match reserved.await {
            Ok(_) => break,
            Err(refused) if errors::number(&refused) == Some(errors::DUPLICATE) => {
                apply_one(connection, log.free_abandoned.text()).await?;
            }
            Err(refused) if errors::is_undone(&refused) => {}
            Err(failed) => return Err(error(failed)),
        }
        if missing(connection, table, migrations).await?.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(others_migrate());
        }
        tokio::time::sleep(LOCK_POLL).await;
    }
    let applied = apply(connection, table, migrations).await;
    let freed = apply_one(connection, log.free.text()).await;
    applied.and(freed)
}

async fn apply_one(connection: &mut MySqlConnection, statements: SqlStr) -> Result<(), StoreError> {
    let mut tried = 1;
    loop {
        match sqlx::raw_sql(statements.clone())
            .execute(&mut *connection)
            .await
        {
            Ok(_) => return Ok(()),
            // Another process has added the columns or entered the version, on another node or before it crashed.
            Err(error)
                if matches!(
                    errors::number(&error),
                    Some(errors::DUPLICATE_COLUMN | errors::DUPLICATE)
                ) =>
            {
                return Ok(());
            }
            Err(error) if errors::is_undone(&error) && tried < TRIES => tried += 1,
            Err(failed) => return Err(error(failed)),
        }
        tokio::time::sleep(LOCK_POLL).await;
    }
}

/// Text of the migration with this index, for this table.
fn text(table: &Table, migrations: &Migrations, index: usize) -> String {
    migrations.versions[index].replace(
        &format!("`{}", migrations.table),
        table.quoted(DIALECT.quote, "").trim_end_matches('`'),
    )
}

/// Compares the applied versions with the known ones.
pub(in crate::store) async fn plan(
    pool: &MySqlPool,
    table: &Table,
    migrations: &'static Migrations,
) -> Result<MigrationPlan, StoreError> {
    let (pool, table) = (pool.clone(), table.clone());
    sql::run_to_completion(async move {
        let mut connection = pool.acquire().await.map_err(error)?;
        let (applied, missing) = versions(&mut connection, &table, migrations).await?;
        Ok(sql::migration_plan(applied, missing, |index| {
            let log = LogStatements::new(&table);
            let enter = enter(&log, migrations, index);
            let statements = text(&table, migrations, index);
            let create = log.create.as_str();
            format!("{create};\n\n{statements}\n{};\n", enter.as_str())
        }))
    })
    .await
}

/// Statement that enters the version with this index.
fn enter(log: &LogStatements, migrations: &Migrations, index: usize) -> SqlStr {
    let enter = log.enter.query().number(index as i64 + 1);
    let since = migrations.compatible_since(index);
    enter.number(since as i64).literal()
}

/// Indices of the versions that are not applied yet.
async fn missing(
    connection: &mut MySqlConnection,
    table: &Table,
    migrations: &Migrations,
) -> Result<Range<usize>, StoreError> {
    let (_, missing) = versions(connection, table, migrations).await?;
    Ok(missing)
}

/// Number of applied versions, and indices of the versions that are not applied yet. Tables of a later version lack none if
/// that version says that they work with this build.
async fn versions(
    connection: &mut MySqlConnection,
    table: &Table,
    migrations: &Migrations,
) -> Result<(usize, Range<usize>), StoreError> {
    let known = migrations.versions.len();
    let statements = LogStatements::new(table);
    let applied = match read(connection, &statements.count.query()).await {
        Ok(applied) => applied,
        Err(error) if is_about_a_table(&error) => 0,
        Err(error) => return Err(error),
    };
    if applied > known {
        let query = statements.compatible_since.query().number(known as i64);
        match read(connection, &query).await {
            Ok(since) if since <= known => return Ok((applied, known..known)),
            // The table may lack the column.
            Ok(_) => {}
            Err(error) if error.kind() == StoreErrorKind::Schema => {}
            Err(error) => return Err(error),
        }
    }
    Ok((applied, sql::missing(applied, known)?))
}

async fn read(connection: &mut MySqlConnection, query: &Query<'_>) -> Result<usize, StoreError> {
    let row = query.build::<MySql>().fetch_one(connection).await;
    row.and_then(|row| row.number(0))
        .map(|number| number as usize)
        .map_err(error)
}

fn is_about_a_table(error: &StoreError) -> bool {
    std::error::Error::source(error)
        .and_then(|source| source.downcast_ref::<sqlx::Error>())
        .and_then(errors::number)
        == Some(errors::NO_SUCH_TABLE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sql::check_statements;

    #[test]
    fn statements_are_those_of_the_file() {
        let statements = LogStatements::new(&Table::default());
        check_statements(LogStatements::FILE, &statements.each());
    }
}
