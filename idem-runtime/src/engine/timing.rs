//! Pauses that grow, and store steps that cannot hang.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

use crate::error::{StoreError, StoreErrorKind};

/// Pauses between tries: each about twice as long as the one before, up to a cap, and jittered by half so that those
/// who failed together do not come back together.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
    cap: Duration,
}

impl Backoff {
    /// Between tries of a step that failed.
    pub(super) fn of_retries() -> Self {
        Self::new(Duration::from_millis(20), Duration::from_secs(1))
    }

    /// Between looks at a record that another process is working on.
    pub(super) fn of_polls() -> Self {
        Self::new(Duration::from_millis(10), Duration::from_secs(1))
    }

    fn new(first: Duration, cap: Duration) -> Self {
        Self { next: first, cap }
    }

    /// The next pause: between half of its full length and all of it.
    pub(super) fn pause(&mut self) -> Duration {
        let full = self.next;
        self.next = (full * 2).min(self.cap);
        full.mul_f64(0.5 + 0.5 * rand::random::<f64>())
    }
}

/// The longest time that is counted with: what is longer is past what a clock can show, and never over in any process.
pub(super) const DECADES: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// The point this much later, or decades later where it is longer.
pub(super) fn later(from: Instant, by: Duration) -> Instant {
    from + by.min(DECADES)
}

/// A step of the store, given up after `limit`. A step that is ready at once (the memory store's all are) costs no
/// timer.
pub(super) async fn bounded<T>(
    limit: Duration,
    mut step: Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + '_>>,
) -> Result<T, StoreError> {
    if let Poll::Ready(done) = poll_fn(|cx| Poll::Ready(step.as_mut().poll(cx))).await {
        return done;
    }
    // Boxed: a timer is larger than everything else that a waiting call keeps.
    match Box::pin(tokio::time::timeout(limit, step)).await {
        Ok(done) => done,
        Err(_) => Err(StoreError::new(
            StoreErrorKind::Timeout,
            format!("the store gave no answer within {limit:?}"),
        )),
    }
}
