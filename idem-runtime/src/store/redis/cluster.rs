//! Connections to a cluster, which are replaced where the cluster does not answer any more.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use tokio::time::Instant;

use super::renewal::{Epoch, Renewals};

/// The connections to a cluster. Clones share them.
#[derive(Clone)]
pub(super) struct Cluster(Arc<Shared>);

struct Shared {
    /// Makes new connections. A connection that the caller made has none, and is never replaced.
    client: Option<ClusterClient>,
    current: Mutex<Arc<Current>>,
    renewals: Renewals,
}

struct Current {
    connection: ClusterConnection,
    epoch: Epoch,
    silence: Mutex<Silence>,
}

/// How long no call may have been answered before a call that is not answered either makes a new connection. A script
/// that holds up a server for less than this never does.
const SILENT_FOR: Duration = Duration::from_secs(2);
/// How long a call whose caller left must have waited to count as one that was not answered.
const LEFT_AFTER: Duration = Duration::from_millis(500);
/// Time limit of a new connection. The client waits for a node that does not answer twice, two seconds each, and for
/// the slots in between.
const WITHIN: Duration = Duration::from_secs(10);

impl Cluster {
    pub(super) fn new(connection: ClusterConnection, client: Option<ClusterClient>) -> Self {
        let renewals = Renewals::new();
        let current = Current::new(connection, renewals.epoch());
        Self(Arc::new(Shared {
            client,
            current: Mutex::new(Arc::new(current)),
            renewals,
        }))
    }

    pub(super) fn connection(&self) -> ClusterConnection {
        self.current().connection.clone()
    }

    /// A call that begins now. Dropped, it was not answered.
    pub(super) fn call(&self) -> ClusterCall<'_> {
        ClusterCall {
            cluster: self,
            current: self.current(),
            begun_at: Instant::now(),
            end: End::Left,
        }
    }

    fn current(&self) -> Arc<Current> {
        Arc::clone(&lock(&self.0.current))
    }

    /// Replaces the connection. What is in flight on the old one ends there: each call has a clone, and the last one
    /// closes it.
    fn renew(&self, epoch: Epoch) {
        let Some(client) = self.0.client.clone() else {
            return;
        };
        let shared = Arc::clone(&self.0);
        let starts = self.0.renewals.start(epoch, async move {
            let connecting = client.get_async_connection();
            let Ok(Ok(connection)) = tokio::time::timeout(WITHIN, connecting).await else {
                return false;
            };
            *lock(&shared.current) = Arc::new(Current::new(connection, epoch.next()));
            true
        });
        if starts {
            tracing::warn!(
                target: "idem",
                "the Redis Cluster does not answer any more, making a new connection in case the old one is stuck",
            );
        }
    }
}

impl Current {
    fn new(connection: ClusterConnection, epoch: Epoch) -> Self {
        Self {
            connection,
            epoch,
            silence: Mutex::default(),
        }
    }
}

/// A call under way.
pub(super) struct ClusterCall<'a> {
    cluster: &'a Cluster,
    /// The connection that was there before the command was sent: what the call meets is about that one.
    current: Arc<Current>,
    begun_at: Instant,
    end: End,
}

enum End {
    Answered,
    Failed,
    /// The caller left.
    Left,
}

impl ClusterCall<'_> {
    /// A server answered, if only with an error.
    pub(super) fn is_answered(mut self) {
        self.end = End::Answered;
    }

    /// No server answered in time, or the connection failed.
    pub(super) fn has_failed(mut self) {
        self.end = End::Failed;
    }
}

impl Drop for ClusterCall<'_> {
    fn drop(&mut self) {
        let counts = match self.end {
            End::Answered => {
                lock(&self.current.silence).ends(Instant::now());
                return;
            }
            End::Failed => true,
            End::Left => self.begun_at.elapsed() >= LEFT_AFTER,
        };
        if counts && lock(&self.current.silence).is_long_at(self.begun_at) {
            self.cluster.renew(self.current.epoch);
        }
    }
}

/// The time since which no call was answered.
#[derive(Default)]
struct Silence {
    answered_at: Option<Instant>,
    /// When the first call since then began that was not answered.
    since: Option<Instant>,
}

impl Silence {
    fn ends(&mut self, now: Instant) {
        self.answered_at = Some(now);
        self.since = None;
    }

    /// Notes a call that was not answered, and tells whether it began so long after the first such call that the
    /// connection has to be replaced. Calls that waited together for one slow script began together.
    fn is_long_at(&mut self, begun_at: Instant) -> bool {
        // A call may have begun before another one was answered.
        let silent_from = self.answered_at.map_or(begun_at, |it| it.max(begun_at));
        let since = self.since.map_or(silent_from, |it| it.min(silent_from));
        self.since = Some(since);
        begun_at.saturating_duration_since(since) >= SILENT_FOR
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is made as a whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(2);

    /// Calls one after the other that are not answered, and tells the end of the first that asks for a connection.
    fn until_long(silence: &mut Silence, mut now: Instant) -> Instant {
        while !silence.is_long_at(now) {
            now += TIMEOUT;
        }
        now + TIMEOUT
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_script_is_no_silence() {
        let mut silence = Silence::default();
        let now = Instant::now();
        // All that came while the script ran, and gave up in the middle of it.
        for after in (0..1900).map(Duration::from_millis) {
            assert!(!silence.is_long_at(now + after));
        }
        silence.ends(now + SILENT_FOR);
        for after in (0..1900).map(Duration::from_millis) {
            assert!(!silence.is_long_at(now + SILENT_FOR + after));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_nobody_answers_are_a_silence_after_some_seconds() {
        let mut silence = Silence::default();
        let now = Instant::now();
        assert_eq!(until_long(&mut silence, now), now + Duration::from_secs(4));
        // For as long as that lasts, each call says so, and the renewals have their own pauses.
        assert!(silence.is_long_at(now + Duration::from_secs(5)));
        silence.ends(now + Duration::from_secs(6));
        assert!(!silence.is_long_at(now + Duration::from_secs(7)));
    }

    #[tokio::test(start_paused = true)]
    async fn one_server_that_answers_is_no_silence() {
        let mut silence = Silence::default();
        let mut now = Instant::now();
        for _ in 0..100 {
            // A call to a server that is gone began before another server answered, and fails after that.
            silence.ends(now + TIMEOUT / 2);
            assert!(!silence.is_long_at(now));
            now += TIMEOUT;
        }
    }
}
