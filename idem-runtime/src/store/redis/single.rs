//! Connection to a single server, which is given up if that server turns out to be a replica.

use std::time::Duration;

use redis::aio::ConnectionManager;
use redis::cmd;

use super::renewal::{Epoch, Renewals};

/// Connection to the server at one address. Clones share it.
///
/// The manager reconnects only when the connection is lost. A failover behind the address (a DNS name, a virtual IP, a
/// proxy) loses no connection: the old primary is demoted and keeps its clients, and would refuse their writes as long
/// as the connections live. A caller that gets such an answer therefore calls [`give_up`](Self::give_up).
#[derive(Clone)]
pub(super) struct Single {
    manager: ConnectionManager,
    renewals: Renewals,
}

/// Time limit of each of the two commands of a renewal.
const WITHIN: Duration = Duration::from_secs(2);

impl Single {
    pub(super) fn new(manager: ConnectionManager) -> Self {
        Self {
            manager,
            renewals: Renewals::new(),
        }
    }

    pub(super) fn connection(&self) -> ConnectionManager {
        self.manager.clone()
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.renewals.epoch()
    }

    /// Reconnects in the background, unless this was done since the epoch, is being done, or was done a moment ago.
    /// Returns true if it reconnects.
    ///
    /// Commands that are sent during the reconnection may fail, as on any lost connection.
    pub(super) fn give_up(&self, epoch: Epoch) -> bool {
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
