//! Meaning of the server's errors.

use std::time::Duration;

use sqlx::mysql::MySqlDatabaseError;

use crate::error::{StoreError, StoreErrorKind};
use crate::random;
use crate::store::sql;

/// Error of a statement for which the server has rolled back the caller's transaction.
#[derive(Debug, thiserror::Error)]
#[error("the server rolled the whole transaction back")]
pub(super) struct RolledBack;

/// Maximum number of tries of a statement that the server rolls back in favour of another.
const TRIES: u32 = 8;

/// Retries a statement that the server rolled back as a whole. This is safe: the statement has changed nothing.
pub(in crate::store) async fn retry_undone<T, F>(run: impl FnMut() -> F) -> Result<T, sqlx::Error>
where
    F: Future<Output = Result<T, sqlx::Error>>,
{
    let pause = |tried: u32| Duration::from_micros(random::number() % (1000 << tried));
    sql::retry(TRIES, is_undone, pause, run).await
}

pub(super) fn is_undone(error: &sqlx::Error) -> bool {
    number(error).is_some_and(|it| UNDONE.contains(&it))
}

pub(in crate::store) const DUPLICATE: u16 = 1062;
/// Answer of a node of Galera that has no majority, or no data yet.
pub(super) const NOT_PREPARED: u16 = 1047;
pub(super) const NO_SUCH_TABLE: u16 = 1146;
pub(super) const DUPLICATE_COLUMN: u16 = 1060;
/// A transaction is open, so its properties cannot be changed.
pub(super) const TX_IN_PROGRESS: u16 = 1568;
/// Answers to a statement that does not wait for a lock: of MySQL, and of MariaDB.
pub(super) const LOCKED: &[u16] = &[3572, 1205];
/// Deadlock; record changed since it was read (MariaDB); table definition changed; statement must be prepared again.
const UNDONE: &[u16] = &[1213, 1020, 1412, 1615];

/// Error number of the server: <https://dev.mysql.com/doc/mysql-errors/8.0/en/server-error-reference.html>,
/// <https://mariadb.com/kb/en/mariadb-error-code-reference/>.
pub(in crate::store) fn number(error: &sqlx::Error) -> Option<u16> {
    let answer = error.as_database_error()?;
    Some(answer.try_downcast_ref::<MySqlDatabaseError>()?.number())
}

pub(in crate::store) fn error(source: sqlx::Error) -> StoreError {
    use StoreErrorKind::{Conflict, Denied, Full, Other, ReadOnly, Schema, Timeout, Unavailable};
    match &source {
        sqlx::Error::AnyDriverError(error) if error.is::<RolledBack>() => {
            return StoreError::new(
                Conflict,
                "the server rolled the caller's whole transaction back, because of a deadlock or because it waited too \
                 long for a lock: give the error back, and begin the transaction anew",
            )
            .with_source(source);
        }
        // A connection can get out of step if the application drops a statement on it half way.
        sqlx::Error::Protocol(_) => {
            return StoreError::new(
                Unavailable,
                "a connection to the server was out of step and is closed, try again",
            )
            .with_source(source);
        }
        _ => {}
    }
    let number = number(&source);
    sql::error(source, |_| match number {
        Some(1045 | 1698 | 1130 | 1820 | 1862) => (
            Denied,
            "the server refused the user, check name, password and host",
        ),
        Some(1044 | 1142 | 1143 | 1227 | 1370) => (
            Denied,
            "the user lacks a privilege, grant SELECT, INSERT, UPDATE and DELETE on the store's tables, \
             and CREATE and REFERENCES for `migrate()`",
        ),
        Some(1049 | 1046) => (
            Schema,
            "there is no such database, make it or name another in the URL",
        ),
        Some(NO_SUCH_TABLE | 1054 | 1136 | 1364) => (
            Schema,
            "a table or column of the store is missing, run `migrate()`",
        ),
        Some(1290 | 1792 | 1836) => (ReadOnly, "the server is read-only, connect to the primary"),
        Some(3 | 1021 | 1026 | 1114) => (Full, "the disk or the tablespace is full, make room"),
        Some(1040 | 1203 | 1226) => (
            Unavailable,
            "the server has no connection left, make the pool smaller or `max_connections` larger",
        ),
        Some(NOT_PREPARED) => (
            Unavailable,
            "the server is a node of Galera without a majority or without its data, try again or connect to another node",
        ),
        Some(1180) => (
            Unavailable,
            "the server failed during a commit, which may have taken effect or not, try again",
        ),
        Some(1053 | 1077 | 1079 | 1080 | 1129 | 1152..=1161 | 1317 | 1927 | 2006 | 2013 | 4031)
            if number != Some(1153) =>
        {
            (Unavailable, "the server ended the connection, try again")
        }
        Some(1153 | 1301) => (
            Other,
            "the result is larger than a packet, raise `max_allowed_packet` or lower the limit on results",
        ),
        Some(1118) => (
            Other,
            "the result is too large for the redo log, raise `innodb_log_file_size` or lower the limit on results",
        ),
        Some(1205) => (
            Conflict,
            "another session kept the record locked for too long, or a node of Galera could not catch up with the others, \
             try again",
        ),
        Some(1020 | 1213 | 1412 | 1615) => (
            Conflict,
            "the statement was rolled back in favour of others each time, try again",
        ),
        Some(1969 | 3024) => (
            Timeout,
            "the server's limit on statement time was reached, raise it for this user",
        ),
        _ => (Other, "the database refused the statement"),
    })
}
