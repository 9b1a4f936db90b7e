//! Reads for operators, alike in every dialect.

use std::time::Duration;

use async_trait::async_trait;

use super::{Backend, Dialect, Readable, Table, corrupt, declare_statements, unreadable};
use crate::error::StoreError;
use crate::key::RecordId;
use crate::record::{State, Timestamp};
use crate::store::Store;
use crate::store::operator::{
    Finding, MigrationPlan, OperatorStore, PendingMigration, RecordStats, StepOfRecord,
};

declare_statements! {
    /// Statements for operators.
    pub(in crate::store) struct OperatorStatements {}
    from "operator.sql" {
        steps_of,
        clock,
        stats,
    }
}

impl OperatorStatements {
    /// Statements on this table. `payload_size` is the expression for the size of a step's payload as a 64-bit number.
    pub(in crate::store) fn new(
        dialect: &Dialect,
        table: &Table,
        payload_size: &'static str,
    ) -> Self {
        let template = dialect.template_of_records(table);
        Self::from_template(&template.with("payload_size", payload_size))
    }
}

/// SQL store, as an operator uses it.
pub(in crate::store) trait SqlOperator: Backend + Store {
    fn operator_statements(&self) -> OperatorStatements;

    /// Compares the applied versions with the known ones.
    fn plan(&self) -> impl Future<Output = Result<MigrationPlan, StoreError>> + Send;

    /// Applies the missing versions.
    fn apply(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Checks the database, its settings, and the rights of the user.
    fn findings(&self) -> impl Future<Output = Vec<Finding>> + Send;
}

#[async_trait]
impl<S: SqlOperator> OperatorStore for S {
    async fn steps_of(
        &self,
        id: &RecordId,
        with_payloads: bool,
    ) -> Result<Vec<StepOfRecord>, StoreError> {
        let statements = self.operator_statements();
        let query = statements.steps_of.query().bytes(&id.as_bytes()[..]);
        let rows = self.read(query.number(i64::from(with_payloads))).await?;
        rows.iter().map(step).collect()
    }

    async fn stats(&self) -> Result<Vec<RecordStats>, StoreError> {
        let statements = self.operator_statements();
        let rows = self.read(statements.stats.query()).await?;
        rows.iter().map(stats).collect()
    }

    async fn clock(&self) -> Result<Timestamp, StoreError> {
        let statements = self.operator_statements();
        let rows = self.read(statements.clock.query()).await?;
        let row = rows.first().ok_or_else(|| corrupt("time"))?;
        row.number(0)
            .map(Timestamp::from_micros)
            .map_err(unreadable)
    }

    async fn findings(&self) -> Vec<Finding> {
        let mut findings = vec![schema(self.plan().await)];
        findings.extend(SqlOperator::findings(self).await);
        findings
    }

    async fn migration_plan(&self) -> Result<Option<MigrationPlan>, StoreError> {
        self.plan().await.map(Some)
    }

    async fn apply_migrations(&self) -> Result<(), StoreError> {
        self.apply().await
    }
}

/// Finding about the versions of the tables.
fn schema(plan: Result<MigrationPlan, StoreError>) -> Finding {
    const CHECK: &str = "schema";
    match plan {
        Err(error) => Finding::failed(CHECK, &error),
        Ok(plan) if plan.pending.is_empty() => Finding::ok(
            CHECK,
            format!(
                "the tables have version {}, the newest of this build",
                plan.applied
            ),
        ),
        Ok(plan) => Finding::problem(
            CHECK,
            format!(
                "the tables have version {}, and this build needs version {}",
                plan.applied, plan.known
            ),
            "run `idem migrate --plan`, then --apply, or give --sql to somebody who may define tables",
        ),
    }
}

fn step<R: Readable>(row: &R) -> Result<StepOfRecord, StoreError> {
    Ok(StepOfRecord {
        name: row.text(0).map_err(unreadable)?.to_owned(),
        codec: row.text(1).map_err(unreadable)?.to_owned(),
        size: row.number(2).map_err(unreadable)?.max(0).cast_unsigned(),
        payload: row.bytes_or_null(3).map_err(unreadable)?.map(Into::into),
    })
}

fn stats<R: Readable>(row: &R) -> Result<RecordStats, StoreError> {
    let number = |column| {
        let number = row.number(column).map_err(unreadable)?;
        Ok::<_, StoreError>(number.max(0).cast_unsigned())
    };
    let span = |column| number(column).map(Duration::from_micros);
    let state = row.text(1).map_err(unreadable)?;
    Ok(RecordStats {
        operation: row.text(0).map_err(unreadable)?.to_owned(),
        state: State::from_stored(state).ok_or_else(|| corrupt("state"))?,
        count: number(2)?,
        stuck: number(3)?,
        oldest: span(4)?,
        shortest_retention: span(5)?,
        longest_retention: span(6)?,
        purge_due: number(7)?,
        purge_lag: span(8)?,
    })
}

/// Plan for the versions that are missing. `sql` returns the statements of the version with this index.
pub(in crate::store) fn migration_plan(
    applied: usize,
    known: usize,
    sql: impl Fn(usize) -> String,
) -> Result<MigrationPlan, StoreError> {
    let pending = super::missing(applied, known)?.map(|index| PendingMigration {
        version: index + 1,
        sql: sql(index),
    });
    Ok(MigrationPlan {
        applied,
        known,
        pending: pending.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sql::check_statements;

    #[cfg(feature = "sqlite")]
    #[test]
    fn statements_are_those_of_the_file() {
        let dialect = crate::store::sqlite::statements::DIALECT;
        let statements = OperatorStatements::new(&dialect, &Table::default(), "length(s.payload)");
        check_statements(OperatorStatements::FILE, &statements.each());
    }
}
