//! The progress of a call, as seen by the calls of this process that wait for it.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use tokio::sync::Notify;
use tokio::time::Instant;

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
    live_until: Option<Instant>,
}

/// Phase of a leader.
#[derive(Debug, Clone, Default)]
pub(super) enum Phase {
    /// The leader's claim is in progress.
    #[default]
    Claiming,
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
        })
    }
}

impl Phase {
    /// True if a waiter that has seen the other phase learns nothing new from this one.
    fn is_same(&self, seen: &Self) -> bool {
        match (self, seen) {
            (Self::Claiming, Self::Claiming) | (Self::Running, Self::Running) => true,
            (
                Self::RunningElsewhere { next_check_by, .. },
                Self::RunningElsewhere {
                    next_check_by: seen,
                    ..
                },
            ) => next_check_by == seen,
            _ => false,
        }
    }
}

impl Progress {
    /// Returns the current phase, and registers a waiter.
    pub(super) fn observe(&self) -> Phase {
        let mut state = self.lock();
        state.has_waiters = true;
        state.phase.clone()
    }

    /// Waits for a change of the phase, or until `deadline`. Returns immediately if the phase has changed since the
    /// caller saw it.
    pub(super) async fn wait_for_change(&self, deadline: Instant, seen: &Phase) {
        let changed = self.changed.notified();
        tokio::pin!(changed);
        // Registered before the phase is read, because a change before the registration would be missed.
        changed.as_mut().enable();
        let is_unchanged = self.lock().phase.is_same(seen);
        if is_unchanged {
            let _ = tokio::time::timeout_at(deadline, changed).await;
        }
    }

    /// Publishes a phase to the waiters.
    pub(super) fn publish(&self, phase: Phase) {
        self.update(|state| state.phase = phase);
    }

    /// Publishes the last phase of a leader that is in no map any more.
    pub(super) fn publish_last(&self, phase: impl FnOnce() -> Phase) {
        self.update(|state| {
            // A call that has found the leader in the map, but not observed it yet, asks the store itself.
            state.phase = if state.has_waiters {
                phase()
            } else {
                Phase::Vacant
            };
        });
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
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_waiter_waits_only_while_the_phase_is_the_one_it_has_seen() {
        let progress = Progress::default();
        let (now, patience) = (Instant::now(), Duration::from_secs(60));
        progress.publish(Phase::Running);
        let wait = progress.wait_for_change(now + patience, &Phase::Claiming);
        wait.await;
        assert_eq!(now.elapsed(), Duration::ZERO);
        let wait = progress.wait_for_change(now + patience, &Phase::Running);
        wait.await;
        assert_eq!(now.elapsed(), patience);
    }
}
