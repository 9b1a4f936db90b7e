//! Finding the keys of all records.

use redis::{Value, cmd};

use super::RedisStore;
use super::errors::unreadable;
use super::link::Primary;
use crate::error::StoreError;
use crate::key::RecordId;

/// How many keys a server looks at for one answer. It serves nobody else meanwhile.
const BATCH: u32 = 500;

impl RedisStore {
    /// The ids of all records, in order, of what expired or was erased a moment ago as well.
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
        // SCAN gives a key more than once when the server's table grows or shrinks meanwhile.
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// Goes one batch of keys further and leaves the ids of records in [`Walk::pending`].
    pub(super) async fn walk_on(&self, walk: &mut Walk) -> Result<(), StoreError> {
        if walk.primaries.is_empty() {
            walk.primaries = self.link.primaries(self.timeout).await?;
            walk.cursor = b"0".to_vec();
        }
        let Some(primary) = walk.primaries.last() else {
            walk.is_over = true;
            return Ok(());
        };
        match self.scan(primary, &walk.cursor).await {
            Ok(found) => {
                walk.pending.extend(found.ids);
                walk.cursor = found.cursor;
                if walk.cursor == b"0" {
                    walk.primaries.pop();
                    walk.is_over = walk.primaries.is_empty();
                }
                Ok(())
            }
            Err(error) => {
                // The server may be gone for good; the next walk asks which there are.
                walk.primaries.clear();
                Err(error)
            }
        }
    }

    async fn scan(&self, primary: &Primary, cursor: &[u8]) -> Result<Found, StoreError> {
        let mut scan = cmd("SCAN");
        scan.arg(cursor)
            .arg("MATCH")
            .arg(format!("{}*", self.prefix))
            .arg("COUNT")
            .arg(BATCH);
        let answer = self.link.ask(primary, scan, self.timeout).await?;
        let (cursor, keys): (Vec<u8>, Vec<Vec<u8>>) =
            redis::from_redis_value(answer).map_err(|_| unreadable())?;
        Ok(Found {
            ids: keys.iter().filter_map(|key| self.id_of_key(key)).collect(),
            cursor,
        })
    }

    /// What `CONFIG` calls `maxmemory-policy`, on each server, where the user may ask.
    pub(super) async fn eviction_policies(&self) -> Result<Vec<String>, StoreError> {
        let mut policies = Vec::new();
        for primary in self.link.primaries(self.timeout).await? {
            let mut info = cmd("INFO");
            info.arg("memory");
            let answer = self.link.ask(&primary, info, self.timeout).await?;
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

struct Found {
    ids: Vec<RecordId>,
    cursor: Vec<u8>,
}

/// How far a walk over all keys has come, which goes on over several calls.
#[derive(Default)]
pub(super) struct Walk {
    /// Those still to be asked, the next one last.
    primaries: Vec<Primary>,
    cursor: Vec<u8>,
    /// Found, and not looked at yet.
    pub(super) pending: Vec<RecordId>,
    /// Whether all keys were found.
    pub(super) is_over: bool,
}
