//! The background task that reports the stuck records of a store as metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use super::{Engine, Idem};
use crate::error::Error;
use crate::failure_log::FailureLog;
use crate::metrics::sink;
use crate::record::{Record, RecordState};
use crate::store::{Cursor, Filter, PageRequest, Store};
use crate::timing::bounded;
use crate::worker::{Found, Schedule, Search, Tasks, WorkerGuard};

/// Number of records that one page of the search has at most.
const PAGE: u32 = 1_000;

impl<S: Store + ?Sized> Idem<S> {
    /// Reports the stuck records of the store in the gauges `idem_stuck_records` and
    /// `idem_oldest_stuck_record_age_seconds`, about once in each interval, as a background task of this tokio runtime. A
    /// record is stuck if its owner is gone without an outcome, see [`Record::is_stuck`](crate::record::Record::is_stuck).
    /// The gauges show crashed calls that nobody retries, and no call pays for them.
    ///
    /// One report lists the stuck records, as [`Records::list`](crate::operator::Records::list) does. With the
    /// [optional index](crate::operator::OperatorStore::create_index) it reads these records alone, and an interval of
    /// a minute is cheap. Without it, and on Redis, it reads all records, page by page, and pauses after each page for as
    /// long as the page took: choose an hour there. If the store fails, the task logs a warning event, at most one a minute
    /// for the same failure. It leaves the gauges as they are, and continues with back-off.
    ///
    /// One process of a service is enough. If several report, each has gauges of its own with the same meaning: take
    /// their maximum, not their sum. A reporter that stops sets its gauges to zero.
    ///
    /// # Errors
    /// [`Error::NoRuntime`] outside of a tokio runtime.
    pub fn report_stuck(&self, interval: Duration) -> Result<StuckReporter, Error> {
        sink::describe();
        let schedule = Schedule {
            first: Duration::ZERO,
            interval,
            concurrency: 1,
        };
        let engine = Arc::clone(self.engine());
        let worker = WorkerGuard::start(schedule, |_| StuckSearch {
            engine,
            failures: FailureLog::default(),
            next: None,
            counts: BTreeMap::new(),
            shown: BTreeSet::new(),
        })?;
        Ok(StuckReporter { worker })
    }
}

/// A running reporter of stuck records, see [`Idem::report_stuck`]. Dropping it stops the reporter.
#[derive(Debug)]
#[must_use = "dropping it stops the reporter; keep it, or call `detach`"]
pub struct StuckReporter {
    worker: WorkerGuard,
}

impl StuckReporter {
    /// Stops the reporter, and waits for the end of its read.
    ///
    /// # Cancel safety
    /// Dropping the future stops the reporter without waiting.
    pub async fn stop(self) {
        self.worker.stop().await;
    }

    /// Leaves the reporter running for as long as its tokio runtime.
    pub fn detach(self) {
        self.worker.detach();
    }
}

/// Stuck records of one operation in one state.
#[derive(Debug, Clone, Copy, Default)]
struct StuckCount {
    records: u64,
    /// Time since the first claim of the oldest one.
    oldest: Duration,
}

/// Label of an operation, and a state as the gauges name it.
type Group = (String, &'static str);

struct StuckSearch {
    engine: Arc<Engine>,
    failures: FailureLog,
    /// Page that comes next; `None` at the beginning of a report.
    next: Option<Cursor>,
    /// Counts of this report so far.
    counts: BTreeMap<Group, StuckCount>,
    /// Groups that the gauges show.
    shown: BTreeSet<Group>,
}

impl StuckSearch {
    fn count(&mut self, record: &Record) {
        let label = sink::operation_label(record.identity.operation.as_str());
        // The gauge of the other state exists too, with the value zero.
        for state in ["interrupted", "lapsed"] {
            self.counts.entry((label.clone(), state)).or_default();
        }
        let state = match record.state {
            RecordState::Interrupted => "interrupted",
            _ => "lapsed",
        };
        let count = self.counts.entry((label, state)).or_default();
        count.records += 1;
        let age = record.read_at.since(record.first_claimed_at);
        count.oldest = count.oldest.max(age);
    }

    /// Shows the counts, and zero for each group that was shown before and has no record now.
    fn report(&mut self) {
        let counts = mem::take(&mut self.counts);
        self.shown.extend(counts.keys().cloned());
        for group in &self.shown {
            let count = counts.get(group).copied().unwrap_or_default();
            let (operation, state) = group;
            sink::stuck_records(operation, state, count.records, count.oldest);
        }
    }
}

impl Search for StuckSearch {
    /// Reads one page.
    async fn search(&mut self, _: &mut Tasks) -> Found {
        let filter = Filter {
            stuck: true,
            ..Filter::default()
        };
        let request = PageRequest {
            limit: PAGE,
            after: self.next.clone(),
        };
        let limit = self.engine.policy.store_timeout;
        match bounded(limit, self.engine.store.list(&filter, &request)).await {
            Ok(page) => {
                self.failures.reset();
                for listed in &page.records {
                    self.count(&listed.record);
                }
                self.next = page.next;
                if self.next.is_some() {
                    return Found::More;
                }
                self.report();
                Found::All
            }
            Err(error) => {
                if let Some(text) = self.failures.text(&error) {
                    tracing::warn!(
                        target: "idem",
                        error = text,
                        "counting stuck records failed, trying again",
                    );
                }
                Found::Failed
            }
        }
    }
}

impl Drop for StuckSearch {
    fn drop(&mut self) {
        self.counts.clear();
        self.report();
    }
}
