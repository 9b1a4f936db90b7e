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

/// Setting of a statement on a connection of the pool. It is invalid, so that the statement fails with
/// [`NOT_ALONE`](super::errors::NOT_ALONE), if autocommit is off or a transaction is open: some other code has left it
/// open. What the statement writes would never be committed, and what it reads may be out of date, or never be committed
/// either.
macro_rules! alone {
    () => {
        "sql_safe_updates = IF(@@autocommit AND NOT @@in_transaction, 0, 2)"
    };
}

/// Setting of a statement in a transaction. Purges find their rows by joins.
macro_rules! in_transaction {
    () => {
        "sql_safe_updates = 0"
    };
}

/// Setting of a statement that waits for the writes of the other nodes, whether it reads (1), updates or deletes (2), or
/// inserts (4).
macro_rules! synchronized {
    () => {
        ", wsrep_sync_wait = 7"
    };
}

/// Setting of a statement that waits for no lock, on MariaDB.
macro_rules! no_wait {
    () => {
        "innodb_lock_wait_timeout = 0"
    };
}

/// Returns false for a statement that fails at once if another session holds a lock.
pub(super) fn waits_for_locks(statement: &str) -> bool {
    ![no_wait!(), "NOWAIT"]
        .iter()
        .any(|it| statement.contains(it))
}

/// Text that begins a statement with settings, and the text for one that also waits for no lock. A statement can begin in
/// this way only once. To servers that are not MariaDB it is a comment.
struct Openings {
    any: &'static str,
    nowait: &'static str,
}

macro_rules! openings {
    ($($setting:ident)+) => {
        Openings {
            any: concat!("/*M! SET STATEMENT ", $($setting!(),)+ " FOR */ "),
            nowait: concat!(
                "/*M! SET STATEMENT ", no_wait!(), ", ", $($setting!(),)+ " FOR */"
            ),
        }
    };
}

/// Connections that statements are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum On {
    /// Connections of the pool, on which each statement commits by itself.
    Pool,
    /// Connections in a transaction.
    Transaction,
}

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
        purge_interrupt,
        purge_forget,
        purge_requeue,
        /// Changes the record of an owner, for transactions on servers of which several accept writes.
        touch,
    }
}

impl MySqlStatements {
    /// Template for statements on records and the tables beside them.
    ///
    /// A node of Galera runs a statement after it has applied what all nodes had committed before. Inserts return no row
    /// there, as on MySQL: a node that retries one by itself would send its result twice.
    pub(super) fn template(table: &Table, on: On, is_galera: bool) -> Template {
        let openings = match (on, is_galera) {
            (On::Pool, false) => openings!(alone),
            (On::Pool, true) => openings!(alone synchronized),
            (On::Transaction, false) => openings!(in_transaction),
            (On::Transaction, true) => openings!(in_transaction synchronized),
        };
        let template = DIALECT
            .template_of_records(table)
            .with("nowait", openings.nowait)
            .opened_by(openings.any, "{nowait}");
        match is_galera {
            true => template.with("returning_record", ""),
            false => template,
        }
    }

    pub(super) fn new(table: Table, on: On, is_galera: bool) -> Self {
        let template = Self::template(&table, on, is_galera);
        let shared = SharedStatements::new(&template);
        Self::from_template(&template, table, shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sql::{OperatorStatements, check_statements};

    #[test]
    fn statements_are_those_of_the_file() {
        let statements = MySqlStatements::new(Table::default(), On::Pool, false);
        check_statements(MySqlStatements::FILE, &statements.each());
        check_statements(SharedStatements::FILE, &statements.shared.each());
    }

    #[test]
    fn statements_for_many_records_and_turns_of_purges_wait_for_no_lock() {
        let statements = MySqlStatements::new(Table::default(), On::Pool, true);
        let mut without = Vec::new();
        for (name, statement) in statements.each() {
            if !waits_for_locks(statement.as_str()) {
                without.push(name);
            }
        }
        without.sort_unstable();
        assert_eq!(
            without,
            [
                "complete_all",
                "insert_all",
                "lock",
                "lock_floor",
                "purge_turn"
            ]
        );
    }

    #[test]
    fn each_statement_begins_with_the_settings_of_its_connection() {
        for (on, setting) in [(On::Pool, alone!()), (On::Transaction, in_transaction!())] {
            for (is_galera, waits) in [(false, 0), (true, 1)] {
                let table = Table::default();
                let template = MySqlStatements::template(&table, on, is_galera);
                let of_operators = OperatorStatements::new(template);
                let statements = MySqlStatements::new(table, on, is_galera);
                let all = [
                    statements.each(),
                    statements.shared.each(),
                    of_operators.each(),
                ];
                for (name, statement) in all.concat() {
                    let text = statement.as_str();
                    assert!(text.starts_with("/*M! SET STATEMENT "), "{name}: {text}");
                    assert_eq!(text.matches("SET STATEMENT").count(), 1, "{name}: {text}");
                    assert_eq!(text.matches(setting).count(), 1, "{name}: {text}");
                    assert_eq!(
                        text.matches("wsrep_sync_wait").count(),
                        waits,
                        "{name}: {text}"
                    );
                }
            }
        }
    }
}
