//! Connections to a cluster, which are replaced if the cluster no longer answers.
//!
//! The client has one task for all commands. When it learns that a slot has moved, it asks for all slots, and polls no other
//! command until it has the answer. The question waits for a lock that a command may hold which is not polled: the client
//! then stands still for ever. While a slot moves, the next connection would do so as well. Therefore commands take turns
//! for a while on a connection that replaces one whose client stood still. A turn is short: a command that waits for a node
//! that does not answer must not hold up the others.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout};

use super::renewal::{Epoch, Renewals};
use crate::mutex::lock;

/// Connections to a cluster. Clones share them.
#[derive(Clone)]
pub(super) struct Cluster(Arc<Shared>);

struct Shared {
    /// Client that makes new connections. A connection that the caller made has none, and is never replaced.
    client: Option<ClusterClient>,
    current: Mutex<Arc<Current>>,
    /// True once a node has answered, so that it had accepted the login.
    has_answered: AtomicBool,
    renewals: Renewals,
}

/// Time for which commands take turns after the client stood still.
const TURNS_FOR: Duration = Duration::from_secs(30);
/// Longest turn of a command that is not answered.
const LONGEST_TURN: Duration = Duration::from_millis(100);

/// Connection for one command at a time.
pub(super) struct TurnConnection {
    connection: ClusterConnection,
    /// Ends the turn when it is dropped. None if commands take no turns.
    _turn: Option<oneshot::Sender<()>>,
}

impl Deref for TurnConnection {
    type Target = ClusterConnection;

    fn deref(&self) -> &ClusterConnection {
        &self.connection
    }
}

impl DerefMut for TurnConnection {
    fn deref_mut(&mut self) -> &mut ClusterConnection {
        &mut self.connection
    }
}

struct Current {
    connection: ClusterConnection,
    epoch: Epoch,
    failures: Mutex<Failures>,
    /// True once no other connection could be made: it is the cluster that does not answer.
    cluster_was_away: AtomicBool,
    turns: Option<Turns>,
}

/// Turns of the commands on a connection.
struct Turns {
    until: Instant,
    turn: Arc<Semaphore>,
}

impl Turns {
    fn new() -> Self {
        Self {
            until: Instant::now() + TURNS_FOR,
            turn: Arc::new(Semaphore::new(1)),
        }
    }

    /// Waits for a turn, which lasts until the sender is dropped, and no longer than [`LONGEST_TURN`]. A task takes it, because
    /// the future of a command may not be polled any more. None if turns are no longer taken.
    async fn take(&self) -> Option<oneshot::Sender<()>> {
        if Instant::now() >= self.until {
            return None;
        }
        let (grant, granted) = oneshot::channel();
        let turn = Arc::clone(&self.turn);
        tokio::spawn(async move {
            let Ok(_turn) = turn.acquire_owned().await else {
                return;
            };
            let (end, ended) = oneshot::channel();
            if grant.send(end).is_ok() {
                // Its error says that the command has ended.
                let _ = timeout(LONGEST_TURN, ended).await;
            }
        });
        granted.await.ok()
    }
}

/// Time without any answer after which one more unanswered call makes a new connection. A script that blocks a server
/// for less than this never does.
const SILENT_FOR: Duration = Duration::from_secs(2);
/// Time of failing calls, while others are answered, after which one more failure makes a new connection: the old one
/// may have lost a single node.
const FAILING_FOR: Duration = Duration::from_secs(10);
/// Time without a failed call after which the failures of [`FAILING_FOR`] are counted from zero.
const FAILURES_APART: Duration = Duration::from_secs(5);
/// Minimum wait of a call that its caller cancels to count as unanswered. It is never counted as a failure: the answer
/// of a slow server might have arrived.
const LEFT_AFTER: Duration = Duration::from_millis(500);
/// Time limit of a new connection. The client waits two seconds for a node that does not answer, twice, and for the
/// slots between the two.
const WITHIN: Duration = Duration::from_secs(10);

impl Cluster {
    pub(super) fn new(connection: ClusterConnection, client: Option<ClusterClient>) -> Self {
        let renewals = Renewals::new();
        let current = Current::new(connection, renewals.epoch(), None);
        Self(Arc::new(Shared {
            client,
            current: Mutex::new(Arc::new(current)),
            has_answered: AtomicBool::new(false),
            renewals,
        }))
    }

    pub(super) fn has_answered(&self) -> &AtomicBool {
        &self.0.has_answered
    }

    /// Waits for the turn of a command.
    pub(super) async fn connection(&self) -> TurnConnection {
        let current = self.current();
        TurnConnection {
            _turn: match &current.turns {
                Some(turns) => turns.take().await,
                None => None,
            },
            connection: current.connection.clone(),
        }
    }

    /// Begins a call. If the call is dropped, it counts as unanswered.
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

    /// Replaces the connection. Calls in flight on the old one end there: each call has a clone, and the last clone
    /// closes it. If the old one was silent, and a new one can be made at once, the client stood still.
    fn renew(&self, old: &Arc<Current>, is_silent: bool) {
        let Some(client) = self.0.client.clone() else {
            return;
        };
        let (shared, old) = (Arc::clone(&self.0), Arc::clone(old));
        let epoch = old.epoch;
        let starts = self.0.renewals.start(epoch, async move {
            let Ok(Ok(connection)) = timeout(WITHIN, client.get_async_connection()).await else {
                old.cluster_was_away.store(true, Ordering::Relaxed);
                return false;
            };
            let stood_still = is_silent && !old.cluster_was_away.load(Ordering::Relaxed);
            let turns = stood_still.then(Turns::new);
            *lock(&shared.current) = Arc::new(Current::new(connection, epoch.next(), turns));
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
    fn new(connection: ClusterConnection, epoch: Epoch, turns: Option<Turns>) -> Self {
        Self {
            connection,
            epoch,
            failures: Mutex::default(),
            cluster_was_away: AtomicBool::new(false),
            turns,
        }
    }
}

/// Call in flight.
pub(super) struct ClusterCall<'a> {
    cluster: &'a Cluster,
    /// Connection at the time before the command was sent. The result of the call is about that connection.
    current: Arc<Current>,
    begun_at: Instant,
    end: End,
}

enum End {
    Answered,
    Failed,
    /// The caller cancelled the call.
    Left,
}

impl ClusterCall<'_> {
    /// Records that a server answered, even with an error.
    pub(super) fn answered(mut self) {
        self.end = End::Answered;
    }

    /// Records that no server answered in time, or that the connection failed.
    pub(super) fn failed(mut self) {
        self.end = End::Failed;
    }
}

impl Drop for ClusterCall<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        let (is_stuck, is_silent) = {
            let mut failures = lock(&self.current.failures);
            let is_stuck = match self.end {
                End::Answered => {
                    failures.answered(now);
                    false
                }
                End::Failed => failures.failed(self.begun_at, now),
                End::Left => {
                    now.duration_since(self.begun_at) >= LEFT_AFTER
                        && failures.unanswered(self.begun_at)
                }
            };
            (is_stuck, failures.is_silent(self.begun_at))
        };
        if is_stuck {
            self.cluster.renew(&self.current, is_silent);
        }
    }
}

/// Failed calls over one connection.
#[derive(Default)]
struct Failures {
    answered_at: Option<Instant>,
    /// Start of the first unanswered call since the last answer.
    silent_since: Option<Instant>,
    /// Times of the first and the last failed call in a series, even if others were answered between them.
    series: Option<(Instant, Instant)>,
}

impl Failures {
    fn answered(&mut self, now: Instant) {
        self.answered_at = Some(now);
        self.silent_since = None;
    }

    /// Records a call that failed. Returns true if the connection has to be replaced.
    fn failed(&mut self, begun_at: Instant, now: Instant) -> bool {
        let first = match self.series {
            Some((first, last)) if now.duration_since(last) <= FAILURES_APART => first,
            _ => now,
        };
        self.series = Some((first, now));
        self.unanswered(begun_at) || now.duration_since(first) >= FAILING_FOR
    }

    /// Records a call without an answer. Returns true if the connection has to be replaced.
    fn unanswered(&mut self, begun_at: Instant) -> bool {
        // A call may have begun before another one was answered. Calls that waited for the same slow script began
        // together.
        let silent_from = self.answered_at.map_or(begun_at, |it| it.max(begun_at));
        let silent_since = self
            .silent_since
            .map_or(silent_from, |it| it.min(silent_from));
        self.silent_since = Some(silent_since);
        self.is_silent(begun_at)
    }

    /// Returns true if no call at all was answered for a while before this time.
    fn is_silent(&self, begun_at: Instant) -> bool {
        self.silent_since
            .is_some_and(|since| begun_at.saturating_duration_since(since) >= SILENT_FOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(2);

    #[tokio::test(start_paused = true)]
    async fn a_slow_script_replaces_nothing() {
        let mut failures = Failures::default();
        let now = Instant::now();
        // All calls that arrive while the script runs, and time out in the middle of it.
        for after in (0..1900).map(Duration::from_millis) {
            assert!(!failures.failed(now + after, now + after + TIMEOUT));
        }
        failures.answered(now + SILENT_FOR);
        for after in (0..1900).map(Duration::from_millis) {
            let begun_at = now + SILENT_FOR + after;
            assert!(!failures.failed(begun_at, begun_at + TIMEOUT));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_over_which_nothing_is_answered_is_replaced_after_some_seconds() {
        let mut failures = Failures::default();
        let now = Instant::now();
        assert!(!failures.failed(now, now + TIMEOUT));
        assert!(failures.failed(now + TIMEOUT, now + 2 * TIMEOUT));
        // Each further call reports this as long as it lasts, and the renewals have their own pauses.
        assert!(failures.failed(now + 2 * TIMEOUT, now + 3 * TIMEOUT));
        failures.answered(now + 3 * TIMEOUT);
        assert!(!failures.failed(now + 3 * TIMEOUT, now + 4 * TIMEOUT));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_lost_one_node_is_replaced_after_ten_seconds() {
        let mut failures = Failures::default();
        let begun_at = Instant::now();
        let mut now = begun_at;
        loop {
            // Another node answers throughout.
            failures.answered(now + TIMEOUT / 2);
            let is_long = failures.failed(now, now + TIMEOUT);
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
            assert!(!failures.failed(now, now + TIMEOUT));
            now += FAILURES_APART + Duration::from_millis(1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn callers_that_leave_replace_nothing_while_others_are_answered() {
        let mut failures = Failures::default();
        let mut now = Instant::now();
        for _ in 0..100 {
            // A caller that waits for a slow replica leaves, and another caller gets an answer.
            assert!(!failures.unanswered(now));
            now += LEFT_AFTER;
            failures.answered(now);
        }
        // The failures of the other rule start from zero.
        assert!(!failures.failed(now, now + TIMEOUT));
    }
}
