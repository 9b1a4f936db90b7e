//! Statements and syntax that only MySQL and MariaDB have.

use crate::store::sql::{
    Dialect, Placeholders, SharedStatements, Table, Template, declare_statements,
};

/// Syntax of MySQL for the shared statements.
pub(in crate::store) const DIALECT: Dialect = Dialect {
    placeholders: Placeholders::InOrder,
    quote: '`',
    parts: MySqlStatements::FILE,
};

/// Begins a statement that waits for the writes of the other nodes, whether it reads (1), updates or deletes (2), or
/// inserts (4). To servers that are not MariaDB it is a comment.
const OPENING: &str = "/*M! SET STATEMENT wsrep_sync_wait = 7 FOR */ ";
/// Begins a statement that also waits for no lock. A statement can begin in this way only once.
const NOWAIT: &str = "/*M! SET STATEMENT innodb_lock_wait_timeout = 0, wsrep_sync_wait = 7 FOR */";

declare_statements! {
    /// Statements for one table.
    pub(super) struct MySqlStatements {
        pub(super) table: Table,
        pub(super) shared: SharedStatements,
    }
    from "statements.sql" {
        /// [`SharedStatements::get`] that also locks the row, and fails if another transaction has locked it.
        lock,
        /// MariaDB returns the inserted or the existing record. MySQL returns no row, and an error for a duplicate.
        /// Neither inserts anything while the clock is not ahead of all deleted fencing tokens.
        insert,
        /// `insert` for a clock that is not ahead of all deleted fencing tokens.
        insert_above,
        /// [`MySqlStatements::insert`] for many records, each at most once; the parameter is [`claims`](super::batch).
        /// MySQL refuses all of them if one is a duplicate.
        insert_all,
        /// Applies those completions in the parameter whose owners may still write.
        complete_all,
        /// Ids of the records in the parameter that are completed.
        completed,
        claim,
        take_over,
        /// The fencing token of each due record, and the statement that it needs.
        purge_due,
        /// [`MySqlStatements::purge_due`], unless another purge is changing one of the records.
        purge_turn,
        fencing_floor,
        /// Locks the fencing floor, or fails if a transaction has locked it.
        lock_floor,
        /// Raises the fencing floor to the server's time if it is lower than the parameter, and waits for its row.
        raise_floor,
        /// Locks the records to delete, in a transaction; returns the id of each in hexadecimal digits, and its state.
        purge_lock,
        /// Deletes locked records; the parameter is a JSON array of ids.
        purge_delete,
        purge_interrupt,
        purge_requeue,
        /// Changes the record of an owner, for transactions on servers of which several accept writes.
        touch,
    }
}

impl MySqlStatements {
    pub(super) fn new(table: Table) -> Self {
        let template = DIALECT.template_of_records(&table);
        Self::filled(&template, table)
    }

    /// Statements that a node of Galera runs after it has applied what all nodes had committed before. Inserts return no
    /// row, as on MySQL: a node that retries one by itself would send its result twice.
    pub(super) fn synchronized(table: Table) -> Self {
        let template = DIALECT
            .template_of_records(&table)
            .with("nowait", NOWAIT)
            .with("returning_record", "")
            .opened_by(OPENING, "{nowait}");
        Self::filled(&template, table)
    }

    fn filled(template: &Template, table: Table) -> Self {
        let shared = SharedStatements::new(template);
        Self::from_template(template, table, shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sql::check_statements;

    #[test]
    fn statements_are_those_of_the_file() {
        let statements = MySqlStatements::new(Table::default());
        check_statements(MySqlStatements::FILE, &statements.each());
        check_statements(SharedStatements::FILE, &statements.shared.each());
    }

    #[test]
    fn each_statement_on_galera_waits_for_the_writes_of_all_nodes_once() {
        let statements = MySqlStatements::synchronized(Table::default());
        for (name, statement) in [statements.each(), statements.shared.each()].concat() {
            let text = statement.as_str();
            assert!(text.starts_with("/*M! SET STATEMENT "), "{name}: {text}");
            assert_eq!(text.matches("wsrep_sync_wait").count(), 1, "{name}: {text}");
            assert_eq!(text.matches("SET STATEMENT").count(), 1, "{name}: {text}");
        }
    }
}
