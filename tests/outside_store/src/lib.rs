//! A store of records on a key-value server with revisions, written from `docs/writing-a-store.md` on `idem-store` alone:
//! [`CasStore`](idem_store::cas::CasStore) on the backend below.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use async_trait::async_trait;
use idem_store::cas::{Backend, Entry, Failure, Versioned};
use idem_store::clock::Now;

/// Stands in for a key-value server with revisions: each write of an entry gives it a new revision, and takes effect only if
/// the entry has the revision that was read.
pub struct Server {
    entries: Mutex<Entries>,
    started: (SystemTime, Instant),
}

#[derive(Default)]
struct Entries {
    by_key: BTreeMap<Vec<u8>, (Vec<u8>, u64)>,
    last_revision: u64,
}

impl Server {
    /// Starts a server without entries.
    pub fn start() -> Self {
        Self {
            entries: Mutex::default(),
            started: (SystemTime::now(), Instant::now()),
        }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes or deletes an entry if its revision is still the expected one.
    fn commit(&self, key: &[u8], value: Option<Vec<u8>>, expected: Option<&u64>) -> bool {
        let mut entries = self.entries();
        let revision = entries.by_key.get(key).map(|(_, revision)| revision);
        if revision != expected {
            return false;
        }
        entries.last_revision += 1;
        let revision = entries.last_revision;
        match value {
            Some(value) => entries.by_key.insert(key.to_vec(), (value, revision)),
            None => entries.by_key.remove(key),
        };
        true
    }
}

#[async_trait]
impl Backend for Server {
    type Revision = u64;

    async fn read(&self, key: &[u8]) -> Result<Option<Versioned<u64>>, Failure> {
        let found = self.entries().by_key.get(key).cloned();
        Ok(found.map(|(value, revision)| Versioned { value, revision }))
    }

    async fn write(
        &self,
        key: &[u8],
        value: Vec<u8>,
        expected: Option<&u64>,
    ) -> Result<bool, Failure> {
        Ok(self.commit(key, Some(value), expected))
    }

    async fn delete(&self, key: &[u8], expected: &u64) -> Result<bool, Failure> {
        Ok(self.commit(key, None, Some(expected)))
    }

    async fn scan(
        &self,
        prefix: &[u8],
        after: &[u8],
        limit: usize,
    ) -> Result<Vec<Entry<u64>>, Failure> {
        let entries = self.entries();
        let found = entries
            .by_key
            .iter()
            .filter(|(key, _)| key.starts_with(prefix) && key.as_slice() > after)
            .map(|(key, (value, revision))| Entry {
                key: key.clone(),
                value: value.clone(),
                revision: *revision,
            });
        Ok(found.take(limit).collect())
    }

    async fn now(&self) -> Result<Now, Failure> {
        // The clock of the server never goes back.
        let (wall, monotonic) = self.started;
        Ok(Now::exact((wall + monotonic.elapsed()).into()))
    }
}
