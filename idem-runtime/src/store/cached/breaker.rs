//! Circuit breaker, so that few calls wait in vain for a server that failed.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::StoreError;
use crate::metrics::{CacheAction, Raised, sink};
use crate::mutex::lock;

/// Pause before one caller tries again.
const PAUSE: Duration = Duration::from_secs(1);

/// Circuit breaker. It is closed while calls succeed, and opens after a failure. After each pause it admits one caller
/// at a time; the first success closes it. It reports only changes.
#[derive(Debug)]
pub(super) struct Breaker {
    /// The guarded action, for log events and metrics.
    action: CacheAction,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Closed,
    Open {
        /// No caller is admitted before this time.
        until: Instant,
        /// True while a caller is trying.
        tried: bool,
        /// Counts the breaker as open, in the metrics, until it closes or its cache is dropped.
        counted: Raised,
    },
}

impl Breaker {
    pub(super) fn new(action: CacheAction) -> Arc<Self> {
        Arc::new(Self {
            action,
            state: Mutex::new(State::Closed),
        })
    }

    pub(super) fn is_open(&self) -> bool {
        !matches!(*self.lock(), State::Closed)
    }

    /// Returns a permit to try. If the breaker is open, returns `None`, and the caller has to do without.
    pub(super) fn admit(self: &Arc<Self>) -> Option<Permit> {
        let mut state = self.lock();
        let probe = match &mut *state {
            State::Closed => false,
            State::Open { until, tried, .. } => {
                if *tried || Instant::now() < *until {
                    return None;
                }
                *tried = true;
                true
            }
        };
        drop(state);
        Some(self.permit(probe))
    }

    /// Returns a permit in any state, for actions that must not be skipped.
    pub(super) fn insist(self: &Arc<Self>) -> Permit {
        self.permit(false)
    }

    fn permit(self: &Arc<Self>, probe: bool) -> Permit {
        Permit {
            breaker: Arc::clone(self),
            probe,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Permit to try once. If the caller is cancelled and the permit is dropped without an outcome, the next caller may
/// try.
#[derive(Debug)]
pub(super) struct Permit {
    breaker: Arc<Breaker>,
    /// True if its outcome closes or re-opens an open breaker. Calls that were in flight when the breaker opened do not
    /// count.
    probe: bool,
}

impl Permit {
    pub(super) fn succeeded(mut self) {
        if std::mem::take(&mut self.probe) {
            *self.breaker.lock() = State::Closed;
            tracing::info!(
                target: "idem",
                what = self.breaker.action.as_str(),
                "the cache in redis answers again",
            );
        }
    }

    pub(super) fn failed(mut self, error: &StoreError) {
        let probe = std::mem::take(&mut self.probe);
        let mut state = self.breaker.lock();
        let was_closed = matches!(*state, State::Closed);
        if was_closed || probe {
            let counted = match std::mem::replace(&mut *state, State::Closed) {
                State::Open { counted, .. } => counted,
                State::Closed => sink::open_circuit(self.breaker.action),
            };
            *state = State::Open {
                until: Instant::now() + PAUSE,
                tried: false,
                counted,
            };
        }
        drop(state);
        if was_closed {
            tracing::warn!(
                target: "idem",
                what = self.breaker.action.as_str(),
                %error,
                "the cache in redis fails, going on without it until it answers again",
            );
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.probe
            && let State::Open { tried, .. } = &mut *self.breaker.lock()
        {
            *tried = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::error::StoreErrorKind;

    fn error() -> StoreError {
        StoreError::new(StoreErrorKind::Timeout, "no answer")
    }

    fn open() -> Arc<Breaker> {
        let breaker = Breaker::new(CacheAction::Reading);
        breaker.admit().unwrap().failed(&error());
        assert!(breaker.is_open());
        breaker
    }

    #[tokio::test(start_paused = true)]
    async fn one_caller_at_a_time_tries_after_a_pause() {
        let breaker = open();
        assert!(breaker.admit().is_none());
        advance(PAUSE).await;
        let probe = breaker.admit().unwrap();
        assert!(breaker.admit().is_none(), "two try at once");
        probe.failed(&error());
        assert!(breaker.admit().is_none(), "no pause after a failed try");
        advance(PAUSE).await;
        breaker.admit().unwrap().succeeded();
        assert!(!breaker.is_open());
        let (one, other) = (breaker.admit(), breaker.admit());
        assert!(one.is_some() && other.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_goes_away_lets_the_next_one_try() {
        let breaker = open();
        advance(PAUSE).await;
        drop(breaker.admit().unwrap());
        assert!(breaker.admit().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_under_way_when_it_opened_decides_nothing() {
        let breaker = Breaker::new(CacheAction::Reading);
        let (first, late, lucky) = (breaker.admit(), breaker.admit(), breaker.admit());
        first.unwrap().failed(&error());
        advance(PAUSE).await;
        late.unwrap().failed(&error());
        lucky.unwrap().succeeded();
        assert!(breaker.is_open());
        assert!(breaker.admit().is_some(), "the pause was prolonged");
    }
}
