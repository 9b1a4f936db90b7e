//! Time of a store that cannot read its clock exactly: the interval in which now lies, and a clock that is known from the
//! answers of a server.
//!
//! A store's clock decides when a lease or a retention is over. Many backends show no clock in their conditions, and some
//! show one only as the `Date` of an HTTP response, in whole seconds. [`ServerClock`] bounds such a clock by the local
//! monotonic times at which requests were sent and answers received. It never reads the wall clock of this machine.
//!
//! A store with an uncertain clock follows three rules:
//!
//! 1. **What takes something away is decided by the earliest now.** A lease has lapsed, and a record has expired, only when
//!    the earliest now is past the end. [`Record::read_at`](crate::Record::read_at) is therefore the earliest now.
//! 2. **What must last is written from the latest now.** A lease ends at the latest now plus its duration, so it is never
//!    shorter than its owner expects. Retention counts from the latest now, too.
//! 3. **No decision needs the proof that a lease is still valid.** A lease that may or may not be over counts as valid: its
//!    record is not taken over, and its owner may write. The owner itself counts by its own monotonic clock, from the time at
//!    which it sent the claim.
//!
//! The price is time: a crashed owner's record is taken over later, by up to the width of the interval.
//! [`transitions`](crate::store::transitions) implement the rules.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, UNIX_EPOCH};

use crate::record::{Timestamp, micros};

/// The interval in which the present time of a store's clock lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// The clock shows this time or a later one.
    pub earliest: Timestamp,
    /// The clock shows this time or an earlier one.
    pub latest: Timestamp,
}

impl Now {
    /// The present time of a clock that the store reads exactly.
    pub const fn exact(at: Timestamp) -> Self {
        Self {
            earliest: at,
            latest: at,
        }
    }

    /// A time that a server has rounded down to a multiple of `resolution`.
    pub fn rounded_down(at: Timestamp, resolution: Duration) -> Self {
        Self {
            earliest: at,
            latest: at.after(resolution),
        }
    }

    /// The time in the `Date` of an HTTP response, which has whole seconds. Returns `None` for any other text.
    pub fn from_http_date(text: &str) -> Option<Self> {
        let date = httpdate::parse_http_date(text).ok()?;
        date.duration_since(UNIX_EPOCH).ok()?;
        Some(Self::rounded_down(date.into(), Duration::from_secs(1)))
    }

    /// Width of the interval.
    pub fn uncertainty(self) -> Duration {
        self.latest.since(self.earliest)
    }
}

impl From<Timestamp> for Now {
    fn from(at: Timestamp) -> Self {
        Self::exact(at)
    }
}

/// Clock of a server, known from its answers.
///
/// Each answer bounds the difference between the server's clock and the monotonic clock of this process: the server read its
/// clock after the request was sent and before the answer was received. The intersection of these bounds narrows with each
/// answer. Answers with whole seconds narrow it to little more than a round trip, because some of them are sent just before
/// a new second begins and others just after. Between answers the bounds widen by [`DRIFT`](Self::DRIFT).
///
/// An answer that contradicts the bounds means that the server's clock was set, or that this machine was suspended. The
/// clock then begins again with that answer alone. A store should therefore observe an answer in each of its methods
/// before it asks for the time, as every compare-and-swap does with its read.
///
/// Not covered: a suspension of this machine that is shorter than the width of the bounds contradicts nothing. A lease that is
/// claimed right afterwards may end early by up to that time, until an answer narrows the bounds again.
///
/// ```
/// use std::time::Instant;
///
/// use idem_store::clock::{Now, ServerClock};
///
/// let clock = ServerClock::new();
/// let sent = Instant::now();
/// // ... the request, and the `Date` of its response:
/// let date = Now::from_http_date("Thu, 26 Nov 2026 16:00:00 GMT").expect("the server sends dates");
/// clock.observe(sent, Instant::now(), date);
///
/// let now = clock.now().expect("an answer was observed");
/// assert!(now.earliest <= now.latest);
/// ```
#[derive(Debug)]
pub struct ServerClock {
    began: Instant,
    skew: i64,
    bounds: Mutex<Option<Bounds>>,
}

/// Bounds of the server's clock minus the local one, in microseconds, as of a local time.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    low: i64,
    high: i64,
    at: i64,
}

impl Bounds {
    /// The bounds at another time. Either clock may have drifted in between.
    fn at(self, at: i64) -> Self {
        let drift = at.abs_diff(self.at).saturating_mul(ServerClock::DRIFT) / 1_000_000;
        let drift = i64::try_from(drift).unwrap_or(i64::MAX).saturating_add(1);
        Self {
            low: self.low.saturating_sub(drift),
            high: self.high.saturating_add(drift),
            at,
        }
    }
}

impl ServerClock {
    /// Largest difference between the rates of the two clocks, in microseconds per second. NTP corrects a clock by at most
    /// this much.
    pub const DRIFT: u64 = 500;

    /// Creates a clock of which nothing is known yet.
    pub fn new() -> Self {
        Self {
            began: Instant::now(),
            skew: 0,
            bounds: Mutex::new(None),
        }
    }

    /// Sets how far the clocks of several servers that answer may be apart; zero without it. The bounds are wider by this
    /// much on both sides.
    #[must_use]
    pub fn with_skew(mut self, skew: Duration) -> Self {
        self.skew = micros(skew);
        self
    }

    /// Takes note of an answer: when its request was sent, when it was received, and the server's time in it.
    pub fn observe(&self, sent: Instant, received: Instant, time: Now) {
        // Rounding must not narrow the bounds.
        let (sent, received) = (self.elapsed(sent), self.elapsed(received).saturating_add(1));
        let seen = Bounds {
            low: time.earliest.as_micros() - received - self.skew,
            high: (time.latest.as_micros() - sent).saturating_add(self.skew),
            // The server may have read its clock at any time since then.
            at: sent,
        };
        let mut bounds = self.bounds.lock().unwrap_or_else(PoisonError::into_inner);
        // Answers may be noted in another order than they were received in.
        let at = bounds.map_or(received, |known| known.at.max(received));
        let seen = seen.at(at);
        let both = bounds.map_or(seen, |known| {
            let known = known.at(at);
            Bounds {
                low: known.low.max(seen.low),
                high: known.high.min(seen.high),
                at,
            }
        });
        *bounds = Some(if both.low <= both.high { both } else { seen });
    }

    /// The present time of the server's clock. Returns `None` before the first answer.
    pub fn now(&self) -> Option<Now> {
        self.at(Instant::now())
    }

    /// The time of the server's clock at a local time after the last answer.
    pub fn at(&self, local: Instant) -> Option<Now> {
        let elapsed = self.elapsed(local);
        let bounds = *self.bounds.lock().unwrap_or_else(PoisonError::into_inner);
        let Bounds { low, high, .. } = bounds?.at(elapsed);
        Some(Now {
            earliest: Timestamp::from_micros(low.saturating_add(elapsed)),
            latest: Timestamp::from_micros(high.saturating_add(elapsed).saturating_add(1)),
        })
    }

    /// Whole microseconds between the creation of this clock and a local time. They are negative before it.
    fn elapsed(&self, at: Instant) -> i64 {
        match at.checked_duration_since(self.began) {
            Some(after) => micros(after),
            None => -micros(self.began.duration_since(at)) - 1,
        }
    }
}

impl Default for ServerClock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
