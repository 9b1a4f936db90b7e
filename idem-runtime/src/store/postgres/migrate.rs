//! Versions of the tables, and the migration of a database from one to the next.

use sqlx::{AssertSqlSafe, PgPool};

use super::{error, retry_conflicts};
use crate::error::{StoreError, StoreErrorKind};
use crate::store::sql::{self, Migrations, Table};

/// Migrations of the tables of records.
pub(super) const RECORDS: Migrations = Migrations {
    table: Table::DEFAULT,
    versions: &[include_str!(
        "../../../migrations/postgres/0001_records.sql"
    )],
};

/// Advisory lock that a migration holds: "idem" in ASCII.
const LOCK: i64 = 0x6964_656d;

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
    if let Some(schema) = &table.schema {
        let exists = retry_conflicts(|| {
            sqlx::query_scalar::<_, i64>("SELECT count(*) FROM pg_namespace WHERE nspname = $1")
                .bind(&**schema)
                .fetch_one(pool)
        })
        .await
        .map_err(error)?;
        if exists == 0 {
            return Err(StoreError::new(
                StoreErrorKind::Schema,
                format!("there is no schema `{schema}`, create it"),
            ));
        }
    }
    let applied = match applied(pool, table).await {
        Ok(applied) => applied,
        Err(error) if error.kind() == StoreErrorKind::Schema => 0,
        Err(error) => return Err(error),
    };
    for version in sql::missing(applied, migrations.versions.len())? {
        retry_conflicts(|| apply(pool, table, migrations, version))
            .await
            .map_err(error)?;
    }
    Ok(())
}

async fn applied(pool: &PgPool, table: &Table) -> Result<usize, StoreError> {
    let statement = format!("SELECT count(*) FROM {}", table.quoted('"', "_migrations"));
    retry_conflicts(|| sqlx::query_scalar(AssertSqlSafe(statement.clone())).fetch_one(pool))
        .await
        .map(|count: i64| count as usize)
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
    let mut transaction = pool
        .begin_with("BEGIN ISOLATION LEVEL READ COMMITTED")
        .await?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)")
        .bind(LOCK)
        .execute(&mut *transaction)
        .await?;
    if let Some(schema) = &table.schema {
        sqlx::raw_sql(AssertSqlSafe(format!(
            "SET LOCAL search_path TO \"{schema}\""
        )))
        .execute(&mut *transaction)
        .await?;
    }
    let log = table.quoted('"', "_migrations");
    let make = format!(
        "CREATE TABLE IF NOT EXISTS {log} (version bigint NOT NULL PRIMARY KEY, applied_at bigint NOT NULL)"
    );
    sqlx::raw_sql(AssertSqlSafe(make))
        .execute(&mut *transaction)
        .await?;
    let enter = format!(
        "INSERT INTO {log} (version, applied_at) VALUES ($1, (extract(epoch FROM now()) * 1000000)::bigint) \
         ON CONFLICT (version) DO NOTHING"
    );
    let entered = sqlx::query(AssertSqlSafe(enter))
        .bind(version as i64 + 1)
        .execute(&mut *transaction)
        .await?
        .rows_affected();
    if entered > 0 {
        let statements = migrations.versions[version].replace(migrations.table, &table.name);
        sqlx::raw_sql(AssertSqlSafe(statements))
            .execute(&mut *transaction)
            .await?;
    }
    transaction.commit().await
}
