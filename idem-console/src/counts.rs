//! Counts of the store, estimated from a sample if it is large. One reading serves all browsers.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use idem_runtime::error::StoreError;
use idem_runtime::operator::{Count, Counting, OperatorStore, Stats};
use idem_runtime::record::RecordState;
use tokio::sync::watch;
use tokio::time::Instant;

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
/// Time for which the counts are read on after somebody has looked, so that the plots have no gap at the next look.
const KEPT_FOR: Duration = Duration::from_secs(3600);
/// Interval of these readings.
const KEPT_EVERY: Duration = Duration::from_secs(60);

/// Future of one reading.
type Read = Pin<Box<dyn Future<Output = Result<Stats, StoreError>> + Send>>;

/// Readings of the counts of a store. Read while somebody looks, and for an hour after that.
pub(super) struct Counts {
    inner: Arc<Inner>,
}

struct Inner {
    begin: Box<dyn Fn() -> Read + Send + Sync>,
    state: Mutex<Readings>,
    done: watch::Sender<()>,
}

impl Inner {
    /// Locks the readings, also after a panic: each change of them is whole.
    fn lock(&self) -> MutexGuard<'_, Readings> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a reading if one is due. Returns true if one runs.
    fn begin_if_due(self: &Arc<Self>) -> bool {
        let mut state = self.lock();
        let is_due = state.next_at.is_none_or(|at| at <= Instant::now());
        if is_due && !state.is_running {
            state.is_running = true;
            // A task, so that a browser that leaves does not let the next one begin again.
            let reader = Reader(Arc::clone(self));
            tokio::spawn(read((self.begin)(), reader));
        }
        state.is_running
    }
}

#[derive(Default)]
struct Readings {
    is_running: bool,
    /// True while a task reads on.
    is_kept: bool,
    looked_at: Option<Instant>,
    next_at: Option<Instant>,
    latest: Option<Reading>,
    samples: VecDeque<Sample>,
}

/// Result of a reading.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    pub(super) at: Instant,
    /// The statistics; the error's text if the reading failed.
    pub(super) stats: Result<Stats, String>,
}

/// Values of the plots at one time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) records: Count,
    pub(super) running: Count,
    pub(super) stuck: Count,
    pub(super) purge_due: Count,
}

impl Sample {
    pub(super) fn of(at: Instant, stats: &Stats) -> Self {
        let groups = stats.groups.iter();
        let running = groups.filter(|it| it.state == RecordState::Running);
        Self {
            at,
            records: stats.records(),
            running: running.map(|it| it.count).sum(),
            stuck: stats.stuck(),
            purge_due: stats.purge_due,
        }
    }
}

impl Counts {
    pub(super) fn new(store: Arc<dyn OperatorStore>) -> Self {
        Self::by(move || {
            let store = Arc::clone(&store);
            Box::pin(async move { store.stats(Counting::default()).await })
        })
    }

    fn by(begin: impl Fn() -> Read + Send + Sync + 'static) -> Self {
        Self {
            inner: Arc::new(Inner {
                begin: Box::new(begin),
                state: Mutex::default(),
                done: watch::Sender::new(()),
            }),
        }
    }

    /// Number of all records by the latest reading.
    pub(super) fn latest_records(&self) -> Option<Count> {
        let state = self.inner.lock();
        let stats = state.latest.as_ref()?.stats.as_ref().ok()?;
        Some(stats.records())
    }

    /// Latest reading and the samples so far. Begins a reading if one is due. `None` while the first one runs.
    pub(super) async fn look(&self) -> (Option<Reading>, Vec<Sample>) {
        let mut done = self.inner.done.subscribe();
        {
            let mut state = self.inner.lock();
            state.looked_at = Some(Instant::now());
            if !state.is_kept {
                state.is_kept = true;
                tokio::spawn(keep(Keeper(Arc::downgrade(&self.inner))));
            }
        }
        if self.inner.begin_if_due() {
            // The sender lives as long as this value. After the wait, an older reading is shown.
            let _ = tokio::time::timeout(MAX_WAIT, done.changed()).await;
        }
        let state = self.inner.lock();
        (
            state.latest.clone(),
            state.samples.iter().copied().collect(),
        )
    }
}

/// A reading. Dropping it lets the next one begin, also if this one panicked in a driver, or its runtime has ended.
struct Reader(Arc<Inner>);

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        let now = Instant::now();
        state.is_running = false;
        let earliest = now + MIN_INTERVAL;
        state.next_at = Some(state.next_at.map_or(earliest, |at| at.max(earliest)));
        if std::thread::panicking() {
            state.latest = Some(Reading {
                at: now,
                stats: Err("counting panicked, the log of this process says where".to_owned()),
            });
        }
        drop(state);
        self.0.done.send_replace(());
    }
}

/// The task that reads on. Dropping it lets the next look begin another one.
struct Keeper(Weak<Inner>);

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            inner.lock().is_kept = false;
        }
    }
}

/// Reads on until nobody has looked for long, or until the console is gone.
async fn keep(keeper: Keeper) {
    loop {
        tokio::time::sleep(KEPT_EVERY).await;
        let Some(inner) = keeper.0.upgrade() else {
            return;
        };
        let looked_at = inner.lock().looked_at;
        if looked_at.is_none_or(|at| at.elapsed() >= KEPT_FOR) {
            return;
        }
        inner.begin_if_due();
    }
}

async fn read(stats: Read, reader: Reader) {
    let began = Instant::now();
    let stats = match tokio::time::timeout(LIMIT, stats).await {
        Ok(Ok(stats)) => Ok(stats),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!(
            "counting took longer than {} seconds, use `idem stats`",
            LIMIT.as_secs()
        )),
    };
    let now = Instant::now();
    let mut state = reader.0.lock();
    state.next_at = Some(now + (now - began).saturating_mul(IDLE_FACTOR));
    if let Ok(stats) = &stats {
        let last = state.samples.back();
        if last.is_none_or(|last| now - last.at >= SAMPLE_INTERVAL) {
            state.samples.push_back(Sample::of(now, stats));
            if state.samples.len() > MAX_SAMPLES {
                state.samples.pop_front();
            }
        }
    }
    state.latest = Some(Reading { at: now, stats });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::poll_immediate;
    use idem_runtime::error::StoreErrorKind;

    use super::*;

    /// Statistics of a store in which this many records are due.
    fn counted(due: u64) -> Stats {
        let mut stats = Stats::default();
        stats.purge_due = Count::Exactly(due);
        stats
    }

    /// Due records that the page shows, or the text of the error.
    async fn shown(counts: &Counts) -> Result<u64, String> {
        let (reading, _) = counts.look().await;
        let stats = reading.expect("a reading has ended").stats;
        stats.map(|stats| stats.purge_due.number())
    }

    #[tokio::test(start_paused = true)]
    async fn a_reading_that_fails_or_panics_does_not_stop_later_ones() {
        let begun = Arc::new(AtomicUsize::new(0));
        let counts = Counts::by({
            let begun = Arc::clone(&begun);
            move || {
                let number = begun.fetch_add(1, Ordering::Relaxed);
                Box::pin(async move {
                    match number {
                        0 => panic!("a driver has a bug"),
                        1 => Err(StoreError::new(StoreErrorKind::Unavailable, "no route")),
                        2 => {
                            tokio::time::sleep(LIMIT * 2).await;
                            unreachable!("the reading has a time limit")
                        }
                        _ => Ok(counted(7)),
                    }
                })
            }
        });
        let told = shown(&counts).await.unwrap_err();
        assert!(told.contains("panicked"), "{told}");
        // Not before the interval is over.
        shown(&counts).await.unwrap_err();
        assert_eq!(begun.load(Ordering::Relaxed), 1);
        tokio::time::advance(MIN_INTERVAL).await;
        let told = shown(&counts).await.unwrap_err();
        assert!(told.contains("no route"), "{told}");
        tokio::time::advance(MIN_INTERVAL).await;
        // The page waits for a moment only, and shows the reading before.
        let told = shown(&counts).await.unwrap_err();
        assert!(told.contains("no route"), "{told}");
        tokio::time::sleep(LIMIT).await;
        let told = shown(&counts).await.unwrap_err();
        assert!(told.contains("longer than 30 seconds"), "{told}");
        assert_eq!(begun.load(Ordering::Relaxed), 3);
        tokio::time::advance(LIMIT * IDLE_FACTOR).await;
        assert_eq!(shown(&counts).await, Ok(7));
        assert_eq!(begun.load(Ordering::Relaxed), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn the_plots_go_on_for_an_hour_after_the_last_look() {
        let begun = Arc::new(AtomicUsize::new(0));
        let counts = Counts::by({
            let begun = Arc::clone(&begun);
            move || {
                begun.fetch_add(1, Ordering::Relaxed);
                Box::pin(async { Ok(counted(7)) })
            }
        });
        assert_eq!(shown(&counts).await, Ok(7));
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(counts.inner.lock().samples.len(), 10);
        tokio::time::sleep(Duration::from_secs(6 * 3600)).await;
        let before = begun.load(Ordering::Relaxed);
        assert!((59..=61).contains(&before), "{before}");
        // Another look begins again.
        assert_eq!(shown(&counts).await, Ok(7));
        tokio::time::sleep(Duration::from_secs(121)).await;
        assert_eq!(begun.load(Ordering::Relaxed), before + 3);
        // Nothing is read for a console that is gone.
        let state = Arc::downgrade(&counts.inner);
        drop(counts);
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!(state.upgrade().is_none());
        assert_eq!(begun.load(Ordering::Relaxed), before + 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reading_goes_on_when_the_browser_that_began_it_leaves() {
        let begun = Arc::new(AtomicUsize::new(0));
        let counts = Counts::by({
            let begun = Arc::clone(&begun);
            move || {
                begun.fetch_add(1, Ordering::Relaxed);
                Box::pin(async {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    Ok(counted(7))
                })
            }
        });
        for _ in 0..3 {
            assert!(poll_immediate(counts.look()).await.is_none());
        }
        assert_eq!(shown(&counts).await, Ok(7));
        assert_eq!(begun.load(Ordering::Relaxed), 1);
    }
}
