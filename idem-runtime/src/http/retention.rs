//! How long responses are stored: the same time for all, or by request and response.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{request, response};

/// Time for which responses are stored.
#[derive(Clone)]
pub(super) struct Retention {
    /// For requests and responses that the functions leave open.
    pub(super) ttl: Duration,
    pub(super) by_request: Option<Arc<TtlOf<request::Parts>>>,
    pub(super) by_response: Option<Arc<TtlOf<response::Parts>>>,
}

pub(super) type TtlOf<Parts> = dyn Fn(&Parts) -> Option<Duration> + Send + Sync;

impl Retention {
    pub(super) fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            by_request: None,
            by_response: None,
        }
    }

    /// Time for a request, before its handler runs. The engine refuses a time that is too short.
    pub(super) fn of_request(&self, request: &request::Parts) -> Duration {
        let by_request = self.by_request.as_ref();
        by_request.and_then(|of| of(request)).unwrap_or(self.ttl)
    }

    /// Time for a response that has another one than its request. A time that is too short has no effect: the work is
    /// done, and must not be repeated.
    pub(super) fn of_response(&self, response: &response::Parts) -> Option<Duration> {
        let ttl = self.by_response.as_ref()?(response)?;
        if is_too_short(ttl) {
            tracing::error!(
                target: "idem",
                "`response_ttl` returned a time below 1 µs; the response is stored for the ttl of its request",
            );
            return None;
        }
        Some(ttl)
    }

    /// True if not all responses are stored for the same time.
    pub(super) fn varies(&self) -> bool {
        self.by_request.is_some() || self.by_response.is_some()
    }
}

/// The resolution of stores is one microsecond.
pub(super) fn is_too_short(duration: Duration) -> bool {
    duration < Duration::from_micros(1)
}

impl fmt::Debug for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retention")
            .field("ttl", &self.ttl)
            .field("varies", &self.varies())
            .finish()
    }
}
