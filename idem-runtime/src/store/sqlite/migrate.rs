//! Versions of the tables, and the migration of a file from one to the next.

use sqlx::{AssertSqlSafe, SqlitePool};

use super::{error, retry_busy};
use crate::error::{StoreError, StoreErrorKind};
use crate::store::sql::{self, Migrations, Table};

/// Migrations of the tables of records.
pub(super) const RECORDS: Migrations = Migrations {
    table: Table::DEFAULT,
    versions: &[include_str!("../../../migrations/sqlite/0001_records.sql")],
};

pub(in crate::store) async fn run(
    pool: &SqlitePool,
    table: &Table,
    migrations: &Migrations,
) -> Result<(), StoreError> {
    let applied = match applied(pool, table).await {
        Ok(applied) => applied,
        Err(error) if error.kind() == StoreErrorKind::Schema => 0,
        Err(error) => return Err(error),
    };
    for version in sql::missing(applied, migrations.versions.len())? {
        retry_busy(|| apply(pool, table, migrations, version))
            .await
            .map_err(error)?;
    }
    Ok(())
}

async fn applied(pool: &SqlitePool, table: &Table) -> Result<usize, StoreError> {
    let log = log(table);
    let statement = format!("SELECT count(*) FROM {log}");
    retry_busy(|| sqlx::query_scalar(AssertSqlSafe(statement.clone())).fetch_one(pool))
        .await
        .map(|count: i64| count as usize)
        .map_err(error)
}

/// Ten processes may start concurrently, and all of them find the same version missing. The first takes the write lock
/// before it reads the versions. The others see its row when they get the lock.
async fn apply(
    pool: &SqlitePool,
    table: &Table,
    migrations: &Migrations,
    version: usize,
) -> Result<(), sqlx::Error> {
    let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
    let log = log(table);
    let make = format!(
        "CREATE TABLE IF NOT EXISTS {log} \
         (version INTEGER NOT NULL PRIMARY KEY, applied_at INTEGER NOT NULL) STRICT"
    );
    sqlx::query(AssertSqlSafe(make))
        .execute(&mut *transaction)
        .await?;
    let enter = format!(
        "INSERT INTO {log} (version, applied_at) VALUES (?1, unixepoch() * 1000000) \
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

/// Name of the table of applied versions.
fn log(table: &Table) -> String {
    table.quoted('"', "_migrations")
}

#[cfg(test)]
mod tests {
    use sqlx::sqlite::SqlitePoolOptions;

    use super::*;

    const FIRST: &str = "CREATE TABLE \"made_up\" (number INTEGER NOT NULL) STRICT;";
    const SECOND: &str =
        "ALTER TABLE \"made_up\" ADD COLUMN name TEXT; INSERT INTO \"made_up\" VALUES (1, 'a');";
    const RELEASES: [Migrations; 2] = [
        Migrations {
            table: "made_up",
            versions: &[FIRST],
        },
        Migrations {
            table: "made_up",
            versions: &[FIRST, SECOND],
        },
    ];

    /// Releases with one and with two versions of made-up tables.
    #[tokio::test]
    async fn a_later_release_applies_what_is_missing_and_an_earlier_one_is_refused() {
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .connect("sqlite::memory:")
            .await
            .unwrap();
        let table = Table::new(None, "other").unwrap();
        let [earlier, later] = &RELEASES;
        run(&pool, &table, earlier).await.unwrap();
        assert_eq!(applied(&pool, &table).await.unwrap(), 1);
        for _ in 0..2 {
            run(&pool, &table, later).await.unwrap();
            assert_eq!(applied(&pool, &table).await.unwrap(), 2);
            let names: Vec<String> = sqlx::query_scalar("SELECT name FROM other")
                .fetch_all(&pool)
                .await
                .unwrap();
            assert_eq!(names, ["a"]);
        }
        let error = run(&pool, &table, earlier).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Schema);
        assert!(error.to_string().contains("version 2"), "{error}");
    }
}
