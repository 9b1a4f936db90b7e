//! What the SQL stores share: how a row is read, how durations are bound, what an error means.

use std::time::Duration;

use sqlx::error::DatabaseError;
use sqlx::{ColumnIndex, Decode, Row, Type};

use crate::error::{StoreError, StoreErrorKind};
use crate::key::{Identity, Key, Operation, RecordId, Scope};
use crate::record::{Digest, Grant, OnCrash, Payload, Record, State, Timestamp, Token, micros};
use crate::store::Granted;

/// The columns that [`record`] reads, in its order; the time of reading comes last, as each dialect writes it.
pub(super) const COLUMNS: &str = "id, scope, operation, \"key\", fingerprint, state, token, grant_number, attempt, \
     lease_until, retention, on_crash, codec, payload, first_claimed_at, ended_at";

/// The columns that [`granted`] reads, in its order.
pub(super) const GRANTED: &str = "grant_number, attempt, first_claimed_at, on_crash";

/// A duration as it is stored: microseconds, and so few that no sum of a time and two of them overflows. The longest,
/// 2^61 µs, is 73,000 years.
pub(super) fn span(duration: Duration) -> i64 {
    micros(duration).min(1 << 61)
}

/// Whether this can be the name of a table that others are named after, in every dialect.
pub(super) fn table_name(name: &str) -> Result<&str, StoreError> {
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

/// What a kind of database must be able to read.
pub(super) trait Readable: Row {
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
pub(super) fn record<R: Readable>(row: &R) -> Result<Record, StoreError> {
    let bytes = row.bytes(0).map_err(unreadable)?;
    let id = RecordId::from_bytes(bytes.try_into().map_err(|_| corrupt("id"))?);
    let identity = Identity {
        scope: Scope::from_stored(row.text(1).map_err(unreadable)?),
        operation: Operation::new(row.text(2).map_err(unreadable)?.to_owned())
            .map_err(|_| corrupt("operation"))?,
        key: Key::new(row.text(3).map_err(unreadable)?).map_err(|_| corrupt("key"))?,
    };
    // Whatever put a row under the id of another would hand one caller the result of another.
    if RecordId::of(&identity) != id {
        return Err(corrupt("id"));
    }
    let fingerprint = Digest::from_bytes(row.bytes(4).map_err(unreadable)?)
        .ok_or_else(|| corrupt("fingerprint"))?;
    let state =
        State::from_stored(row.text(5).map_err(unreadable)?).ok_or_else(|| corrupt("state"))?;
    let token = match row.bytes_or_null(6).map_err(unreadable)? {
        None => None,
        Some(bytes) => Some(Token::from_bytes(
            bytes.try_into().map_err(|_| corrupt("token"))?,
        )),
    };
    let payload = match (
        row.text_or_null(12).map_err(unreadable)?,
        row.bytes_or_null(13).map_err(unreadable)?,
    ) {
        (None, None) => None,
        (Some(codec), Some(bytes)) => Some(Payload {
            codec: codec.to_owned().into(),
            bytes: bytes.into(),
        }),
        _ => return Err(corrupt("payload")),
    };
    let ended_at = row.number_or_null(15).map_err(unreadable)?;
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
    } = granted_at(row, [7, 8, 14, 11])?;
    Ok(Record {
        id,
        identity,
        fingerprint,
        state,
        payload,
        token,
        grant,
        attempt,
        lease_until: Timestamp::from_micros(row.number(9).map_err(unreadable)?),
        retention: row
            .number(10)
            .map_err(unreadable)?
            .try_into()
            .map(Duration::from_micros)
            .map_err(|_| corrupt("retention"))?,
        on_crash,
        first_claimed_at,
        ended_at: ended_at.map(Timestamp::from_micros),
        read_at: Timestamp::from_micros(row.number(16).map_err(unreadable)?),
    })
}

/// The state that is the only column of a row.
pub(super) fn state<R: Readable>(row: &R) -> Result<State, StoreError> {
    State::from_stored(row.text(0).map_err(unreadable)?).ok_or_else(|| corrupt("state"))
}

/// The grant in a row of [`GRANTED`].
pub(super) fn granted<R: Readable>(row: &R) -> Result<Granted, StoreError> {
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
        first_claimed_at: Timestamp::from_micros(row.number(first_claimed_at).map_err(unreadable)?),
        on_crash: OnCrash::from_stored(row.text(on_crash).map_err(unreadable)?)
            .ok_or_else(|| corrupt("on_crash"))?,
    })
}

fn corrupt(column: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        format!("a row holds what no idem store writes in column `{column}`, repair or delete it"),
    )
}

fn unreadable(source: sqlx::Error) -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        "a row holds a value of a type that no idem store writes, repair or delete it",
    )
    .with_source(source)
}

/// What an error of sqlx means; what the database itself answered is for the dialect to say.
pub(super) fn error(
    source: sqlx::Error,
    database: impl FnOnce(&dyn DatabaseError) -> (StoreErrorKind, &'static str),
) -> StoreError {
    use StoreErrorKind::{Corrupt, Other, Schema, Unavailable};
    let (kind, message) = match &source {
        sqlx::Error::Database(answer) => database(&**answer),
        sqlx::Error::PoolTimedOut => (
            Unavailable,
            "no connection became free in time, give the pool more connections or a longer acquire time-out",
        ),
        sqlx::Error::PoolClosed => (Unavailable, "the connection pool is closed"),
        sqlx::Error::WorkerCrashed => (Unavailable, "the connection's worker thread is gone"),
        sqlx::Error::Io(_) => (Unavailable, "the connection to the database failed"),
        sqlx::Error::Tls(_) => (
            Unavailable,
            "no encrypted connection to the database could be made, check its certificates",
        ),
        sqlx::Error::Configuration(_) => (Other, "the connection options are wrong"),
        sqlx::Error::ColumnNotFound(_) | sqlx::Error::ColumnIndexOutOfBounds { .. } => (
            Schema,
            "the table has other columns than this build expects, run `migrate()`",
        ),
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::Protocol(_) => {
            (Corrupt, "the database answered with something unreadable")
        }
        _ => (Other, "the database failed"),
    };
    StoreError::new(kind, message).with_source(source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_sum_of_a_time_and_two_spans_overflows() {
        let now = Timestamp::from(std::time::SystemTime::now()).as_micros();
        let longest = span(Duration::MAX);
        assert!(longest > Duration::from_secs(60 * 60 * 24 * 365 * 1000).as_micros() as i64);
        assert!(
            now.checked_add(longest)
                .and_then(|at| at.checked_add(longest))
                .is_some()
        );
        assert_eq!(span(Duration::from_micros(7)), 7);
    }

    #[test]
    fn table_names_are_plain_identifiers() {
        for name in ["idem_records", "_x", "Order", "t2", &"a".repeat(48)] {
            assert!(table_name(name).is_ok(), "{name}");
        }
        for name in [
            "",
            "2t",
            "a-b",
            "a.b",
            "a\"b",
            "ä",
            "a b",
            "x;--",
            "sqlite_x",
            &"a".repeat(49),
        ] {
            assert!(table_name(name).is_err(), "{name}");
        }
    }
}
