//! Reading of a record column by column: in PostgreSQL another column costs almost nothing, while building text costs
//! time.

use std::time::Duration;

use crate::error::StoreError;
use crate::key::{Identity, RecordId};
use crate::record::{ClaimId, Digest, Record, RecordState, Timestamp};
use crate::store::ClaimRequest;
use crate::store::sql::{
    self, Backend, Readable, corrupt, granted_at, identity, payload, time, unreadable,
};
use crate::store::status::Status;

/// Number of columns in the part `content` of the statements: those of a record without its identity.
pub(super) const CONTENT_LEN: usize = 13;

/// Reads the record in a row of the part `record` of the statements.
pub(super) fn record<R: Readable>(row: &R) -> Result<Record, StoreError> {
    let bytes = row.bytes(0).map_err(unreadable)?;
    let id = RecordId::from_bytes(bytes.as_ref().try_into().map_err(|_| corrupt("id"))?);
    let [scope, operation, key] = [row.text(1), row.text(2), row.text(3)];
    let identity = identity(
        &id,
        scope.map_err(unreadable)?,
        operation.map_err(unreadable)?,
        key.map_err(unreadable)?,
    )?;
    content(row, 4, id, identity)
}

/// Reads the record in a row of the part `content` and the time of reading, given that the id is that of the claim.
/// Returns `None` if all columns of the part are null.
pub(super) fn record_for<R: Readable>(
    row: &R,
    claim: &ClaimRequest,
) -> Result<Option<Record>, StoreError> {
    let fingerprint = row.bytes_or_null(0).map_err(unreadable)?;
    fingerprint
        .map(|_| content(row, 0, claim.id, claim.identity.clone()))
        .transpose()
}

/// Reads the record in a row that has the part `content` and the time of reading from this column on.
fn content<R: Readable>(
    row: &R,
    first: usize,
    id: RecordId,
    identity: Identity,
) -> Result<Record, StoreError> {
    let at = |column: usize| first + column;
    let fingerprint = Digest::from_bytes(&row.bytes(at(0)).map_err(unreadable)?)
        .ok_or_else(|| corrupt("fingerprint"))?;
    let state = RecordState::from_stored(row.text(at(1)).map_err(unreadable)?)
        .ok_or_else(|| corrupt("state"))?;
    let claim_id = match row.bytes_or_null(at(2)).map_err(unreadable)? {
        None => None,
        Some(bytes) => Some(ClaimId::from_bytes(
            bytes.as_ref().try_into().map_err(|_| corrupt("claim_id"))?,
        )),
    };
    let payload = payload(
        row.text_or_null(at(8)).map_err(unreadable)?,
        row.bytes_or_null(at(9)).map_err(unreadable)?,
    )?;
    let ended_at = row.number_or_null(at(11)).map_err(unreadable)?;
    let retention = row.number(at(6)).map_err(unreadable)?;
    let payload_for = row.number_or_null(at(12)).map_err(unreadable)?;
    let payload_for = payload_for
        .map(|it| span_of(it, "payload_for"))
        .transpose()?;
    let status = Status {
        state,
        ended_at: ended_at.map(Timestamp::from_micros),
        retention: span_of(retention, "retention")?,
        payload_for,
        lease_until: time(row, at(5))?,
        claim_id,
        granted: granted_at(row, [at(3), at(4), at(10), at(7)])?,
    };
    let read_at = time(row, at(CONTENT_LEN))?;
    status
        .checked()
        .and_then(|status| status.record((id, identity), fingerprint, payload, read_at))
        .map_err(corrupt)
}

/// Duration of this many microseconds, which are not negative.
fn span_of(micros: i64, column: &str) -> Result<Duration, StoreError> {
    let micros = micros.try_into().map(Duration::from_micros);
    micros.map_err(|_| corrupt(column))
}

/// Returns the error for a record whose scope, operation or key does not match its id.
pub(super) async fn id_mismatch(backend: &impl Backend, claim: &ClaimRequest) -> StoreError {
    let read = sql::get(backend, &claim.id).await;
    read.err().unwrap_or_else(|| corrupt("id"))
}
