//! Sentinels: servers that watch a primary and its replicas, replace the primary when it fails, and name the current
//! one.

use std::sync::Arc;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{Client, ConnectionAddr, ConnectionInfo, RedisResult, TlsMode};
use tokio::sync::Mutex;

use super::endpoint::Endpoint;
use super::errors;
use crate::error::{StoreError, StoreErrorKind};

/// Sentinels of one primary. Clones share the connections to them.
#[derive(Clone)]
pub(super) struct Sentinels(Arc<Mutex<SentinelClient>>);

/// Time limit of a search. The client asks several sentinels at once, and gives each of them, and the server that it
/// names, about a second to connect.
const WITHIN: Duration = Duration::from_secs(5);

impl Sentinels {
    /// Sentinels with these URLs. In the place of a host, the URL `primary` has the name of the primary. The sentinels are
    /// connected to with its certificates, if their own URLs name none. `settings` completes the settings of each connection.
    pub(super) fn new<'a>(
        sentinels: impl IntoIterator<Item = &'a str>,
        primary: &str,
        settings: impl Fn(TcpSettings) -> TcpSettings,
    ) -> Result<Self, StoreError> {
        let primary = Endpoint::parse(primary)?;
        let mut nodes = Endpoint::parse_all(sentinels)?;
        for node in &mut nodes {
            node.trust(&primary.certificates);
        }
        let nodes = nodes.into_iter().map(Endpoint::connection_info);
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        #[cfg(feature = "tls-rustls")]
        let certificates = primary.certificates.clone();
        let primary = primary.connection_info()?;
        let (name, mode) = match primary.addr() {
            ConnectionAddr::Tcp(name, _) => (name, None),
            ConnectionAddr::TcpTls { host, insecure, .. } => match insecure {
                true => (host, Some(TlsMode::Insecure)),
                false => (host, Some(TlsMode::Secure)),
            },
            _ => {
                return Err(StoreError::new(
                    StoreErrorKind::Other,
                    "the URL of the primary has no name in the place of its host; write one, as in `redis://mymaster/0`",
                ));
            }
        };
        let addresses = nodes.iter().map(|it| it.addr().clone());
        let server_type = SentinelServerType::Master;
        let mut builder = SentinelClientBuilder::new(addresses, name, server_type)
            .map_err(errors::error)?
            .set_client_to_redis_db(primary.redis_settings().db())
            .set_client_to_redis_protocol(primary.redis_settings().protocol())
            .set_client_to_redis_tcp_settings(settings(primary.tcp_settings().clone()));
        if let Some(mode) = mode {
            builder = builder.set_client_to_redis_tls_mode(mode);
        }
        #[cfg(feature = "tls-rustls")]
        if !certificates.is_empty() {
            builder = builder.set_client_to_redis_certificates(certificates.for_driver());
        }
        if let Some(user) = primary.redis_settings().username() {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = primary.redis_settings().password() {
            builder = builder.set_client_to_redis_password(password);
        }
        if let Some(first) = nodes.first() {
            require_one_login(&nodes)?;
            let [user, password] = login(first);
            builder = builder
                .set_client_to_sentinel_protocol(first.redis_settings().protocol())
                .set_client_to_sentinel_tcp_settings(settings(first.tcp_settings().clone()));
            if let Some(user) = user {
                builder = builder.set_client_to_sentinel_username(user);
            }
            if let Some(password) = password {
                builder = builder.set_client_to_sentinel_password(password);
            }
        }
        let client = builder.build().map_err(errors::error)?;
        Ok(Self(Arc::new(Mutex::new(client))))
    }

    /// Client for the server that is the primary now. The server has confirmed it.
    pub(super) async fn primary(&self) -> RedisResult<Client> {
        let search = async { self.0.lock().await.async_get_client().await };
        let found = tokio::time::timeout(WITHIN, search).await;
        found.unwrap_or_else(|_| {
            let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
            Err(late.into())
        })
    }
}

/// User and password for a server.
fn login(info: &ConnectionInfo) -> [Option<&str>; 2] {
    let settings = info.redis_settings();
    [settings.username(), settings.password()]
}

/// Refuses sentinels with several logins. The driver has one for all.
fn require_one_login(sentinels: &[ConnectionInfo]) -> Result<(), StoreError> {
    let mut logins = sentinels.iter().map(login);
    let first = logins.next();
    if logins.all(|it| Some(it) == first) {
        return Ok(());
    }
    Err(StoreError::new(
        StoreErrorKind::Other,
        "the URLs of the sentinels have different users or passwords; give all sentinels the same, and name it in each URL",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentinels_with_different_logins_are_refused() {
        let build = |sentinels: [&str; 2], primary: &str| {
            Sentinels::new(sentinels, primary, |it| it).map(drop)
        };
        let [one, other] = ["redis://ann:one@a", "redis://ann:other@b"];
        assert!(build([one, one], "redis://bob:third@idem/1").is_ok());
        let error = build([one, other], "redis://idem/").expect_err("they differ");
        assert_eq!(error.kind(), StoreErrorKind::Other);
        assert!(error.to_string().contains("give all sentinels the same"));
        let error = build([one, one], "unix:///run/redis").expect_err("it has no name");
        assert!(error.to_string().contains("`redis://mymaster/0`"));
    }
}
