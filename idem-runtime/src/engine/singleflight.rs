//! Single-flight: calls of one process that share a key have one leader, and the others wait for it. Waiters cost the
//! store nothing; they are woken with the outcome once the store has acknowledged it.

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

/// How far a call is, as the calls that follow it see it.
#[derive(Debug, Default)]
pub(super) struct Progress {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    /// Somebody has looked: only then is there anybody to wake.
    has_waiters: bool,
    live_until: Option<Instant>,
}

/// What a leader has found out so far.
#[derive(Debug, Clone, Default)]
pub(super) enum Phase {
    /// Its claim is under way.
    #[default]
    Claiming,
    /// It runs the body.
    Running,
    /// Somebody else runs a body; the leader polls for its waiters, too.
    RunningElsewhere {
        /// The stored digest of the running request; none where it is not committed yet.
        fingerprint: Option<Digest>,
        /// When the lease of whoever runs it ends, as far as this process can tell.
        lapses: Instant,
        /// When the leader looks again at the latest. Past it, waiters no longer rely on the leader.
        next_check_by: Instant,
    },
    /// It knows the outcome, and the store has acknowledged it.
    Ended(Arc<SharedOutcome>),
    /// The key may be free: one of the waiters becomes the next leader.
    Vacant,
    /// It got an answer that is its own alone: waiters ask the store, each for itself.
    AskStore,
}

/// An outcome, with what [`Provenance`](super::Provenance) tells of it.
#[derive(Debug, Clone)]
pub(super) struct SharedOutcome {
    pub(super) outcome: Outcome,
    pub(super) fingerprint: Digest,
    pub(super) attempt: u32,
    pub(super) at: SystemTime,
}

impl SharedOutcome {
    /// The outcome of a record, where it has ended.
    pub(super) fn of(record: &Record) -> Option<Self> {
        Some(Self {
            outcome: record.outcome()?,
            fingerprint: record.fingerprint,
            attempt: record.attempt,
            at: record.ended_at.unwrap_or(record.read_at).into(),
        })
    }
}

/// Whether a call leads or follows.
pub(super) enum Role {
    Leader(Leader),
    Waiter(Arc<Prepared>),
}

impl SingleFlight {
    /// Joins the calls of the same record.
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
    /// What the call has found out, for one that follows it.
    pub(super) fn observe(&self) -> Phase {
        let mut state = self.lock();
        state.has_waiters = true;
        state.phase.clone()
    }

    /// Waits for a change of the phase, or until `deadline`; not at all where the phase is no longer as the caller saw
    /// it.
    pub(super) async fn wait_for_change(
        &self,
        deadline: Instant,
        as_seen: impl Fn(&Phase) -> bool,
    ) {
        let changed = self.changed.notified();
        tokio::pin!(changed);
        // Registered before the phase is looked at, or a change in between would be missed.
        changed.as_mut().enable();
        let as_seen = as_seen(&self.lock().phase);
        if as_seen {
            let _ = tokio::time::timeout_at(deadline, changed).await;
        }
    }

    /// The call was granted its record, and its body may run.
    pub(super) fn run(&self, live_until: Instant) {
        self.update(|state| {
            state.live_until = Some(live_until);
            state.phase = Phase::Running;
        });
    }

    /// Until when the lease holds, as far as this process knows. None where it is lost, or was never had.
    pub(super) fn live_until(&self) -> Option<Instant> {
        self.lock().live_until
    }

    /// The lease was renewed. One that was lost stays lost.
    pub(super) fn prolong(&self, live_until: Instant) {
        let mut state = self.lock();
        state.live_until = state.live_until.map(|until| until.max(live_until));
    }

    /// The lease was lost to another call.
    pub(super) fn lose(&self) {
        self.lock().live_until = None;
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        let has_waiters = {
            let mut state = self.lock();
            change(&mut state);
            state.has_waiters
        };
        if has_waiters {
            self.changed.notify_waiters();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The leader's side. Dropped without a word, it leaves the key to its waiters.
pub(super) struct Leader {
    call: Arc<Prepared>,
    stepped_down: bool,
}

impl Leader {
    /// Tells the waiters how far it is.
    pub(super) fn tell(&self, phase: Phase) {
        self.call.progress.update(|state| state.phase = phase);
    }

    /// Tells the waiters the last word, and leads no more.
    pub(super) fn step_down(mut self, phase: impl FnOnce() -> Phase) {
        self.leave(phase);
    }

    fn leave(&mut self, phase: impl FnOnce() -> Phase) {
        if std::mem::replace(&mut self.stepped_down, true) {
            return;
        }
        // First out of the map, so that nobody follows a leader that has said its last word.
        let id = &self.call.request.id;
        let left = self.call.engine.singleflight.shard(id).remove(id);
        self.call.progress.update(|state| {
            // Whoever has found the leader in the map, and not looked at it yet, finds out for itself.
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

/// Record ids are SHA-256 digests: eight bytes of them are a hash already.
#[derive(Debug, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        // The first byte chose the shard; take the ones behind it.
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
