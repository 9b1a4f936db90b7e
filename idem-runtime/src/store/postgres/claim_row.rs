//! Results of statements that claim.

use sqlx::postgres::PgRow;

use super::rows::{CONTENT_LEN, record_for};
use super::statements::{CLAIM_RESULT, ID_MISMATCH, LOCKED, LOST_RACE};
use crate::error::StoreError;
use crate::record::{FencingToken, Record};
use crate::store::sql::{Readable as _, corrupt, time, unreadable};
use crate::store::{ClaimRequest, Granted};

/// Result of a statement that claims.
pub(super) enum ClaimRow {
    /// The statement created the record.
    Created(Granted),
    /// A concurrent claim created the record, which has to be read again.
    LostRace,
    /// Another transaction has locked the record, and may have changed it without having committed.
    Locked(Option<Record>),
    /// The record with this id has another scope, operation or key.
    IdMismatch,
    Record(Record),
}

/// Reads the row of a statement that claims.
pub(super) fn read_claim_row(row: &PgRow, claim: &ClaimRequest) -> Result<ClaimRow, StoreError> {
    Ok(
        match row.number_or_null(CLAIM_RESULT).map_err(unreadable)? {
            None => {
                let record = record_for(row, claim)?;
                ClaimRow::Record(record.ok_or_else(|| corrupt("fingerprint"))?)
            }
            Some(LOCKED) => ClaimRow::Locked(record_for(row, claim)?),
            Some(LOST_RACE) => ClaimRow::LostRace,
            Some(ID_MISMATCH) => ClaimRow::IdMismatch,
            Some(fencing_token) => ClaimRow::Created(Granted {
                fencing_token: FencingToken::from_number(fencing_token),
                attempt: 1,
                first_claimed_at: time(row, CONTENT_LEN)?,
                on_crash: claim.on_crash,
            }),
        },
    )
}
