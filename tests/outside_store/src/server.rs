//! Stands in for a key-value server with revisions, such as etcd: each write of an entry gives it a new revision, and a
//! commit takes effect only if the entries that it compares have the revisions that were read.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

/// Revision of an entry. The revision of an absent entry is 0.
pub(crate) type Revision = u64;

/// Answer to a read.
pub(crate) struct Read {
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) revision: Revision,
    /// Time of the server's clock, which never goes back.
    pub(crate) time: SystemTime,
}

/// Key-value server.
pub(crate) struct Server {
    entries: Mutex<Entries>,
    started: (SystemTime, Instant),
}

#[derive(Default)]
struct Entries {
    by_key: BTreeMap<Vec<u8>, (Vec<u8>, Revision)>,
    last_revision: Revision,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self {
            entries: Mutex::default(),
            started: (SystemTime::now(), Instant::now()),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries().by_key.len()
    }

    pub(crate) async fn read(&self, key: &[u8]) -> Read {
        let entries = self.entries();
        let found = entries.by_key.get(key);
        Read {
            value: found.map(|(value, _)| value.clone()),
            revision: revision(&entries, key),
            time: self.time(),
        }
    }

    /// Reads up to `limit` keys with this prefix, in order, beginning after one of them.
    pub(crate) async fn keys(&self, prefix: &[u8], after: &[u8], limit: usize) -> Vec<Vec<u8>> {
        let entries = self.entries();
        let keys = entries
            .by_key
            .range::<[u8], _>((Bound::Excluded(after), Bound::Unbounded));
        let keys = keys
            .map(|(key, _)| key)
            .filter(|key| key.starts_with(prefix));
        keys.take(limit).cloned().collect()
    }

    /// Writes all of these values, `None` deletes, if all compared entries have these revisions. Returns true if so.
    pub(crate) async fn commit(
        &self,
        compared: &[(&[u8], Revision)],
        written: &[(&[u8], Option<Vec<u8>>)],
    ) -> bool {
        let mut entries = self.entries();
        if compared
            .iter()
            .any(|(key, read)| revision(&entries, key) != *read)
        {
            return false;
        }
        for (key, value) in written {
            entries.last_revision += 1;
            let revision = entries.last_revision;
            match value {
                Some(value) => entries
                    .by_key
                    .insert(key.to_vec(), (value.clone(), revision)),
                None => entries.by_key.remove(*key),
            };
        }
        true
    }

    fn time(&self) -> SystemTime {
        let (wall, monotonic) = self.started;
        wall + monotonic.elapsed()
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn revision(entries: &Entries, key: &[u8]) -> Revision {
    entries.by_key.get(key).map_or(0, |(_, revision)| *revision)
}
