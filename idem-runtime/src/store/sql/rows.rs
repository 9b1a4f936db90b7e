//! How a row is read, in every dialect.

use std::time::Duration;

use sqlx::{ColumnIndex, Decode, Row, Type};

use crate::error::{StoreError, StoreErrorKind};
use crate::key::{Identity, Key, Operation, RecordId, Scope};
use crate::record::{Digest, Grant, OnCrash, Payload, Record, State, Timestamp, Token};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use crate::store::ClaimRequest;
use crate::store::Granted;

macro_rules! content {
    () => {
        "fingerprint, state, token, grant_number, attempt, lease_until, retention, on_crash, codec, payload, \
         first_claimed_at, ended_at"
    };
}

/// The columns that [`record`] reads, in its order; the time of reading comes last, as each dialect writes it.
pub(in crate::store) const COLUMNS: &str =
    concat!("id, scope, operation, idempotency_key, ", content!());

/// The same without what says whose record it is, for [`record_of`].
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(in crate::store) const CONTENT: &str = content!();

/// How many [`CONTENT`] names.
pub(in crate::store) const CONTENT_LEN: usize = 12;

/// The columns that [`granted`] reads, in its order.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(in crate::store) const GRANTED: &str = "grant_number, attempt, first_claimed_at, on_crash";

/// What a kind of database must be able to read.
pub(in crate::store) trait Readable: Row {
    fn number(&self, column: usize) -> Result<i64, sqlx::Error>;
    fn number_or_null(&self, column: usize) -> Result<Option<i64>, sqlx::Error>;
    fn text(&self, column: usize) -> Result<&str, sqlx::Error>;
    fn text_or_null(&self, column: usize) -> Result<Option<&str>, sqlx::Error>;
    fn bytes(&self, column: usize) -> Result<&[u8], sqlx::Error>;
    fn bytes_or_null(&self, column: usize) -> Result<Option<&[u8]>, sqlx::Error>;
}

impl<R: Row> Readable for R
where
    usize: ColumnIndex<R>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> &'r str: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> &'r [u8]: Decode<'r, R::Database> + Type<R::Database>,
{
    fn number(&self, column: usize) -> Result<i64, sqlx::Error> {
        self.try_get(column)
    }

    fn number_or_null(&self, column: usize) -> Result<Option<i64>, sqlx::Error> {
        self.try_get(column)
    }

    fn text(&self, column: usize) -> Result<&str, sqlx::Error> {
        self.try_get(column)
    }

    fn text_or_null(&self, column: usize) -> Result<Option<&str>, sqlx::Error> {
        self.try_get(column)
    }

    fn bytes(&self, column: usize) -> Result<&[u8], sqlx::Error> {
        self.try_get(column)
    }

    fn bytes_or_null(&self, column: usize) -> Result<Option<&[u8]>, sqlx::Error> {
        self.try_get(column)
    }
}

/// The record in a row of [`COLUMNS`] and the time of reading.
pub(in crate::store) fn record<R: Readable>(row: &R) -> Result<Record, StoreError> {
    let bytes = row.bytes(0).map_err(unreadable)?;
    let id = RecordId::from_bytes(bytes.try_into().map_err(|_| corrupt("id"))?);
    let identity = Identity {
        scope: Scope::from_stored(row.text(1).map_err(unreadable)?),
        operation: Operation::new(row.text(2).map_err(unreadable)?.to_owned())
            .map_err(|_| corrupt("operation"))?,
        key: Key::new(row.text(3).map_err(unreadable)?).map_err(|_| corrupt("idempotency_key"))?,
    };
    // Whatever put a row under the id of another would hand one caller the result of another.
    if RecordId::of(&identity) != id {
        return Err(corrupt("id"));
    }
    content(row, 4, id, identity)
}

/// The record in a row of [`CONTENT`] and the time of reading, which is known to be that of the claim; none where all of
/// the former is null.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(in crate::store) fn record_of<R: Readable>(
    row: &R,
    claim: &ClaimRequest,
) -> Result<Option<Record>, StoreError> {
    let fingerprint = row.bytes_or_null(0).map_err(unreadable)?;
    fingerprint
        .map(|_| content(row, 0, claim.id, claim.identity.clone()))
        .transpose()
}

/// The record in a row that has [`CONTENT`] and the time of reading from this column on.
fn content<R: Readable>(
    row: &R,
    first: usize,
    id: RecordId,
    identity: Identity,
) -> Result<Record, StoreError> {
    let at = |column: usize| first + column;
    let fingerprint = Digest::from_bytes(row.bytes(at(0)).map_err(unreadable)?)
        .ok_or_else(|| corrupt("fingerprint"))?;
    let state =
        State::from_stored(row.text(at(1)).map_err(unreadable)?).ok_or_else(|| corrupt("state"))?;
    let token = match row.bytes_or_null(at(2)).map_err(unreadable)? {
        None => None,
        Some(bytes) => Some(Token::from_bytes(
            bytes.try_into().map_err(|_| corrupt("token"))?,
        )),
    };
    let payload = match (
        row.text_or_null(at(8)).map_err(unreadable)?,
        row.bytes_or_null(at(9)).map_err(unreadable)?,
    ) {
        (None, None) => None,
        (Some(codec), Some(bytes)) => Some(Payload {
            codec: codec.to_owned().into(),
            bytes: bytes.into(),
        }),
        _ => return Err(corrupt("payload")),
    };
    let ended_at = row.number_or_null(at(11)).map_err(unreadable)?;
    if payload.is_some() != matches!(state, State::Completed | State::Failed) {
        return Err(corrupt("payload"));
    }
    if ended_at.is_some() != (state.is_ended() || state == State::Released) {
        return Err(corrupt("ended_at"));
    }
    let owned = matches!(state, State::Running | State::Interrupted);
    if owned && token.is_none() || state == State::Released && token.is_some() {
        return Err(corrupt("token"));
    }
    let Granted {
        grant,
        attempt,
        first_claimed_at,
        on_crash,
    } = granted_at(row, [at(3), at(4), at(10), at(7)])?;
    Ok(Record {
        id,
        identity,
        fingerprint,
        state,
        payload,
        token,
        grant,
        attempt,
        lease_until: Timestamp::from_micros(row.number(at(5)).map_err(unreadable)?),
        retention: row
            .number(at(6))
            .map_err(unreadable)?
            .try_into()
            .map(Duration::from_micros)
            .map_err(|_| corrupt("retention"))?,
        on_crash,
        first_claimed_at,
        ended_at: ended_at.map(Timestamp::from_micros),
        read_at: time(row, at(CONTENT_LEN))?,
    })
}

/// The time in this column.
pub(in crate::store) fn time<R: Readable>(row: &R, column: usize) -> Result<Timestamp, StoreError> {
    row.number(column)
        .map(Timestamp::from_micros)
        .map_err(unreadable)
}

/// The state that is the only column of a row.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(in crate::store) fn state<R: Readable>(row: &R) -> Result<State, StoreError> {
    State::from_stored(row.text(0).map_err(unreadable)?).ok_or_else(|| corrupt("state"))
}

/// The grant in a row of [`GRANTED`].
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(in crate::store) fn granted<R: Readable>(row: &R) -> Result<Granted, StoreError> {
    granted_at(row, [0, 1, 2, 3])
}

fn granted_at<R: Readable>(row: &R, columns: [usize; 4]) -> Result<Granted, StoreError> {
    let [grant, attempt, first_claimed_at, on_crash] = columns;
    Ok(Granted {
        grant: Grant::from_number(row.number(grant).map_err(unreadable)?),
        attempt: u32::try_from(row.number(attempt).map_err(unreadable)?)
            .ok()
            .filter(|attempt| *attempt > 0)
            .ok_or_else(|| corrupt("attempt"))?,
        first_claimed_at: time(row, first_claimed_at)?,
        on_crash: OnCrash::from_stored(row.text(on_crash).map_err(unreadable)?)
            .ok_or_else(|| corrupt("on_crash"))?,
    })
}

pub(in crate::store) fn corrupt(column: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        format!("a row holds what no idem store writes in column `{column}`, repair or delete it"),
    )
}

pub(in crate::store) fn unreadable(source: sqlx::Error) -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        "a row holds a value of a type that no idem store writes, repair or delete it",
    )
    .with_source(source)
}
