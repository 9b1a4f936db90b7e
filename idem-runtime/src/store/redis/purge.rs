//! Purge of records that are due: a walk over all keys, which continues over several purges.

use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::Mutex;

use redis::Value;
use tokio::task::JoinSet;

use super::audit::PurgeNote;
use super::connection::Primary;
use super::scan::ScanBatch;
use super::scripts::{self, ScriptCall};
use super::{MAX_CONCURRENT, RedisStore, errors};
use crate::error::{StoreError, StoreErrorKind};
use crate::key::RecordId;
use crate::mutex::lock;
use crate::record::{RecordState, Timestamp};
use crate::store::Purged;
use crate::store::status::Status;

/// Number of rounds of one purge. A round scans about 500 more keys, or purges up to [`MAX_CONCURRENT`] records. The
/// limit makes a purge end soon; the next one continues.
const PURGE_ROUNDS: usize = 40;

impl RedisStore {
    /// Scans some of the keys, from the position at which the last purge of this process stopped. Returns `more` until
    /// it has reached the end.
    pub(super) async fn purge_due(
        &self,
        limit: u32,
        as_of: Timestamp,
    ) -> Result<Purged, StoreError> {
        self.purge_noted(limit, as_of, None).await
    }

    /// Purges like [`purge_due`](Self::purge_due), and writes the entry of a manual purge before the first record is
    /// changed.
    pub(super) async fn purge_noted(
        &self,
        limit: u32,
        as_of: Timestamp,
        mut note: Option<&mut PurgeNote<'_>>,
    ) -> Result<Purged, StoreError> {
        let mut walk = WalkGuard::on(&self.walk);
        let mut purged = Purged::default();
        // The keys after the position at which the last purge stopped were not checked for a while.
        let mut is_whole = walk.is_new();
        for _ in 0..PURGE_ROUNDS {
            let done = (purged.removed + purged.interrupted) as usize;
            let rest = (limit as usize).saturating_sub(done);
            if rest == 0 {
                break;
            }
            if walk.due.is_empty() {
                if mem::take(&mut walk.is_over) && mem::replace(&mut is_whole, true) {
                    return Ok(purged);
                }
                self.walk_on(&mut walk, as_of).await?;
                continue;
            }
            let left = walk.due.len().saturating_sub(rest.min(MAX_CONCURRENT));
            if let Some(note) = &mut note {
                note.begin(self).await?;
            }
            // Removed from the list first: a record that cannot be purged would block all others.
            let ids = walk.due.split_off(left);
            self.purge_all(&ids, as_of, &mut purged).await?;
        }
        purged.more = true;
        Ok(purged)
    }

    /// Scans one more batch of keys, and leaves the ids of due records in [`Walk::due`].
    async fn walk_on(&self, walk: &mut Walk, as_of: Timestamp) -> Result<(), StoreError> {
        if walk.primaries.is_empty() {
            walk.primaries = self.connection.primaries(self.timeout).await?;
            walk.cursor = b"0".to_vec();
        }
        let Some(primary) = walk.primaries.last() else {
            walk.is_over = true;
            return Ok(());
        };
        match self.scan_due(primary, &walk.cursor, as_of).await {
            Ok(found) => {
                walk.due.extend(found.ids);
                walk.cursor = found.cursor;
                if walk.cursor == b"0" {
                    walk.primaries.pop();
                    walk.is_over = walk.primaries.is_empty();
                }
                Ok(())
            }
            Err(error) => {
                // The server may be gone for good. The next walk asks for the current servers.
                walk.primaries.clear();
                Err(error)
            }
        }
    }

    /// Most records are not due, and one round trip shows this for all keys that a scan found. The values read here
    /// decide nothing: the script that purges checks them again.
    async fn scan_due(
        &self,
        primary: &Primary,
        cursor: &[u8],
        as_of: Timestamp,
    ) -> Result<ScanBatch, StoreError> {
        let found = self.scan(primary, cursor).await?;
        if found.ids.is_empty() {
            return Ok(found);
        }
        let statuses = self.statuses(&found.ids).await?;
        let as_of = found.now.min(as_of);
        // A key that cannot be read, because it is moving to another node or is not a record, is left for the next
        // walk.
        let is_due = |status: Option<Status>| {
            status.is_some_and(|status| due_at(&status).is_some_and(|at| at <= as_of))
        };
        Ok(ScanBatch {
            ids: found
                .ids
                .into_iter()
                .zip(statuses)
                .filter_map(|(id, status)| is_due(status).then_some(id))
                .collect(),
            ..found
        })
    }

    /// Purges these records concurrently, each with a script that checks the record again.
    async fn purge_all(
        &self,
        ids: &[RecordId],
        as_of: Timestamp,
        purged: &mut Purged,
    ) -> Result<(), StoreError> {
        let mut purging = JoinSet::new();
        for id in ids {
            let (store, key) = (self.clone(), self.key(id));
            purging.spawn(async move {
                let call = ScriptCall::new(&scripts::PURGE, &key);
                store.write(&call.number(as_of.as_micros())).await
            });
        }
        while let Some(done) = purging.join_next().await {
            let done = match done.map_err(errors::task_failed)? {
                // The next walk finds the record again.
                Err(error) if errors::failed_while_moving(&error) => continue,
                // A record that was changed by hand must not keep the others from being purged. Listings name it.
                Err(error) if error.kind() == StoreErrorKind::Corrupt => continue,
                done => done?,
            };
            match done {
                Value::BulkString(word) => match word.as_slice() {
                    b"unchanged" => {}
                    b"removed" => purged.removed += 1,
                    b"abandoned" => {
                        purged.removed += 1;
                        purged.abandoned += 1;
                    }
                    b"interrupted" => purged.interrupted += 1,
                    _ => return Err(errors::unreadable()),
                },
                _ => return Err(errors::unreadable()),
            }
        }
        Ok(())
    }
}

/// Time at which a purge has to process a record.
fn due_at(status: &Status) -> Option<Timestamp> {
    let begin = match status.state {
        RecordState::Interrupted => return None,
        RecordState::Running => status.lease_until,
        _ => status.ended_at?,
    };
    Some(begin.after(status.retention))
}

/// Progress of a walk over all keys, which continues over several calls.
#[derive(Default)]
pub(super) struct Walk {
    /// Servers still to be scanned, the next one last.
    primaries: Vec<Primary>,
    cursor: Vec<u8>,
    /// Ids that were found and not purged yet.
    due: Vec<RecordId>,
    /// True if all keys were scanned.
    is_over: bool,
}

impl Walk {
    /// Returns true if the walk has not begun.
    fn is_new(&self) -> bool {
        self.primaries.is_empty() && self.due.is_empty() && !self.is_over
    }
}

/// Exclusive use of the shared walk by one purge. A concurrent purge begins its own walk instead of waiting.
struct WalkGuard<'a> {
    walk: Walk,
    shared_walk: &'a Mutex<Walk>,
}

impl<'a> WalkGuard<'a> {
    fn on(shared_walk: &'a Mutex<Walk>) -> Self {
        Self {
            walk: mem::take(&mut *lock(shared_walk)),
            shared_walk,
        }
    }
}

impl Deref for WalkGuard<'_> {
    type Target = Walk;

    fn deref(&self) -> &Walk {
        &self.walk
    }
}

impl DerefMut for WalkGuard<'_> {
    fn deref_mut(&mut self) -> &mut Walk {
        &mut self.walk
    }
}

impl Drop for WalkGuard<'_> {
    /// Saves the progress of a purge that is dropped because it took too long. If each purge began again, none would
    /// reach the end.
    fn drop(&mut self) {
        *lock(self.shared_walk) = mem::take(&mut self.walk);
    }
}
