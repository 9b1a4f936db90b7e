//! Connects to the server of a URL.

use std::io::ErrorKind;
use std::time::Duration;

use sqlx::pool::PoolOptions;
use sqlx::{ConnectOptions, Connection as _, Database};
use sqlx_core::Url;
use tokio::time::timeout;

use crate::error::{StoreError, StoreErrorKind};

/// Longest time to wait for the server, and for a connection of the pool.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time after which an idle connection is closed. Balancers and firewalls forget idle connections after four minutes or more,
/// and the drivers have no TCP keep-alive.
const IDLE: Duration = Duration::from_secs(180);
/// Time after which a connection is replaced, so that the pool spreads over servers that were added.
const LIFETIME: Duration = Duration::from_secs(1800);

/// Settings of a pool that the store makes.
pub(in crate::store) fn pool_options<DB: Database>(connections: u32) -> PoolOptions<DB> {
    PoolOptions::new()
        .min_connections(0)
        .max_connections(connections)
        .acquire_timeout(PATIENCE)
        .idle_timeout(IDLE)
        .max_lifetime(LIFETIME)
        // A ping before each use would double the round trips.
        .test_before_acquire(false)
}

/// Parses a URL and adapts the options in it. Then opens one connection to learn the server's answer: a pool would retry
/// until its time-out, and would not report the answer.
///
/// The URL must begin with one of the schemes and `://`. sqlx takes any other text for the name of a database on this
/// machine, and an error would then show that text, which may be a password.
pub(in crate::store) async fn reach<O: ConnectOptions<Connection: Sized>>(
    url: &str,
    schemes: [&str; 2],
    adapt: fn(O) -> O,
    error: fn(sqlx::Error) -> StoreError,
) -> Result<O, StoreError> {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    if !schemes.contains(&scheme) {
        let [first, second] = schemes;
        return Err(StoreError::new(
            StoreErrorKind::Other,
            format!("the URL of this store begins with `{first}://` or `{second}://`"),
        ));
    }
    let options = adapt(url.parse().map_err(error)?);
    let visit = async { options.connect().await?.close().await };
    let visited = timeout(PATIENCE, visit).await.map_err(|late| {
        StoreError::new(
            StoreErrorKind::Unavailable,
            "the server did not answer in time, check the host and port of the URL",
        )
        .with_source(late)
    })?;
    match visited {
        Ok(()) => Ok(options),
        Err(source) => Err(match unreadable_file(url, &source) {
            Some(parameter) => crate::store::unreadable_file(&parameter).with_source(source),
            None => error(source),
        }),
    }
}

/// Parameters of a URL that name a file, in the spellings that the drivers accept.
const FILES: [&str; 8] = [
    "sslrootcert",
    "ssl-root-cert",
    "sslca",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
];

/// Returns the parameter of a URL that names a file which cannot be read, if that may be the reason of the failure. The
/// driver reports a missing file in the same way as a missing Unix socket, behind which a server may start later.
fn unreadable_file(url: &str, failure: &sqlx::Error) -> Option<String> {
    let sqlx::Error::Io(failure) = failure else {
        return None;
    };
    if !matches!(
        failure.kind(),
        ErrorKind::NotFound
            | ErrorKind::PermissionDenied
            | ErrorKind::IsADirectory
            | ErrorKind::NotADirectory
    ) {
        return None;
    }
    let url = Url::parse(url).ok()?;
    let mut parameters = url.query_pairs();
    let unreadable = parameters.find(|(name, path)| {
        FILES.contains(&&**name)
            && !path.trim_start().starts_with("-----BEGIN")
            && std::fs::read(&**path).is_err()
    });
    unreadable.map(|(name, _)| name.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_is_named_by_its_parameter() {
        let missing = || sqlx::Error::Io(ErrorKind::NotFound.into());
        let url = "mysql://app@db/shop?ssl-mode=VERIFY_CA&ssl-ca=%2Fnowhere%2Fca.pem";
        assert_eq!(unreadable_file(url, &missing()).as_deref(), Some("ssl-ca"));
        let refused = sqlx::Error::Io(ErrorKind::ConnectionRefused.into());
        assert_eq!(unreadable_file(url, &refused), None);
        for readable in [
            "postgres://app@db/shop?sslrootcert=Cargo.toml",
            "postgres://app@db/shop?sslkey=-----BEGIN%20KEY",
            "postgres://app@%2Fnowhere/shop?application_name=x",
        ] {
            assert_eq!(unreadable_file(readable, &missing()), None, "{readable}");
        }
    }
}
