//! Backends with compare-and-swap: one in memory that shows its time exactly or only in whole seconds, and etcd.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use idem_etcd::Etcd;
use idem_runtime::error::StoreError;
use idem_runtime::record::Timestamp;
use idem_store::cas::{Backend, CasStore, Entry, Failure, Versioned};
use idem_store::clock::{Now, ServerClock};

use crate::backends;

/// Time that a [`Shelf`] shows.
#[derive(Debug)]
pub enum Shown {
    /// The time itself.
    Exactly,
    /// Whole seconds in each answer, of which a clock makes an interval.
    InSeconds(Box<ServerClock>),
    /// Whole seconds in each answer, the last of which is taken for the time. That is wrong: it ends leases early.
    Naively(AtomicI64),
}

/// Entries in the memory of this process.
#[derive(Debug)]
pub struct Shelf {
    entries: Mutex<Entries>,
    shown: Shown,
}

#[derive(Debug, Default)]
struct Entries {
    by_key: BTreeMap<Vec<u8>, (Vec<u8>, u64)>,
    last_revision: u64,
}

impl Shelf {
    /// An empty shelf that shows its time like this.
    #[must_use]
    pub fn new(shown: Shown) -> Self {
        Self {
            entries: Mutex::default(),
            shown,
        }
    }

    /// Answers a request. The answer has the time.
    async fn answer<T>(&self, request: impl FnOnce(&mut Entries) -> T + Send) -> T {
        let sent = Instant::now();
        // Other callers come between the requests of a transition.
        tokio::task::yield_now().await;
        let answer = request(&mut self.entries());
        let now: Timestamp = SystemTime::now().into();
        let second = now.as_micros().div_euclid(1_000_000) * 1_000_000;
        tokio::task::yield_now().await;
        match &self.shown {
            Shown::Exactly => {}
            Shown::InSeconds(clock) => {
                let date = Timestamp::from_micros(second);
                let date = Now::rounded_down(date, Duration::from_secs(1));
                clock.observe(sent, Instant::now(), date);
            }
            Shown::Naively(last) => {
                last.fetch_max(second, Ordering::Relaxed);
            }
        }
        answer
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    fn is_at(&self, key: &[u8], expected: Option<&u64>) -> bool {
        self.by_key.get(key).map(|(_, revision)| revision) == expected
    }
}

#[async_trait]
impl Backend for Shelf {
    type Revision = u64;

    async fn read(&self, key: &[u8]) -> Result<Option<Versioned<u64>>, Failure> {
        let read = |entries: &mut Entries| entries.by_key.get(key).cloned();
        let found = self.answer(read).await;
        Ok(found.map(|(value, revision)| Versioned { value, revision }))
    }

    async fn write(
        &self,
        key: &[u8],
        value: Vec<u8>,
        expected: Option<&u64>,
    ) -> Result<bool, Failure> {
        let write = |entries: &mut Entries| {
            let may = entries.is_at(key, expected);
            if may {
                entries.last_revision += 1;
                let revision = entries.last_revision;
                entries.by_key.insert(key.to_vec(), (value, revision));
            }
            may
        };
        Ok(self.answer(write).await)
    }

    async fn delete(&self, key: &[u8], expected: &u64) -> Result<bool, Failure> {
        let delete = |entries: &mut Entries| {
            let may = entries.is_at(key, Some(expected));
            if may {
                entries.by_key.remove(key);
            }
            may
        };
        Ok(self.answer(delete).await)
    }

    async fn scan(
        &self,
        prefix: &[u8],
        after: &[u8],
        limit: usize,
    ) -> Result<Vec<Entry<u64>>, Failure> {
        let scan = |entries: &mut Entries| {
            let begin = match after < prefix {
                true => Bound::Included(prefix),
                false => Bound::Excluded(after),
            };
            let range = entries
                .by_key
                .range::<[u8], _>((begin, Bound::Unbounded))
                .take_while(|(key, _)| key.starts_with(prefix));
            let found = range.map(|(key, (value, revision))| Entry {
                key: key.clone(),
                value: value.clone(),
                revision: *revision,
            });
            found.take(limit).collect()
        };
        Ok(self.answer(scan).await)
    }

    async fn now(&self) -> Result<Now, Failure> {
        Ok(match &self.shown {
            Shown::Exactly => Now::exact(SystemTime::now().into()),
            Shown::InSeconds(clock) => clock
                .now()
                .unwrap_or_else(|| unreachable!("a request was answered before")),
            Shown::Naively(last) => {
                Now::exact(Timestamp::from_micros(last.load(Ordering::Relaxed)))
            }
        })
    }
}

/// Longest time until the clock of a store in etcd is known well.
const KNOWN_WITHIN: Duration = Duration::from_secs(20);

/// Opens a store on these nodes of etcd, once it knows the time to within what the clocks of the nodes may be apart. After a
/// second at the latest, the `Date` of an answer changes, and shows the time to within a round trip.
///
/// # Errors
///
/// A node does not answer, or the time is not known in time.
pub async fn etcd_at(
    nodes: impl IntoIterator<Item = &str> + Send,
    prefix: &str,
) -> anyhow::Result<CasStore<Etcd>> {
    let nodes: Vec<_> = nodes.into_iter().map(str::to_owned).collect();
    let etcd = Etcd::new(nodes, prefix)?;
    let deadline = Instant::now() + KNOWN_WITHIN;
    loop {
        etcd.read(b"r").await.map_err(StoreError::from)?;
        let now = etcd.now().await.map_err(StoreError::from)?;
        if now.uncertainty() < Duration::from_millis(150) {
            return Ok(CasStore::new(etcd));
        }
        anyhow::ensure!(
            Instant::now() < deadline,
            "the clock of etcd is known to within {:?} only",
            now.uncertainty()
        );
    }
}

/// Opens an empty store in etcd.
///
/// # Errors
///
/// The variable is not set.
pub fn etcd() -> anyhow::Result<CasStore<Etcd>> {
    let nodes = backends::variable(backends::ETCD)?;
    let nodes = nodes.split(',').map(str::trim).map(str::to_owned);
    let prefix = format!("{}/", backends::unique_name());
    Ok(CasStore::new(Etcd::new(nodes, &prefix)?))
}
