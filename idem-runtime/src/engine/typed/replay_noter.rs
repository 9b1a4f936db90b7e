//! Notes the replays of one record.

use std::fmt;
use std::sync::Arc;

use crate::engine::prepared::Prepared;
use crate::record::FencingToken;
use crate::timing;

/// Notes replays of one record.
pub(super) struct ReplayNoter(Arc<Prepared>);

impl ReplayNoter {
    /// Noter of the replays of this call's record; none if the handle notes no replays.
    pub(super) fn new(call: &Arc<Prepared>) -> Option<Self> {
        let is_on = call.engine.replay_notes.is_on();
        is_on.then(|| Self(Arc::clone(call)))
    }

    /// Notes a replay, if it is in the sample and few notes are being written. A task writes the note. Its errors are
    /// logged, because the replay itself succeeded.
    pub(super) fn note(&self, fencing_token: FencingToken) {
        let Self(call) = self;
        let Some(permit) = call.engine.replay_notes.admit() else {
            return;
        };
        let (engine, id) = (Arc::clone(&call.engine), call.request.id);
        let task = engine.detached.begin();
        tokio::spawn(async move {
            let _held = (permit, task);
            let Some(store) = engine.store.attempts() else {
                return;
            };
            let note = store.note_replay(&id, fencing_token, Some(&engine.owner_label));
            if let Err(error) = timing::bounded(engine.policy.store_timeout, note).await {
                tracing::debug!(target: "idem", %id, %error, "a replay was not noted");
            }
        });
    }
}

impl fmt::Debug for ReplayNoter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReplayNoter")
            .field(&self.0.request.id)
            .finish()
    }
}
