//! How often, how long and with what pauses a request is repeated, and the meaning of a 409.

use std::time::Duration;

use http::HeaderMap;

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
    pub(super) conflicts: Conflicts,
    first: Duration,
    longest: Duration,
}

/// Meaning of a reply with status 409 (Conflict) to a request with a key.
///
/// Some services say 409 while the first request with the key is still being processed, which passes. Others say it of
/// a conflict with what is there already (a name that is taken, a version that has changed), which does not. Under each
/// reading, `Retry-After` says that it passes, and `retryable` in a body of `application/problem+json` (RFC 9457) says
/// whether it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Conflicts {
    /// Final, unless the reply says otherwise. The default: only the service knows its own 409, and a conflict that does
    /// not pass would be reported minutes late, after all retries. Services that use idem say what they mean.
    #[default]
    AsSaid,
    /// Still being processed, so the request is repeated, unless the reply says otherwise. The reading of
    /// draft-ietf-httpapi-idempotency-key-header-07, section 2.7, by which 409 is the one error that needs no correction.
    InProgress,
    /// Stripe's reading, that of its own SDKs: the header `Stripe-Should-Retry` decides before all else, `true` or
    /// `false`. A 409 that says nothing is repeated.
    Stripe,
}

impl Conflicts {
    /// Whether a 409 passes, where its headers say so in the way of this service.
    pub(super) fn said(self, headers: &HeaderMap) -> Option<bool> {
        match (self, headers.get("stripe-should-retry")?.as_bytes()) {
            (Self::Stripe, b"true") => Some(true),
            (Self::Stripe, b"false") => Some(false),
            _ => None,
        }
    }

    /// Whether a 409 passes that says nothing.
    pub(super) const fn passes_unless_said(self) -> bool {
        match self {
            Self::AsSaid => false,
            Self::InProgress | Self::Stripe => true,
        }
    }
}

impl RetryPolicy {
    /// 10 retries within two minutes, each try 30 s at most, pauses up to 200 ms first and 10 s at last. A 409 is final
    /// unless it says otherwise, see [`Conflicts::AsSaid`].
    pub const fn new() -> Self {
        Self {
            retries: 10,
            total: Duration::from_secs(120),
            per_try: Duration::from_secs(30),
            conflicts: Conflicts::AsSaid,
            first: Duration::from_millis(200),
            longest: Duration::from_secs(10),
        }
    }

    /// Meaning of a 409, by what is known of the service.
    ///
    /// ```
    /// use idem_runtime::client::{Conflicts, RetryPolicy};
    ///
    /// let policy = RetryPolicy::new().conflicts(Conflicts::InProgress);
    /// ```
    #[must_use]
    pub const fn conflicts(mut self, conflicts: Conflicts) -> Self {
        self.conflicts = conflicts;
        self
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
    pub const fn backoff(mut self, first: Duration, longest: Duration) -> Self {
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
