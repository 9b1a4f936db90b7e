//! A clock that follows the time of the schedules.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::log::lock;

/// Clock for functions that read the time. It follows tokio's time, so it moves when a schedule lets time pass, and a test
/// can move it. Give it to [`Check::clock`](crate::Check::clock). Clones share it.
///
/// ```
/// use std::time::Duration;
/// use idem_testing::Clock;
///
/// let clock = Clock::new();
/// let before = clock.now();
/// clock.advance(Duration::from_secs(60));
/// assert!(clock.now() >= before + Duration::from_secs(60));
/// ```
#[derive(Debug, Clone)]
pub struct Clock(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    base: SystemTime,
    moved: Duration,
    since: Instant,
}

/// 2026-01-01, a quarter of an hour before 18 o'clock UTC: soon another hour, and within a day's half another day.
const BASE: Duration = Duration::from_secs(1_767_289_500);

impl Clock {
    /// Creates a clock that begins at a fixed time, 2026-01-01T17:45:00Z.
    pub fn new() -> Self {
        Self::starting_at(SystemTime::UNIX_EPOCH + BASE)
    }

    /// Creates a clock that begins at this time.
    pub fn starting_at(base: SystemTime) -> Self {
        Self(Arc::new(Mutex::new(State {
            base,
            moved: Duration::ZERO,
            since: Instant::now(),
        })))
    }

    /// The time.
    pub fn now(&self) -> SystemTime {
        let state = lock(&self.0);
        state.base + state.moved + Instant::now().saturating_duration_since(state.since)
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        lock(&self.0).moved += by;
    }

    /// Begins a schedule, whose runtime has a time of its own.
    pub(crate) fn begin(&self) {
        let mut state = lock(&self.0);
        state.since = Instant::now();
        state.moved = Duration::ZERO;
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}
