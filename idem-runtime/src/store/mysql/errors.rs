//! Meaning of the server's errors.

use std::time::Duration;

use sqlx::mysql::MySqlDatabaseError;
use sqlx_core::net::tls;

use super::settings::Unusable;
use crate::error::{StoreError, StoreErrorKind};
use crate::random;
use crate::store::sql::{self, TOO_MANY_CONNECTIONS};

/// Error of a statement that was not sent, because it is larger than the server accepts.
#[derive(Debug, thiserror::Error)]
#[error("the statement is larger than `max_allowed_packet`")]
pub(super) struct OverPacket;

/// Error of a statement that waited on a node of Galera for writes that the node does not get.
#[derive(Debug, thiserror::Error)]
#[error("the node of Galera has no majority")]
pub(super) struct NoMajority;

/// Cause of a refused login. The driver's own text advises a feature whose crate has an open advisory.
#[derive(Debug, thiserror::Error)]
#[error("the driver sends this password over an encrypted connection only")]
struct NotEncrypted;

/// Message of an error of kind [`TooLarge`](StoreErrorKind::TooLarge).
const OVER_PACKET: &str = "a value is larger than a packet of the server, or half of it in a caller's transaction; \
     raise `max_allowed_packet` or lower the limit on results";

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
    number(error).is_some_and(|it| UNDONE.contains(&it) || it == NOT_ALONE)
        || is_deadlock_of_commit(error)
}

/// Returns true if a commit lost to a conflicting one of another member of a group: "Got error 149 - 'Lock deadlock; Retry
/// transaction' during COMMIT". Other failures of a commit may leave it in effect.
fn is_deadlock_of_commit(error: &sqlx::Error) -> bool {
    const LOCK_DEADLOCK: &str = "149";
    number(error) == Some(COMMIT_FAILED)
        && error.as_database_error().is_some_and(|answer| {
            let mut words = answer.message().split(|it: char| !it.is_ascii_digit());
            words.any(|word| word == LOCK_DEADLOCK)
        })
}

/// Returns true if another server may give the answer that this one refuses: it takes no writes, as a replica and a
/// demoted primary, or it has left its cluster. A failover behind one address breaks no connection, so only a new one can
/// lead to the right server.
pub(super) fn is_of_wrong_server(error: &sqlx::Error) -> bool {
    number(error).is_some_and(|it| {
        matches!(it, NOT_PREPARED | OFFLINE | 3100 | 3796..=3799)
            || meaning(it).0 == StoreErrorKind::ReadOnly
    })
}

pub(in crate::store) const DUPLICATE: u16 = 1062;
/// Answer of a node of Galera that has no majority, or no data yet.
const NOT_PREPARED: u16 = 1047;
/// Answer of a server that accepts no users, as a member that has left its group.
const OFFLINE: u16 = 3032;
pub(super) const NO_SUCH_TABLE: u16 = 1146;
pub(super) const DUPLICATE_COLUMN: u16 = 1060;
/// The value of a variable is invalid: a transaction is open on a connection of the pool, see `statements.rs`.
pub(super) const NOT_ALONE: u16 = 1231;
/// Ends of connections: the server stops, the session was killed (MariaDB), the connection was idle for too long (MySQL).
pub(super) const ENDED: &[u16] = &[1053, 1927, 4031];
/// There is no such savepoint, or none any more.
pub(super) const NO_SAVEPOINT: u16 = 1305;
/// A transaction is open, so its properties cannot be changed.
pub(super) const TX_IN_PROGRESS: u16 = 1568;
/// A statement waited for a lock for too long, or on a node of Galera for the writes of the others.
pub(super) const WAITED_IN_VAIN: u16 = 1205;
/// Answers to a statement that does not wait for a lock: of MySQL, and of MariaDB.
pub(super) const LOCKED: &[u16] = &[3572, WAITED_IN_VAIN];
const COMMIT_FAILED: u16 = 1180;
/// Deadlock; record changed since it was read (MariaDB); table definition changed; statement must be prepared again;
/// rolled back by the certification of Group Replication.
const UNDONE: &[u16] = &[1213, 1020, 1412, 1615, 3101];

/// Error number of the server: <https://dev.mysql.com/doc/mysql-errors/8.0/en/server-error-reference.html>,
/// <https://mariadb.com/kb/en/mariadb-error-code-reference/>.
pub(in crate::store) fn number(error: &sqlx::Error) -> Option<u16> {
    let answer = error.as_database_error()?;
    Some(answer.try_downcast_ref::<MySqlDatabaseError>()?.number())
}

pub(in crate::store) fn error(source: sqlx::Error) -> StoreError {
    use StoreErrorKind::{Conflict, Denied, Unavailable};
    match &source {
        sqlx::Error::AnyDriverError(error) if error.is::<Unusable>() => {
            let message = error
                .downcast_ref::<Unusable>()
                .map_or_else(String::new, |it| format!("{}; {}", it.problem, it.remedy));
            return StoreError::new(StoreErrorKind::Other, message).with_source(source);
        }
        // The driver has no way to send the password. It says so with the name of its feature for another way.
        sqlx::Error::Configuration(_) if source.to_string().contains("mysql-rsa") => {
            return StoreError::new(Denied, not_encrypted(tls::available()))
                .with_source(NotEncrypted);
        }
        sqlx::Error::AnyDriverError(error) if error.is::<NoMajority>() => {
            let (kind, message) = meaning(NOT_PREPARED);
            return StoreError::new(kind, message).with_source(source);
        }
        sqlx::Error::AnyDriverError(error) if error.is::<OverPacket>() => {
            return StoreError::new(StoreErrorKind::TooLarge, OVER_PACKET).with_source(source);
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
    if is_deadlock_of_commit(&source) {
        return StoreError::new(Conflict, ROLLED_BACK).with_source(source);
    }
    let number = number(&source);
    sql::error_of_server(source, |_| number.map_or(UNKNOWN, meaning))
}

const ROLLED_BACK: &str = "the statement was rolled back in favour of others each time, try again";
/// A server with `caching_sha2_password` checks the password of a user whom it has not cached since its start only if it
/// gets the password itself, which a client sends over an encrypted connection.
fn not_encrypted(has_tls: bool) -> &'static str {
    match has_tls {
        true => {
            "the server refused the user on a connection that is not encrypted: the password is wrong, or \
             `caching_sha2_password` has not cached it; check name and password, remove `ssl-mode=DISABLED` from the \
             URL, and turn TLS on at the server"
        }
        false => {
            "the server refused the user on a connection that is not encrypted: the password is wrong, or \
             `caching_sha2_password` has not cached it; check name and password, and turn on the feature `tls-rustls`"
        }
    }
}

/// Remedy for a server that accepts only encrypted connections.
fn encrypt(has_tls: bool) -> &'static str {
    match has_tls {
        true => {
            "the server accepts only encrypted connections (`require_secure_transport`); remove `ssl-mode=DISABLED` from \
             the URL"
        }
        false => {
            "the server accepts only encrypted connections (`require_secure_transport`); turn on the feature `tls-rustls`"
        }
    }
}

/// Remedy for a server that refuses a user. It does not say why.
fn refused_user(has_tls: bool) -> &'static str {
    match has_tls {
        true => {
            "the server refused the user; check name, password and host, and whether the account is locked, expired or \
             needs an encrypted connection (`ssl-mode`) or a certificate of this client (`ssl-cert`, `ssl-key`)"
        }
        false => {
            "the server refused the user; check name, password and host, and whether the account is locked, expired or \
             needs an encrypted connection (feature `tls-rustls`)"
        }
    }
}

const UNKNOWN: (StoreErrorKind, &str) =
    (StoreErrorKind::Other, "the database refused the statement");

/// Kind and remedy of an error of the server. Only MySQL has the numbers from 3000 to 3999, and only MariaDB those from 1900
/// to 1999.
fn meaning(number: u16) -> (StoreErrorKind, &'static str) {
    use StoreErrorKind::{
        Conflict, Corrupt, Denied, Full, ReadOnly, Schema, Timeout, TooLarge, Unavailable,
    };
    match number {
        1045 | 1698 | 1130 | 1820 | 1862 | 3118 | 3955 => (Denied, refused_user(tls::available())),
        3159 => (Denied, encrypt(tls::available())),
        1251 | 1524 => (
            Denied,
            "the server and the driver know no common authentication for this user; change the user to \
             `caching_sha2_password`",
        ),
        // The server hides from a user without privileges on a database whether it exists.
        1044 => (
            Denied,
            "the user may not use the database, or there is none of this name; check the name in the URL, or grant the \
             privileges that the book lists",
        ),
        1142 | 1143 | 1227 | 1370 | 3879 => (Denied, sql::LACKS_PRIVILEGE),
        1049 => (
            Schema,
            "there is no such database; create it, or name another in the URL",
        ),
        1046 => (
            Schema,
            "no database is named; add its name to the end of the URL, as in `mysql://host/name`",
        ),
        NO_SUCH_TABLE | 1054 | 1136 | 1364 => (
            Schema,
            "a table or column of the store is missing, run `migrate()`",
        ),
        // A sum or difference of times that no store writes.
        1690 => (
            Corrupt,
            "a row holds a number that no idem store writes; repair it from a backup, because its work may have been done",
        ),
        3098 => (
            Schema,
            "the group's `group_replication_enforce_update_everywhere_checks` refuses a table with foreign keys that \
             cascade, or without a primary key; drop the foreign keys of the store's tables",
        ),
        1290 | 1792 | 1836 | 3989 => (ReadOnly, "the server is read-only, connect to the primary"),
        3 | 1021 | 1026 | 1114 | 3019 | 3675 => {
            (Full, "the disk or the tablespace is full, make room")
        }
        number if TOO_MANY_CONNECTIONS.contains(&number) => (
            Unavailable,
            "the server has no connection left, make the pool smaller or `max_connections` larger",
        ),
        1037 | 1041 | 1135 | 1206 | 3170 => (
            Unavailable,
            "the server has no memory or thread left; give it more, or make the pools of its clients smaller",
        ),
        OFFLINE => (
            Unavailable,
            "the server is in offline mode, as a member that has left its group is; connect to another one, or turn \
             `offline_mode` off",
        ),
        NOT_PREPARED => (
            Unavailable,
            "the server is a node of Galera without a majority or without its data, try again or connect to another node",
        ),
        3100 | 3796..=3799 => (
            Unavailable,
            "the server is a member of Group Replication that has left the group or cannot reach it; try again or \
             connect to another member",
        ),
        COMMIT_FAILED => (
            Unavailable,
            "the server failed during a commit, which may have taken effect or not, try again",
        ),
        1153 | 1301 => (TooLarge, OVER_PACKET),
        1053
        | 1077
        | 1079
        | 1080
        | 1129
        | 1152..=1161
        | 1317
        | 1927
        | 2006
        | 2013
        | 3168
        | 3169
        | 3781
        | 3782
        | 4031 => (Unavailable, "the server ended the connection, try again"),
        1104 => (
            StoreErrorKind::Other,
            "the server refuses a statement by `max_join_size`; turn `sql_big_selects` on for the connections of the pool",
        ),
        1118 => (
            TooLarge,
            "a value is too large for the redo log; raise `innodb_log_file_size` or lower the limit on results",
        ),
        1197 => (
            TooLarge,
            "a value is too large for the binary log; raise `max_binlog_cache_size` or lower the limit on results",
        ),
        // The second one is MySQL's answer to a statement that does not wait.
        WAITED_IN_VAIN | 3572 => (
            Conflict,
            "another session kept the record locked for too long, or a node of Galera could not catch up with the others, \
             try again",
        ),
        1020 | 1213 | 1412 | 1615 | 3101 => (Conflict, ROLLED_BACK),
        NO_SAVEPOINT => (Conflict, sql::ENDED),
        NOT_ALONE => (
            Unavailable,
            "some code has left a transaction open on each connection of the pool that was tried, which are closed; end \
             each transaction where it was begun, try again",
        ),
        1969 | 3024 => (
            Timeout,
            "the server's limit on statement time was reached, raise it for this user",
        ),
        _ => UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number or more of each meaning. In `tests/it`, servers give those that are easy to cause.
    #[test]
    fn errors_have_a_kind_that_says_whether_to_retry_and_a_remedy() {
        use StoreErrorKind::{
            Conflict, Corrupt, Denied, Full, Other, ReadOnly, Schema, Timeout, TooLarge,
            Unavailable,
        };
        for (number, kind, remedy) in [
            (3955, Denied, "locked"),
            (3159, Denied, "only encrypted connections"),
            (1251, Denied, "caching_sha2_password"),
            (1227, Denied, "privilege"),
            (1044, Denied, "check the name in the URL"),
            (1049, Schema, "name another in the URL"),
            (1046, Schema, "no database is named"),
            (1364, Schema, "run `migrate()`"),
            (1690, Corrupt, "backup"),
            (3098, Schema, "foreign keys"),
            (1836, ReadOnly, "connect to the primary"),
            (3675, Full, "make room"),
            (1040, Unavailable, "`max_connections` larger"),
            (1135, Unavailable, "memory"),
            (3032, Unavailable, "turn `offline_mode` off"),
            (NOT_PREPARED, Unavailable, "another node"),
            (3100, Unavailable, "another member"),
            (3797, Unavailable, "another member"),
            (COMMIT_FAILED, Unavailable, "may have taken effect"),
            (1153, TooLarge, "max_allowed_packet"),
            (1156, Unavailable, "try again"),
            (3169, Unavailable, "try again"),
            (1104, Other, "max_join_size"),
            (1118, TooLarge, "innodb_log_file_size"),
            (1197, TooLarge, "max_binlog_cache_size"),
            (3572, Conflict, "kept the record locked"),
            (3101, Conflict, "try again"),
            (NO_SAVEPOINT, Conflict, "ended the transaction"),
            (NOT_ALONE, Unavailable, "left a transaction open"),
            (3024, Timeout, "limit on statement time"),
            (1064, Other, "refused the statement"),
        ] {
            let (found, message) = meaning(number);
            assert_eq!(found, kind, "{number}: {message}");
            assert!(message.contains(remedy), "{number}: {message}");
        }
    }

    /// A build without TLS has no `ssl-mode` in its URL, and one with TLS has the feature on already.
    #[test]
    fn the_remedy_for_a_connection_that_is_not_encrypted_depends_on_the_build() {
        for remedy in [encrypt, not_encrypted] {
            assert!(remedy(true).contains("remove `ssl-mode=DISABLED`"));
            assert!(!remedy(true).contains("feature"));
            assert!(remedy(false).contains("turn on the feature `tls-rustls`"));
            assert!(!remedy(false).contains("ssl-mode"));
        }
        let driver = "RSA auth backend not enabled; enable the `mysql-rsa` feature";
        let refused = error(sqlx::Error::Configuration(driver.into()));
        assert_eq!(refused.kind(), StoreErrorKind::Denied);
        assert!(!format!("{refused:?}").contains("mysql-rsa"), "{refused:?}");
    }
}
