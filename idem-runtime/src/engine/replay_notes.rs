//! Which replays are noted in the history of their records: a sample, and few at the same time.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::random;

/// Maximum number of notes of one handle that are being written. A store that is slow would otherwise collect a task for
/// each replay.
const MAX_RUNNING: usize = 16;

/// Which replays of a handle are noted.
#[derive(Debug)]
pub(super) struct ReplayNotes {
    /// One of this many replays is noted; none if it is zero.
    one_in: u32,
    free: Arc<Semaphore>,
}

impl ReplayNotes {
    pub(super) fn new(one_in: u32) -> Self {
        Self {
            one_in,
            free: Arc::new(Semaphore::new(MAX_RUNNING)),
        }
    }

    /// Returns true if the handle notes replays.
    pub(super) fn is_on(&self) -> bool {
        self.one_in > 0
    }

    /// Permit to note this replay, if it is in the sample and few notes are being written.
    pub(super) fn admit(&self) -> Option<OwnedSemaphorePermit> {
        if !self.is_on() || !random::number().is_multiple_of(self.one_in.into()) {
            return None;
        }
        Arc::clone(&self.free).try_acquire_owned().ok()
    }
}
