//! Statements and syntax that only SQLite has.

use crate::store::sql::{Dialect, Placeholders, SharedStatements, Table, declare_statements};

/// Syntax of SQLite for the shared statements.
pub(in crate::store) const DIALECT: Dialect = Dialect {
    placeholders: Placeholders::Numbered('?'),
    quote: '"',
    parts: SqliteStatements::FILE,
};

declare_statements! {
    /// Statements for one table.
    pub(super) struct SqliteStatements {
        pub(super) table: Table,
        pub(super) shared: SharedStatements,
    }
    from "statements.sql" {
        /// Reads the records whose ids are in the parameter, a JSON array of hex digits.
        find_all,
        claim,
        take_over,
        purge,
        requeue,
    }
}

impl SqliteStatements {
    pub(super) fn new(table: Table) -> Self {
        let template = DIALECT.template_of_records(&table);
        let shared = SharedStatements::new(&template);
        Self::from_template(&template, table, shared)
    }
}

#[cfg(test)]
mod tests {
    use sqlx::sqlite::SqlitePoolOptions;
    use sqlx::{AssertSqlSafe, Row};

    use super::*;
    use crate::store::sql::{Statement, check_statements};
    use crate::store::sqlite::SqliteStore;

    #[test]
    fn statements_are_those_of_the_file() {
        let statements = SqliteStatements::new(Table::default());
        check_statements(SqliteStatements::FILE, &statements.each());
        check_statements(SharedStatements::FILE, &statements.shared.each());
    }

    /// Checks the plan of each statement that must not scan all rows.
    #[test]
    fn statements_find_their_rows_by_an_index() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let pool = SqlitePoolOptions::new()
                .max_connections(1)
                .connect("sqlite::memory:")
                .await
                .unwrap();
            SqliteStore::new(pool.clone()).migrate().await.unwrap();
            let statements = SqliteStatements::new(Table::default());
            let plan = async |statement: &Statement| {
                let explain = format!("EXPLAIN QUERY PLAN {}", statement.as_str());
                let rows = sqlx::query(AssertSqlSafe(explain))
                    .fetch_all(&pool)
                    .await
                    .unwrap();
                let lines = rows.iter().map(|row| row.get::<String, _>(3));
                lines.collect::<Vec<_>>().join("\n")
            };
            for statement in [
                &statements.shared.due,
                &statements.purge,
                &statements.requeue,
            ] {
                let plan = plan(statement).await;
                assert!(
                    plan.contains("INDEX idem_records_purge (purge_after<?)"),
                    "{plan}"
                );
                assert!(!plan.contains("SCAN idem_records"), "{plan}");
                assert!(!plan.contains("SCAN r"), "{plan}");
            }
            for statement in [
                &statements.shared.get,
                &statements.find_all,
                &statements.take_over,
                &statements.shared.renew,
                &statements.shared.complete,
                &statements.shared.release,
                &statements.shared.interrupt,
                &statements.shared.resolve_complete,
                &statements.shared.resolve_release,
                &statements.shared.resolve_interrupt,
                &statements.shared.erase,
                &statements.shared.list,
                &statements.shared.save_step,
                &statements.shared.find_step,
                &statements.shared.saved_steps,
            ] {
                let plan = plan(statement).await;
                assert!(
                    plan.contains("INDEX sqlite_autoindex_idem_records_1 (id"),
                    "{plan}"
                );
            }
        });
    }
}
