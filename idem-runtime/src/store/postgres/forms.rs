//! Statements of both forms, and the form of the tables.

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, PgExecutor, PgPool, Postgres, Row as _};
use tokio::sync::OnceCell;

use super::connections::give_back;
use super::form::PostgresForm;
use super::statements::{DIALECT, On, PostgresStatements};
use super::{error, retry_conflicts};
use crate::error::{StoreError, StoreErrorKind};
use crate::store::ClaimRequest;
use crate::store::sql::{Connections, Query, Statement, Table, claim_query};

/// Statements of both forms, and the form of the tables once it is known.
#[derive(Debug)]
pub(super) struct Forms {
    pub(super) table: Table,
    /// Form that the application asked for.
    pub(super) requested: Option<PostgresForm>,
    known: OnceCell<PostgresForm>,
    standard: PostgresStatements,
    standard_in_transaction: PostgresStatements,
    portable: PostgresStatements,
}

impl Forms {
    pub(super) fn new(table: Table, requested: Option<PostgresForm>) -> Self {
        Self {
            standard: PostgresStatements::new(&table, PostgresForm::Standard, On::Pool),
            standard_in_transaction: PostgresStatements::new(
                &table,
                PostgresForm::Standard,
                On::Transaction,
            ),
            portable: PostgresStatements::new(&table, PostgresForm::Portable, On::Pool),
            table,
            requested,
            known: OnceCell::new_with(requested),
        }
    }

    /// Form of the tables, if it was read or requested.
    pub(super) fn known(&self) -> Option<PostgresForm> {
        self.known.get().copied()
    }

    /// Sets the form of the tables, which keep it.
    pub(super) fn set(&self, form: PostgresForm) {
        let _ = self.known.set(form);
    }

    /// Statements of the known form, for connections in a transaction.
    pub(super) fn in_transaction(&self) -> &PostgresStatements {
        match self.is_portable() {
            true => &self.portable,
            false => &self.standard_in_transaction,
        }
    }

    pub(super) fn is_portable(&self) -> bool {
        self.known() == Some(PostgresForm::Portable)
    }

    /// Binds parameters 1 to 11 of a claim, and in the standard form 12, the number of the advisory lock.
    pub(super) fn claim_query<'q>(
        &self,
        statement: &'q Statement,
        claim: &'q ClaimRequest,
    ) -> Query<'q> {
        let query = claim_query(statement, claim);
        match self.is_portable() {
            true => query,
            false => query.number(lock_number(claim)),
        }
    }

    /// Statements for the pool, of the form of the tables. The form is read unless it is known; concurrent calls share one
    /// read. Without tables the form stays unknown, because another process may create them. Any statement fails then, so
    /// those of the standard form serve.
    pub(super) async fn statements(
        &self,
        pool: &Connections<Postgres>,
    ) -> Result<&PostgresStatements, StoreError> {
        let read = || async {
            let mut connection = pool.acquire().await?;
            let form = form_of_tables(&mut *connection, &self.table).await;
            give_back(connection, form)
        };
        self.prepare_by(|| retry_conflicts(|| pool.watch(read())))
            .await?;
        Ok(match self.is_portable() {
            true => &self.portable,
            false => &self.standard,
        })
    }

    /// Reads the form as [`statements`](Self::statements) does, on a connection that may be in a transaction.
    pub(super) async fn prepare_on(&self, connection: &mut PgConnection) -> Result<(), StoreError> {
        self.prepare_by(|| form_of_tables(connection, &self.table))
            .await
    }

    async fn prepare_by<F>(&self, read: impl FnOnce() -> F) -> Result<(), StoreError>
    where
        F: Future<Output = Result<Option<PostgresForm>, sqlx::Error>>,
    {
        let read = async || match read().await {
            Ok(Some(form)) => Ok(form),
            Ok(None) => Err(None),
            Err(failed) => Err(Some(failed)),
        };
        match self.known.get_or_try_init(read).await {
            Err(Some(failed)) => Err(error(failed)),
            Ok(_) | Err(None) => Ok(()),
        }
    }
}

/// Number of the advisory lock of the record, to which the statements add that of the table.
pub(super) fn lock_number(claim: &ClaimRequest) -> i64 {
    let lock = claim.id.as_bytes().first_chunk();
    lock.map_or(0, |eight| i64::from_be_bytes(*eight))
}

/// Form of the tables; `None` if there are no tables.
///
/// The statement is sent as text, for poolers that do not track prepared statements. It never fails because a table is
/// missing: it may run in the caller's transaction, which an error would abort. A migration creates the table that marks
/// the portable form before all others.
pub(super) async fn form_of_tables(
    executor: impl PgExecutor<'_>,
    table: &Table,
) -> Result<Option<PostgresForm>, sqlx::Error> {
    let mark = table.quoted(DIALECT.quote, PostgresForm::Portable.log_suffix());
    let records = table.quoted(DIALECT.quote, "");
    let query =
        format!("SELECT to_regclass('{mark}') IS NOT NULL, to_regclass('{records}') IS NOT NULL");
    let row = sqlx::raw_sql(AssertSqlSafe(query))
        .fetch_one(executor)
        .await?;
    Ok(match (row.try_get(0)?, row.try_get(1)?) {
        (true, _) => Some(PostgresForm::Portable),
        (false, true) => Some(PostgresForm::Standard),
        (false, false) => None,
    })
}

/// Form for tables that a migration is about to create.
///
/// In most versions of CockroachDB, the functions of advisory locks exist and lock nothing. A form that relied on them
/// would not detect duplicates in open transactions. YugabyteDB has both, but no triggers that see all deleted rows. These
/// two are therefore recognised by their version, and all others by the features that they lack.
pub(super) async fn form_for_new_tables(pool: &PgPool) -> Result<PostgresForm, StoreError> {
    const FEATURES: &str = "SELECT version(), \
         (SELECT count(*) FROM pg_catalog.pg_language WHERE lanname = 'plpgsql') > 0 \
         AND (SELECT count(*) FROM pg_catalog.pg_proc WHERE proname = 'pg_try_advisory_xact_lock') > 0";
    let row = retry_conflicts(|| sqlx::raw_sql(FEATURES).fetch_one(pool)).await;
    let row = row.map_err(error)?;
    let version: String = row.try_get(0).map_err(error)?;
    let has_features: bool = row.try_get(1).map_err(error)?;
    let is_other = version.contains("CockroachDB") || version.contains("-YB-");
    Ok(match has_features && !is_other {
        true => PostgresForm::Standard,
        false => PostgresForm::Portable,
    })
}

/// Error for tables that have another form than the application asked for.
pub(super) fn other_form(found: PostgresForm, requested: PostgresForm) -> StoreError {
    StoreError::new(
        StoreErrorKind::Schema,
        format!(
            "the tables have the {} form, and the {} form was requested: leave out `with_form`, or use other tables",
            found.as_str(),
            requested.as_str()
        ),
    )
}
