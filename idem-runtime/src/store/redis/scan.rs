//! Scan for the keys of all records.

use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use redis::{Value, cmd};

use super::RedisStore;
use super::decode::read_status;
use super::errors::unreadable;
use super::link::Primary;
use crate::error::StoreError;
use crate::key::RecordId;
use crate::record::{State, Timestamp};
use crate::store::status::Status;

/// Number of keys that a server checks for one answer. It serves no other client during that time.
const BATCH: u32 = 500;

impl RedisStore {
    /// Returns the ids of all records, in order, including those that expired or were erased a moment ago.
    pub(super) async fn ids(&self) -> Result<Vec<RecordId>, StoreError> {
        let mut ids = Vec::new();
        for primary in self.link.primaries(self.timeout).await? {
            let mut cursor = b"0".to_vec();
            loop {
                let found = self.scan(&primary, &cursor).await?;
                ids.extend(found.ids);
                cursor = found.cursor;
                if cursor == b"0" {
                    break;
                }
            }
        }
        // SCAN returns a key more than once if the server's table grows or shrinks during the scan.
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// Scans one more batch of keys, and leaves the ids of due records in [`Walk::due`].
    pub(super) async fn walk_on(&self, walk: &mut Walk) -> Result<(), StoreError> {
        if walk.primaries.is_empty() {
            walk.primaries = self.link.primaries(self.timeout).await?;
            walk.cursor = b"0".to_vec();
        }
        let Some(primary) = walk.primaries.last() else {
            walk.is_over = true;
            return Ok(());
        };
        match self.scan_due(primary, &walk.cursor).await {
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
    async fn scan_due(&self, primary: &Primary, cursor: &[u8]) -> Result<ScanBatch, StoreError> {
        let found = self.scan(primary, cursor).await?;
        if found.ids.is_empty() {
            return Ok(found);
        }
        let read_status_of = |id| {
            let mut command = cmd("HGET");
            command.arg(self.key(id)).arg("status");
            command
        };
        let commands = found.ids.iter().map(read_status_of).collect();
        let answers = self.link.read_each(commands, self.timeout).await?;
        let now = found.now;
        // A key that cannot be read, because it is moving to another node or is not a record, is left for the next
        // walk.
        let is_due = |answer: Value| {
            let Value::BulkString(status) = answer else {
                return false;
            };
            read_status(&status).is_ok_and(|status| due_at(&status).is_some_and(|at| at <= now))
        };
        Ok(ScanBatch {
            ids: found
                .ids
                .into_iter()
                .zip(answers)
                .filter_map(|(id, answer)| is_due(answer).then_some(id))
                .collect(),
            ..found
        })
    }

    async fn scan(&self, primary: &Primary, cursor: &[u8]) -> Result<ScanBatch, StoreError> {
        let mut scan = cmd("SCAN");
        scan.arg(cursor)
            .arg("MATCH")
            .arg(format!("{}*", self.prefix))
            .arg("COUNT")
            .arg(BATCH);
        let commands = [cmd("TIME"), scan];
        let [time, found] = self.link.ask(primary, commands, self.timeout).await?;
        let (seconds, micros): (i64, i64) =
            redis::from_redis_value(time).map_err(|_| unreadable())?;
        let (cursor, keys): (Vec<u8>, Vec<Vec<u8>>) =
            redis::from_redis_value(found).map_err(|_| unreadable())?;
        Ok(ScanBatch {
            now: Timestamp::from_micros(seconds * 1_000_000 + micros),
            ids: keys.iter().filter_map(|key| self.id_of_key(key)).collect(),
            cursor,
        })
    }

    /// Reads the setting `maxmemory-policy` of each server, if the user may ask.
    pub(super) async fn eviction_policies(&self) -> Result<Vec<String>, StoreError> {
        let mut policies = Vec::new();
        for primary in self.link.primaries(self.timeout).await? {
            let mut info = cmd("INFO");
            info.arg("memory");
            let [answer] = self.link.ask(&primary, [info], self.timeout).await?;
            let text = match answer {
                Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
                Value::VerbatimString { text, .. } => text,
                _ => return Err(unreadable()),
            };
            let policy = text
                .lines()
                .find_map(|line| line.strip_prefix("maxmemory_policy:"));
            policies.extend(policy.map(|it| it.trim().to_owned()));
        }
        Ok(policies)
    }
}

/// Time at which a purge has to process a record.
fn due_at(status: &Status) -> Option<Timestamp> {
    let begin = match status.state {
        State::Interrupted => return None,
        State::Running => status.lease_until,
        _ => status.ended_at?,
    };
    Some(begin.after(status.retention))
}

struct ScanBatch {
    /// Time of the server before it was asked.
    now: Timestamp,
    ids: Vec<RecordId>,
    cursor: Vec<u8>,
}

/// Progress of a walk over all keys, which continues over several calls.
#[derive(Default)]
pub(super) struct Walk {
    /// Servers still to be scanned, the next one last.
    primaries: Vec<Primary>,
    cursor: Vec<u8>,
    /// Ids that were found and not purged yet.
    pub(super) due: Vec<RecordId>,
    /// True if all keys were scanned.
    pub(super) is_over: bool,
}

impl Walk {
    /// Returns true if the walk has not begun.
    pub(super) fn is_new(&self) -> bool {
        self.primaries.is_empty() && self.due.is_empty() && !self.is_over
    }
}

/// Exclusive use of the shared walk by one purge. A concurrent purge begins its own walk instead of waiting.
pub(super) struct WalkGuard<'a> {
    walk: Walk,
    shared_walk: &'a Mutex<Walk>,
}

impl<'a> WalkGuard<'a> {
    pub(super) fn on(shared_walk: &'a Mutex<Walk>) -> Self {
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

fn lock(shared_walk: &Mutex<Walk>) -> MutexGuard<'_, Walk> {
    // A walk is assigned as a whole, so it is valid even after a panic.
    shared_walk.lock().unwrap_or_else(PoisonError::into_inner)
}
