//! Connection to a single server, which is given up if that server turns out to be a replica.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, RedisResult, cmd};

use super::renewal::{Epoch, Renewals};
#[cfg(feature = "redis-sentinel")]
use super::sentinel::Sentinels;
use crate::mutex::lock;

/// Connection to one server. Clones share it.
///
/// The manager reconnects only when the connection is lost. A failover behind one address (a DNS name, a virtual IP, a
/// proxy) loses no connection: the old primary is demoted and keeps its clients, and would refuse their writes as long
/// as the connections live. A caller that gets such an answer therefore calls [`give_up`](Self::give_up). With sentinels
/// a caller does so after any failure of the connection, because they may have made another server the primary.
#[derive(Clone)]
pub(super) struct Single {
    manager: Arc<Mutex<ConnectionManager>>,
    renewals: Renewals,
    /// True once the server has answered, so that it had accepted the login.
    has_answered: Arc<AtomicBool>,
    /// Client that makes new connections, and their settings. A connection that the caller made has none.
    source: Option<(Client, ConnectionManagerConfig)>,
    #[cfg(feature = "redis-sentinel")]
    sentinels: Option<Sentinels>,
}

/// Time limit of each of the two commands of a renewal.
const WITHIN: Duration = Duration::from_secs(2);
/// Longest pause between two searches for the primary: a search costs the sentinels little.
#[cfg(feature = "redis-sentinel")]
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl Single {
    pub(super) fn new(manager: ConnectionManager) -> Self {
        Self {
            manager: Arc::new(Mutex::new(manager)),
            renewals: Renewals::new(),
            has_answered: Arc::default(),
            source: None,
            #[cfg(feature = "redis-sentinel")]
            sentinels: None,
        }
    }

    /// Connection that this client makes, with these settings.
    pub(super) fn of_client(client: Client, config: ConnectionManagerConfig) -> RedisResult<Self> {
        let manager = ConnectionManager::new_lazy_with_config(client.clone(), config.clone())?;
        Ok(Self {
            source: Some((client, config)),
            ..Self::new(manager)
        })
    }

    /// Connection to the server that sentinels name, now `manager`.
    #[cfg(feature = "redis-sentinel")]
    pub(super) fn of_sentinels(sentinels: Sentinels, manager: ConnectionManager) -> Self {
        Self {
            renewals: Renewals::with_longest_pause(LONGEST_PAUSE),
            sentinels: Some(sentinels),
            ..Self::new(manager)
        }
    }

    pub(super) fn connection(&self) -> ConnectionManager {
        lock(&self.manager).clone()
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.renewals.epoch()
    }

    pub(super) fn has_answered(&self) -> &AtomicBool {
        &self.has_answered
    }

    /// Returns true if sentinels may have made another server the primary.
    pub(super) fn has_sentinels(&self) -> bool {
        #[cfg(feature = "redis-sentinel")]
        return self.sentinels.is_some();
        #[cfg(not(feature = "redis-sentinel"))]
        false
    }

    /// Reconnects in the background, unless this was done since the epoch, is being done, or was done a moment ago.
    /// Returns true if it reconnects.
    ///
    /// Commands that are sent during the reconnection may fail, as on any lost connection.
    pub(super) fn give_up(&self, epoch: Epoch) -> bool {
        #[cfg(feature = "redis-sentinel")]
        if let Some(sentinels) = self.sentinels.clone() {
            return self.search(sentinels, epoch);
        }
        let manager = self.connection();
        let starts = self.renewals.start(epoch, async {
            reconnect(manager).await;
            true
        });
        if starts {
            tracing::warn!(
                target: "idem",
                "the Redis server at the end of a connection is a replica, connecting anew in case its address leads elsewhere",
            );
        }
        starts
    }

    /// Replaces the connection, because it does not answer: a balancer may have forgotten it, or the runtime that it was made
    /// in may be blocked. Calls in flight keep the old one, which is closed with the last of them. Nothing can be done for a
    /// connection that the caller made.
    pub(super) fn replace(&self, epoch: Epoch) {
        let Some((client, config)) = self.source.clone() else {
            return;
        };
        let manager = Arc::clone(&self.manager);
        let starts = self.renewals.start(epoch, async move {
            let Ok(new) = ConnectionManager::new_lazy_with_config(client, config) else {
                return false;
            };
            *lock(&manager) = new;
            true
        });
        if starts {
            tracing::warn!(
                target: "idem",
                "a connection to Redis does not answer, making a new one in case the old one is dead",
            );
        }
    }

    /// Replaces the connection by one to the server that the sentinels name. Calls in flight keep the old one.
    #[cfg(feature = "redis-sentinel")]
    fn search(&self, sentinels: Sentinels, epoch: Epoch) -> bool {
        let manager = Arc::clone(&self.manager);
        let starts = self.renewals.start(epoch, async move {
            let Ok(primary) = sentinels.primary().await else {
                return false;
            };
            let Ok(found) = manager_of(primary) else {
                return false;
            };
            *lock(&manager) = found;
            true
        });
        if starts {
            tracing::warn!(
                target: "idem",
                "the Redis primary does not answer or was demoted, asking the sentinels for the current one",
            );
        }
        starts
    }
}

/// Manager that connects at the first command. It gives up soon, because another server may be the primary by then.
#[cfg(feature = "redis-sentinel")]
pub(super) fn manager_of(client: Client) -> RedisResult<ConnectionManager> {
    let config = ConnectionManagerConfig::new()
        .set_connection_timeout(Some(WITHIN))
        .set_response_timeout(None)
        .set_number_of_retries(1);
    ConnectionManager::new_lazy_with_config(client, config)
}

/// Reconnects. `QUIT` closes the connection on the server's side, with any kind of manager. ACLs cannot forbid it. The
/// manager notices at the next command, which may fail, and connects again.
async fn reconnect(mut manager: ConnectionManager) {
    for command in ["QUIT", "PING"] {
        let command = cmd(command);
        let answer = command.exec_async(&mut manager);
        let _ = tokio::time::timeout(WITHIN, answer).await;
    }
}
