//! What an error of Redis means.

use redis::{ErrorKind, RedisError};

use crate::error::{StoreError, StoreErrorKind};

/// What an error of the client or the server means.
pub(super) fn error(source: RedisError) -> StoreError {
    let (kind, message) = meaning(&source);
    StoreError::new(kind, message).with_source(source)
}

/// Something answered that is not what the scripts answer.
pub(super) fn unreadable() -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        "the server answered with something unreadable, see whether it is Redis or Valkey, 6.2 or later",
    )
}

/// A key of the store holds something else.
pub(super) fn corrupt(field: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        format!(
            "a key holds what no idem store writes in field `{field}`, delete it or give the store another prefix"
        ),
    )
}

fn meaning(error: &RedisError) -> (StoreErrorKind, &'static str) {
    use StoreErrorKind::{Corrupt, Other, Timeout, Unavailable};
    if let Some(meaning) = code_of(error).and_then(meaning_of_code) {
        return meaning;
    }
    match error.kind() {
        ErrorKind::AuthenticationFailed => DENIED_LOGIN,
        ErrorKind::Io if error.is_timeout() => (
            Timeout,
            "Redis did not answer in time, see whether it is overloaded or give the connection a longer time-out",
        ),
        ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => (
            Unavailable,
            "the connection to Redis failed, see whether it runs and can be reached",
        ),
        ErrorKind::InvalidClientConfig => {
            (Other, "the URL or the settings of the connection are wrong")
        }
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => (
            Corrupt,
            "the server answered with something unreadable, see whether it is Redis or Valkey, 6.2 or later",
        ),
        // A client that logs in by itself may say so in words alone, and so does Redis 7 of a command inside a script.
        _ if error.detail().is_some_and(|it| {
            it.contains("NOPERM") || it.contains("executing the script can't")
        }) =>
        {
            DENIED_COMMAND
        }
        _ => (Other, "Redis refused the command"),
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

/// The code that the server's answer begins with. Before Redis 7 an error inside a script comes wrapped: its code
/// stands in the text behind the place in the script.
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
    use StoreErrorKind::{Conflict, Corrupt, Denied, Full, Other, ReadOnly, Unavailable};
    Some(match code {
        "NOAUTH" | "WRONGPASS" => DENIED_LOGIN,
        "NOPERM" => DENIED_COMMAND,
        "DENIED" => (
            Denied,
            "Redis is in protected mode, give it a password or bind it to an address",
        ),
        "READONLY" => (
            ReadOnly,
            "the server is a replica and refuses writes, connect to the primary",
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
        "TRYAGAIN" | "ASK" => (Unavailable, "the cluster is moving this slot, try again"),
        "MOVED" | "CROSSSLOT" => (
            Other,
            "the server is part of a cluster, connect with feature `redis-cluster`",
        ),
        "BUSY" => (Conflict, "Redis is busy with somebody's script, try again"),
        "WRONGTYPE" | "IDEMCORRUPT" => (
            Corrupt,
            "a key of the store holds what no idem store writes, delete it or give the store another prefix",
        ),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(code: &str, detail: &str) -> StoreErrorKind {
        let source = redis::make_extension_error(code.to_owned(), Some(detail.to_owned()));
        error(source).kind()
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
            ("CLUSTERDOWN", StoreErrorKind::Unavailable),
            ("TRYAGAIN", StoreErrorKind::Unavailable),
            ("BUSY", StoreErrorKind::Conflict),
            ("WRONGTYPE", StoreErrorKind::Corrupt),
            ("IDEMCORRUPT", StoreErrorKind::Corrupt),
            ("ERR", StoreErrorKind::Other),
        ] {
            assert_eq!(kind(code, "something"), expected, "{code}");
        }
    }

    #[test]
    fn an_error_that_a_script_wrapped_is_unwrapped() {
        let wrapped = "Error running script (call to f_1): @user_script:31: @user_script: 31: -OOM command not allowed";
        assert_eq!(kind("ERR", wrapped), StoreErrorKind::Full);
        let wrapped = "Error running script (call to f_1): @user_script:31: WRONGTYPE Operation against a key";
        assert_eq!(kind("ERR", wrapped), StoreErrorKind::Corrupt);
        let denied = "The user executing the script can't run this command or subcommand script: 88, on @user_script:1.";
        assert_eq!(kind("ERR", denied), StoreErrorKind::Denied);
    }
}
