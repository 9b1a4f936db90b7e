//! Time as of which a background task deletes what has expired: that of the store's clock, as far as the clock of this
//! process explains it.

use std::time::Duration;

use tokio::time::Instant;

use crate::record::Timestamp;

// The path is given, because the simulation of `tests/sim` compiles this file from elsewhere.
#[cfg(test)]
#[path = "purge_clock/tests.rs"]
mod tests;

/// Largest step forward that counts as a part of the passing of time: a slow answer, or a clock that is adjusted.
const STEP: Duration = Duration::from_secs(1);
/// Part of the elapsed time by which one of two clocks may be faster: one thousandth.
const DRIFT: u32 = 1_000;
/// Difference above which an operator should look at the clocks.
const WORTH_A_WARNING: Duration = Duration::from_secs(60);

/// Compares a store's clock with the monotonic clock of this process.
///
/// The store's clock decides what has expired. If it jumps forward, everything has, also the outcome of a call that ended
/// a second ago. Time that no clock of this process has seen pass is therefore left out: a deletion happens as of the last
/// time that was explained, plus the time that has passed in this process since then. The difference remains until it is
/// explained. Deletions are late by it, and none is too early.
#[derive(Debug, Default)]
pub(crate) struct PurgeClock {
    anchor: Option<Anchor>,
    /// True if the store's backend also deletes by itself, which nothing here can delay.
    expires_by_itself: bool,
    /// True while the difference is worth a warning.
    has_warned: bool,
}

/// Time of the store that is explained.
#[derive(Debug, Clone, Copy)]
struct Anchor {
    store: Timestamp,
    /// When the store was asked for it.
    asked: Instant,
}

/// Result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Compared {
    /// Time as of which to delete. `None` for the first reading, with which nothing can be compared yet.
    pub(crate) as_of: Option<Timestamp>,
    /// Time by which the store's clock is ahead of what is explained.
    pub(crate) ahead: Duration,
}

impl PurgeClock {
    /// Clock of a store that deletes expired records itself.
    pub(crate) fn of_self_expiring_store() -> Self {
        Self {
            expires_by_itself: true,
            ..Self::default()
        }
    }

    /// Compares the time of the store's clock, for which the store was asked at this time of the process. Logs a warning
    /// when the difference begins to be longer than a minute.
    pub(crate) fn compare(&mut self, asked: Instant, now: Timestamp) -> Compared {
        let new = Anchor { store: now, asked };
        let Some(anchor) = self.anchor else {
            self.anchor = Some(new);
            return Compared {
                as_of: None,
                ahead: Duration::ZERO,
            };
        };
        let elapsed = asked.saturating_duration_since(anchor.asked);
        let explained = anchor.store.after(elapsed);
        let ahead = now.since(explained);
        if ahead > STEP.max(elapsed / DRIFT) {
            self.warn(ahead);
            return Compared {
                as_of: Some(explained),
                ahead,
            };
        }
        // A clock that was set back is followed too: what it dates until it is set forward again must not seem older then.
        self.anchor = Some(new);
        self.has_warned = false;
        Compared {
            as_of: Some(now),
            ahead: Duration::ZERO,
        }
    }

    fn warn(&mut self, ahead: Duration) {
        let is_worth_a_warning = ahead > WORTH_A_WARNING;
        if is_worth_a_warning && !self.has_warned && self.expires_by_itself {
            tracing::warn!(
                target: "idem",
                ahead_s = ahead.as_secs(),
                "the store's clock has jumped forward, and the store deletes what has expired by that clock: results may be \
                 gone early; set the clock of the store's server right",
            );
        } else if is_worth_a_warning && !self.has_warned {
            tracing::warn!(
                target: "idem",
                ahead_s = ahead.as_secs(),
                "the store's clock has jumped forward: what expires is deleted that much later; check the clock of the \
                 store's server, and once it is right, restart this process",
            );
        }
        self.has_warned = is_worth_a_warning;
    }
}
