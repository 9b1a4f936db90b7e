//! Counts of the whole store, which are expensive: one reading serves all browsers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::mutex::lock;
use crate::record::State;
use crate::store::operator::{OperatorStore, RecordStats};

/// Shortest time between the begins of two readings.
const MIN_INTERVAL: Duration = Duration::from_secs(5);
/// A reading is repeated after this many times its duration at the earliest, so that it takes a small share of the store.
const IDLE_FACTOR: u32 = 9;
/// Time limit of a reading.
const LIMIT: Duration = Duration::from_secs(30);
/// Time that a page waits for the first reading.
const MAX_WAIT: Duration = Duration::from_secs(3);
/// Interval of the samples of the plots, and their number: one hour.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(10);
const MAX_SAMPLES: usize = 360;

/// Readings of the counts of a store. Read only while somebody looks.
pub(super) struct Counts {
    store: Arc<dyn OperatorStore>,
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<Readings>,
    done: watch::Sender<()>,
}

#[derive(Default)]
struct Readings {
    is_running: bool,
    next_at: Option<Instant>,
    latest: Option<Reading>,
    samples: VecDeque<Sample>,
}

/// Result of a reading.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    pub(super) at: Instant,
    /// Counts by operation and state; the error's text if the reading failed.
    pub(super) groups: Result<Vec<RecordStats>, String>,
}

/// Values of the plots at one time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) records: u64,
    pub(super) running: u64,
    pub(super) stuck: u64,
    pub(super) purge_due: u64,
}

impl Sample {
    pub(super) fn of(at: Instant, groups: &[RecordStats]) -> Self {
        let running = groups.iter().filter(|it| it.state == State::Running);
        Self {
            at,
            records: groups.iter().map(|it| it.count).sum(),
            running: running.map(|it| it.count).sum(),
            stuck: groups.iter().map(|it| it.stuck).sum(),
            purge_due: groups.iter().map(|it| it.purge_due).sum(),
        }
    }
}

impl Counts {
    pub(super) fn new(store: Arc<dyn OperatorStore>) -> Self {
        Self {
            store,
            inner: Arc::new(Inner {
                state: Mutex::default(),
                done: watch::Sender::new(()),
            }),
        }
    }

    /// Latest reading and the samples so far. Begins a reading if one is due. `None` while the first one runs.
    pub(super) async fn look(&self) -> (Option<Reading>, Vec<Sample>) {
        let mut done = self.inner.done.subscribe();
        let is_first = {
            let mut state = lock(&self.inner.state);
            let is_due = state.next_at.is_none_or(|at| at <= Instant::now());
            if is_due && !state.is_running {
                state.is_running = true;
                // A task, so that a browser that leaves does not let the next one begin again.
                tokio::spawn(read(Arc::clone(&self.store), Arc::clone(&self.inner)));
            }
            state.is_running
        };
        if is_first {
            // The sender lives as long as this value. After the wait, an older reading is shown.
            let _ = tokio::time::timeout(MAX_WAIT, done.changed()).await;
        }
        let state = lock(&self.inner.state);
        (
            state.latest.clone(),
            state.samples.iter().copied().collect(),
        )
    }
}

/// Lets the next reading begin, also if this one panics in a driver.
struct Reader(Arc<Inner>);

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.is_running = false;
        let earliest = Instant::now() + MIN_INTERVAL;
        state.next_at = Some(state.next_at.map_or(earliest, |at| at.max(earliest)));
        drop(state);
        self.0.done.send_replace(());
    }
}

async fn read(store: Arc<dyn OperatorStore>, inner: Arc<Inner>) {
    let began = Instant::now();
    let _reader = Reader(Arc::clone(&inner));
    let groups = match tokio::time::timeout(LIMIT, store.stats()).await {
        Ok(Ok(groups)) => Ok(groups),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!(
            "counting took longer than {} seconds, use `idem stats`",
            LIMIT.as_secs()
        )),
    };
    let now = Instant::now();
    let mut state = lock(&inner.state);
    state.next_at = Some(now + (now - began).saturating_mul(IDLE_FACTOR));
    if let Ok(groups) = &groups {
        let last = state.samples.back();
        if last.is_none_or(|last| now - last.at >= SAMPLE_INTERVAL) {
            state.samples.push_back(Sample::of(now, groups));
            if state.samples.len() > MAX_SAMPLES {
                state.samples.pop_front();
            }
        }
    }
    state.latest = Some(Reading { at: now, groups });
}
