//! Code shared by the SQL stores: the transitions that are one statement in every dialect, the binding of values, the
//! reading of rows and the meaning of errors.

use std::ops::Range;
use std::time::Duration;

use sqlx::error::DatabaseError;

use crate::error::{StoreError, StoreErrorKind};
use crate::random;
use crate::record::micros;
use crate::store::tls;

mod audit;
mod batch;
mod cancel;
pub(super) mod concurrency;
mod connections;
mod erasure;
mod flushers;
mod listing;
mod operator;
mod query;
mod recovery_table;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod returning;
mod rows;
mod savepoint;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod server;
mod statements;
mod step_table;
mod store;
mod template;
#[cfg(any(feature = "sqlite", feature = "mysql"))]
pub(super) mod text_row;
mod transaction;
mod transitions;
#[cfg(feature = "testing")]
mod undo;

#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(super) use audit::manual_changes;
pub(super) use audit::{
    audit, audit_store, name_the_user, resolve_manually, retry_transaction, write_purge,
};
pub(super) use batch::{BatchExecutor, Batcher};
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(super) use batch::{Completion, one_per_record};
#[cfg(feature = "postgres")]
pub(super) use batch::{Pending, is_large};
#[cfg(feature = "mysql")]
pub(super) use cancel::catch_panic;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(super) use cancel::run_to_completion;
pub(super) use connections::Connections;
#[cfg(feature = "mysql")]
pub(super) use connections::TOO_MANY_CONNECTIONS;
#[cfg(feature = "postgres")]
pub(super) use connections::TakenConnection;
#[cfg(any(feature = "postgres", feature = "mysql"))]
use connections::later_refusal;
pub(super) use erasure::{erase_in, erasure_store, note_operation, operations, redact_audit};
pub(super) use listing::list;
#[cfg(all(test, any(feature = "postgres", feature = "mysql")))]
pub(super) use operator::OperatorStatements;
pub(super) use operator::{SqlOperator, migration_plan};
#[cfg(feature = "postgres")]
pub(super) use query::Bound;
pub(super) use query::{Placeholders, Query, Statement};
pub(super) use recovery_table::{due_inputs, forget_input, postpone_input, save_input};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(super) use returning::{Returning, claim_returning, purge, try_take_over};
pub(super) use rows::Readable;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use rows::granted;
pub(super) use rows::{corrupt, identity, unreadable};
#[cfg(feature = "postgres")]
pub(super) use rows::{granted_at, payload, time};
pub use savepoint::Savepoint;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(super) use savepoint::innermost_savepoint;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(super) use server::{pool_options, reach};
pub(super) use statements::{Dialect, SharedStatements, Table};
pub(super) use step_table::{save_step, saved_steps};
pub(super) use store::store;
#[cfg(test)]
pub(super) use template::check_statements;
pub(super) use template::{Template, declare_statements, statement_in};
#[cfg(feature = "postgres")]
pub(super) use transaction::Reservation;
#[cfg(feature = "sqlite")]
pub(super) use transaction::Seal;
#[cfg(any(feature = "sqlite", feature = "mysql"))]
pub(super) use transaction::ended;
#[cfg(any(feature = "sqlite", feature = "mysql"))]
pub(super) use transaction::guard;
pub use transaction::{Cancellation, OpenTransaction};
pub(super) use transaction::{Ended, InTransaction, Manager, transactions};
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(super) use transitions::read_current;
#[cfg(feature = "postgres")]
pub(super) use transitions::release;
pub(super) use transitions::{
    Backend, MAX_CONFLICTS, SqlStore, attempts, claim, claim_query, complete_as, get, interrupt,
    note_replay, now, renew, save_new_step, take_over, take_over_query, too_many_conflicts,
};
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(super) use transitions::{complete, resolve};

#[cfg(feature = "testing")]
pub use undo::undo;

/// Duration as stored, in microseconds. It is limited so that no sum of a time and two durations overflows. The limit,
/// 2^61 µs, is 73,000 years.
pub(super) fn span(duration: Duration) -> i64 {
    micros(duration).min(1 << 61)
}

/// Versions of a table and of the tables that are named after it.
#[derive(Debug)]
pub(super) struct Migrations {
    /// Name of the table in the migrations, to be replaced everywhere.
    pub(super) table: &'static str,
    /// Released versions, which are never edited. A change is a new version.
    pub(super) versions: &'static [&'static str],
}

/// Begin of the line by which a version says which releases work with its tables.
const COMPATIBLE_SINCE: &str = "-- Compatible since version ";

impl Migrations {
    /// Number of versions that a release knows at least to work with the tables of the version with this index. A version
    /// that says nothing needs a release that knows it.
    pub(super) fn compatible_since(&self, index: usize) -> usize {
        let mut lines = self.versions[index].lines();
        let declared = lines.find_map(|line| {
            let number = line.strip_prefix(COMPATIBLE_SINCE)?;
            number.trim_end_matches('.').parse().ok()
        });
        declared.unwrap_or(index + 1)
    }
}

/// Range of the missing migrations, from the number of applied migrations and the number that this build knows.
pub(super) fn missing(applied: usize, known: usize) -> Result<Range<usize>, StoreError> {
    if applied > known {
        return Err(StoreError::new(
            StoreErrorKind::Schema,
            format!(
                "the tables are of version {applied}, made by a later release, and do not say that they work with this one, \
                 which knows {known}; update it"
            ),
        ));
    }
    Ok(applied..known)
}

/// Random pause after this many tries: up to 2 ms after the first, and up to 64 ms after the sixth and later ones.
pub(super) fn random_pause(tried: u32) -> Duration {
    Duration::from_micros(random::number() % (1000 << tried.min(6)))
}

/// Retries a statement or transaction after errors that certainly changed nothing, with at most `tries` tries. The pause
/// after the n-th try must be random: otherwise those that conflicted would conflict again.
pub(super) async fn retry<T, E, F>(
    tries: u32,
    is_undone: impl Fn(&E) -> bool,
    pause: impl Fn(u32) -> Duration,
    mut run: impl FnMut() -> F,
) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let mut tries_done = 1;
    loop {
        match run().await {
            Err(error) if tries_done < tries && is_undone(&error) => {
                tokio::time::sleep(pause(tries_done)).await;
                tries_done += 1;
            }
            done => return done,
        }
    }
}

/// Message of an error of kind [`Conflict`](StoreErrorKind::Conflict).
pub(super) const ENDED: &str = "the database ended the transaction by itself, as after a deadlock or on a full disk, or a \
     statement of the body ended it; give the errors of statements back, and run the whole transaction again";

/// Message of an error of kind [`Denied`](StoreErrorKind::Denied).
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(super) const LACKS_PRIVILEGE: &str = "the user lacks a privilege; grant it those that the book lists, of which `idem doctor` \
     names the missing ones";

#[cfg(any(feature = "postgres", feature = "mysql"))]
const REFUSED_LATER: &str = "the server refused the user, whom it accepted before; if the password was changed or has expired, \
     give the pool the new one (`set_connect_options`)";

/// Parts of the driver's errors if no crate of the program has turned TLS on, and if the server has not.
const WITHOUT_TLS: &str = "without TLS support";
const SERVER_WITHOUT_TLS: &str = "server does not support TLS";
/// Parts of the driver's error if PostgreSQL ends a connection, or refuses it with an error (`E`), instead of answering whether
/// it encrypts it, as it does when it starts or stops. The driver reads a missing answer as a zero byte.
const NO_ANSWER_ABOUT_TLS: [&str; 2] = ["SSLRequest: 0x00", "SSLRequest: 0x45"];

/// Converts an error of sqlx on a server. That it takes no writes is retryable: a failover may be under way, the connection
/// is closed, and the next one may lead to the new primary. So is a login that is refused after others were accepted: the
/// application may be about to give the pool a new password.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(super) fn error_of_server(
    source: sqlx::Error,
    database: impl FnOnce(&dyn DatabaseError) -> (StoreErrorKind, &'static str),
) -> StoreError {
    let source = match later_refusal(source) {
        Ok(refused) => {
            return StoreError::new(StoreErrorKind::Denied, REFUSED_LATER)
                .with_source(refused)
                .retryable();
        }
        Err(source) => source,
    };
    let error = error(source, database);
    match error.kind() {
        StoreErrorKind::ReadOnly => error.retryable(),
        _ => error,
    }
}

/// Converts an error of sqlx. The dialect interprets the errors that the database itself returned.
pub(super) fn error(
    source: sqlx::Error,
    database: impl FnOnce(&dyn DatabaseError) -> (StoreErrorKind, &'static str),
) -> StoreError {
    use StoreErrorKind::{Conflict, Corrupt, Other, Schema, Unavailable};
    let (kind, message) = match &source {
        sqlx::Error::Database(answer) => database(&**answer),
        sqlx::Error::PoolTimedOut => (
            Unavailable,
            "no connection became free in time, give the pool more connections or a longer acquire time-out",
        ),
        sqlx::Error::AnyDriverError(error) if error.is::<Ended>() => (Conflict, ENDED),
        sqlx::Error::PoolClosed => (Unavailable, "the connection pool is closed"),
        sqlx::Error::WorkerCrashed => (Unavailable, "the connection's worker thread is gone"),
        // The driver returns the errors of rustls as this kind.
        sqlx::Error::Io(why) => tls::meaning(&why.to_string()).unwrap_or((
            Unavailable,
            "the connection to the database failed; check the host and port of the URL, the files that it names, and \
             whether the server runs",
        )),
        sqlx::Error::Protocol(why) if NO_ANSWER_ABOUT_TLS.iter().any(|it| why.contains(it)) => (
            Unavailable,
            "the server ended or refused the connection before it was encrypted; try again",
        ),
        sqlx::Error::Tls(why) if why.to_string().contains(WITHOUT_TLS) => (
            Other,
            tls::NOT_COMPILED,
        ),
        sqlx::Error::Tls(why) if why.to_string().contains(SERVER_WITHOUT_TLS) => (
            Other,
            "the URL asks for an encrypted connection, and the server offers none; turn TLS on at the server, or change \
             `sslmode` or `ssl-mode` in the URL",
        ),
        sqlx::Error::Tls(why) if was_cut(&**why) => (
            Unavailable,
            "the connection ended before it was encrypted; try again",
        ),
        sqlx::Error::Tls(why) => tls::meaning(&why.to_string()).unwrap_or((
            Other,
            "no encrypted connection to the database could be made; check that the host of the URL is a name or an address, \
             and that each certificate and key that it names is a file in PEM form",
        )),
        sqlx::Error::Configuration(why) if names_a_key_file(&why.to_string()) => (
            Other,
            "the certificate or key of this client is unusable; name both of them, each a file in PEM form (`sslcert` and \
             `sslkey` for PostgreSQL, `ssl-cert` and `ssl-key` for MySQL)",
        ),
        sqlx::Error::Configuration(_) => (
            Other,
            "the URL or another option of the connection is malformed; correct it, and percent-encode special characters, \
             such as those of a password",
        ),
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

/// Returns true if the connection ended during the handshake, which `native-tls` reports as an error of its own.
fn was_cut(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |it| it.source());
    causes.any(|it| it.is::<std::io::Error>() || it.to_string().contains("unexpected EOF"))
}

/// Returns true for the driver's texts about the certificate and key of the client.
fn names_a_key_file(text: &str) -> bool {
    ["user auth key", "pem file", "section", "base64"]
        .iter()
        .any(|it| text.contains(it))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Timestamp;

    #[test]
    fn errors_of_encryption_say_what_to_do() {
        let database = |_: &dyn DatabaseError| unreachable!("the server said nothing");
        let text = format!(
            "TLS upgrade required by connect options but SQLx was built {WITHOUT_TLS} enabled"
        );
        let missing = error(sqlx::Error::Tls(text.into()), database);
        assert_eq!(missing.kind(), StoreErrorKind::Other);
        assert!(missing.to_string().contains("`tls-rustls`"), "{missing}");
        let rustls = |text: &str| {
            sqlx::Error::Io(std::io::Error::new(
                std::io::ErrorKind::InvalidData,
                text.to_owned(),
            ))
        };
        let tls = |text: &str| sqlx::Error::Tls(text.into());
        let options = |text: &str| sqlx::Error::Configuration(text.into());
        let reset = || std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let (other, unavailable) = (StoreErrorKind::Other, StoreErrorKind::Unavailable);
        for (source, kind, says) in [
            (
                rustls("invalid peer certificate: UnknownIssuer"),
                other,
                "`ssl-ca`",
            ),
            (
                rustls("invalid peer certificate: NotValidForName"),
                other,
                "subjectAltName",
            ),
            (rustls("tls handshake eof"), unavailable, "host and port"),
            (sqlx::Error::Io(reset()), unavailable, "host and port"),
            (
                tls("certificate verify failed (self-signed certificate)"),
                other,
                "`sslrootcert`",
            ),
            (tls(SERVER_WITHOUT_TLS), other, "at the server"),
            (tls("Invalid certificate file: ca.pem"), other, "PEM"),
            (sqlx::Error::Tls(reset().into()), unavailable, "try again"),
            (options("no keys found pem file"), other, "`ssl-key`"),
            (options("invalid port number"), other, "percent-encode"),
        ] {
            let error = error(source, database);
            assert_eq!(error.kind(), kind, "{error:?}");
            assert_eq!(error.is_retryable(), kind == unavailable, "{error:?}");
            assert!(error.to_string().contains(says), "{error:?}");
        }
        for (answer, kind) in [
            ("0x00", StoreErrorKind::Unavailable),
            ("0x45", StoreErrorKind::Unavailable),
            ("0x52", StoreErrorKind::Corrupt),
        ] {
            let text = format!("unexpected response from SSLRequest: {answer}");
            let answered = error(sqlx::Error::Protocol(text), database);
            assert_eq!(answered.kind(), kind);
        }
    }

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
