//! Saved steps of bodies, in a separate table.
//!
//! The time of the first claim in a row identifies the generation of its record. A claim that replaces an expired
//! record in place writes no other table: rows of an earlier generation are not read, and the next step of that name
//! overwrites them. Deleting a record deletes all its rows.

use crate::error::StoreError;
use crate::record::{Owner, Payload};
use crate::store::sql::rows::{corrupt, unreadable};
use crate::store::sql::{Backend, Conditions, Dialect, Readable, Statement, Table};
use crate::store::{FencedWrite, SavedStep};

/// Differences in syntax between dialects.
#[derive(Debug, Clone, Copy)]
pub(in crate::store) struct StepDialect {
    /// Clause that locks the current version of the rows that a `SELECT` reads, until the end of the statement.
    pub(in crate::store) lock: &'static str,
    /// Clause for an insert that finds a row of the same name; `{saved}` is replaced by the table.
    pub(in crate::store) on_conflict: &'static str,
    /// Expression for the column `s.name` as text.
    pub(in crate::store) name: &'static str,
}

/// Statements for one table.
#[derive(Debug)]
pub(in crate::store) struct StepStatements {
    save: Statement,
    find: Statement,
    all: Statement,
}

impl StepStatements {
    pub(in crate::store) fn new(dialect: &Dialect, steps: &StepDialect, table: &Table) -> Self {
        let records = table.quoted(dialect.quote, "");
        let saved = table.quoted(dialect.quote, "_steps");
        let Conditions { held, .. } = Conditions::new(dialect, "r.");
        let StepDialect {
            lock,
            on_conflict,
            name,
        } = steps;
        let sql = |text: String| Statement::new(&text, dialect.placeholders);
        let of_this_generation = "s.id = r.id AND s.first_claimed_at = r.first_claimed_at";
        Self {
            save: sql(format!(
                "-- A takeover could come between the check of the owner and the insert, and its attempt would read\n\
                 -- the steps without this one. The record therefore stays locked until the end of the statement.\n\
                 INSERT INTO {saved} (id, name, first_claimed_at, codec, payload) \
                 SELECT r.id, ?4, r.first_claimed_at, ?5, ?6 FROM {records} AS r WHERE {held} {lock} {on_conflict}",
                on_conflict = on_conflict.replace("{saved}", &saved),
            )),
            find: sql(format!(
                "SELECT 1 FROM {records} AS r JOIN {saved} AS s ON {of_this_generation} AND s.name = ?4 WHERE {held}"
            )),
            all: sql(format!(
                "-- One statement, so that the steps are those of the owner's generation. A record without steps\n\
                 -- returns a row of its own.\n\
                 SELECT {name}, s.codec, s.payload FROM {records} AS r LEFT JOIN {saved} AS s ON {of_this_generation} \
                 WHERE {held}"
            )),
        }
    }

    #[cfg(all(test, feature = "sqlite"))]
    pub(in crate::store) fn each(&self) -> [&Statement; 3] {
        [&self.save, &self.find, &self.all]
    }
}

pub(in crate::store) async fn save_step(
    backend: &impl Backend,
    statements: &StepStatements,
    owner: &Owner,
    name: &str,
    payload: &Payload,
) -> Result<FencedWrite, StoreError> {
    if save_new_step(backend, statements, owner, name, payload).await? == FencedWrite::Applied {
        return Ok(FencedWrite::Applied);
    }
    // The step was saved before, or the caller no longer owns the record.
    let find = statements.find.query().owner(owner).text(name);
    Ok(match backend.read(find).await?.len() {
        0 => FencedWrite::Fenced,
        _ => FencedWrite::Applied,
    })
}

/// Saves a step that was not saved before.
pub(in crate::store) async fn save_new_step(
    backend: &impl Backend,
    statements: &StepStatements,
    owner: &Owner,
    name: &str,
    payload: &Payload,
) -> Result<FencedWrite, StoreError> {
    let save = statements.save.query().owner(owner).text(name);
    let save = save.text(&*payload.codec).bytes(&*payload.bytes);
    Ok(match backend.write(save).await? {
        0 => FencedWrite::Fenced,
        _ => FencedWrite::Applied,
    })
}

pub(in crate::store) async fn saved_steps(
    backend: &impl Backend,
    statements: &StepStatements,
    owner: &Owner,
) -> Result<Option<Vec<SavedStep>>, StoreError> {
    let rows = backend.read(statements.all.query().owner(owner)).await?;
    if rows.is_empty() {
        return Ok(None);
    }
    let steps = rows.iter().filter_map(|row| step(row).transpose());
    steps.collect::<Result<_, _>>().map(Some)
}

/// Reads the step in a row; `None` in the row of a record without steps.
fn step<R: Readable>(row: &R) -> Result<Option<SavedStep>, StoreError> {
    let Some(name) = row.text_or_null(0).map_err(unreadable)? else {
        return Ok(None);
    };
    let (Some(codec), Some(bytes)) = (
        row.text_or_null(1).map_err(unreadable)?,
        row.bytes_or_null(2).map_err(unreadable)?,
    ) else {
        return Err(corrupt("payload"));
    };
    Ok(Some(SavedStep {
        name: name.to_owned(),
        payload: Payload {
            codec: codec.to_owned().into(),
            bytes: bytes.into(),
        },
    }))
}
