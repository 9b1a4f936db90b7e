//! Time limits and retries for the transitions of a store.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::{self, Handle};
use tokio::time::{Instant, Sleep};

use crate::error::{StoreError, StoreErrorKind};
use crate::random;

/// Exponential back-off: each pause is about twice as long as the one before, up to a cap. Pauses are jittered by half,
/// so that calls that failed together do not retry together.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    cap: Duration,
}

impl Backoff {
    /// Back-off between retries of a failed transition.
    pub(crate) fn of_retries() -> Self {
        Self::new(Duration::from_millis(20), Duration::from_secs(1))
    }

    /// Back-off between reads of a record that another process works on, see [`pause_of_poll`](Self::pause_of_poll).
    pub(crate) fn of_polls() -> Self {
        Self::new(Duration::from_millis(10), POLL_LAG[0])
    }

    /// Back-off between the searches of a worker while the store fails.
    pub(crate) fn of_searches() -> Self {
        Self::new(Duration::from_millis(20), Duration::from_secs(5))
    }

    fn new(first: Duration, cap: Duration) -> Self {
        Self { next: first, cap }
    }

    /// Returns the next pause of a call that has waited for this time: at most a tenth of the time, within [`POLL_LAG`], so
    /// that the outcome of a short body is not found long after its end, and a long body is not asked for often.
    pub(crate) fn pause_of_poll(&mut self, waited: Duration) -> Duration {
        let [shortest, longest] = POLL_LAG;
        self.cap = (waited / 10).clamp(shortest, longest);
        self.pause()
    }

    /// Returns the next pause: between half of its full length and all of it.
    pub(crate) fn pause(&mut self) -> Duration {
        let full = self.next;
        self.next = (full * 2).min(self.cap);
        full.mul_f64(0.5 + 0.5 * random::fraction())
    }
}

/// Bounds of the longest time between two reads of a record that another process works on.
const POLL_LAG: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];

/// Upper limit for durations. A longer one may exceed the range of a clock, and would never end within a process's
/// lifetime.
pub(crate) const DECADES: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// Adds a duration, limited to [`DECADES`], to a time.
pub(crate) fn later(from: Instant, by: Duration) -> Instant {
    from + by.min(DECADES)
}

/// Waits at most `limit` for a store call. A call that is ready on its first poll (as all of the memory store's are)
/// costs no timer.
pub(crate) async fn bounded<T>(
    limit: Duration,
    transition: Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + '_>>,
) -> Result<T, StoreError> {
    within(limit, transition)
        .await
        .unwrap_or_else(|| Err(timed_out(limit)))
}

/// Tries of a transition that fails, with pauses in between, until a deadline.
#[derive(Debug)]
pub(crate) struct Retries {
    pauses: Backoff,
    deadline: Instant,
}

impl Retries {
    /// Retries that end before this time.
    pub(crate) fn until(deadline: Instant) -> Self {
        Self {
            pauses: Backoff::of_retries(),
            deadline,
        }
    }

    /// Retries that end before this duration is over.
    pub(crate) fn within(patience: Duration) -> Self {
        Self::until(later(Instant::now(), patience))
    }

    /// Waits before the next try. Returns the error if it is not retryable, or if the deadline comes first.
    pub(crate) async fn pause_after(&mut self, error: StoreError) -> Result<(), StoreError> {
        if !error.is_retryable() {
            return Err(error);
        }
        self.pause_after_any(error).await
    }

    /// Waits before the next try, after an error of any kind. Returns the error if the deadline comes first.
    pub(crate) async fn pause_after_any(&mut self, error: StoreError) -> Result<(), StoreError> {
        let pause = self.pauses.pause();
        if Instant::now() + pause >= self.deadline {
            return Err(error);
        }
        tracing::debug!(
            target: "idem",
            error = ?error.kind(),
            "a transition of the store failed, trying again",
        );
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

/// Runs a transition, and retries it. Each try may take as long as `limit`, and no longer than the retries last.
pub(crate) async fn retry<'a, T>(
    limit: Duration,
    mut retries: Retries,
    transition: impl Fn() -> Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>,
) -> Result<T, StoreError> {
    loop {
        let limit = limit.min(retries.deadline - Instant::now());
        match bounded(limit, transition()).await {
            Ok(done) => return Ok(done),
            Err(error) => retries.pause_after(error).await?,
        }
    }
}

/// The error of a store call that took longer than `limit`.
pub(crate) fn timed_out(limit: Duration) -> StoreError {
    StoreError::new(
        StoreErrorKind::Timeout,
        format!("the store gave no answer within {limit:?}"),
    )
}

/// Waits at most `limit` for a store call that the caller keeps. `None`: the call has not ended yet.
pub(crate) async fn within<T>(
    limit: Duration,
    transition: impl Future<Output = Result<T, StoreError>> + Unpin,
) -> Option<Result<T, StoreError>> {
    let mut transition = Caught(transition);
    if let Poll::Ready(done) = poll_fn(|cx| Poll::Ready(Pin::new(&mut transition).poll(cx))).await {
        return Some(done);
    }
    Anchor::set();
    // Boxed, because a timer is larger than the rest of a waiting call's state.
    Box::pin(tokio::time::timeout(limit, transition)).await.ok()
}

/// Calls a store. A panic becomes an error: a driver that panics must not unwind the caller's task, which may hold other
/// connections and other records.
pub(crate) fn caught<T>(call: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    // The panic's payload may name a key, so it is left out. The panic hook has printed it.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| Err(panicked()))
}

fn panicked() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unavailable,
        "the store panicked, see the panic's message, and try again",
    )
}

/// Future of a store in which a panic becomes an error, see [`caught`].
pub(crate) struct Caught<F>(pub(crate) F);

impl<T, F: Future<Output = Result<T, StoreError>> + Unpin> Future for Caught<F> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(&mut self.0).poll(cx)));
        polled.unwrap_or_else(|_| Poll::Ready(Err(panicked())))
    }
}

/// A dummy timer that is never awaited. If a runtime waits for I/O with no timer set, registering its first timer wakes
/// the I/O driver. Without the dummy timer each transition of a store would do that, at the cost of a system call and
/// of a thread that looks for work and finds none. A timer that ends after an existing one wakes nothing.
struct Anchor {
    runtime: runtime::Id,
    until: Instant,
    /// Registered by its first poll, and never polled again.
    _timer: Pin<Box<Sleep>>,
}

impl Anchor {
    /// Shorter than any sensible time-out of a store, and long enough to be registered seldom.
    const LENGTH: Duration = Duration::from_millis(250);

    /// Registers a timer unless this thread has a running one in its runtime. Returns true if it did.
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
        // A thread that is ending needs no timer.
        set.unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::runtime::Builder;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(6);

    fn failed(kind: StoreErrorKind) -> StoreError {
        StoreError::new(kind, "no")
    }

    /// Retries a transition that always fails. Returns its error, the number of tries, and the time that they took.
    async fn retried(kind: StoreErrorKind) -> (StoreErrorKind, u32, Duration) {
        let (begin, tries) = (Instant::now(), Cell::new(0));
        let never = retry(Duration::from_secs(3), Retries::within(PATIENCE), || {
            tries.set(tries.get() + 1);
            Box::pin(async move { Err::<(), _>(failed(kind)) })
        });
        let error = never.await.unwrap_err();
        (error.kind(), tries.get(), begin.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_transition_is_retried_for_as_long_as_patience_lasts() {
        let (error, tries, took) = retried(StoreErrorKind::Unavailable).await;
        assert_eq!(error, StoreErrorKind::Unavailable);
        // Pauses double from 20 ms to 1 s, each is at least half of that, and the last one would pass the deadline.
        assert!((11..=18).contains(&tries), "{tries}");
        let longest_pause = Duration::from_secs(1);
        assert!(
            took < PATIENCE && took >= PATIENCE - longest_pause,
            "{took:?}"
        );
    }

    #[test]
    fn polls_lag_by_a_tenth_of_the_time_waited_and_are_few() {
        let mut polls = Backoff::of_polls();
        let (mut waited, mut count) = (Duration::ZERO, 0);
        while waited < Duration::from_secs(30) {
            let pause = polls.pause_of_poll(waited);
            let [shortest, longest] = POLL_LAG;
            assert!(
                pause <= (waited / 10).clamp(shortest, longest),
                "{pause:?} after {waited:?}"
            );
            waited += pause;
            count += 1;
        }
        assert!((30..=90).contains(&count), "{count}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_that_no_retry_can_mend_is_returned_at_once() {
        let (error, tries, took) = retried(StoreErrorKind::Schema).await;
        assert_eq!(
            (error, tries, took),
            (StoreErrorKind::Schema, 1, Duration::ZERO)
        );
        let mut retries = Retries::within(PATIENCE);
        let paused = retries.pause_after_any(failed(StoreErrorKind::Schema));
        assert!(paused.await.is_ok(), "its caller wants to try again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_does_not_answer_is_asked_until_patience_is_over() {
        let begin = Instant::now();
        let silent = retry(Duration::from_secs(4), Retries::within(PATIENCE), || {
            Box::pin(std::future::pending::<Result<(), StoreError>>())
        });
        assert_eq!(silent.await.unwrap_err().kind(), StoreErrorKind::Timeout);
        let took = begin.elapsed();
        // The timer rounds up to milliseconds.
        assert!(
            took >= PATIENCE && took < PATIENCE + Duration::from_millis(5),
            "{took:?}"
        );
    }

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
        // A leftover timer of a runtime that has ended does no harm.
        assert!(runtime().block_on(async { Anchor::set() }));
    }
}
