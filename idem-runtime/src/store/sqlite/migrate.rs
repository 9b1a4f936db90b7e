//! Versions of the tables, and the migration of a file from one to the next.

use std::ops::Range;

use sqlx::{AssertSqlSafe, Sqlite, SqlitePool};

use super::statements::DIALECT;
use super::{error, retry_busy};
use crate::error::{StoreError, StoreErrorKind};
use crate::store::operator::MigrationPlan;
use crate::store::sql::{self, Migrations, Query, Readable as _, Table, declare_statements};

/// Migrations of the tables of records.
pub(super) const RECORDS: Migrations = Migrations {
    table: Table::DEFAULT,
    versions: &[
        include_str!("../../../migrations/sqlite/0001_records.sql"),
        include_str!("../../../migrations/sqlite/0002_attempts.sql"),
        include_str!("../../../migrations/sqlite/0003_audit.sql"),
        include_str!("../../../migrations/sqlite/0004_payload_for.sql"),
        include_str!("../../../migrations/sqlite/0005_operations.sql"),
        include_str!("../../../migrations/sqlite/0006_audit_values.sql"),
    ],
};

declare_statements! {
    /// Statements on the table of applied versions.
    struct LogStatements {}
    from "migrate.sql" {
        count,
        compatible_since,
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

pub(in crate::store) async fn run(
    pool: &SqlitePool,
    table: &Table,
    migrations: &Migrations,
) -> Result<(), StoreError> {
    let (_, missing) = missing(pool, table, migrations).await?;
    for version in missing {
        retry_busy(|| apply(pool, table, migrations, version))
            .await
            .map_err(error)?;
    }
    Ok(())
}

async fn applied(pool: &SqlitePool, table: &Table) -> Result<usize, StoreError> {
    let statements = LogStatements::new(table);
    read(pool, &statements.count.query()).await
}

/// Compares the applied versions with the known ones.
pub(in crate::store) async fn plan(
    pool: &SqlitePool,
    table: &Table,
    migrations: &Migrations,
) -> Result<MigrationPlan, StoreError> {
    let (applied, missing) = missing(pool, table, migrations).await?;
    Ok(sql::migration_plan(applied, missing, |index| {
        let log = LogStatements::new(table);
        let enter = log.enter.as_str().replace("?1", &(index + 1).to_string());
        let enter = enter.replace("?2", &migrations.compatible_since(index).to_string());
        // Without the last clause, the transaction fails if the version was applied meanwhile.
        let enter = enter.trim_end_matches(" ON CONFLICT (version) DO NOTHING");
        let create = log.create.as_str();
        let statements = migrations.versions[index].replace(migrations.table, &table.name);
        format!("BEGIN IMMEDIATE;\n{create};\n{enter};\n\n{statements}\nCOMMIT;\n")
    }))
}

/// Number of applied versions, and indices of the versions that are not applied yet. Tables of a later version lack none if
/// that version says that they work with this build.
async fn missing(
    pool: &SqlitePool,
    table: &Table,
    migrations: &Migrations,
) -> Result<(usize, Range<usize>), StoreError> {
    let known = migrations.versions.len();
    let applied = match applied(pool, table).await {
        Ok(applied) => applied,
        Err(error) if error.kind() == StoreErrorKind::Schema => 0,
        Err(error) => return Err(error),
    };
    if applied > known {
        let statements = LogStatements::new(table);
        let query = statements.compatible_since.query().number(known as i64);
        match read(pool, &query).await {
            Ok(since) if since <= known => return Ok((applied, known..known)),
            // The table may lack the column.
            Ok(_) => {}
            Err(error) if error.kind() == StoreErrorKind::Schema => {}
            Err(error) => return Err(error),
        }
    }
    Ok((applied, sql::missing(applied, known)?))
}

async fn read(pool: &SqlitePool, query: &Query<'_>) -> Result<usize, StoreError> {
    retry_busy(|| query.build::<Sqlite>().fetch_one(pool))
        .await
        .and_then(|row| row.number(0))
        .map(|number| number as usize)
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
    let statements = LogStatements::new(table);
    let create = statements.create.query();
    create.build::<Sqlite>().execute(&mut *transaction).await?;
    let enter = statements.enter.query().number(version as i64 + 1);
    let enter = enter.number(migrations.compatible_since(version) as i64);
    let entered = enter
        .build::<Sqlite>()
        .execute(&mut *transaction)
        .await?
        .rows_affected();
    if entered > 0 {
        let statements = migrations.versions[version].replace(migrations.table, &table.name);
        match sqlx::raw_sql(AssertSqlSafe(statements))
            .execute(&mut *transaction)
            .await
        {
            // The application has applied the file itself. A file adds its columns first, and all of them or none.
            Err(error) if is_duplicate_column(&error) => {}
            done => {
                done?;
            }
        }
    }
    transaction.commit().await
}

/// SQLite has no error code for this, and no `ADD COLUMN IF NOT EXISTS`.
fn is_duplicate_column(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(answer) if answer.message().starts_with("duplicate column name: "))
}

#[cfg(test)]
mod tests {
    use sqlx::sqlite::SqlitePoolOptions;

    use super::*;
    use crate::store::sql::check_statements;

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

    #[test]
    fn statements_are_those_of_the_file() {
        let statements = LogStatements::new(&Table::default());
        check_statements(LogStatements::FILE, &statements.each());
    }

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

    /// A rollback of a release starts, if the later one has said that its tables allow that.
    #[tokio::test]
    async fn later_tables_that_say_so_are_accepted() {
        const COMPATIBLE: &str = "-- Compatible since version 1.\n\
             ALTER TABLE \"made_up\" ADD COLUMN name TEXT;";
        let later = Migrations {
            table: "made_up",
            versions: &[FIRST, COMPATIBLE],
        };
        let latest = Migrations {
            table: "made_up",
            versions: &[
                FIRST,
                COMPATIBLE,
                "CREATE TABLE \"made_up_too\" (a INTEGER) STRICT;",
            ],
        };
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .connect("sqlite::memory:")
            .await
            .unwrap();
        let table = Table::new(None, "made_up").unwrap();
        let [earlier, _] = &RELEASES;
        run(&pool, &table, &later).await.unwrap();
        run(&pool, &table, earlier).await.unwrap();
        let plan = plan(&pool, &table, earlier).await.unwrap();
        assert_eq!((plan.applied, plan.known), (2, 1));
        assert_eq!(plan.pending, []);
        // The next version says nothing, so neither of the earlier releases accepts it.
        run(&pool, &table, &latest).await.unwrap();
        for release in [earlier, &later] {
            let error = run(&pool, &table, release).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Schema);
            assert!(error.to_string().contains("version 3"), "{error}");
        }
    }
}
