//! Versions of the tables, and the migration of a database from one to the next.
//!
//! All statements are sent as text, so that a database can be migrated behind any pooler.

use std::ops::Range;
use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection, PgPool, Row as _, SqlSafeStr as _, SqlStr};

use super::connections::{Protocol, give_back};
use super::form::PostgresForm;
use super::forms::{Forms, form_for_new_tables, form_of_tables, other_form};
use super::statements::DIALECT;
use super::{BEGIN, TRIES, error, is_conflict, retry_conflicts};
use crate::error::{StoreError, StoreErrorKind};
use crate::store::operator::MigrationPlan;
use crate::store::sql::{
    self, Connections, Migrations, OpenTransaction, Query, Readable as _, Table, declare_statements,
};

/// Migrations of the tables of records.
const RECORDS: Migrations = Migrations {
    table: Table::DEFAULT,
    versions: &[
        include_str!("../../../migrations/postgres/0001_records.sql"),
        include_str!("../../../migrations/postgres/0002_attempts.sql"),
        include_str!("../../../migrations/postgres/0003_audit.sql"),
        include_str!("../../../migrations/postgres/0004_claims.sql"),
        include_str!("../../../migrations/postgres/0005_payload_for.sql"),
        include_str!("../../../migrations/postgres/0006_operations.sql"),
        include_str!("../../../migrations/postgres/0007_audit_values.sql"),
    ],
};

/// Migrations of the tables of records in the portable form.
const PORTABLE_RECORDS: Migrations = Migrations {
    table: Table::DEFAULT,
    versions: &[
        include_str!("../../../migrations/postgres/portable/0001_records.sql"),
        include_str!("../../../migrations/postgres/portable/0002_payload_for.sql"),
        include_str!("../../../migrations/postgres/portable/0003_operations.sql"),
        include_str!("../../../migrations/postgres/portable/0004_audit_values.sql"),
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

/// Advisory lock that a migration holds: "idem" in ASCII.
const LOCK: i64 = 0x6964_656d;
/// Pause before the next look whether another process still migrates.
const LOCK_POLL: Duration = Duration::from_millis(50);

/// Migrates the tables of records to their end, even if the caller is cancelled: a `BEGIN` that is not awaited would
/// leave a transaction open on a connection of the pool. Returns the form of the tables.
pub(super) async fn run_for_records(
    pool: &PgPool,
    forms: &Forms,
) -> Result<PostgresForm, StoreError> {
    let (pool, table, requested) = (pool.clone(), forms.table.clone(), forms.requested);
    sql::run_to_completion(async move {
        let form = form_to_migrate(&pool, &table, requested).await?;
        Target::of_records(&table, form).migrate(&pool).await?;
        Ok(form)
    })
    .await
}

/// Compares the applied versions of the tables of records with the known ones.
pub(super) async fn plan_for_records(
    pool: &PgPool,
    forms: &Forms,
) -> Result<MigrationPlan, StoreError> {
    let form = form_to_migrate(pool, &forms.table, forms.requested).await?;
    Target::of_records(&forms.table, form).plan(pool).await
}

/// Form of the tables if they exist, else the requested form, else the one that the server can run.
///
/// # Errors
/// If the tables exist in another form than the requested one.
async fn form_to_migrate(
    pool: &PgPool,
    table: &Table,
    requested: Option<PostgresForm>,
) -> Result<PostgresForm, StoreError> {
    let existing = retry_conflicts(|| form_of_tables(pool, table)).await;
    match (existing.map_err(error)?, requested) {
        (Some(found), Some(requested)) if found != requested => Err(other_form(found, requested)),
        (Some(form), _) | (None, Some(form)) => Ok(form),
        (None, None) => form_for_new_tables(pool).await,
    }
}

/// Migrates the tables of an outbox. Only the way in which a version is applied depends on the server.
#[cfg(feature = "outbox")]
pub(in crate::store) async fn run(
    pool: &PgPool,
    table: &Table,
    migrations: &'static Migrations,
) -> Result<(), StoreError> {
    let (pool, table) = (pool.clone(), table.clone());
    sql::run_to_completion(async move {
        let form = form_for_new_tables(&pool).await?;
        let target = Target::of_outbox(&table, migrations, form);
        target.migrate(&pool).await
    })
    .await
}

/// Compares the applied versions of the tables of an outbox with the known ones.
#[cfg(feature = "outbox")]
pub(in crate::store) async fn plan(
    pool: &PgPool,
    table: &Table,
    migrations: &'static Migrations,
) -> Result<MigrationPlan, StoreError> {
    let form = form_for_new_tables(pool).await?;
    Target::of_outbox(table, migrations, form).plan(pool).await
}

/// Tables to migrate.
struct Target<'a> {
    table: &'a Table,
    migrations: &'static Migrations,
    /// Way in which a version is applied.
    form: PostgresForm,
    /// Suffixes of the tables whose rows a sequence numbers, with the numbered column.
    numbered: &'static [(&'static str, &'static str)],
    log: LogStatements,
}

impl<'a> Target<'a> {
    fn of_records(table: &'a Table, form: PostgresForm) -> Self {
        let migrations = match form {
            PostgresForm::Standard => &RECORDS,
            PostgresForm::Portable => &PORTABLE_RECORDS,
        };
        let numbered: &[_] = match form {
            PostgresForm::Standard => &[("_audit", "entry")],
            // Databases that are only similar to PostgreSQL number rows in their own ways.
            PostgresForm::Portable => &[],
        };
        Self::new(table, migrations, form, form.log_suffix(), numbered)
    }

    /// The tables of an outbox are the same in both forms.
    #[cfg(feature = "outbox")]
    fn of_outbox(table: &'a Table, migrations: &'static Migrations, form: PostgresForm) -> Self {
        let numbered: &[_] = match form {
            PostgresForm::Standard => &[("", "id"), ("_audit", "entry")],
            PostgresForm::Portable => &[],
        };
        let log_suffix = PostgresForm::Standard.log_suffix();
        Self::new(table, migrations, form, log_suffix, numbered)
    }

    fn new(
        table: &'a Table,
        migrations: &'static Migrations,
        form: PostgresForm,
        log_suffix: &str,
        numbered: &'static [(&'static str, &'static str)],
    ) -> Self {
        let log = table.quoted(DIALECT.quote, log_suffix);
        Self {
            table,
            migrations,
            form,
            numbered,
            log: LogStatements::from_template(&DIALECT.template().with("log", log)),
        }
    }

    async fn migrate(&self, pool: &PgPool) -> Result<(), StoreError> {
        let (_, missing) = self.missing(pool).await?;
        for version in missing {
            match self.form {
                PostgresForm::Standard => retry_conflicts(|| self.apply(pool, version)).await,
                PostgresForm::Portable => self.apply_one_by_one(pool, version).await,
            }
            .map_err(error)?;
        }
        for (suffix, column) in self.numbered {
            self.advance_sequence(pool, suffix, column)
                .await
                .map_err(error)?;
        }
        Ok(())
    }

    /// Advances the sequence of a column beyond the highest number in its table. Logical replication copies rows and no
    /// sequences: after a switch to the replica, new rows would get numbers that exist, or lower ones than older rows.
    async fn advance_sequence(
        &self,
        pool: &PgPool,
        suffix: &str,
        column: &str,
    ) -> Result<(), sqlx::Error> {
        let table = self.table.quoted(DIALECT.quote, suffix);
        let behind = format!(
            "FROM (SELECT pg_get_serial_sequence('{table}', '{column}')::regclass AS sequence) AS s, \
             (SELECT max({column}) AS highest FROM {table}) AS t \
             WHERE t.highest > coalesce(pg_sequence_last_value(s.sequence), 0)"
        );
        // The user of a service may neither read an audit nor see a sequence. The owner of the tables does this.
        let owned = AssertSqlSafe(format!(
            "SELECT 1 FROM pg_class WHERE oid = to_regclass('{table}') AND pg_has_role(relowner, 'USAGE')"
        ));
        if sqlx::raw_sql(owned).fetch_optional(pool).await?.is_none() {
            return Ok(());
        }
        // Mostly no sequence is behind, and this read locks nothing.
        let is_behind = AssertSqlSafe(format!("SELECT 1 {behind}"));
        if sqlx::raw_sql(is_behind)
            .fetch_optional(pool)
            .await?
            .is_none()
        {
            return Ok(());
        }
        let begin = SqlStr::from_static(BEGIN);
        let pool = Connections::to_server(pool.clone());
        let mut transaction = OpenTransaction::begin(&pool, Some(begin)).await?;
        // An insert between the read of the sequence and its write would get a number that is then given again.
        let lock = AssertSqlSafe(format!("LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE"));
        sqlx::raw_sql(lock).execute(&mut *transaction).await?;
        let advance = AssertSqlSafe(format!("SELECT setval(s.sequence, t.highest) {behind}"));
        sqlx::raw_sql(advance).execute(&mut *transaction).await?;
        transaction.commit().await
    }

    async fn plan(&self, pool: &PgPool) -> Result<MigrationPlan, StoreError> {
        let (applied, missing) = self.missing(pool).await?;
        Ok(sql::migration_plan(applied, missing, |index| {
            let create = self.log.create.as_str();
            let enter = self.log.enter.as_str();
            let enter = enter.replace("$1", &(index + 1).to_string());
            let since = self.migrations.compatible_since(index);
            let enter = enter.replace("$2", &since.to_string());
            let statements = self.statements(index);
            if self.form == PostgresForm::Portable {
                return format!("{create};\n\n{statements}\n{enter};\n");
            }
            // Without the last clause, the transaction fails if the version was applied meanwhile.
            let enter = enter.trim_end_matches(" ON CONFLICT (version) DO NOTHING");
            let path = match &self.table.schema {
                Some(schema) => format!("SET LOCAL search_path TO \"{schema}\";\n"),
                None => String::new(),
            };
            format!(
                "{BEGIN};\nSELECT pg_advisory_xact_lock({LOCK});\n{path}{create};\n\
                 {enter};\n\n{statements}\nCOMMIT;\n"
            )
        }))
    }

    /// Number of applied versions, and indices of the versions that are not applied yet. Tables of a later version lack
    /// none if that version says that they work with this build.
    async fn missing(&self, pool: &PgPool) -> Result<(usize, Range<usize>), StoreError> {
        let known = self.migrations.versions.len();
        let applied = self.applied_or_none(pool).await?;
        if applied > known {
            let query = self.log.compatible_since.query().number(known as i64);
            match count(pool, query.literal().into_sql_str()).await {
                Ok(since) if since <= known => return Ok((applied, known..known)),
                // The table may lack the column.
                Ok(_) => {}
                Err(error) if error.kind() == StoreErrorKind::Schema => {}
                Err(error) => return Err(error),
            }
        }
        Ok((applied, sql::missing(applied, known)?))
    }

    /// Statement that enters the version with this index.
    fn enter(&self, version: usize) -> Query<'_> {
        let since = self.migrations.compatible_since(version);
        let enter = self.log.enter.query().number(version as i64 + 1);
        enter.number(since as i64)
    }

    /// SQL of a version, for the name of this table.
    ///
    /// In the portable form, the schema precedes the names of tables: the search path of a transaction would not reach all
    /// of the statements, and that of a connection would reach other clients behind a pooler.
    fn statements(&self, version: usize) -> String {
        let named =
            self.migrations.versions[version].replace(self.migrations.table, &self.table.name);
        match &self.table.schema {
            Some(schema) if self.form == PostgresForm::Portable => named
                .replace(
                    "TABLE IF NOT EXISTS \"",
                    &format!("TABLE IF NOT EXISTS \"{schema}\".\""),
                )
                .replace("ALTER TABLE \"", &format!("ALTER TABLE \"{schema}\".\""))
                .replace(" ON \"", &format!(" ON \"{schema}\".\"")),
            _ => named,
        }
    }

    /// Number of applied versions; zero without tables.
    ///
    /// # Errors
    /// If the schema does not exist.
    async fn applied_or_none(&self, pool: &PgPool) -> Result<usize, StoreError> {
        if let Some(schema) = &self.table.schema {
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
        match count(pool, self.log.count.text()).await {
            Err(error) if error.kind() == StoreErrorKind::Schema => Ok(0),
            applied => applied,
        }
    }

    /// Ten processes may start concurrently, and all of them find the same version missing. The first gets the lock
    /// before it reads the versions. The others see its row when they get the lock: at this isolation level each
    /// statement sees what was committed before it, independently of the pool's default.
    async fn apply(&self, pool: &PgPool, version: usize) -> Result<(), sqlx::Error> {
        let begin = SqlStr::from_static(BEGIN);
        let pool = Connections::to_server(pool.clone());
        let mut transaction = OpenTransaction::begin(&pool, Some(begin)).await?;
        // Otherwise each "already exists, skipping" is a line in the log of the application, although it is expected.
        sqlx::raw_sql("SET LOCAL client_min_messages TO warning")
            .execute(&mut *transaction)
            .await?;
        lock(&mut transaction).await?;
        if let Some(schema) = &self.table.schema {
            sqlx::raw_sql(AssertSqlSafe(format!(
                "SET LOCAL search_path TO \"{schema}\""
            )))
            .execute(&mut *transaction)
            .await?;
        }
        sqlx::raw_sql(self.log.create.text())
            .execute(&mut *transaction)
            .await?;
        let enter = self.enter(version);
        let entered = Protocol::Simple.affected(&mut transaction, &enter).await?;
        if entered > 0 {
            sqlx::raw_sql(AssertSqlSafe(self.statements(version)))
                .execute(&mut *transaction)
                .await?;
        }
        transaction.commit().await
    }

    /// Applies a version statement by statement, each in a transaction of its own, and enters it after the last one.
    /// Several processes may do so concurrently: each statement may be repeated.
    async fn apply_one_by_one(&self, pool: &PgPool, version: usize) -> Result<(), sqlx::Error> {
        define(pool, self.log.create.text()).await?;
        let statements = self.statements(version);
        for statement in each_statement(&statements) {
            define(pool, AssertSqlSafe(statement.to_owned()).into_sql_str()).await?;
        }
        let enter = self.enter(version);
        define(pool, enter.literal().into_sql_str()).await
    }
}

/// Reads a number.
async fn count(pool: &PgPool, query: SqlStr) -> Result<usize, StoreError> {
    let pool = Connections::to_server(pool.clone());
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

/// Statements of a file. Each ends with a semicolon at the end of a line that is no comment.
fn each_statement(file: &str) -> impl Iterator<Item = &str> {
    file.split(";\n")
        .map(str::trim)
        .filter(|statement| statement.lines().any(|line| !line.starts_with("--")))
}

/// Runs a statement of the portable form that defines a table or an index unless it exists. If several processes define
/// the same concurrently, the server may report an error to all but one. The next try then finds the definition.
async fn define(pool: &PgPool, statement: SqlStr) -> Result<(), sqlx::Error> {
    let pool = Connections::to_server(pool.clone());
    let may_be_gone = |failed: &sqlx::Error| is_conflict(failed) || is_defined_meanwhile(failed);
    sql::retry(TRIES, may_be_gone, sql::random_pause, || async {
        let mut connection = pool.acquire().await?;
        let done = sqlx::raw_sql(statement.clone())
            .execute(&mut *connection)
            .await;
        give_back(connection, done.map(drop))
    })
    .await
}

/// Returns true if another process defined the same table, column or index at the same time: the server found its name, or its
/// row in the catalogue.
fn is_defined_meanwhile(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(answer)
        if matches!(answer.code().as_deref(), Some("23505" | "42701" | "42P07" | "42710")))
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
        let table = Table::default();
        let target = Target::of_records(&table, PostgresForm::Portable);
        check_statements(LogStatements::FILE, &target.log.each());
    }

    #[test]
    fn the_portable_form_defines_the_mark_first_and_uses_nothing_that_others_lack() {
        const FORBIDDEN: [&str; 14] = [
            "TRIGGER",
            "FUNCTION",
            "PLPGSQL",
            "DO $$",
            "ADVISORY",
            "SEQUENCE",
            "SERIAL",
            "IDENTITY",
            "FILLFACTOR",
            "COLLATE",
            "REFERENCES",
            "CTID",
            "NOWAIT",
            "JSONB",
        ];
        for version in PORTABLE_RECORDS.versions {
            for statement in each_statement(version) {
                let lines = statement.lines();
                let lines = lines.map(|line| line.split("--").next().unwrap_or_default());
                let text = lines.collect::<Vec<_>>().join("\n").to_uppercase();
                assert!(text.contains("IF NOT EXISTS"), "{statement}");
                for word in FORBIDDEN {
                    assert!(!text.contains(word), "{word} in {statement}");
                }
            }
        }
        let first = each_statement(PORTABLE_RECORDS.versions[0]).next().unwrap();
        let mark = format!(
            "\"{}{}\"",
            Table::DEFAULT,
            PostgresForm::Portable.log_suffix()
        );
        assert!(first.contains(&mark), "{first}");
        assert_eq!(each_statement(PORTABLE_RECORDS.versions[0]).count(), 9);
    }
}
