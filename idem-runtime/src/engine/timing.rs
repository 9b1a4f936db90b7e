//! Pauses that grow, and store transitions that cannot hang.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::{self, Handle};
use tokio::time::{Instant, Sleep};

use crate::error::{StoreError, StoreErrorKind};
use crate::policy::Policy;

/// Pauses between tries: each about twice as long as the one before, up to a cap, and jittered by half so that those
/// who failed together do not come back together.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
    cap: Duration,
}

impl Backoff {
    /// Between tries of a transition that failed.
    pub(super) fn of_retries() -> Self {
        Self::new(Duration::from_millis(20), Duration::from_secs(1))
    }

    /// Between looks at a record that another process is working on.
    pub(super) fn of_polls() -> Self {
        Self::new(Duration::from_millis(10), Duration::from_secs(1))
    }

    /// Between tries of background work while the store fails.
    pub(super) fn of_outages() -> Self {
        Self::new(Duration::from_millis(20), Duration::from_secs(5))
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

/// Waits for a store call, at most for `limit`. A call that is ready at once (all of the memory store's are) costs no
/// timer.
pub(super) async fn bounded<T>(
    limit: Duration,
    transition: Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + '_>>,
) -> Result<T, StoreError> {
    within(limit, transition)
        .await
        .unwrap_or_else(|| Err(timed_out(limit)))
}

/// Makes a transition of the store, and tries again for as long as the handle's patience lasts where that can help.
pub(super) async fn persist<'a, T>(
    policy: &Policy,
    transition: impl Fn() -> Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>,
) -> Result<T, StoreError> {
    let give_up_at = later(Instant::now(), policy.store_patience);
    let mut retries = Backoff::of_retries();
    loop {
        let limit = policy.store_timeout.min(give_up_at - Instant::now());
        let error = match bounded(limit, transition()).await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let pause = retries.pause();
        if !error.is_retryable() || Instant::now() + pause >= give_up_at {
            return Err(error);
        }
        tokio::time::sleep(pause).await;
    }
}

/// The error of a store call that took longer than `limit`.
pub(super) fn timed_out(limit: Duration) -> StoreError {
    StoreError::new(
        StoreErrorKind::Timeout,
        format!("the store gave no answer within {limit:?}"),
    )
}

/// Waits for a store call that the caller keeps, at most for `limit`. `None`: the call has not ended yet.
pub(super) async fn within<T>(
    limit: Duration,
    transition: impl Future<Output = Result<T, StoreError>> + Unpin,
) -> Option<Result<T, StoreError>> {
    let mut transition = Caught(transition);
    if let Poll::Ready(done) = poll_fn(|cx| Poll::Ready(Pin::new(&mut transition).poll(cx))).await {
        return Some(done);
    }
    Anchor::set();
    // Boxed: a timer is larger than everything else that a waiting call keeps.
    Box::pin(tokio::time::timeout(limit, transition)).await.ok()
}

/// A store call whose panic is its error. A driver that panics must not take the caller's task along: the caller may
/// hold other connections, and other records.
struct Caught<F>(F);

impl<T, F: Future<Output = Result<T, StoreError>> + Unpin> Future for Caught<F> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(&mut self.0).poll(cx)));
        // What the panic said may name a key. The panic hook has printed it.
        polled.unwrap_or_else(|_| {
            Poll::Ready(Err(StoreError::new(
                StoreErrorKind::Unavailable,
                "the store panicked, see the panic's message, and try again",
            )))
        })
    }
}

/// A timer that nobody waits for. A runtime that waits for I/O with no timer set is woken up whenever one is set, as
/// each transition of a store would do anew: a system call, and a thread that looks for work and finds none. It is not
/// woken up for a timer that ends after one that is set already.
struct Anchor {
    runtime: runtime::Id,
    until: Instant,
    /// Set by its first poll, and never polled again.
    _timer: Pin<Box<Sleep>>,
}

impl Anchor {
    /// Shorter than any sensible time-out of a store, and long enough to be set seldom.
    const LENGTH: Duration = Duration::from_millis(250);

    /// Sets one where this thread has none of its runtime that still runs, and tells whether it did.
    fn set() -> bool {
        thread_local! {
            static ANCHOR: RefCell<Option<Anchor>> = const { RefCell::new(None) };
        }
        let Ok(handle) = Handle::try_current() else {
            return false;
        };
        let (runtime, now) = (handle.id(), Instant::now());
        let set = ANCHOR.try_with(|anchor| {
            let mut anchor = anchor.borrow_mut();
            let is_set = anchor
                .as_ref()
                .is_some_and(|it| it.runtime == runtime && it.until > now);
            if !is_set {
                let until = now + Self::LENGTH;
                let mut timer = Box::pin(tokio::time::sleep_until(until));
                let _ = timer.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                *anchor = Some(Self {
                    runtime,
                    until,
                    _timer: timer,
                });
            }
            !is_set
        });
        // A thread that ends has no use for one.
        set.unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn a_thread_has_one_anchor_at_a_time_and_each_runtime_its_own() {
        let runtime = || {
            Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .unwrap()
        };
        assert!(!Anchor::set(), "without a runtime");
        let first = runtime();
        first.block_on(async {
            assert!(Anchor::set());
            assert!(!Anchor::set());
            tokio::time::advance(Anchor::LENGTH / 2).await;
            assert!(!Anchor::set());
            tokio::time::advance(Anchor::LENGTH / 2).await;
            assert!(Anchor::set());
        });
        let second = runtime();
        assert!(second.block_on(async { Anchor::set() }));
        drop(first);
        assert!(!second.block_on(async { Anchor::set() }));
        drop(second);
        // What is left of a runtime that is gone does no harm.
        assert!(runtime().block_on(async { Anchor::set() }));
    }
}
