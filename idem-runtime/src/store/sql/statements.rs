//! Statements that are alike in every dialect. Each statement commits on its own, so a transition that is dropped half
//! way leaves no open transaction. Between two concurrent transitions, the row as it is at the write decides.

use crate::error::{StoreError, StoreErrorKind};
use crate::store::sql::recovery_table::RecoveryStatements;
use crate::store::sql::{Placeholders, Statement};

/// Differences in syntax between dialects.
#[derive(Debug, Clone, Copy)]
pub(in crate::store) struct Dialect {
    pub(in crate::store) placeholders: Placeholders,
    /// Quotation mark for names that may be reserved words of SQL.
    pub(in crate::store) quote: char,
    /// Expression for the database's clock, in microseconds since 1970.
    pub(in crate::store) now: &'static str,
    /// Columns of a record, with the time of reading.
    pub(in crate::store) record: fn() -> String,
    /// Function that returns the greater of two numbers.
    pub(in crate::store) greatest: &'static str,
    /// Equality operator for which two nulls are equal.
    pub(in crate::store) null_safe_eq: &'static str,
    /// Clause that locks the rows that a `SELECT` reads until the end of the statement.
    pub(in crate::store) lock: &'static str,
    /// Clause before the assignments that an insert makes to an existing row with the same id.
    pub(in crate::store) upsert: &'static str,
    /// Expression for the value that the insert proposed for column `{}`.
    pub(in crate::store) proposed: &'static str,
}

/// Name of the table of records. The other tables are named after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store) struct Table {
    pub(in crate::store) schema: Option<Box<str>>,
    pub(in crate::store) name: Box<str>,
}

impl Table {
    /// Default name of the table.
    pub(in crate::store) const DEFAULT: &'static str = "idem_records";

    /// # Errors
    /// [`StoreErrorKind::Schema`] if the name is not valid in every dialect for a table that others are named after.
    pub(in crate::store) fn new(schema: Option<&str>, name: &str) -> Result<Self, StoreError> {
        Ok(Self {
            schema: schema.map(identifier).transpose()?.map(Into::into),
            name: identifier(name)?.into(),
        })
    }

    /// Quoted name of the table with this suffix, as used in a statement.
    pub(in crate::store) fn quoted(&self, quote: char, suffix: &str) -> String {
        let name = format!("{quote}{}{suffix}{quote}", self.name);
        match &self.schema {
            Some(schema) => format!("{quote}{schema}{quote}.{name}"),
            None => name,
        }
    }
}

impl Default for Table {
    fn default() -> Self {
        Self {
            schema: None,
            name: Self::DEFAULT.into(),
        }
    }
}

fn identifier(name: &str) -> Result<&str, StoreError> {
    let valid = name.len() <= 48
        && name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name
            .chars()
            .all(|it| it.is_ascii_alphanumeric() || it == '_')
        && !name.to_ascii_lowercase().starts_with("sqlite_");
    if valid {
        return Ok(name);
    }
    Err(StoreError::new(
        StoreErrorKind::Schema,
        "the name of a table is 1 to 48 ASCII letters, digits and underscores, does not begin with a digit, and is \
         not reserved",
    ))
}

/// Conditions on a row, for statements.
#[derive(Debug)]
pub(in crate::store) struct Conditions {
    /// The record is absent for claims, and purging deletes it.
    pub(in crate::store) expired: String,
    /// The owner in parameters 1 to 3 may still write.
    pub(in crate::store) held: String,
    /// RUNNING with a lapsed lease, or INTERRUPTED.
    pub(in crate::store) unsettled: String,
    /// The record equals the observation in parameters 1 to 5.
    pub(in crate::store) observed: String,
    /// The record equals the observation, is unsettled and has not expired.
    pub(in crate::store) resolvable: String,
    /// Expression for the next fencing token.
    pub(in crate::store) next_fencing_token: String,
    /// Expression for the next purge check of a record whose retention begins now.
    pub(in crate::store) queued_from_now: String,
}

impl Conditions {
    /// Builds the conditions for the columns of a table name or alias, such as `r.`. For bare columns, `r` is empty.
    pub(in crate::store) fn new(dialect: &Dialect, r: &str) -> Self {
        let Dialect {
            now,
            greatest,
            null_safe_eq,
            ..
        } = dialect;
        let expired = format!(
            "CASE {r}state \
             WHEN 'running' THEN {r}on_crash = 'rerun' AND {r}lease_until + {r}retention <= {now} \
             WHEN 'interrupted' THEN false \
             ELSE {r}ended_at + {r}retention <= {now} END"
        );
        let unsettled = format!(
            "({r}state = 'interrupted' OR {r}state = 'running' AND {r}lease_until <= {now})"
        );
        let observed = format!(
            "{r}id = ?1 AND {r}state = ?2 AND {r}claim_id {null_safe_eq} ?3 AND {r}fencing_token = ?4 AND {r}lease_until = ?5"
        );
        Self {
            held: format!(
                "{r}id = ?1 AND {r}claim_id = ?2 AND {r}fencing_token = ?3 \
                 AND {r}state IN ('running', 'interrupted') AND NOT ({expired})"
            ),
            resolvable: format!("{observed} AND {unsettled} AND NOT ({expired})"),
            next_fencing_token: format!("{greatest}({r}fencing_token + 1, {now})"),
            queued_from_now: format!("coalesce({r}purge_after, {now} + {r}retention)"),
            expired,
            unsettled,
            observed,
        }
    }
}

/// Statements for one table that differ between dialects only in spelling.
#[derive(Debug)]
pub(in crate::store) struct SharedStatements {
    pub(in crate::store) get: Statement,
    pub(in crate::store) renew: Statement,
    pub(in crate::store) complete: Statement,
    pub(in crate::store) release: Statement,
    pub(in crate::store) interrupt: Statement,
    pub(in crate::store) resolve_complete: Statement,
    pub(in crate::store) resolve_release: Statement,
    pub(in crate::store) resolve_interrupt: Statement,
    pub(in crate::store) erase: Statement,
    pub(in crate::store) list: Statement,
    #[cfg_attr(
        not(any(feature = "sqlite", feature = "postgres")),
        expect(dead_code, reason = "MySQL reads what is due at once")
    )]
    pub(in crate::store) due: Statement,
    pub(in crate::store) recovery: RecoveryStatements,
}

impl SharedStatements {
    /// In some dialects an assignment sees the results of earlier assignments. Each assignment therefore reads only
    /// columns that are written after it.
    pub(in crate::store) fn new(dialect: &Dialect, table: &Table) -> Self {
        let now = dialect.now;
        let record = (dialect.record)();
        let records = table.quoted(dialect.quote, "");
        let Conditions {
            expired,
            held,
            observed,
            resolvable,
            next_fencing_token,
            queued_from_now,
            ..
        } = Conditions::new(dialect, "");
        let sql = |text: String| Statement::new(&text, dialect.placeholders);
        let update = |rest: String| sql(format!("UPDATE {records} SET {rest}"));
        Self {
            get: sql(format!("SELECT {record} FROM {records} WHERE id = ?1")),
            renew: update(format!(
                "purge_after = coalesce(purge_after, {now} + ?4 + retention), lease_until = {now} + ?4, \
                 state = 'running' WHERE {held}"
            )),
            complete: update(format!(
                "purge_after = {queued_from_now}, codec = ?5, payload = ?6, ended_at = {now}, state = ?4 WHERE {held}"
            )),
            release: update(format!(
                "purge_after = {queued_from_now}, ended_at = {now}, claim_id = NULL, state = 'released' WHERE {held}"
            )),
            interrupt: update(format!(
                "purge_after = NULL, state = 'interrupted' WHERE {held}"
            )),
            resolve_complete: update(format!(
                "purge_after = {queued_from_now}, codec = ?7, payload = ?8, ended_at = {now}, claim_id = NULL, \
                 fencing_token = {next_fencing_token}, state = ?6 WHERE {resolvable}"
            )),
            resolve_release: update(format!(
                "purge_after = {queued_from_now}, ended_at = {now}, claim_id = NULL, fencing_token = {next_fencing_token}, \
                 state = 'released' WHERE {resolvable}"
            )),
            resolve_interrupt: update(format!(
                "purge_after = NULL, state = 'interrupted' WHERE {resolvable}"
            )),
            erase: sql(format!(
                "DELETE FROM {records} WHERE {observed} AND NOT ({expired}) \
                 AND NOT (state = 'running' AND lease_until > {now})"
            )),
            // Where a comparison ignores trailing blanks, the length does not.
            list: sql(format!(
                "SELECT {record} FROM {records} WHERE id > ?1 \
                 AND (?2 IS NULL OR state = ?2) AND (?3 IS NULL OR operation = ?3 AND length(operation) = length(?3)) \
                 AND (?4 = 0 OR state = 'running' AND lease_until <= {now}) \
                 AND (?5 IS NULL OR {now} - first_claimed_at >= ?5) \
                 AND NOT ({expired}) ORDER BY id LIMIT ?6"
            )),
            due: sql(format!(
                "SELECT state FROM {records} WHERE purge_after <= {now} LIMIT 1"
            )),
            recovery: RecoveryStatements::new(dialect, table),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_names_are_plain_identifiers() {
        for name in ["idem_records", "_x", "Order", "t2", &"a".repeat(48)] {
            assert!(Table::new(Some(name), name).is_ok(), "{name}");
        }
        for name in [
            "",
            "2t",
            "a-b",
            "a.b",
            "a\"b",
            "a`b",
            "ä",
            "a b",
            "x;--",
            "sqlite_x",
            &"a".repeat(49),
        ] {
            assert!(Table::new(None, name).is_err(), "{name}");
            assert!(Table::new(Some(name), "t").is_err(), "{name}");
        }
    }

    #[test]
    fn names_are_quoted_part_by_part() {
        let table = Table::new(Some("order"), "by").unwrap();
        assert_eq!(table.quoted('"', "_purge"), "\"order\".\"by_purge\"");
        assert_eq!(Table::default().quoted('`', ""), "`idem_records`");
    }
}
