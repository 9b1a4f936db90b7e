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
    failures: Mutex<Failures>,
}

/// How long no call may have been answered before a call that is not answered either makes a new connection. A script
/// that holds up a server for less than this never does.
const SILENT_FOR: Duration = Duration::from_secs(2);
/// How long calls may have failed, while others were answered, before one more makes a new connection: the old one may
/// have lost a single node.
const FAILING_FOR: Duration = Duration::from_secs(10);
/// Time without a failed call after which the failures of [`FAILING_FOR`] are counted anew.
const FAILURES_APART: Duration = Duration::from_secs(5);
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
                "the Redis Cluster, or a node of it, does not answer: making a new connection in case the old one is stuck",
            );
        }
    }
}

impl Current {
    fn new(connection: ClusterConnection, epoch: Epoch) -> Self {
        Self {
            connection,
            epoch,
            failures: Mutex::default(),
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
    pub(super) fn answered(mut self) {
        self.end = End::Answered;
    }

    /// No server answered in time, or the connection failed.
    pub(super) fn failed(mut self) {
        self.end = End::Failed;
    }
}

impl Drop for ClusterCall<'_> {
    fn drop(&mut self) {
        let counts = match self.end {
            End::Answered => {
                lock(&self.current.failures).answered(Instant::now());
                return;
            }
            End::Failed => true,
            End::Left => self.begun_at.elapsed() >= LEFT_AFTER,
        };
        if counts && lock(&self.current.failures).one_more(self.begun_at, Instant::now()) {
            self.cluster.renew(self.current.epoch);
        }
    }
}

/// The calls over one connection that failed.
#[derive(Default)]
struct Failures {
    answered_at: Option<Instant>,
    /// When the first call since the last answer began that was not answered.
    silent_since: Option<Instant>,
    /// When the first and the last of a series of calls failed, whether or not others were answered in between.
    series: Option<(Instant, Instant)>,
}

impl Failures {
    fn answered(&mut self, now: Instant) {
        self.answered_at = Some(now);
        self.silent_since = None;
    }

    /// Notes a call that was not answered, and tells whether the connection has to be replaced.
    fn one_more(&mut self, begun_at: Instant, now: Instant) -> bool {
        // A call may have begun before another one was answered. Calls that waited together for one slow script began
        // together.
        let silent_from = self.answered_at.map_or(begun_at, |it| it.max(begun_at));
        let silent_since = self
            .silent_since
            .map_or(silent_from, |it| it.min(silent_from));
        self.silent_since = Some(silent_since);
        let first = match self.series {
            Some((first, last)) if now.duration_since(last) <= FAILURES_APART => first,
            _ => now,
        };
        self.series = Some((first, now));
        begun_at.saturating_duration_since(silent_since) >= SILENT_FOR
            || now.duration_since(first) >= FAILING_FOR
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

    #[tokio::test(start_paused = true)]
    async fn a_slow_script_replaces_nothing() {
        let mut failures = Failures::default();
        let now = Instant::now();
        // All that came while the script ran, and gave up in the middle of it.
        for after in (0..1900).map(Duration::from_millis) {
            assert!(!failures.one_more(now + after, now + after + TIMEOUT));
        }
        failures.answered(now + SILENT_FOR);
        for after in (0..1900).map(Duration::from_millis) {
            let begun_at = now + SILENT_FOR + after;
            assert!(!failures.one_more(begun_at, begun_at + TIMEOUT));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_over_which_nothing_is_answered_is_replaced_after_some_seconds() {
        let mut failures = Failures::default();
        let now = Instant::now();
        assert!(!failures.one_more(now, now + TIMEOUT));
        assert!(failures.one_more(now + TIMEOUT, now + 2 * TIMEOUT));
        // For as long as that lasts, each call says so, and the renewals have their own pauses.
        assert!(failures.one_more(now + 2 * TIMEOUT, now + 3 * TIMEOUT));
        failures.answered(now + 3 * TIMEOUT);
        assert!(!failures.one_more(now + 3 * TIMEOUT, now + 4 * TIMEOUT));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_lost_one_node_is_replaced_after_ten_seconds() {
        let mut failures = Failures::default();
        let begun_at = Instant::now();
        let mut now = begun_at;
        loop {
            // Another node answers all the time.
            failures.answered(now + TIMEOUT / 2);
            let is_long = failures.one_more(now, now + TIMEOUT);
            now += TIMEOUT;
            if is_long {
                break;
            }
        }
        assert_eq!(now, begun_at + TIMEOUT + FAILING_FOR);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_that_are_far_apart_replace_nothing() {
        let mut failures = Failures::default();
        let mut now = Instant::now();
        for _ in 0..100 {
            failures.answered(now);
            assert!(!failures.one_more(now, now + TIMEOUT));
            now += FAILURES_APART + Duration::from_millis(1);
        }
    }
}
