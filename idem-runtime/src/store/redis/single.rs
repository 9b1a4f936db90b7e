//! Connection to a single server, which is given up if that server turns out to be a replica.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::ConnectionManager;
use redis::cmd;
use tokio::time::Instant;

/// Connection to the server at one address. Clones share it.
///
/// The manager reconnects only when the connection is lost. A failover behind the address (a DNS name, a virtual IP, a
/// proxy) loses no connection: the old primary is demoted and keeps its clients, and would refuse their writes as long
/// as the connections live. A caller that gets such an answer therefore calls [`give_up`](Self::give_up).
#[derive(Clone)]
pub(super) struct Single {
    manager: ConnectionManager,
    renewal: Arc<Mutex<Renewal>>,
}

/// The number of times that the connection was given up: an answer is about the connection of its own epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Epoch(u64);

/// Pause between two renewals: the address may lead to a replica for a while, or for good, and each renewal cuts off
/// what is in flight on the connection.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// Time without a renewal after which the pauses begin anew.
const CALM: Duration = Duration::from_secs(60);
/// Time limit of each of the two commands of a renewal.
const WITHIN: Duration = Duration::from_secs(2);

struct Renewal {
    epoch: Epoch,
    /// One renewal at a time, however many answers ask for it.
    running: bool,
    next: Option<Instant>,
    pause: Duration,
}

impl Single {
    pub(super) fn new(manager: ConnectionManager) -> Self {
        Self {
            manager,
            renewal: Arc::new(Mutex::new(Renewal {
                epoch: Epoch(0),
                running: false,
                next: None,
                pause: FIRST_PAUSE,
            })),
        }
    }

    pub(super) fn connection(&self) -> ConnectionManager {
        self.manager.clone()
    }

    pub(super) fn epoch(&self) -> Epoch {
        self.lock().epoch
    }

    /// Reconnects in the background, unless this was done since the epoch, is being done, or was done a moment ago.
    /// Returns true if it reconnects.
    ///
    /// The task runs to its end even if the caller goes away. Commands that are sent meanwhile may fail as on any lost
    /// connection.
    pub(super) fn give_up(&self, epoch: Epoch) -> bool {
        if !self.lock().begins(epoch, Instant::now()) {
            return false;
        }
        tracing::warn!(
            target: "idem",
            "the Redis server at the end of a connection is a replica, connecting anew in case its address leads elsewhere",
        );
        let single = self.clone();
        tokio::spawn(async move {
            single.reconnect().await;
            single.lock().ends(Instant::now());
        });
        true
    }

    /// `QUIT` ends the connection on the server's side, whoever made the manager. ACLs cannot forbid it. The manager
    /// notices with the next command, which may fail, and connects again.
    async fn reconnect(&self) {
        for command in ["QUIT", "PING"] {
            let mut connection = self.connection();
            let command = cmd(command);
            let answer = command.exec_async(&mut connection);
            let _ = tokio::time::timeout(WITHIN, answer).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Renewal> {
        // Each change is made as a whole.
        self.renewal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Renewal {
    fn begins(&mut self, epoch: Epoch, now: Instant) -> bool {
        let too_soon = self.next.is_some_and(|next| now < next);
        if self.running || too_soon || epoch != self.epoch {
            return false;
        }
        self.running = true;
        true
    }

    fn ends(&mut self, now: Instant) {
        let is_calm = self.next.is_none_or(|next| now > next + CALM);
        self.pause = if is_calm {
            FIRST_PAUSE
        } else {
            (self.pause * 2).min(LONGEST_PAUSE)
        };
        self.next = Some(now + self.pause);
        self.epoch = Epoch(self.epoch.0 + 1);
        self.running = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renewal() -> Renewal {
        Renewal {
            epoch: Epoch(0),
            running: false,
            next: None,
            pause: FIRST_PAUSE,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_thousand_answers_of_one_epoch_make_one_renewal() {
        let mut renewal = renewal();
        let now = Instant::now();
        assert!(renewal.begins(Epoch(0), now));
        assert!((0..1000).all(|_| !renewal.begins(Epoch(0), now)));
        renewal.ends(now);
        // Answers of the connection that was given up, which come late.
        let later = now + LONGEST_PAUSE;
        assert!((0..1000).all(|_| !renewal.begins(Epoch(0), later)));
        assert!(renewal.begins(Epoch(1), later));
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_while_the_address_leads_to_a_replica() {
        let mut renewal = renewal();
        let mut now = Instant::now();
        for (epoch, seconds) in [1, 2, 4, 8, 8].into_iter().enumerate() {
            let epoch = Epoch(epoch as u64);
            assert!(renewal.begins(epoch, now));
            renewal.ends(now);
            let epoch = Epoch(epoch.0 + 1);
            let pause = Duration::from_secs(seconds);
            assert!(!renewal.begins(epoch, now + pause - Duration::from_millis(1)));
            now += pause;
        }
        now += CALM + Duration::from_secs(1);
        assert!(renewal.begins(Epoch(5), now));
        renewal.ends(now);
        assert_eq!(renewal.pause, FIRST_PAUSE);
    }
}
