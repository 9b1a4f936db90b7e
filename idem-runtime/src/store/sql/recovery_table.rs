//! Recovery inputs, in a separate table.
//!
//! Claiming and ending a record do not write this table: a row is due one lease after it was written, and recovery then
//! checks the record. Deleting a record deletes its row.

use std::time::Duration;

use async_trait::async_trait;

use crate::error::StoreError;
use crate::key::{Operation, RecordId};
use crate::record::{Owner, Payload, Timestamp};
use crate::store::sql::rows::{corrupt, unreadable};
use crate::store::sql::{Backend, Conditions, Dialect, Query, Readable, Statement, Table, span};
use crate::store::{FencedWrite, RecoveryInput, RecoveryStore, Resolved};

/// Statements for one table.
#[derive(Debug)]
pub(in crate::store) struct RecoveryStatements {
    keep: Statement,
    due: Statement,
    postpone: Statement,
    forget: Statement,
}

impl RecoveryStatements {
    pub(in crate::store) fn new(dialect: &Dialect, table: &Table) -> Self {
        let Dialect {
            now,
            greatest,
            lock,
            upsert,
            proposed,
            ..
        } = dialect;
        let records = table.quoted(dialect.quote, "");
        let recovery = table.quoted(dialect.quote, "_recovery");
        let Conditions { held, .. } = Conditions::new(dialect, "r.");
        let new = |column: &str| proposed.replace("{}", column);
        // In some dialects an assignment sees the results of earlier assignments, so this column is written last.
        let same_generation = format!("{recovery}.first_claimed_at = {}", new("first_claimed_at"));
        let sql = |text: String| Statement::new(&text, dialect.placeholders);
        let as_read =
            "id = ?1 AND first_claimed_at = ?2 AND recover_after = ?3 AND recoveries = ?4";
        Self {
            keep: sql(format!(
                "-- A takeover could come between the check of the owner and the insert, so the record stays locked\n\
                 -- until the end of the statement. A row of an earlier generation of the record starts again from\n\
                 -- zero.\n\
                 INSERT INTO {recovery} (id, first_claimed_at, operation, codec, payload, recover_after, recoveries) \
                 SELECT r.id, r.first_claimed_at, r.operation, ?4, ?5, {now} + ?6, 0 FROM {records} AS r \
                 WHERE {held} {lock} {upsert} \
                 recoveries = CASE WHEN {same_generation} THEN {recovery}.recoveries ELSE 0 END, \
                 recover_after = CASE WHEN {same_generation} THEN {greatest}({recovery}.recover_after, {recover_after}) \
                   ELSE {recover_after} END, \
                 codec = {codec}, payload = {payload}, first_claimed_at = {first_claimed_at}",
                first_claimed_at = new("first_claimed_at"),
                recover_after = new("recover_after"),
                codec = new("codec"),
                payload = new("payload"),
            )),
            due: sql(format!(
                "SELECT id, first_claimed_at, codec, payload, recoveries, recover_after FROM {recovery} \
                 WHERE operation = ?1 AND recover_after <= {now} ORDER BY recover_after LIMIT ?2"
            )),
            postpone: sql(format!(
                "-- Several callers may have read the row as due. The first one postpones it, and the others then\n\
                 -- find another due time than they read.\n\
                 UPDATE {recovery} SET recover_after = {now} + ?5, recoveries = recoveries + ?6 WHERE {as_read}"
            )),
            forget: sql(format!("DELETE FROM {recovery} WHERE {as_read}")),
        }
    }
}

#[async_trait]
impl<B: Backend + Send> RecoveryStore for B {
    async fn save_input(
        &self,
        owner: &Owner,
        recovery: &Payload,
        lease: Duration,
    ) -> Result<FencedWrite, StoreError> {
        let query = self.statements().recovery.keep.query().owner(owner);
        let query = query.text(&*recovery.codec).bytes(&*recovery.bytes);
        Ok(match self.write(query.number(span(lease))).await? {
            0 => FencedWrite::Fenced,
            _ => FencedWrite::Applied,
        })
    }

    async fn due(
        &self,
        operation: &Operation,
        limit: u32,
    ) -> Result<Vec<RecoveryInput>, StoreError> {
        let query = self
            .statements()
            .recovery
            .due
            .query()
            .text(operation.as_str());
        let rows = self.read(query.number(i64::from(limit))).await?;
        rows.iter().map(recovery).collect()
    }

    async fn postpone(
        &self,
        recovery: &RecoveryInput,
        by: Duration,
        recovering: bool,
    ) -> Result<Resolved, StoreError> {
        let query = as_read(&self.statements().recovery.postpone, recovery);
        // Always changes the due time, because other callers compare it with the one that they read.
        let query = query.number(span(by).max(1)).number(i64::from(recovering));
        resolved(self, query).await
    }

    async fn forget(&self, recovery: &RecoveryInput) -> Result<Resolved, StoreError> {
        resolved(self, as_read(&self.statements().recovery.forget, recovery)).await
    }
}

async fn resolved(backend: &impl Backend, query: Query<'_>) -> Result<Resolved, StoreError> {
    Ok(match backend.write(query).await? {
        0 => Resolved::Stale,
        _ => Resolved::Done,
    })
}

/// Binds parameters 1 to 4.
fn as_read<'q>(statement: &'q Statement, recovery: &'q RecoveryInput) -> Query<'q> {
    statement
        .query()
        .bytes(&recovery.id.as_bytes()[..])
        .number(recovery.first_claimed_at.as_micros())
        .number(recovery.due_at.as_micros())
        .number(i64::from(recovery.recoveries))
}

fn recovery<R: Readable>(row: &R) -> Result<RecoveryInput, StoreError> {
    let id = row.bytes(0).map_err(unreadable)?;
    let recoveries = row.number(4).map_err(unreadable)?;
    Ok(RecoveryInput {
        id: RecordId::from_bytes(id.try_into().map_err(|_| corrupt("id"))?),
        first_claimed_at: Timestamp::from_micros(row.number(1).map_err(unreadable)?),
        payload: Payload {
            codec: row.text(2).map_err(unreadable)?.to_owned().into(),
            bytes: row.bytes(3).map_err(unreadable)?.into(),
        },
        recoveries: recoveries.try_into().map_err(|_| corrupt("recoveries"))?,
        due_at: Timestamp::from_micros(row.number(5).map_err(unreadable)?),
    })
}
