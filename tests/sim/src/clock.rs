//! Clock of a process.

use std::time::Duration;

use tokio::time::Instant;

/// Clock of a running process. It may run apart from the true time.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    started_at: u64,
    started: Instant,
    rate: f64,
}

impl Clock {
    pub(crate) fn new(started_at: u64, started: Instant, rate: f64) -> Self {
        Self {
            started_at,
            started,
            rate,
        }
    }

    /// Time of the process at this true time.
    pub(crate) fn at(&self, now: u64) -> Instant {
        let elapsed = now.saturating_sub(self.started_at) as f64 * self.rate;
        self.started + Duration::from_micros(elapsed as u64)
    }

    /// True time, read in the process.
    pub(crate) fn now(&self) -> u64 {
        let elapsed = Instant::now().saturating_duration_since(self.started);
        self.started_at + (elapsed.as_micros() as f64 / self.rate) as u64
    }
}
