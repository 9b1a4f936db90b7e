//! Connects to the server of a URL.

use std::time::Duration;

use sqlx::{ConnectOptions, Connection as _};
use tokio::time::timeout;

use crate::error::{StoreError, StoreErrorKind};

/// Longest time to wait for the server, and for a connection of the pool.
pub(in crate::store) const PATIENCE: Duration = Duration::from_secs(5);

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
    visited.map_err(error)?;
    Ok(options)
}
