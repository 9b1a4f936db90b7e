//! Meaning of Redis' errors.

use redis::{ErrorKind, RedisError};
use tokio::task::JoinError;

use crate::error::{StoreError, StoreErrorKind};
use crate::store::tls;

const UNUSABLE_FILES: &str = "a certificate or key that the URL names is unusable; `ssl-ca` names certificates, and `ssl-cert` \
     and `ssl-key` a certificate and its key: name both of them, all in PEM form";

/// Error for files that hold no certificate or no key, or of which one is missing.
pub(super) fn unusable_files() -> StoreError {
    StoreError::new(StoreErrorKind::Other, UNUSABLE_FILES)
}

/// Converts an error of the client, or of a single server.
pub(super) fn error(source: RedisError) -> StoreError {
    let (kind, message) = meaning(&source);
    let error = StoreError::new(kind, message).with_source(source);
    match kind {
        // The store gives the connection up, and its address may lead to the new primary by then.
        StoreErrorKind::ReadOnly => error.retryable(),
        _ => error,
    }
}

/// Converts an error of a server that has answered before.
pub(super) fn later_error(source: RedisError, convert: fn(RedisError) -> StoreError) -> StoreError {
    if meaning(&source) == DENIED_LOGIN {
        return StoreError::new(
            StoreErrorKind::Denied,
            "Redis refused the login, which it accepted before; if the password was changed, let the user have the old one as \
             well until each process has the new one",
        )
        .with_source(source)
        .retryable();
    }
    convert(source)
}

/// Converts an error of a cluster. Its client follows redirections, so a redirection that is returned means that the
/// slot moved more often than the client follows.
#[cfg(feature = "redis-cluster")]
pub(super) fn cluster_error(source: RedisError) -> StoreError {
    if is_moving(&source) {
        return StoreError::new(
            StoreErrorKind::Unavailable,
            "the cluster is moving this slot to another node, try again",
        )
        .with_source(source);
    }
    error(source)
}

/// Returns true if a cluster is moving the slot of the key.
pub(super) fn is_moving(error: &RedisError) -> bool {
    matches!(code_of(error), Some("MOVED" | "ASK" | "TRYAGAIN"))
}

/// Returns true if a transition failed only because a cluster is moving the slot of its key.
pub(super) fn failed_while_moving(error: &StoreError) -> bool {
    let source = std::error::Error::source(error).and_then(|it| it.downcast_ref());
    // A single server returns redirections as well, but nothing moves there: the store has the wrong connection.
    error.kind() == StoreErrorKind::Unavailable && source.is_some_and(is_moving)
}

/// Returns true if no server answered: the connection failed, or took too long.
pub(super) fn is_of_the_connection(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Io | ErrorKind::ClusterConnectionNotFound
    ) || is_cut(error)
}

/// Returns true if the connection ended in the middle of an answer. The client's parser says it only in words.
fn is_cut(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Parse && error.to_string().contains("end of input")
}

/// Returns true if the server does not know an option of the command.
pub(super) fn is_unknown_option(error: &RedisError) -> bool {
    error.detail().is_some_and(|it| it.contains("syntax error"))
}

/// Returns true if a replica answered: the connection leads to the wrong server, and always will.
pub(super) fn is_of_a_replica(error: &RedisError) -> bool {
    matches!(code_of(error), Some("READONLY" | "MASTERDOWN")) || refuses_wait(error)
}

/// A replica refuses `WAIT` without a code of its own. A script that writes nothing reaches that command.
fn refuses_wait(error: &RedisError) -> bool {
    let detail = error.detail();
    detail.is_some_and(|it| it.contains("WAIT cannot be used with replica"))
}

/// Returns the error for a task of the store that panicked.
pub(super) fn task_failed(source: JoinError) -> StoreError {
    StoreError::new(StoreErrorKind::Other, "a task of the store failed").with_source(source)
}

/// Returns the error for a cluster of which not all records can be read.
#[cfg(feature = "redis-cluster")]
pub(super) fn missing_primary() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unavailable,
        "a primary of the cluster cannot be reached, so some records cannot be read: try again when it is back, see \
         `CLUSTER INFO`",
    )
}

/// Returns the error for an answer that the scripts never give.
pub(super) fn unreadable() -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        "the server answered with something unreadable, see whether it is Redis or Valkey, 7.0 or later",
    )
}

/// Remedy for a key with foreign content. It may be a good record but for one field, so nothing says to delete it.
macro_rules! repair {
    () => {
        "repair the key, because its work may have been done, and give the store another prefix if others write keys with this one"
    };
}

/// Text about a key that holds no record. Before idem 0.1 was published, records were hashes.
const FOREIGN: &str = concat!(
    "a key of the store holds what no idem store writes, or a record in a layout from before the first release; ",
    repair!()
);

/// Returns the error for a key of the store with foreign content.
pub(super) fn corrupt(field: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        format!(
            "a key holds what no idem store writes in field `{field}`; {}",
            repair!()
        ),
    )
}

/// Returns the error for a record with a layout that this version of the crate does not know.
pub(super) fn unknown_layout(layout: u8) -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        format!("a record has layout {layout}; {UPGRADE}"),
    )
}

const UPGRADE: &str = "run the version of idem that wrote it, or a later one";

fn meaning(error: &RedisError) -> (StoreErrorKind, &'static str) {
    use StoreErrorKind::{Corrupt, Other, Timeout, Unavailable};
    if let Some(meaning) = code_of(error).and_then(meaning_of_code) {
        return meaning;
    }
    if refuses_wait(error) {
        return REPLICA;
    }
    match error.kind() {
        ErrorKind::AuthenticationFailed => DENIED_LOGIN,
        ErrorKind::Io if error.is_timeout() => (
            Timeout,
            "Redis did not answer in time, see whether it is overloaded or give the connection a longer time-out",
        ),
        // The client of a cluster wraps the error of its first connection.
        ErrorKind::Io if error.to_string().contains("AuthenticationFailed") => DENIED_LOGIN,
        _ if is_of_the_connection(error) => tls::meaning(&error.to_string()).unwrap_or((
            Unavailable,
            "the connection to Redis failed, see whether it runs, can be reached, and needs an encrypted connection \
             (`rediss://`) or a certificate of this client (`ssl-cert`, `ssl-key`)",
        )),
        ErrorKind::MasterNameNotFoundBySentinel => (
            Unavailable,
            "the sentinels know no primary of this name that is up, check the name or wait for the failover",
        ),
        ErrorKind::InvalidClientConfig => (Other, meaning_of_settings(&error.to_string())),
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => (
            Corrupt,
            "the server answered with something unreadable, see whether it is Redis or Valkey, 7.0 or later",
        ),
        _ if error
            .detail()
            .is_some_and(|it| it.contains("Unknown Redis command")) =>
        {
            TOO_OLD
        }
        // A client that logs in on its own may report this only in words. So do Redis 7 and Redis 8 for a command inside of
        // a script.
        _ if error.detail().is_some_and(|it| {
            let words = [
                "NOPERM",
                "executing the script can't",
                "ACL failure in script",
            ];
            words.iter().any(|words| it.contains(words))
        }) =>
        {
            DENIED_COMMAND
        }
        _ => (Other, "Redis refused the command"),
    }
}

/// The driver says only in words what is wrong with the settings of a connection.
fn meaning_of_settings(text: &str) -> &'static str {
    let says = |part| text.contains(part);
    if says("can't connect with TLS") || says("Cannot connect to TCP with TLS") {
        tls::NOT_COMPILED
    } else if says("tls-rustls-insecure") {
        "`#insecure` of the URL is not supported; remove it, and name the authority of the server's certificate in `ssl-ca`"
    } else if says("TLS parameters") {
        UNUSABLE_FILES
    } else {
        "the URL or the settings of the connection are wrong"
    }
}

const DENIED_LOGIN: (StoreErrorKind, &str) = (
    StoreErrorKind::Denied,
    "Redis refused the login, check user and password",
);
const DENIED_COMMAND: (StoreErrorKind, &str) = (
    StoreErrorKind::Denied,
    "the Redis user may not do this, grant it the commands and the keys that the documentation of `RedisStore` names",
);

const TOO_OLD: (StoreErrorKind, &str) = (
    StoreErrorKind::Schema,
    "the server does not know a command that the store needs; run Redis 7.0 or later, or Valkey",
);

const REPLICA: (StoreErrorKind, &str) = (
    StoreErrorKind::ReadOnly,
    "the server is a replica and refuses writes, and a new connection is made; if this lasts, connect to the primary",
);

/// Code at the beginning of the server's answer. Before Redis 7 an error inside a script is wrapped: its code follows
/// the position in the script.
fn code_of(error: &RedisError) -> Option<&str> {
    match error.code()? {
        "ERR" => error
            .detail()
            .filter(|detail| detail.contains("@user_script") || detail.contains("user_script:"))
            .and_then(|detail| {
                detail
                    .split(|it: char| !it.is_ascii_uppercase())
                    .find(|word| meaning_of_code(word).is_some())
            }),
        code => Some(code),
    }
}

/// See <https://redis.io/docs/latest/develop/reference/protocol-spec/> and `shared` in Redis' `server.c`.
fn meaning_of_code(code: &str) -> Option<(StoreErrorKind, &'static str)> {
    use StoreErrorKind::{Conflict, Corrupt, Denied, Full, Other, Unavailable};
    Some(match code {
        "NOAUTH" | "WRONGPASS" => DENIED_LOGIN,
        "NOPERM" => DENIED_COMMAND,
        "DENIED" => (
            Denied,
            "Redis is in protected mode, give it a password or bind it to an address",
        ),
        "READONLY" => REPLICA,
        "UNBLOCKED" => (
            Unavailable,
            "the server became a replica while it waited for its own replicas, try again",
        ),
        "NOREPLICAS" => (
            Unavailable,
            "Redis has fewer replicas than `min-replicas-to-write` asks for, bring them back",
        ),
        "OOM" => (
            Full,
            "Redis has reached `maxmemory`, give it more memory or keep records for a shorter time",
        ),
        "MISCONF" => (
            Full,
            "Redis cannot save to its disk and refuses writes, make room or see its log",
        ),
        "LOADING" => (Unavailable, "Redis is still reading its data, try again"),
        "MASTERDOWN" => (
            Unavailable,
            "the replica has lost its primary, try again or connect to the primary",
        ),
        "CLUSTERDOWN" => (
            Unavailable,
            "the cluster is down or has slots that nobody serves, see `CLUSTER INFO`",
        ),
        "TRYAGAIN" => (Unavailable, "the cluster is moving this slot, try again"),
        "MOVED" | "ASK" | "CROSSSLOT" => (
            Other,
            "the server is part of a cluster, connect with `RedisStore::connect_cluster` or a `ClusterConnection` (feature \
             `redis-cluster`)",
        ),
        "BUSY" => (Conflict, "Redis is busy with somebody's script, try again"),
        "WRONGTYPE" | "IDEMCORRUPT" => (Corrupt, FOREIGN),
        "IDEMLAYOUT" => (
            Corrupt,
            "a record has a layout that is not known here; run the version of idem that wrote it, or a later one",
        ),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(code: &str, detail: &str) -> StoreErrorKind {
        error(source(code, detail)).kind()
    }

    #[test]
    fn codes_have_kinds() {
        for (code, expected) in [
            ("NOAUTH", StoreErrorKind::Denied),
            ("WRONGPASS", StoreErrorKind::Denied),
            ("NOPERM", StoreErrorKind::Denied),
            ("READONLY", StoreErrorKind::ReadOnly),
            ("OOM", StoreErrorKind::Full),
            ("MISCONF", StoreErrorKind::Full),
            ("LOADING", StoreErrorKind::Unavailable),
            ("MASTERDOWN", StoreErrorKind::Unavailable),
            ("UNBLOCKED", StoreErrorKind::Unavailable),
            ("MOVED", StoreErrorKind::Other),
            ("ASK", StoreErrorKind::Other),
            ("CLUSTERDOWN", StoreErrorKind::Unavailable),
            ("TRYAGAIN", StoreErrorKind::Unavailable),
            ("BUSY", StoreErrorKind::Conflict),
            ("WRONGTYPE", StoreErrorKind::Corrupt),
            ("IDEMCORRUPT", StoreErrorKind::Corrupt),
            ("IDEMLAYOUT", StoreErrorKind::Corrupt),
            ("ERR", StoreErrorKind::Other),
        ] {
            assert_eq!(kind(code, "something"), expected, "{code}");
        }
    }

    fn source(code: &str, detail: &str) -> RedisError {
        redis::make_extension_error(code.to_owned(), Some(detail.to_owned()))
    }

    #[test]
    fn a_server_that_is_too_old_is_named() {
        for detail in [
            "Error running script (call to f_1): @user_script:1: @user_script: 1: Unknown Redis command called from Lua script",
            "Unknown Redis command called from script script: 88, on @user_script:1.",
        ] {
            let error = error(source("ERR", detail));
            assert_eq!(error.kind(), StoreErrorKind::Schema, "{detail}");
            assert!(error.to_string().contains("7.0 or later"), "{error}");
        }
    }

    #[test]
    fn an_answer_that_is_cut_is_none() {
        let parse = |answer: &[u8]| redis::parse_redis_value(answer).expect_err("it is no answer");
        let cut = parse(b"*2\r\n:1\r\n");
        assert!(is_of_the_connection(&cut), "{cut}");
        assert_eq!(error(cut).kind(), StoreErrorKind::Unavailable);
        let foreign = parse(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        assert!(!is_of_the_connection(&foreign), "{foreign}");
        assert_eq!(error(foreign).kind(), StoreErrorKind::Corrupt);
    }

    #[test]
    fn an_untrusted_certificate_is_no_lost_connection() {
        let text = "invalid peer certificate: UnknownIssuer";
        let refused = std::io::Error::new(std::io::ErrorKind::InvalidData, text);
        let refused = error(refused.into());
        assert_eq!(refused.kind(), StoreErrorKind::Other, "{refused:?}");
        assert!(!refused.is_retryable());
        assert!(refused.to_string().contains("certificate"), "{refused}");
        let lost = error(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into());
        assert_eq!(lost.kind(), StoreErrorKind::Unavailable, "{lost:?}");
    }

    #[test]
    fn a_login_that_was_accepted_before_may_be_so_again() {
        let refused = || {
            RedisError::from((
                ErrorKind::AuthenticationFailed,
                "Password authentication failed",
            ))
        };
        let wrapped = || {
            let detail = refused().to_string();
            RedisError::from((
                ErrorKind::Io,
                "Failed to create initial connections",
                detail,
            ))
        };
        let refusals: [&dyn Fn() -> RedisError; 2] = [&refused, &wrapped];
        for refusal in refusals {
            let first = error(refusal());
            assert_eq!(first.kind(), StoreErrorKind::Denied, "{first:?}");
            assert!(!first.is_retryable());
            let later = later_error(refusal(), error);
            assert_eq!(later.kind(), StoreErrorKind::Denied, "{later:?}");
            assert!(later.is_retryable());
        }
        assert!(!later_error(source("NOPERM", "no"), error).is_retryable());
    }

    #[test]
    fn mistakes_of_encryption_are_named() {
        for (text, says) in [
            (
                "can't connect with TLS, the feature is not enabled",
                "`tls-rustls`",
            ),
            (
                "Cannot create insecure client without tls-rustls-insecure feature",
                "`ssl-ca`",
            ),
            (
                "Unable to build client with TLS parameters provided.",
                "in PEM form",
            ),
            ("Redis URL did not parse", "are wrong"),
        ] {
            let error = error((ErrorKind::InvalidClientConfig, text).into());
            assert_eq!(error.kind(), StoreErrorKind::Other);
            assert!(error.to_string().contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn a_redirection_that_a_cluster_is_left_with_passes() {
        for code in ["MOVED", "ASK", "TRYAGAIN"] {
            let error = cluster_error(source(code, "1 127.0.0.1:7000"));
            assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{code}");
            assert!(error.to_string().contains("moving this slot"), "{error}");
        }
        let error = cluster_error(source("OOM", "full"));
        assert_eq!(error.kind(), StoreErrorKind::Full);
    }

    #[test]
    fn answers_of_a_replica_are_known_and_retryable() {
        let wait = "WAIT cannot be used with replica instances.";
        for (code, detail) in [
            ("READONLY", "You can't write against a read only replica."),
            ("MASTERDOWN", "Link with MASTER is down"),
            ("ERR", wait),
        ] {
            let source = source(code, detail);
            assert!(is_of_a_replica(&source), "{code}");
            assert!(error(source).is_retryable(), "{code}");
        }
        assert!(!is_of_a_replica(&source("OOM", "full")));
    }

    #[test]
    fn an_error_that_a_script_wrapped_is_unwrapped() {
        let wrapped = "Error running script (call to f_1): @user_script:31: @user_script: 31: -OOM command not allowed";
        assert_eq!(kind("ERR", wrapped), StoreErrorKind::Full);
        let wrapped = "Error running script (call to f_1): @user_script:31: WRONGTYPE Operation against a key";
        assert_eq!(kind("ERR", wrapped), StoreErrorKind::Corrupt);
        let denied = "The user executing the script can't run this command or subcommand script: 88, on @user_script:1.";
        assert_eq!(kind("ERR", denied), StoreErrorKind::Denied);
        let denied = "ACL failure in script: User reader has no permissions to run the 'hset' command script: 4e, on @user_script:37.";
        assert_eq!(kind("ERR", denied), StoreErrorKind::Denied);
    }
}
