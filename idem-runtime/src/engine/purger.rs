//! The background task that deletes expired records.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Engine, Idem};
use crate::error::{Error, StoreError};
use crate::failure_log::FailureLog;
use crate::metrics::sink;
use crate::purge_clock::PurgeClock;
use crate::random;
use crate::store::{Purged, Store};
use crate::timing::{DECADES, bounded};
use crate::worker::{Found, Schedule, Search, Tasks, WorkerGuard};

/// Number of records that one batch examines. Small, so that a claim waits only milliseconds for a batch. The worker
/// pauses between two batches, so that claims get a turn on stores with a single writer.
const BATCH: u32 = 1_000;
/// Longest pause between the first reading of the store's clock and the first batch, and after a failure that another try
/// does not end.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Deletes expired records in the background, in batches of 1,000. While more of them are due, it pauses between two
/// batches for as long as the last one took. Any number of processes may purge one store.
///
/// A record is deleted when it has expired by the store's clock, as far as the monotonic clock of this process explains that
/// clock. If the store's clock jumps forward, records are deleted as if it had not, until it is right again. A jump by more
/// than a minute is a warning event, and the gauge `idem_store_clock_ahead_seconds`.
///
/// A store that [deletes expired records itself](Store::expires_by_itself), such as Redis, needs a purger only to mark the
/// records of crashed owners under `refuse` and `reconcile` as INTERRUPTED. No purger can keep what such a store deletes
/// because its clock has jumped forward. The warning event says so.
///
/// ```
/// use std::time::Duration;
/// use idem_runtime::{Idem, MemoryStore, Purger};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), idem_runtime::Error> {
/// let idem = Idem::new(MemoryStore::new());
/// let purger = Purger::new(&idem)
///     .poll_interval(Duration::from_secs(600))
///     .start()?;
/// // Serve requests.
/// purger.stop().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "no record is deleted before the purger is started"]
pub struct Purger {
    engine: Arc<Engine>,
    poll_interval: Duration,
}

impl Purger {
    /// Creates a purger for the store of this handle.
    pub fn new<S: Store + ?Sized>(idem: &Idem<S>) -> Self {
        Self {
            engine: Arc::clone(idem.engine()),
            poll_interval: Duration::from_secs(60),
        }
    }

    /// Approximate interval between two searches for expired records. Default 60 s.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval;
        self
    }

    /// Starts the purger as a background task of this tokio runtime. It first reads the store's clock at a random point of
    /// the first interval, so that the processes of a service do not purge at the same time, and a process that is restarted
    /// often still purges now and then. It first purges an interval later, at most a minute, when it can compare that clock
    /// with its own. If the store fails, the purger logs a warning event, at most once a minute for the same
    /// failure. It retries with back-off, and after an interval, or a minute, if the failure needs an operator, such as
    /// tables that are missing.
    ///
    /// # Errors
    /// [`Error::NoRuntime`] outside of a tokio runtime.
    pub fn start(self) -> Result<PurgerGuard, Error> {
        let schedule = Schedule {
            first: self.poll_interval.min(DECADES).mul_f64(random::fraction()),
            interval: self.poll_interval,
            concurrency: 1,
        };
        let clock = match self.engine.store.expires_by_itself() {
            true => PurgeClock::of_self_expiring_store(),
            false => PurgeClock::default(),
        };
        let worker = WorkerGuard::start(schedule, |_| PurgeSearch {
            engine: self.engine,
            clock,
            pause: self.poll_interval.min(LONGEST_PAUSE),
            failures: FailureLog::default(),
            purged: Purged::default(),
            caught_up_at: Instant::now(),
        });
        Ok(PurgerGuard { worker: worker? })
    }
}

/// A running [`Purger`]. Dropping the guard stops the purger without waiting.
#[derive(Debug)]
#[must_use = "dropping the guard stops the purger; keep it, or call `detach`"]
pub struct PurgerGuard {
    worker: WorkerGuard,
}

impl PurgerGuard {
    /// Begins no further batch, and waits for the end of the current one.
    ///
    /// # Cancel safety
    /// Dropping the future stops the purger without waiting, as dropping the guard does.
    pub async fn stop(self) {
        self.worker.stop().await;
    }

    /// Leaves the purger running for as long as its tokio runtime.
    pub fn detach(self) {
        self.worker.detach();
    }
}

struct PurgeSearch {
    engine: Arc<Engine>,
    clock: PurgeClock,
    /// Pause between the first reading of the store's clock and the first batch, and after a failure that another try does
    /// not end.
    pause: Duration,
    failures: FailureLog,
    /// Sums of the purges since the last report.
    purged: Purged,
    /// Start of the last batch that found nothing more to purge, or of the purger.
    caught_up_at: Instant,
}

impl PurgeSearch {
    fn report_lag(&self) {
        sink::purge_lag(self.caught_up_at.elapsed());
    }

    /// Purges one batch, as of a time that this process can explain. `None` if it can explain none yet.
    async fn purge(&mut self, began: Instant) -> Result<Option<Purged>, StoreError> {
        let (store, limit) = (&self.engine.store, self.engine.policy.store_timeout);
        let now = bounded(limit, store.now()).await?;
        let compared = self.clock.compare(began, now);
        sink::store_clock_ahead(compared.ahead);
        let Some(as_of) = compared.as_of else {
            return Ok(None);
        };
        bounded(limit, store.purge(BATCH, as_of)).await.map(Some)
    }
}

impl Search for PurgeSearch {
    /// Purges one batch.
    async fn search(&mut self, _: &mut Tasks) -> Found {
        let began = Instant::now();
        match self.purge(began).await {
            Ok(None) => {
                self.report_lag();
                Found::NotYet(self.pause)
            }
            Ok(Some(purged)) => {
                self.failures.reset();
                let Purged {
                    removed,
                    abandoned,
                    interrupted,
                    forgotten,
                    ..
                } = purged;
                sink::purged(removed, abandoned, interrupted, forgotten);
                if !purged.more {
                    self.caught_up_at = began;
                }
                self.report_lag();
                self.purged.add(&purged);
                if purged.more {
                    return Found::More;
                }
                report(&mem::take(&mut self.purged));
                Found::All
            }
            Err(error) => {
                self.report_lag();
                if let Some(text) = self.failures.text(&error) {
                    tracing::warn!(target: "idem", error = text, "purging failed, trying again");
                }
                if error.is_retryable() {
                    Found::Failed
                } else {
                    Found::NotYet(self.pause)
                }
            }
        }
    }
}

fn report(purged: &Purged) {
    if purged.abandoned > 0 || purged.interrupted > 0 {
        tracing::warn!(
            target: "idem",
            abandoned = purged.abandoned,
            interrupted = purged.interrupted,
            "records outlived their owners by more than their retention",
        );
    }
    if purged.removed > 0 || purged.forgotten > 0 {
        let (removed, forgotten) = (purged.removed, purged.forgotten);
        tracing::debug!(target: "idem", removed, forgotten, "purged");
    }
}
