//! Calls of one process that share a key: the first leads, the others follow it. Followers cost the store nothing;
//! they are woken with the outcome once the store has acknowledged it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::Attempt;
use crate::key::RecordId;
use crate::record::{Digest, Ending, Record};

const SHARDS: usize = 16;

/// The leaders of a handle, by record.
#[derive(Debug, Default)]
pub(crate) struct Handover {
    shards: [Mutex<Leaders>; SHARDS],
}

type Leaders = HashMap<RecordId, Arc<Slot>, BuildHasherDefault<IdHasher>>;

/// A leader, as its followers see it.
#[derive(Debug)]
pub(super) struct Slot {
    /// The leader's request, unsealed.
    pub(super) digest: Digest,
    phase: Mutex<Phase>,
    news: Notify,
}

/// What a leader has found out so far.
#[derive(Debug, Clone)]
pub(super) enum Phase {
    /// Its claim is under way.
    Claiming,
    /// It runs the body.
    Running(Attempt),
    /// Somebody else runs a body; the leader polls for its followers, too.
    Elsewhere {
        /// The stored digest of the running request.
        fingerprint: Digest,
        /// When the lease of whoever runs it ends, as far as this process can tell.
        lapses: Instant,
        /// When the leader looks again at the latest. Past it, followers no longer rely on the leader.
        news_by: Instant,
    },
    /// It knows the outcome, and the store has acknowledged it.
    Ended(Arc<Ended>),
    /// The key may be free: one of the followers becomes the next leader.
    Free,
    /// It got an answer that is its own alone: followers ask the store, each for itself.
    Alone,
}

/// An outcome, with what [`Provenance`](super::Provenance) tells of it.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) ending: Ending,
    pub(super) fingerprint: Digest,
    pub(super) attempt: u32,
    pub(super) at: SystemTime,
}

impl Ended {
    /// The outcome of a record, where it has ended.
    pub(super) fn of(record: &Record) -> Option<Self> {
        Some(Self {
            ending: record.ending()?,
            fingerprint: record.fingerprint,
            attempt: record.attempt,
            at: record.ended_at.unwrap_or(record.read_at).into(),
        })
    }
}

/// Whether a call leads or follows.
pub(super) enum Role {
    Leader(Lead),
    Follower(Arc<Slot>),
}

impl Handover {
    /// Joins the calls of this record.
    pub(super) fn join(self: &Arc<Self>, id: RecordId, digest: Digest) -> Role {
        use std::collections::hash_map::Entry;
        match self.shard(&id).entry(id) {
            Entry::Occupied(entry) => Role::Follower(Arc::clone(entry.get())),
            Entry::Vacant(entry) => {
                let slot = Arc::new(Slot {
                    digest,
                    phase: Mutex::new(Phase::Claiming),
                    news: Notify::new(),
                });
                entry.insert(Arc::clone(&slot));
                Role::Leader(Lead {
                    handover: Arc::clone(self),
                    id,
                    slot,
                    resigned: false,
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

impl Slot {
    /// What the leader has found out.
    pub(super) fn phase(&self) -> Phase {
        self.lock().clone()
    }

    /// Waits for news, or until `deadline`; not at all where the phase is no longer as the caller saw it.
    pub(super) async fn news(&self, deadline: Instant, as_seen: impl Fn(&Phase) -> bool) {
        let news = self.news.notified();
        tokio::pin!(news);
        // Registered before the phase is looked at, or news in between would be missed.
        news.as_mut().enable();
        if as_seen(&self.lock()) {
            let _ = tokio::time::timeout_at(deadline, news).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The leader's side. Dropped without a word, it leaves the key to its followers.
#[derive(Debug)]
pub(super) struct Lead {
    handover: Arc<Handover>,
    id: RecordId,
    slot: Arc<Slot>,
    resigned: bool,
}

impl Lead {
    /// Tells the followers how far it is.
    pub(super) fn tell(&self, phase: Phase) {
        *self.slot.lock() = phase;
        self.slot.news.notify_waiters();
    }

    /// Tells the followers the last word, and leads no more.
    pub(super) fn resign(mut self, phase: impl FnOnce() -> Phase) {
        self.leave(phase);
    }

    fn leave(&mut self, phase: impl FnOnce() -> Phase) {
        if std::mem::replace(&mut self.resigned, true) {
            return;
        }
        // First out of the map, so that nobody follows a leader that has said its last word.
        self.handover.shard(&self.id).remove(&self.id);
        if Arc::strong_count(&self.slot) > 1 {
            self.tell(phase());
        }
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        self.leave(|| Phase::Free);
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
