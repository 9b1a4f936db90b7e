//! Single-flight: calls of one process that share a key have one leader, and the others wait for it. Waiters send no
//! requests to the store. They are woken with the outcome once the store has acknowledged it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::call::Prepared;
use crate::key::RecordId;
use crate::record::{Digest, Outcome, Record};

const SHARDS: usize = 16;

/// The leaders of a handle, by record.
#[derive(Default)]
pub(crate) struct SingleFlight {
    shards: [Mutex<Leaders>; SHARDS],
}

type Leaders = HashMap<RecordId, Arc<Prepared>, BuildHasherDefault<IdHasher>>;

/// Progress of a call, as seen by the calls that wait for it.
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
    pub(super) at: SystemTime,
}

impl SharedOutcome {
    /// The outcome of a record, if the record has ended.
    pub(super) fn of(record: &Record) -> Option<Self> {
        Some(Self {
            outcome: record.outcome()?,
            fingerprint: record.fingerprint,
            attempt: record.attempt,
            at: record.ended_at.unwrap_or(record.read_at).into(),
        })
    }
}

/// Role of a call: leader or waiter.
pub(super) enum Role {
    Leader(Leader),
    Waiter(Arc<Prepared>),
}

impl SingleFlight {
    /// Joins the calls of the same record, as leader or waiter.
    pub(super) fn join(&self, call: &Arc<Prepared>) -> Role {
        use std::collections::hash_map::Entry;
        match self.shard(&call.request.id).entry(call.request.id) {
            Entry::Occupied(entry) => Role::Waiter(Arc::clone(entry.get())),
            Entry::Vacant(entry) => {
                entry.insert(Arc::clone(call));
                Role::Leader(Leader {
                    call: Arc::clone(call),
                    stepped_down: false,
                })
            }
        }
    }

    fn shard(&self, id: &RecordId) -> MutexGuard<'_, Leaders> {
        self.shards[usize::from(id.as_bytes()[0]) % SHARDS]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
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
    pub(super) async fn wait_for_change(
        &self,
        deadline: Instant,
        as_seen: impl Fn(&Phase) -> bool,
    ) {
        let changed = self.changed.notified();
        tokio::pin!(changed);
        // Registered before the phase is read, because a change before the registration would be missed.
        changed.as_mut().enable();
        let as_seen = as_seen(&self.lock().phase);
        if as_seen {
            let _ = tokio::time::timeout_at(deadline, changed).await;
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Leadership of a key. Dropping it leaves the key to the waiters.
pub(super) struct Leader {
    call: Arc<Prepared>,
    stepped_down: bool,
}

impl Leader {
    /// Publishes a phase to the waiters.
    pub(super) fn tell(&self, phase: Phase) {
        self.call.progress.update(|state| state.phase = phase);
    }

    /// Publishes the last phase to the waiters, and ends the leadership.
    pub(super) fn step_down(mut self, phase: impl FnOnce() -> Phase) {
        self.leave(phase);
    }

    fn leave(&mut self, phase: impl FnOnce() -> Phase) {
        if std::mem::replace(&mut self.stepped_down, true) {
            return;
        }
        // Removed from the map first, so that no call joins a leader that has published its last phase.
        let id = &self.call.request.id;
        let left = self.call.engine.singleflight.shard(id).remove(id);
        self.call.progress.update(|state| {
            // A call that has found the leader in the map, but not observed it yet, asks the store itself.
            state.phase = if state.has_waiters {
                phase()
            } else {
                Phase::Vacant
            };
        });
        drop(left);
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.leave(|| Phase::Vacant);
    }
}

/// Hasher for record ids. The ids are SHA-256 digests, so eight bytes of an id already are a hash.
#[derive(Debug, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        // The first byte selects the shard, so the hash uses later bytes.
        if let Some(eight) = bytes.get(8..16) {
            let mut hash = [0; 8];
            hash.copy_from_slice(eight);
            self.0 = u64::from_le_bytes(hash);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
