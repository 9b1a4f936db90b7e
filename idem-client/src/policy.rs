//! Limits and pauses for retries, and the meaning of a 409.

use std::time::Duration;

use http::HeaderMap;

/// Retry policy of a guarded request: limited in tries and in time, with random pauses that grow.
///
/// The pause before the n-th retry is random between zero and `first * 2^(n-1)`, and at most `longest`. This is
/// exponential back-off with full jitter, so that callers that failed together do not retry together. `Retry-After` of
/// the server is added to it.
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
/// Some services return 409 while the first request with the key is still being processed, which is temporary. Others
/// return it for a conflict with existing data (a name that is taken, a version that has changed), which is not. With
/// every setting, `Retry-After` marks a 409 as temporary, and `retryable` in a body of `application/problem+json` (RFC
/// 9457) says whether it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Conflicts {
    /// Final, unless the reply says otherwise. The default, because only the service knows the meaning of its 409, and
    /// a permanent conflict would be reported minutes late, after all retries. Services that use idem mark their
    /// replies.
    #[default]
    Final,
    /// Still being processed, so the request is retried, unless the reply says otherwise. The meaning in
    /// draft-ietf-httpapi-idempotency-key-header-07, section 2.7, where 409 is the only error that needs no correction.
    InProgress,
    /// Stripe's meaning, as in its own SDKs: the header `Stripe-Should-Retry`, `true` or `false`, takes precedence over
    /// everything else. A 409 without any mark is retried.
    Stripe,
}

impl Conflicts {
    /// Explicit mark of a 409 in its headers, in this service's form: true if the conflict is temporary.
    pub(super) fn mark(self, headers: &HeaderMap) -> Option<bool> {
        match (self, headers.get("stripe-should-retry")?.as_bytes()) {
            (Self::Stripe, b"true") => Some(true),
            (Self::Stripe, b"false") => Some(false),
            _ => None,
        }
    }

    /// True if a 409 without any mark is temporary.
    pub(super) const fn is_temporary_unless_marked(self) -> bool {
        match self {
            Self::Final => false,
            Self::InProgress | Self::Stripe => true,
        }
    }
}

impl RetryPolicy {
    /// 10 retries within two minutes, each try 30 s at most, with pauses of up to 200 ms at first and up to 10 s later.
    /// A 409 is final unless the reply says otherwise, see [`Conflicts::Final`].
    pub const fn new() -> Self {
        Self {
            retries: 10,
            total: Duration::from_secs(120),
            per_try: Duration::from_secs(30),
            conflicts: Conflicts::Final,
            first: Duration::from_millis(200),
            longest: Duration::from_secs(10),
        }
    }

    /// Sets the meaning of a 409, according to the service's documentation.
    ///
    /// ```
    /// use idem_client::{Conflicts, RetryPolicy};
    ///
    /// let policy = RetryPolicy::new().conflicts(Conflicts::InProgress);
    /// ```
    #[must_use]
    pub const fn conflicts(mut self, conflicts: Conflicts) -> Self {
        self.conflicts = conflicts;
        self
    }

    /// Maximum number of retries after the first try. 0 sends the request once.
    #[must_use]
    pub const fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// Total time for all tries of a request, from its first byte on. A pause that would exceed it is skipped and ends
    /// the tries; a try that would exceed it is aborted.
    #[must_use]
    pub const fn total(mut self, total: Duration) -> Self {
        self.total = total;
        self
    }

    /// Time limit of one try until its answer begins, or until a short answer is read. A reply that was lost without a
    /// trace is noticed after this time.
    ///
    /// In a runtime of one thread, a server that sends informational responses (1xx) without an end can delay this limit and
    /// [`total`](Self::total) by many seconds: tokio polls the timers of such a runtime only between its tasks. A runtime
    /// with two threads or more keeps the limits.
    #[must_use]
    pub const fn per_try(mut self, per_try: Duration) -> Self {
        self.per_try = per_try;
        self
    }

    /// Sets the upper limits of the first pause and of every pause.
    #[must_use]
    pub const fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.first = first;
        self.longest = longest;
        self
    }

    /// Pause after this number of tries (1 or more), with the minimum that the server asked for.
    pub(super) fn pause(&self, tries: u32, at_least: Duration) -> Duration {
        let doubled = 2_u32.saturating_pow(tries.saturating_sub(1));
        let most = self.first.saturating_mul(doubled).min(self.longest);
        let random = most.as_secs_f64() * rand::random_range(0.0..=1.0);
        // Converting the longest durations to floats rounds them up beyond the range of a `Duration`.
        at_least.saturating_add(Duration::try_from_secs_f64(random).unwrap_or(most))
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_stripe_marks_a_conflict_in_a_header() {
        for (value, marks) in [("true", Some(true)), ("false", Some(false)), ("yes", None)] {
            let mut headers = HeaderMap::new();
            headers.insert("stripe-should-retry", HeaderValue::from_static(value));
            assert_eq!(Conflicts::Stripe.mark(&headers), marks);
            assert_eq!(Conflicts::Final.mark(&headers), None);
        }
    }
}
