//! Versions of the tables, and the migration of a database from one to the next.
//!
//! All statements are sent as text, so that a database can be migrated behind any pooler.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection, PgPool, Row as _, SqlSafeStr as _, SqlStr};

use super::connections::{Protocol, give_back};
use super::statements::DIALECT;
use super::{BEGIN, error, retry_conflicts};
use crate::error::{StoreError, StoreErrorKind};
use crate::store::operator::MigrationPlan;
use crate::store::sql::{self, Migrations, Readable as _, Table, declare_statements};

/// Migrations of the tables of records.
pub(super) const RECORDS: Migrations = Migrations {
    table: Table::DEFAULT,
    versions: &[
        include_str!("../../../migrations/postgres/0001_records.sql"),
        include_str!("../../../migrations/postgres/0002_attempts.sql"),
        include_str!("../../../migrations/postgres/0003_audit.sql"),
    ],
};

declare_statements! {
    /// Statements on the table of applied versions.
    struct LogStatements {}
    from "migrate.sql" {
        count,
        create,
        enter,
    }
}

impl LogStatements {
    fn new(table: &Table) -> Self {
        let log = table.quoted(DIALECT.quote, "_migrations");
        Self::from_template(&DIALECT.template().with("log", log))
    }
}

/// Advisory lock that a migration holds: "idem" in ASCII.
const LOCK: i64 = 0x6964_656d;
/// Pause before the next look whether another process still migrates.
const LOCK_POLL: Duration = Duration::from_millis(50);

/// Runs the migrations to their end, even if the caller is cancelled: a `BEGIN` that is not awaited would leave a
/// transaction open on a connection of the pool.
pub(in crate::store) async fn run(
    pool: &PgPool,
    table: &Table,
    migrations: &'static Migrations,
) -> Result<(), StoreError> {
    let (pool, table) = (pool.clone(), table.clone());
    sql::run_to_completion(async move { migrate(&pool, &table, migrations).await }).await
}

async fn migrate(pool: &PgPool, table: &Table, migrations: &Migrations) -> Result<(), StoreError> {
    let applied = applied_or_none(pool, table).await?;
    for version in sql::missing(applied, migrations.versions.len())? {
        retry_conflicts(|| apply(pool, table, migrations, version))
            .await
            .map_err(error)?;
    }
    Ok(())
}

/// Compares the applied versions with the known ones.
pub(in crate::store) async fn plan(
    pool: &PgPool,
    table: &Table,
    migrations: &Migrations,
) -> Result<MigrationPlan, StoreError> {
    let applied = applied_or_none(pool, table).await?;
    sql::migration_plan(applied, migrations.versions.len(), |index| {
        let log = LogStatements::new(table);
        let enter = log.enter.as_str().replace("$1", &(index + 1).to_string());
        // Without the last clause, the transaction fails if the version was applied meanwhile.
        let enter = enter.trim_end_matches(" ON CONFLICT (version) DO NOTHING");
        let create = log.create.as_str();
        let path = match &table.schema {
            Some(schema) => format!("SET LOCAL search_path TO \"{schema}\";\n"),
            None => String::new(),
        };
        let statements = migrations.versions[index].replace(migrations.table, &table.name);
        format!(
            "{BEGIN};\nSELECT pg_advisory_xact_lock({LOCK});\n{path}{create};\n\
             {enter};\n\n{statements}\nCOMMIT;\n"
        )
    })
}

/// Number of applied versions; zero without tables.
///
/// # Errors
/// If the schema does not exist.
async fn applied_or_none(pool: &PgPool, table: &Table) -> Result<usize, StoreError> {
    if let Some(schema) = &table.schema {
        // The name was checked: it has no quote.
        let query = format!("SELECT count(*) FROM pg_namespace WHERE nspname = '{schema}'");
        let exists = count(pool, AssertSqlSafe(query).into_sql_str()).await?;
        if exists == 0 {
            return Err(StoreError::new(
                StoreErrorKind::Schema,
                format!("there is no schema `{schema}`, create it"),
            ));
        }
    }
    match applied(pool, table).await {
        Err(error) if error.kind() == StoreErrorKind::Schema => Ok(0),
        applied => applied,
    }
}

async fn applied(pool: &PgPool, table: &Table) -> Result<usize, StoreError> {
    let statements = LogStatements::new(table);
    count(pool, statements.count.text()).await
}

async fn count(pool: &PgPool, query: SqlStr) -> Result<usize, StoreError> {
    retry_conflicts(|| async {
        let mut connection = pool.acquire().await?;
        let row = sqlx::raw_sql(query.clone())
            .fetch_one(&mut *connection)
            .await;
        give_back(connection, row)
    })
    .await
    .and_then(|row| row.number(0))
    .map(|count| count as usize)
    .map_err(error)
}

/// Ten processes may start concurrently, and all of them find the same version missing. The first gets the lock before
/// it reads the versions. The others see its row when they get the lock: at this isolation level each statement sees
/// what was committed before it, independently of the pool's default.
async fn apply(
    pool: &PgPool,
    table: &Table,
    migrations: &Migrations,
    version: usize,
) -> Result<(), sqlx::Error> {
    let mut transaction = pool.begin_with(BEGIN).await?;
    // Otherwise each "already exists, skipping" is a line in the log of the application, although it is expected.
    sqlx::raw_sql("SET LOCAL client_min_messages TO warning")
        .execute(&mut *transaction)
        .await?;
    lock(&mut transaction).await?;
    if let Some(schema) = &table.schema {
        sqlx::raw_sql(AssertSqlSafe(format!(
            "SET LOCAL search_path TO \"{schema}\""
        )))
        .execute(&mut *transaction)
        .await?;
    }
    let statements = LogStatements::new(table);
    sqlx::raw_sql(statements.create.text())
        .execute(&mut *transaction)
        .await?;
    let enter = statements.enter.query().number(version as i64 + 1);
    let entered = Protocol::Simple.affected(&mut transaction, &enter).await?;
    if entered > 0 {
        let statements = migrations.versions[version].replace(migrations.table, &table.name);
        sqlx::raw_sql(AssertSqlSafe(statements))
            .execute(&mut *transaction)
            .await?;
    }
    transaction.commit().await
}

/// Waits until no other process migrates. A statement that waits in the server for a second would be logged as slow.
async fn lock(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    loop {
        let lock = format!("SELECT pg_try_advisory_xact_lock({LOCK})");
        let locked = sqlx::raw_sql(AssertSqlSafe(lock))
            .fetch_one(&mut *connection)
            .await?;
        if locked.try_get(0)? {
            return Ok(());
        }
        tokio::time::sleep(LOCK_POLL).await;
    }
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
