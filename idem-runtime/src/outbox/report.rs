//! The background task that reports the backlog of an outbox as metrics.

use std::fmt;
use std::time::Duration;

use super::Outbox;
use super::shared::STATEMENT_TIMEOUT;
use crate::error::Error;
use crate::failure_log::FailureLog;
use crate::metrics::sink;
use crate::timing::bounded;
use crate::worker::{Found, Schedule, Search, Tasks, WorkerGuard};

impl Outbox {
    /// Reports the backlog of this outbox in the gauges `idem_outbox_messages` and
    /// `idem_outbox_oldest_message_age_seconds`, about once in each interval, as a background task of this tokio
    /// runtime. One count reads the index entries of all messages that are not delivered. If the database fails, the task
    /// logs a warning event, at most one a minute for the same failure. It leaves the gauges as they are, and retries with
    /// back-off.
    ///
    /// One process of a service is enough. If several report, each has gauges of its own with the same meaning: take
    /// their maximum, not their sum. A reporter that stops sets its gauges to zero.
    ///
    /// # Errors
    /// [`Error::NoRuntime`] outside of a tokio runtime.
    pub fn report_backlog(&self, interval: Duration) -> Result<BacklogReporter, Error> {
        sink::describe();
        let schedule = Schedule {
            first: Duration::ZERO,
            interval,
            concurrency: 1,
        };
        let worker = WorkerGuard::start(schedule, |_| BacklogSearch {
            outbox: self.clone(),
            failures: FailureLog::default(),
        })?;
        Ok(BacklogReporter { worker })
    }
}

/// A running reporter of an outbox's backlog, see [`Outbox::report_backlog`]. Dropping it stops the reporter.
#[must_use = "dropping it stops the reporter; keep it, or call `detach`"]
pub struct BacklogReporter {
    worker: WorkerGuard,
}

impl BacklogReporter {
    /// Stops the reporter, and waits for the end of its statement.
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

impl fmt::Debug for BacklogReporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BacklogReporter").finish_non_exhaustive()
    }
}

struct BacklogSearch {
    outbox: Outbox,
    failures: FailureLog,
}

impl Search for BacklogSearch {
    async fn search(&mut self, _: &mut Tasks) -> Found {
        match bounded(STATEMENT_TIMEOUT, self.outbox.messages.count()).await {
            Ok(count) => {
                self.failures.reset();
                let table = self.outbox.table.as_str();
                sink::outbox_backlog(table, count.waiting, count.parked, count.oldest);
                Found::All
            }
            Err(error) => {
                if let Some(text) = self.failures.text(&error) {
                    tracing::warn!(
                        target: "idem",
                        error = text,
                        "counting the messages of an outbox failed, trying again",
                    );
                }
                Found::Failed
            }
        }
    }
}

impl Drop for BacklogSearch {
    fn drop(&mut self) {
        sink::outbox_backlog(self.outbox.table.as_str(), 0, 0, Duration::ZERO);
    }
}
