//! The progress of a call, as seen by the calls of this process that wait for it.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use super::provenance::{Provenance, ResultSource};
use crate::mutex::lock;
use crate::record::{Digest, FencingToken, Outcome, Record};

/// Progress of a call: its phase and its lease.
#[derive(Debug, Default)]
pub(super) struct Progress {
    state: Mutex<ProgressState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct ProgressState {
    phase: Phase,
    /// True once a waiter has observed the phase; before that there is no waiter to wake.
    has_waiters: bool,
    /// True once the leader has published its last phase.
    has_left: bool,
    /// The calls that wait until the leader leaves.
    queue: Option<Arc<Queue>>,
    live_until: Option<Instant>,
}

/// The calls of a key that wait until its leader leaves. A leader that leaves without an outcome wakes one of them, which
/// becomes the next leader and takes the queue over. If it woke all of them, each failure of a body would cost as much as
/// there are waiters.
#[derive(Debug, Default)]
struct Queue {
    woken: Notify,
    /// The outcome of the last leader. The calls in the queue may have seen an earlier one.
    ended: OnceLock<Arc<SharedOutcome>>,
}

/// Place of a call in the queue of its key. Dropping the place wakes another call: this one may have been woken to become
/// the leader.
#[derive(Debug, Default)]
pub(super) struct QueuePlace(Option<Arc<Queue>>);

impl Drop for QueuePlace {
    fn drop(&mut self) {
        if let Some(queue) = &self.0 {
            queue.woken.notify_one();
        }
    }
}

/// Phase of a leader.
#[derive(Debug, Clone, Default)]
pub(super) enum Phase {
    /// The leader's claim is in progress.
    #[default]
    Claiming,
    /// The leader waits until it may send its claim.
    Queued {
        /// Latest time of the leader's next look at the queue. After it, waiters no longer rely on the leader.
        next_look_by: Instant,
    },
    /// The leader runs the body.
    Running,
    /// Another owner runs the body; the leader polls the store on behalf of its waiters.
    RunningElsewhere {
        /// The stored digest of the running request; none if it is not committed yet.
        fingerprint: Option<Digest>,
        /// Expiry of the other owner's lease, as far as this process can tell.
        lapses: Instant,
        /// Latest time of the leader's next check. After it, waiters no longer rely on the leader.
        next_check_by: Instant,
    },
    /// The leader knows the outcome, and the store has acknowledged it.
    Ended(Arc<SharedOutcome>),
    /// The key may be free: one of the waiters becomes the next leader.
    Vacant,
    /// The leader's answer applies to its own call only: each waiter asks the store itself.
    AskStore,
    /// The leader has another request than the record. A call that waited for its claim asks the store itself. The queue
    /// continues with its next call.
    Reused,
}

/// An outcome, with the details for its [`Provenance`](super::Provenance).
#[derive(Debug, Clone)]
pub(super) struct SharedOutcome {
    pub(super) outcome: Outcome,
    pub(super) fingerprint: Digest,
    pub(super) attempt: u32,
    /// Fencing token of the record; none if the call ran unprotected.
    pub(super) fencing_token: Option<FencingToken>,
    pub(super) at: SystemTime,
    /// Age of the outcome when it was read.
    pub(super) age: Duration,
    /// [`Record::payload_for`] of the record.
    pub(super) payload_for: Option<Duration>,
    /// Time for which the outcome is replayed, from the time when the store was asked for it or acknowledged it. None: until
    /// the record is resolved.
    pub(super) kept_for: Option<Duration>,
}

impl SharedOutcome {
    /// The outcome of a record, if the record has ended.
    pub(super) fn of(record: &Record) -> Option<Self> {
        Some(Self {
            outcome: record.outcome()?,
            fingerprint: record.fingerprint,
            attempt: record.attempt,
            fencing_token: Some(record.fencing_token),
            at: record.ended_at.unwrap_or(record.read_at).into(),
            age: record
                .read_at
                .since(record.ended_at.unwrap_or(record.read_at)),
            payload_for: record.payload_for,
            kept_for: record.unchanged_until().map(|at| at.since(record.read_at)),
        })
    }

    /// The provenance of this outcome for a caller that obtained it in this way.
    pub(super) fn provenance(&self, source: ResultSource) -> Provenance {
        Provenance {
            source,
            attempt: self.attempt,
            made_at: self.at,
            kept_for: self.kept_for,
        }
    }
}

impl Progress {
    /// Returns the current phase, and registers a waiter, with its place in a queue.
    pub(super) fn observe(&self, place: &mut QueuePlace) -> Phase {
        if let Some(ended) = place.0.as_ref().and_then(|queue| queue.ended.get()) {
            return Phase::Ended(Arc::clone(ended));
        }
        self.adopt(place);
        let mut state = self.lock();
        state.has_waiters = true;
        state.phase.clone()
    }

    /// Takes over the queue in which the leader has waited.
    pub(super) fn take_over(&self, mut place: QueuePlace) {
        self.adopt(&mut place);
        place.0 = None;
    }

    /// Makes the queue of a waiter that of this leader. If the leader has another queue, the calls of the waiter's queue
    /// are woken, and find the leader themselves.
    fn adopt(&self, place: &mut QueuePlace) {
        let Some(waiters) = &mut place.0 else { return };
        let mut state = self.lock();
        if state.has_left {
            return;
        }
        let queue = state.queue.get_or_insert_with(|| Arc::clone(waiters));
        if !Arc::ptr_eq(queue, waiters) {
            let left = mem::replace(waiters, Arc::clone(queue));
            drop(state);
            left.woken.notify_waiters();
        }
    }

    /// Waits until the leader has claimed, or until `deadline`. May return earlier.
    pub(super) async fn wait_for_claim(&self, deadline: Instant) {
        let changed = self.changed.notified();
        let is_over =
            |state: &ProgressState| !matches!(state.phase, Phase::Claiming | Phase::Queued { .. });
        self.wait(changed, deadline, is_over).await;
    }

    /// Waits until the leader enters another phase than this one or leaves, or until `deadline`. May return earlier. For
    /// callers that never lead, and so have no place in the queue.
    pub(super) async fn wait_for_change(&self, phase: &Phase, deadline: Instant) {
        let changed = self.changed.notified();
        let is_over = |state: &ProgressState| {
            state.has_left || mem::discriminant(&state.phase) != mem::discriminant(phase)
        };
        self.wait(changed, deadline, is_over).await;
    }

    /// Waits until the leader leaves, or until `deadline`. May return earlier.
    pub(super) async fn wait_for_end(&self, place: &mut QueuePlace, deadline: Instant) {
        let queue = {
            let mut state = self.lock();
            if state.has_left {
                return;
            }
            let queue = state.queue.get_or_insert_default();
            Arc::clone(place.0.get_or_insert_with(|| Arc::clone(queue)))
        };
        self.wait(queue.woken.notified(), deadline, |state| state.has_left)
            .await;
    }

    async fn wait(
        &self,
        woken: Notified<'_>,
        deadline: Instant,
        is_over: impl FnOnce(&ProgressState) -> bool,
    ) {
        tokio::pin!(woken);
        // Registered before the state is read, because a change before the registration would be missed.
        woken.as_mut().enable();
        let is_over = is_over(&self.lock());
        if !is_over {
            let _ = tokio::time::timeout_at(deadline, woken).await;
        }
    }

    /// Publishes a phase to the waiters.
    pub(super) fn publish(&self, phase: Phase) {
        self.update(|state| state.phase = phase);
    }

    /// Publishes the last phase of a leader that is in no map any more.
    pub(super) fn publish_last(&self, phase: impl FnOnce() -> Phase) {
        let mut last = None;
        self.update(|state| {
            state.has_left = true;
            let queue = state.queue.take();
            // A call that has found the leader in the map, but not observed it yet, asks the store itself.
            state.phase = if state.has_waiters || queue.is_some() {
                phase()
            } else {
                Phase::Vacant
            };
            last = queue.map(|queue| (queue, state.phase.clone()));
        });
        let Some((queue, phase)) = last else { return };
        match phase {
            Phase::Ended(ended) => {
                let _ = queue.ended.set(ended);
                queue.woken.notify_waiters();
            }
            Phase::AskStore => queue.woken.notify_waiters(),
            _ => queue.woken.notify_one(),
        }
    }

    /// Enters the running phase: the record was granted to the call, and its body may run.
    pub(super) fn run(&self, live_until: Instant) {
        self.update(|state| {
            state.live_until = Some(live_until);
            state.phase = Phase::Running;
        });
    }

    /// Expiry of the lease, as far as this process knows. None if the lease is lost, or was never held.
    pub(super) fn live_until(&self) -> Option<Instant> {
        self.lock().live_until
    }

    /// Extends the lease after a renewal. A lost lease stays lost.
    pub(super) fn prolong(&self, live_until: Instant) {
        let mut state = self.lock();
        state.live_until = state.live_until.map(|until| until.max(live_until));
    }

    /// Marks the lease as lost to another call.
    pub(super) fn lose(&self) {
        self.lock().live_until = None;
    }

    fn update(&self, change: impl FnOnce(&mut ProgressState)) {
        let has_waiters = {
            let mut state = self.lock();
            change(&mut state);
            state.has_waiters
        };
        if has_waiters {
            self.changed.notify_waiters();
        }
    }

    fn lock(&self) -> MutexGuard<'_, ProgressState> {
        lock(&self.state)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_waiter_waits_only_while_the_leader_claims() {
        let progress = Progress::default();
        let now = Instant::now();
        progress.wait_for_claim(now + PATIENCE).await;
        assert_eq!(now.elapsed(), PATIENCE);
        progress.publish(Phase::Running);
        progress.wait_for_claim(now + 2 * PATIENCE).await;
        assert_eq!(now.elapsed(), PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_of_a_leader_that_has_left_does_not_wait() {
        let progress = Progress::default();
        let now = Instant::now();
        progress.publish_last(|| Phase::Vacant);
        let mut place = QueuePlace::default();
        progress.wait_for_end(&mut place, now + PATIENCE).await;
        assert_eq!(now.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_with_an_outcome_wakes_all_and_one_without_wakes_one() {
        for (last, expected) in [(Phase::Vacant, 1), (Phase::AskStore, 3)] {
            let progress = Progress::default();
            let until = Instant::now() + PATIENCE;
            let mut places: [QueuePlace; 3] = Default::default();
            let mut waits = Vec::new();
            for place in &mut places {
                progress.observe(place);
                waits.push(Box::pin(progress.wait_for_end(place, until)));
            }
            assert!(
                waits
                    .iter_mut()
                    .all(|wait| wait.as_mut().now_or_never().is_none())
            );
            progress.publish_last(|| last);
            let woken = waits
                .iter_mut()
                .filter_map(|wait| wait.as_mut().now_or_never());
            assert_eq!(woken.count(), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_was_woken_and_leaves_wakes_another() {
        let (first, next) = (Progress::default(), Progress::default());
        let until = Instant::now() + PATIENCE;
        let (mut one, mut two) = (QueuePlace::default(), QueuePlace::default());
        let mut waits = Box::pin(first.wait_for_end(&mut one, until));
        assert!(waits.as_mut().now_or_never().is_none());
        let mut stays = Box::pin(first.wait_for_end(&mut two, until));
        assert!(stays.as_mut().now_or_never().is_none());
        first.publish_last(|| Phase::Vacant);
        assert!(waits.as_mut().now_or_never().is_some());
        assert!(stays.as_mut().now_or_never().is_none());
        drop(waits);
        // It finds another leader, and then its caller leaves.
        next.observe(&mut one);
        drop(one);
        assert!(stays.as_mut().now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_that_meets_another_one_joins_it() {
        let (first, next) = (Progress::default(), Progress::default());
        let until = Instant::now() + PATIENCE;
        let (mut old, mut mover) = (QueuePlace::default(), QueuePlace::default());
        let mut own = QueuePlace::default();
        first.wait_for_end(&mut mover, Instant::now()).await;
        let mut stays = Box::pin(first.wait_for_end(&mut old, until));
        assert!(stays.as_mut().now_or_never().is_none());
        let mut waits = Box::pin(next.wait_for_end(&mut own, until));
        assert!(waits.as_mut().now_or_never().is_none());
        next.observe(&mut mover);
        assert!(stays.as_mut().now_or_never().is_some(), "looks for itself");
        let mut moved = Box::pin(next.wait_for_end(&mut mover, until));
        assert!(moved.as_mut().now_or_never().is_none());
        next.publish_last(|| Phase::AskStore);
        assert!(waits.as_mut().now_or_never().is_some());
        assert!(moved.as_mut().now_or_never().is_some());
    }
}
