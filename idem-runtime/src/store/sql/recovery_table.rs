//! Recovery inputs, in a separate table.
//!
//! Claiming and ending a record do not write this table: a row is due one lease after it was written, and recovery then
//! checks the record. Deleting a record deletes its row.

use std::time::Duration;

use crate::error::StoreError;
use crate::key::{Operation, RecordId, hex};
use crate::record::{Owner, Payload, Timestamp};
use crate::store::sql::rows::{corrupt, unreadable};
use crate::store::sql::transitions::{fenced, resolved};
use crate::store::sql::{Backend, Query, Readable, Statement, span};
use crate::store::{FencedWrite, RecoveryInput, Resolved, Unreadable};

pub(in crate::store) async fn save_input(
    backend: &impl Backend,
    owner: &Owner,
    input: &Payload,
    lease: Duration,
) -> Result<FencedWrite, StoreError> {
    let query = backend.statements().await?.save_input.query().owner(owner);
    let query = query.text(&*input.codec).bytes(&*input.bytes);
    fenced(backend, query.number(span(lease))).await
}

pub(in crate::store) async fn due_inputs(
    backend: &impl Backend,
    operation: &Operation,
    limit: u32,
) -> Result<Vec<RecoveryInput>, StoreError> {
    let query = backend.statements().await?.due_inputs.query();
    let query = query.text(operation.as_str()).number(i64::from(limit));
    let rows = backend.read(query).await?;
    let inputs = rows.iter().map(|row| {
        let id = row
            .bytes(0)
            .map_or_else(|_| String::new(), |id| hex::encode(&id));
        (id, input(row))
    });
    let (inputs, unreadable) = Unreadable::sort(inputs)?;
    for Unreadable { name, problem } in unreadable {
        // The inputs of other calls are due, too.
        tracing::warn!(target: "idem", record = name, problem, "a recovery input cannot be read, passing over it");
    }
    Ok(inputs)
}

/// Postpones the input, and adds this number to its count of recoveries.
pub(in crate::store) async fn postpone_input(
    backend: &impl Backend,
    input: &RecoveryInput,
    by: Duration,
    begun_recoveries: i64,
) -> Result<Resolved, StoreError> {
    let query = as_read(&backend.statements().await?.postpone_input, input);
    // Always changes the due time, because other callers compare it with the one that they read.
    let query = query.number(span(by).max(1)).number(begun_recoveries);
    resolved(backend, query).await
}

pub(in crate::store) async fn forget_input(
    backend: &impl Backend,
    input: &RecoveryInput,
) -> Result<Resolved, StoreError> {
    let query = as_read(&backend.statements().await?.forget_input, input);
    resolved(backend, query).await
}

/// Binds parameters 1 to 4.
fn as_read<'q>(statement: &'q Statement, input: &'q RecoveryInput) -> Query<'q> {
    statement
        .query()
        .bytes(&input.id.as_bytes()[..])
        .number(input.first_claimed_at.as_micros())
        .number(input.due_at.as_micros())
        .number(i64::from(input.recoveries))
}

fn input<R: Readable>(row: &R) -> Result<RecoveryInput, StoreError> {
    let id = row.bytes(0).map_err(unreadable)?;
    let recoveries = row.number(4).map_err(unreadable)?;
    Ok(RecoveryInput {
        id: RecordId::from_bytes(id.as_ref().try_into().map_err(|_| corrupt("id"))?),
        first_claimed_at: Timestamp::from_micros(row.number(1).map_err(unreadable)?),
        payload: Payload {
            codec: row.text(2).map_err(unreadable)?.to_owned().into(),
            bytes: row.bytes(3).map_err(unreadable)?.as_ref().into(),
        },
        recoveries: recoveries.try_into().map_err(|_| corrupt("recoveries"))?,
        due_at: Timestamp::from_micros(row.number(5).map_err(unreadable)?),
    })
}
