//! Single-flight: calls of one process that share a key have one leader, and the others wait for it. Waiters send no
//! requests to the store. They are woken with the outcome once the store has acknowledged it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use super::progress::{Phase, Progress, SharedOutcome};
use crate::key::RecordId;
use crate::mutex::lock;
use crate::record::Digest;

const SHARDS: usize = 16;

/// The leaders of a handle, by record.
#[derive(Default)]
pub(super) struct SingleFlight {
    shards: [Mutex<Leaders>; SHARDS],
}

type Leaders = HashMap<RecordId, Arc<dyn SharedCall>, BuildHasherDefault<RecordIdHasher>>;

/// A call as the other calls of its key see it.
///
/// A trait, because a handle has a map of its calls, and a call refers to its handle.
pub(super) trait SharedCall: Send + Sync {
    /// The map that the call is in while it is a leader.
    fn singleflight(&self) -> &SingleFlight;

    fn record_id(&self) -> &RecordId;

    /// The digest of the request before any signing.
    fn digest(&self) -> &Digest;

    fn progress(&self) -> &Progress;

    /// Time limit of a store call.
    fn store_timeout(&self) -> Duration;
}

/// Role of a call: leader or waiter.
pub(super) enum FlightRole {
    Leader(Leader),
    /// Waits for this leader.
    Waiter(Arc<dyn SharedCall>),
}

impl SingleFlight {
    /// Joins the calls of the same record, as leader or waiter.
    pub(super) fn join(&self, call: &Arc<impl SharedCall + 'static>) -> FlightRole {
        use std::collections::hash_map::Entry;
        let id = *call.record_id();
        match self.shard(&id).entry(id) {
            Entry::Occupied(entry) => FlightRole::Waiter(Arc::clone(entry.get())),
            Entry::Vacant(entry) => {
                let call: Arc<dyn SharedCall> = Arc::clone(call) as _;
                entry.insert(Arc::clone(&call));
                FlightRole::Leader(Leader {
                    call,
                    stepped_down: false,
                })
            }
        }
    }

    /// The leader of a record, for a caller that will not lead itself.
    pub(super) fn leader(&self, id: &RecordId) -> Option<Arc<dyn SharedCall>> {
        self.shard(id).get(id).cloned()
    }

    fn shard(&self, id: &RecordId) -> MutexGuard<'_, Leaders> {
        lock(&self.shards[usize::from(id.as_bytes()[0]) % SHARDS])
    }
}

/// Leadership of a key. Dropping it leaves the key to the waiters.
pub(super) struct Leader {
    call: Arc<dyn SharedCall>,
    stepped_down: bool,
}

impl Leader {
    /// Publishes a phase to the waiters.
    pub(super) fn publish(&self, phase: Phase) {
        self.call.progress().publish(phase);
    }

    /// Publishes the last phase to the waiters, and ends the leadership.
    pub(super) fn step_down(mut self, phase: impl FnOnce() -> Phase) {
        self.leave(phase);
    }

    /// Publishes an outcome to the waiters, and ends the leadership. `asked_at` is the time at which the store was asked for
    /// it, or to record it; none if the store has answered within the same poll.
    ///
    /// An answer may be processed long after the store gave it: the process stood still, or its caller did not poll. The
    /// record may be gone by then, and a call that has joined meanwhile must not get its outcome. So an answer that took
    /// longer than a store call may take is not shared: one of the waiters asks the store again, for all of them.
    pub(super) fn share(self, asked_at: Option<Instant>, outcome: impl FnOnce() -> SharedOutcome) {
        let limit = self.call.store_timeout();
        self.step_down(|| match asked_at {
            Some(asked_at) if asked_at.elapsed() > limit => Phase::Vacant,
            _ => Phase::Ended(Arc::new(outcome())),
        });
    }

    fn leave(&mut self, phase: impl FnOnce() -> Phase) {
        if std::mem::replace(&mut self.stepped_down, true) {
            return;
        }
        // Removed from the map first, so that no call joins a leader that has published its last phase.
        let id = self.call.record_id();
        let left = self.call.singleflight().shard(id).remove(id);
        self.call.progress().publish_last(phase);
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
struct RecordIdHasher(u64);

impl Hasher for RecordIdHasher {
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
