//! How often, how long and with what pauses a request is repeated.

use std::time::Duration;

/// How a guarded request is repeated: bounded in tries and in time, with pauses that grow and are random.
///
/// The pause before the n-th retry is random between zero and `first * 2^(n-1)`, at most `longest`: exponential backoff
/// with full jitter, so that callers who failed together do not come back together. Where the server says
/// `Retry-After`, that stands before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    pub(super) retries: u32,
    pub(super) total: Duration,
    pub(super) per_try: Duration,
    first: Duration,
    longest: Duration,
}

impl RetryPolicy {
    /// 10 retries within two minutes, each try 30 s at most, pauses up to 200 ms first and 10 s at last.
    pub const fn new() -> Self {
        Self {
            retries: 10,
            total: Duration::from_secs(120),
            per_try: Duration::from_secs(30),
            first: Duration::from_millis(200),
            longest: Duration::from_secs(10),
        }
    }

    /// How often a request is repeated after its first try. 0 sends it once.
    #[must_use]
    pub const fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// For how long a request is tried at all, from its first byte on. A pause that would go beyond it is not made, and a
    /// try that would is broken off.
    #[must_use]
    pub const fn total(mut self, total: Duration) -> Self {
        self.total = total;
        self
    }

    /// How long one try may take until its answer begins, or is read where it is short: a reply that was lost without a
    /// trace is noticed after this.
    #[must_use]
    pub const fn per_try(mut self, per_try: Duration) -> Self {
        self.per_try = per_try;
        self
    }

    /// The longest that the first pause can be, and the longest that any can.
    #[must_use]
    pub const fn pauses(mut self, first: Duration, longest: Duration) -> Self {
        self.first = first;
        self.longest = longest;
        self
    }

    /// The pause after so many tries (1 or more), when the server asked for at least this.
    pub(super) fn pause(&self, tries: u32, at_least: Duration) -> Duration {
        let doubled = 2_u32.saturating_pow(tries.saturating_sub(1));
        let most = self.first.saturating_mul(doubled).min(self.longest);
        let random = most.as_secs_f64() * rand::random_range(0.0..=1.0);
        // As a float the longest durations are rounded up to what is none.
        at_least.saturating_add(Duration::try_from_secs_f64(random).unwrap_or(most))
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self::new()
    }
}
