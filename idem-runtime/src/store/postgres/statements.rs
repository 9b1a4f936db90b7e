//! Statements and syntax that only PostgreSQL has.

use super::form::PostgresForm;
use super::rows::CONTENT_LEN;
use crate::store::sql::{
    Dialect, Placeholders, SharedStatements, Table, Template, declare_statements,
};

/// Syntax of PostgreSQL for the shared statements.
pub(in crate::store) const DIALECT: Dialect = Dialect {
    placeholders: Placeholders::Numbered('$'),
    quote: '"',
    parts: PostgresStatements::FILE,
};

/// Parts of the portable form.
const PORTABLE: &str = include_str!("portable.sql");

/// Longest wait of a claim in a transaction for another open transaction, in the portable form.
const LONGEST_WAIT: &str = "50ms";

/// Column of [`PostgresStatements::claim`] and [`PostgresStatements::claim_locked`] with the result of the claim. It is
/// null if there is a record, the fencing token if this claim created it, or one of the numbers below.
pub(super) const CLAIM_RESULT: usize = CONTENT_LEN + 1;
/// Column of [`PostgresStatements::claim_all`] and [`PostgresStatements::transition_all`] after [`CLAIM_RESULT`].
pub(super) const POSITION: usize = CLAIM_RESULT + 1;
/// Column of [`PostgresStatements::claim_locked`] after [`CLAIM_RESULT`]: the number of the transaction that inserts the
/// record when it ends, or null.
pub(super) const TRANSACTION_NUMBER: usize = CLAIM_RESULT + 1;
/// A concurrent claim created the record.
pub(super) const LOST_RACE: i64 = 0;
/// Another transaction holds the record's lock.
pub(super) const LOCKED: i64 = -1;
/// The record with this id has another scope, operation or key.
pub(super) const ID_MISMATCH: i64 = -2;
/// There is a record, but what was read may be out of date, or changed by a transaction that is open on the connection.
pub(super) const OUT_OF_DATE: i64 = -3;

declare_statements! {
    /// Statements for one table.
    pub(super) struct PostgresStatements {
        pub(super) form: PostgresForm,
        pub(super) shared: SharedStatements,
    }
    from "statements.sql" {
        /// Returns one row: the content of the record, which is all null if there is no record, the time of reading,
        /// and [`CLAIM_RESULT`]. In the standard form, parameter 12 is the number of the record's advisory lock.
        claim,
        /// `claim` for many records, each at most once. Parameters 1 to 12 are arrays. The last column of each row is
        /// the position of its claim in them, counted from 1.
        claim_all,
        /// Returns the positions of the completions that took effect. Parameters 1 to 6 are arrays: those of an owner,
        /// then those of an outcome.
        complete_all,
        /// Returns the positions of the releases that took effect. Parameters 1 to 3 are arrays of those of an owner.
        release_all,
        /// `claim_all`, `complete_all` and `save_step` for many records in one statement. Parameters 1 to 12 are those of
        /// `claim_all`, 13 to 18 those of `complete_all`, and 19 to 24 arrays of those of `save_step`. The columns are
        /// those of `claim_all`. Completions and steps that took effect have a row each, of which only the position is
        /// not null. It counts claims, completions and steps, in this order.
        transition_all,
        /// `claim` for a transaction that stays open, with the column [`TRANSACTION_NUMBER`]. In the standard form,
        /// parameter 13 is 1 if the transaction is the caller's.
        claim_locked,
        /// Inserts the record of a claim that holds it by its advisory lock alone. Parameters 1 to 11 are those of
        /// `claim`. 12 is the number of the transaction, 13 the fencing token, 14 the time of the claim, 15 to 17 are an
        /// outcome, and 18 is the time of its payload or null.
        insert_ended,
        /// Returns a row if the transaction with this number was committed.
        was_committed,
        /// Limits the waits of the transaction's next statements for locks. Returns the limit before.
        limit_wait,
        /// Restores the limit that `limit_wait` returned.
        restore_wait,
        claim_again,
        take_over,
        purge,
        requeue,
    }
}

/// Connections that statements are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum On {
    /// Connections of the pool, on which each statement commits by itself.
    Pool,
    /// Connections in a transaction.
    Transaction,
}

/// Condition of a statement on a connection of the pool. It is a division by zero, so that the statement fails with
/// [`NOT_ALONE`](super::connections::NOT_ALONE), if a transaction is open: some other code has left it open. What the
/// statement writes would never be committed, and what it reads may be out of date, or never be committed either.
///
/// A statement that commits by itself begins its transaction when its portal is created, and as text when it arrives. A
/// server that does not speak exactly PostgreSQL's protocol has the portable form, without this condition.
const ALONE: &str = "(SELECT 1 / coalesce(\
     transaction_timestamp() IN (statement_timestamp(), max(creation_time)), false\
     )::integer FROM pg_catalog.pg_cursors) = 1";
/// Condition on the pool under which a replay reads the record again, with [`ALONE`], which takes as long as reading the
/// record. Without a number of its own a transaction has changed nothing, and at this isolation level each statement sees
/// what is committed.
const MAY_BE_OUT_OF_DATE: &str = "txid_current_if_assigned() IS NOT NULL OR current_setting('transaction_isolation') <> 'read committed'";

/// Condition on the pool for the insert of a record. A transaction may hold the record by its advisory lock alone, and
/// insert it when it ends. The claim tries that lock, and holds it until its own commit, together with other leased claims:
/// among them the unique key decides. It does not wait: it would hold a connection meanwhile, and duplicates of one key
/// would take the whole pool.
const HOLD_LOCK: &str = "pg_try_advisory_xact_lock_shared({lock_number})";
/// Condition on the pool for the insert of the records of a batch. It gives the lock back at once: all transactions share the
/// server's table of locks, and the many claims of a batch, each with a lock until the commit, would fill it for everybody.
const LOCK_IS_FREE: &str =
    "pg_try_advisory_lock_shared({lock_number}) AND pg_advisory_unlock_shared({lock_number})";

impl PostgresStatements {
    /// Template for statements of this form on records and the tables beside them.
    pub(super) fn template(table: &Table, form: PostgresForm, on: On) -> Template {
        let template = DIALECT.template_of_records(table);
        match (form, on) {
            (PostgresForm::Portable, _) => template.with_parts(PORTABLE),
            (PostgresForm::Standard, On::Transaction) => template,
            (PostgresForm::Standard, On::Pool) => template
                .with("alone", ALONE)
                .with("is_alone", "{alone_function}()")
                .with("may_be_out_of_date", MAY_BE_OUT_OF_DATE)
                .with("hold_lock", HOLD_LOCK)
                .with("lock_is_free", LOCK_IS_FREE),
        }
    }

    pub(super) fn new(table: &Table, form: PostgresForm, on: On) -> Self {
        let template = Self::template(table, form, on)
            .with("alone_function", table.quoted(DIALECT.quote, "_alone"))
            .with("claim_function", table.quoted(DIALECT.quote, "_begin"))
            .with("reserve_function", table.quoted(DIALECT.quote, "_reserve"))
            .with("longest_wait", LONGEST_WAIT)
            .with("lost_race", LOST_RACE.to_string())
            .with("locked", LOCKED.to_string())
            .with("id_mismatch", ID_MISMATCH.to_string())
            .with("out_of_date", OUT_OF_DATE.to_string())
            .with("no_claim", ["NULL"; POSITION].join(", "));
        let shared = SharedStatements::new(&template);
        Self::from_template(&template, form, shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sql::{OperatorStatements, check_statements};

    const FORMS: [PostgresForm; 2] = [PostgresForm::Standard, PostgresForm::Portable];

    #[test]
    fn statements_are_those_of_the_file() {
        for form in FORMS {
            let statements = PostgresStatements::new(&Table::default(), form, On::Pool);
            check_statements(PostgresStatements::FILE, &statements.each());
            check_statements(SharedStatements::FILE, &statements.shared.each());
        }
    }

    /// PostgreSQL keeps a lock of the session that a statement gets just before it is cancelled, for as long as the connection
    /// lives. A statement that does not wait cannot be cancelled there.
    #[test]
    fn no_statement_waits_for_a_lock_of_the_session() {
        let table = Table::default();
        for on in [On::Pool, On::Transaction] {
            let statements = PostgresStatements::new(&table, PostgresForm::Standard, on);
            let all = [statements.each(), statements.shared.each()].concat();
            for (name, statement) in all {
                assert!(
                    !statement.text().as_str().contains("pg_advisory_lock("),
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn statements_on_the_pool_fail_in_a_transaction_that_was_left_open() {
        // They read no records, or run only in transactions.
        const OTHERS: [&str; 12] = [
            "now",
            "has_index",
            "write_entry",
            "write_purge",
            "count_erased",
            "write_erasure",
            "note_operation",
            "claim_locked",
            "insert_ended",
            "was_committed",
            "limit_wait",
            "restore_wait",
        ];
        let table = Table::default();
        let statements = PostgresStatements::new(&table, PostgresForm::Standard, On::Pool);
        let template = PostgresStatements::template(&table, PostgresForm::Standard, On::Pool);
        let of_operators = OperatorStatements::new(template);
        let all = [
            statements.each(),
            statements.shared.each(),
            of_operators.each(),
        ];
        for (name, statement) in all.concat() {
            let is_checked = [ALONE, "\"idem_records_alone\"()"]
                .iter()
                .any(|it| statement.as_str().contains(it));
            assert!(is_checked || OTHERS.contains(&name), "{name}");
        }
    }

    #[test]
    fn a_claim_returns_as_many_columns_as_are_read() {
        for form in FORMS {
            let statements = PostgresStatements::new(&Table::default(), form, On::Pool);
            let text = statements.claim.as_str();
            let (_, content) = text.split_once("SELECT r.").unwrap();
            let (content, _) = content.split_once(", (date_part").unwrap();
            assert_eq!(content.split(", ").count(), CONTENT_LEN);
        }
    }
}
