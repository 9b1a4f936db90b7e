//! Statements that are alike in every dialect. Each statement commits on its own, so a transition that is dropped half
//! way leaves no open transaction.

use crate::error::{StoreError, StoreErrorKind};
use crate::store::AttemptLog;
use crate::store::operator::OptionalIndex;
use crate::store::sql::{Placeholders, Template, declare_statements};

/// Differences in syntax between dialects.
#[derive(Debug, Clone, Copy)]
pub(in crate::store) struct Dialect {
    pub(in crate::store) placeholders: Placeholders,
    /// Quotation mark for names that may be reserved words of SQL.
    pub(in crate::store) quote: char,
    /// File with the parts of statements that differ between dialects, such as the clock.
    pub(in crate::store) parts: &'static str,
}

impl Dialect {
    /// Template with the parts of this dialect.
    pub(in crate::store) fn template(&self) -> Template {
        Template::new(self.placeholders)
            .with_parts(self.parts)
            .with("newline", "\n")
    }

    /// Template for statements on records and the tables beside them.
    pub(in crate::store) fn template_of_records(&self, table: &Table) -> Template {
        self.template()
            .with_parts(SharedStatements::FILE)
            .with("max_history", AttemptLog::MAX_BYTES.to_string())
            .with(
                "max_history_for_replays",
                AttemptLog::MAX_BYTES_FOR_REPLAYS.to_string(),
            )
            .with("records", table.quoted(self.quote, ""))
            .with("audit", table.quoted(self.quote, "_audit"))
            .with("steps", table.quoted(self.quote, "_steps"))
            .with("recovery", table.quoted(self.quote, "_recovery"))
            .with("fencing_floor", table.quoted(self.quote, "_fencing_floor"))
            .with("table_name", format!("'{}'", table.name))
            .with("schema_name", table.schema_name())
            .with("operations", table.quoted(self.quote, "_operations"))
            .with("stuck_index", table.index(OptionalIndex::Stuck))
    }
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

impl Table {
    /// Name of the schema, as used in a statement of MySQL.
    fn schema_name(&self) -> String {
        match &self.schema {
            Some(schema) => format!("'{schema}'"),
            None => "DATABASE()".to_owned(),
        }
    }

    /// Name of an optional index.
    pub(in crate::store) fn index(&self, index: OptionalIndex) -> String {
        format!("{}_{}", self.name, index.as_str())
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

declare_statements! {
    /// Statements for one table that differ between dialects only in spelling.
    pub(in crate::store) struct SharedStatements {}
    from "statements.sql" {
        get,
        attempts,
        note_replay,
        renew,
        complete,
        complete_for,
        release,
        interrupt,
        resolve_complete,
        resolve_release,
        resolve_interrupt,
        resolve_correct,
        erase,
        write_entry,
        write_purge,
        /// Ids, fencing tokens, states, and times until the leases end, of the records in the parameter, a JSON array of ids.
        lock_all,
        /// Ids of those records in the parameter that exist.
        present,
        /// Deletes locked records; the parameter is a JSON array of ids.
        erase_all,
        count_erased,
        write_erasure,
        last_entry,
        redact_entries,
        note_operation,
        operations,
        recovery_input_of,
        audit,
        list,
        list_stuck,
        /// Returns a row with the number of usable indexes of the name in the parameter: 0 or 1.
        has_index,
        /// Id of the record that follows after this many others, in the order of ids.
        id_after,
        now,
        #[cfg_attr(
            not(any(feature = "sqlite", feature = "postgres")),
            expect(dead_code, reason = "MySQL reads what is due at once")
        )]
        due,
        save_step,
        find_step,
        saved_steps,
        save_input,
        due_inputs,
        postpone_input,
        forget_input,
    }
}

impl SharedStatements {
    pub(in crate::store) fn new(template: &Template) -> Self {
        Self::from_template(template)
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
