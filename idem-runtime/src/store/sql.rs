//! What the SQL stores share: the steps that are one statement in every dialect, how values are bound and rows are
//! read, what an error means.

use std::time::Duration;

use sqlx::error::DatabaseError;

use crate::error::{StoreError, StoreErrorKind};
use crate::record::micros;

mod query;
mod rows;
mod statements;
mod steps;

pub(super) use query::{Placeholders, Query, Statement};
pub(super) use rows::{COLUMNS, Readable, record};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(super) use rows::{GRANTED, granted, state};
pub(super) use statements::{Conditions, Dialect, Statements, Table};
pub(super) use steps::{
    Backend, claim_query, complete, get, interrupt, list, release, renew, resolve, take_over_query,
};

/// A duration as it is stored: microseconds, and so few that no sum of a time and two of them overflows. The longest,
/// 2^61 µs, is 73,000 years.
pub(super) fn span(duration: Duration) -> i64 {
    micros(duration).min(1 << 61)
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
    use crate::record::Timestamp;

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
}
