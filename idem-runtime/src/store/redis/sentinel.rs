//! Sentinels: servers that watch a primary and its replicas, replace the primary when it fails, and name the current
//! one.

use std::sync::Arc;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use redis::{
    Client, ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisError, RedisResult, TlsMode,
};
use tokio::sync::Mutex;

/// Sentinels of one primary. Clones share the connections to them.
#[derive(Clone)]
pub(super) struct Sentinels(Arc<Mutex<SentinelClient>>);

/// Time limit of a search. The client asks several sentinels at once, and gives each of them, and the server that it
/// names, about a second to connect.
const WITHIN: Duration = Duration::from_secs(5);

impl Sentinels {
    /// Sentinels with these URLs. In the place of a host, the URL `primary` has the name of the primary. `settings`
    /// completes the settings of each connection.
    pub(super) fn new<'a>(
        sentinels: impl IntoIterator<Item = &'a str>,
        primary: &str,
        settings: impl Fn(TcpSettings) -> TcpSettings,
    ) -> RedisResult<Self> {
        let mut nodes = Vec::new();
        for url in sentinels {
            let info = url.into_connection_info()?;
            let tcp = settings(info.tcp_settings().clone());
            nodes.push(info.set_tcp_settings(tcp));
        }
        let primary = primary.into_connection_info()?;
        let tcp = settings(primary.tcp_settings().clone());
        let server = SentinelNodeConnectionInfo::default()
            .set_redis_connection_info(primary.redis_settings().clone())
            .set_tcp_settings(tcp);
        let (name, server) = match primary.addr() {
            ConnectionAddr::Tcp(name, _) => (name, server),
            ConnectionAddr::TcpTls { host, insecure, .. } => {
                let mode = match insecure {
                    true => TlsMode::Insecure,
                    false => TlsMode::Secure,
                };
                (host, server.set_tls_mode(mode))
            }
            _ => {
                return Err(RedisError::from((
                    ErrorKind::InvalidClientConfig,
                    "the URL of the primary has no name in the place of its host",
                )));
            }
        };
        let client = SentinelClient::build(
            nodes,
            name.clone(),
            Some(server),
            SentinelServerType::Master,
        )?;
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
