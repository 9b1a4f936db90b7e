//! When to leave something alone that failed: a call that waits for it in vain should be the exception.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::StoreError;

/// How long it is left alone before one caller tries again.
const PAUSE: Duration = Duration::from_secs(1);

/// Closed while all is well. After a failure it is open, and after each pause one caller at a time is let through; the
/// first that succeeds closes it. It tells only of its changes.
#[derive(Debug)]
pub(super) struct Breaker {
    /// What is done, for the events.
    what: &'static str,
    state: Mutex<State>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed,
    Open {
        /// Nobody is let through before.
        until: Instant,
        /// Whether somebody is trying.
        tried: bool,
    },
}

impl Breaker {
    pub(super) fn new(what: &'static str) -> Arc<Self> {
        Arc::new(Self {
            what,
            state: Mutex::new(State::Closed),
        })
    }

    pub(super) fn is_open(&self) -> bool {
        *self.lock() != State::Closed
    }

    /// Leave to try; none where the caller is to do without.
    pub(super) fn admit(self: &Arc<Self>) -> Option<Permit> {
        let mut state = self.lock();
        let probe = match &mut *state {
            State::Closed => false,
            State::Open { until, tried } => {
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

    /// Leave to try in any case, for what must not be left out.
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
        // A state is put in as a whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Leave to try once. Dropped without an outcome, since the caller went away, it lets the next one try.
#[derive(Debug)]
pub(super) struct Permit {
    breaker: Arc<Breaker>,
    /// Whether its outcome decides. Of those that were under way when the breaker opened, none does.
    probe: bool,
}

impl Permit {
    pub(super) fn succeeded(mut self) {
        if std::mem::take(&mut self.probe) {
            *self.breaker.lock() = State::Closed;
            tracing::info!(
                target: "idem",
                what = self.breaker.what,
                "the cache in redis answers again",
            );
        }
    }

    pub(super) fn failed(mut self, error: &StoreError) {
        let probe = std::mem::take(&mut self.probe);
        let mut state = self.breaker.lock();
        let was_closed = *state == State::Closed;
        if was_closed || probe {
            *state = State::Open {
                until: Instant::now() + PAUSE,
                tried: false,
            };
        }
        drop(state);
        if was_closed {
            tracing::warn!(
                target: "idem",
                what = self.breaker.what,
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
        let breaker = Breaker::new("testing");
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
        let breaker = Breaker::new("testing");
        let (first, late, lucky) = (breaker.admit(), breaker.admit(), breaker.admit());
        first.unwrap().failed(&error());
        advance(PAUSE).await;
        late.unwrap().failed(&error());
        lucky.unwrap().succeeded();
        assert!(breaker.is_open());
        assert!(breaker.admit().is_some(), "the pause was prolonged");
    }
}
