//! Reading of rows, in every dialect.

use std::borrow::Cow;

use sqlx::error::BoxDynError;
use sqlx::{ColumnIndex, Database, Decode, Row, Type, ValueRef as _};

use crate::error::{StoreError, StoreErrorKind};
use crate::key::{Identity, Key, Operation, RecordId, Scope};
use crate::record::Payload;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use crate::record::{FencingToken, OnCrash, Timestamp};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use crate::store::Granted;

/// Row of a database, with one method for each type that is read.
pub(in crate::store) trait Readable: Row {
    fn number(&self, column: usize) -> Result<i64, sqlx::Error>;
    fn number_or_null(&self, column: usize) -> Result<Option<i64>, sqlx::Error>;
    fn text(&self, column: usize) -> Result<&str, sqlx::Error>;
    fn text_or_null(&self, column: usize) -> Result<Option<&str>, sqlx::Error>;
    fn bytes(&self, column: usize) -> Result<Cow<'_, [u8]>, sqlx::Error>;
    fn bytes_or_null(&self, column: usize) -> Result<Option<Cow<'_, [u8]>>, sqlx::Error>;
}

/// Database whose values of bytes can be read.
pub(in crate::store) trait ReadsBytes: Database {
    fn decode_bytes(value: Self::ValueRef<'_>) -> Result<Cow<'_, [u8]>, BoxDynError>;
}

#[cfg(feature = "sqlite")]
impl ReadsBytes for sqlx::Sqlite {
    fn decode_bytes(value: Self::ValueRef<'_>) -> Result<Cow<'_, [u8]>, BoxDynError> {
        <&[u8] as Decode<Self>>::decode(value).map(Cow::Borrowed)
    }
}

#[cfg(feature = "mysql")]
impl ReadsBytes for sqlx::MySql {
    fn decode_bytes(value: Self::ValueRef<'_>) -> Result<Cow<'_, [u8]>, BoxDynError> {
        <&[u8] as Decode<Self>>::decode(value).map(Cow::Borrowed)
    }
}

/// A prepared statement returns the bytes, and a statement that was sent as text returns them in hexadecimal.
#[cfg(feature = "postgres")]
impl ReadsBytes for sqlx::Postgres {
    fn decode_bytes(value: Self::ValueRef<'_>) -> Result<Cow<'_, [u8]>, BoxDynError> {
        match value.format() {
            sqlx::postgres::PgValueFormat::Binary => {
                <&[u8] as Decode<Self>>::decode(value).map(Cow::Borrowed)
            }
            sqlx::postgres::PgValueFormat::Text => {
                let text = value.as_str()?;
                match text.starts_with("\\x") {
                    true => <Vec<u8> as Decode<Self>>::decode(value).map(Cow::Owned),
                    false => unescape(text).map(Cow::Owned),
                }
            }
        }
    }
}

/// Reads bytes that the server has written under `bytea_output = escape`: a backslash is doubled, and other bytes that are
/// no printable ASCII follow one in three octal digits.
#[cfg(feature = "postgres")]
fn unescape(text: &str) -> Result<Vec<u8>, BoxDynError> {
    const WRONG: &str = "not the text of bytes";
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = match (first, after) {
            (b'\\', [b'\\', after @ ..]) => {
                bytes.push(b'\\');
                after
            }
            (
                b'\\',
                [
                    a @ b'0'..=b'3',
                    b @ b'0'..=b'7',
                    c @ b'0'..=b'7',
                    after @ ..,
                ],
            ) => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                after
            }
            (b'\\', _) => return Err(WRONG.into()),
            (first, after) => {
                bytes.push(*first);
                after
            }
        };
    }
    Ok(bytes)
}

impl<R: Row> Readable for R
where
    R::Database: ReadsBytes,
    usize: ColumnIndex<R>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> &'r str: Decode<'r, R::Database> + Type<R::Database>,
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

    fn bytes(&self, column: usize) -> Result<Cow<'_, [u8]>, sqlx::Error> {
        R::Database::decode_bytes(self.try_get_raw(column)?).map_err(|source| at(column, source))
    }

    fn bytes_or_null(&self, column: usize) -> Result<Option<Cow<'_, [u8]>>, sqlx::Error> {
        if self.try_get_raw(column)?.is_null() {
            return Ok(None);
        }
        self.bytes(column).map(Some)
    }
}

fn at(column: usize, source: BoxDynError) -> sqlx::Error {
    sqlx::Error::ColumnDecode {
        index: column.to_string(),
        source,
    }
}

/// Reads the time in this column.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(in crate::store) fn time<R: Readable>(row: &R, column: usize) -> Result<Timestamp, StoreError> {
    row.number(column)
        .map(Timestamp::from_micros)
        .map_err(unreadable)
}

/// Reads the granted claim from a row of the part `granted` of the statements.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(in crate::store) fn granted<R: Readable>(row: &R) -> Result<Granted, StoreError> {
    granted_at(row, [0, 1, 2, 3])
}

/// Reads the granted claim from these columns.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(in crate::store) fn granted_at<R: Readable>(
    row: &R,
    columns: [usize; 4],
) -> Result<Granted, StoreError> {
    let [fencing_token, attempt, first_claimed_at, on_crash] = columns;
    Ok(Granted {
        fencing_token: FencingToken::from_number(row.number(fencing_token).map_err(unreadable)?),
        attempt: u32::try_from(row.number(attempt).map_err(unreadable)?)
            .ok()
            .filter(|attempt| *attempt > 0)
            .ok_or_else(|| corrupt("attempt"))?,
        first_claimed_at: time(row, first_claimed_at)?,
        on_crash: OnCrash::from_stored(row.text(on_crash).map_err(unreadable)?)
            .ok_or_else(|| corrupt("on_crash"))?,
    })
}

/// Reads scope, operation and key of a record.
pub(in crate::store) fn identity(
    id: &RecordId,
    scope: &str,
    operation: &str,
    key: &str,
) -> Result<Identity, StoreError> {
    let identity = Identity {
        scope: Scope::from_stored(scope),
        operation: Operation::new(operation.to_owned()).map_err(|_| corrupt("operation"))?,
        key: Key::new(key).map_err(|_| corrupt("idempotency_key"))?,
    };
    // A row stored under the id of another record would give one caller the result of another.
    if RecordId::of(&identity) != *id {
        return Err(corrupt("id"));
    }
    Ok(identity)
}

/// Reads the payload from its two columns. Either both have a value, or neither has.
pub(in crate::store) fn payload(
    codec: Option<&str>,
    bytes: Option<Cow<'_, [u8]>>,
) -> Result<Option<Payload>, StoreError> {
    match (codec, bytes) {
        (None, None) => Ok(None),
        (Some(codec), Some(bytes)) => Ok(Some(Payload {
            codec: codec.to_owned().into(),
            bytes: bytes.as_ref().into(),
        })),
        _ => Err(corrupt("payload")),
    }
}

/// Remedy for a row that somebody changed by hand. It may be a good record but for one column, so nothing says to delete it.
const REPAIR: &str =
    "repair it from a backup or the database's log, because its work may have been done";

pub(in crate::store) fn corrupt(column: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        format!("a row holds what no idem store writes in column `{column}`; {REPAIR}"),
    )
}

pub(in crate::store) fn unreadable(source: sqlx::Error) -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        format!("a row holds a value of a type that no idem store writes; {REPAIR}"),
    )
    .with_source(source)
}
