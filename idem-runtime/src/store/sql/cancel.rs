//! Futures on a connection that must not be cancelled half way.
//!
//! A future that is dropped while it waits for a server leaves its connection in the middle of an exchange. Some
//! exchanges survive this, others do not. A connection whose `BEGIN` was not awaited returns to its pool with an open
//! transaction: later statements on it are acknowledged and never committed. A MySQL connection that was preparing a
//! statement takes the next packet for the answer to another request. Each such future therefore has a handler for its
//! cancellation.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
#[cfg(any(feature = "postgres", feature = "mysql", test))]
use tokio::runtime::Handle;

/// Future with a handler for its cancellation: if the future is dropped after its first poll and before its end, the
/// rest of it is passed to the handler.
pub(super) struct OnCancel<F, C: FnOnce(Pin<Box<F>>)> {
    work: Option<Pin<Box<F>>>,
    is_started: bool,
    on_cancel: Option<C>,
}

impl<F: Future, C: FnOnce(Pin<Box<F>>)> OnCancel<F, C> {
    pub(super) fn new(work: F, on_cancel: C) -> Self {
        Self {
            work: Some(Box::pin(work)),
            is_started: false,
            on_cancel: Some(on_cancel),
        }
    }
}

impl<F: Future, C: FnOnce(Pin<Box<F>>) + Unpin> Future for OnCancel<F, C> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // Work that panicked is dropped: the handler must not poll it again.
        let Some(mut work) = self.work.take() else {
            return Poll::Pending;
        };
        self.is_started = true;
        let polled = work.as_mut().poll(cx);
        if polled.is_pending() {
            self.work = Some(work);
        }
        polled
    }
}

impl<F, C: FnOnce(Pin<Box<F>>)> Drop for OnCancel<F, C> {
    fn drop(&mut self) {
        if self.is_started
            && let Some(work) = self.work.take()
            && let Some(on_cancel) = self.on_cancel.take()
        {
            on_cancel(work);
        }
    }
}

/// Runs work to its end even if the caller is cancelled. A task then polls the rest, as long as the runtime lives, and
/// drops the result.
#[cfg(any(feature = "postgres", feature = "mysql", test))]
pub(in crate::store) fn run_to_completion<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> impl Future<Output = T> + Send + Unpin {
    OnCancel::new(work, |work| {
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { drop(work.await) });
        }
    })
}

/// Turns a panic of the driver into an error, so that the connection can be closed.
pub(in crate::store) async fn catch_panic<T>(
    work: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    // The panic message may contain a user's value, so the error omits it. The panic hook has printed it already.
    AssertUnwindSafe(work)
        .catch_unwind()
        .await
        .unwrap_or_else(|_| {
            let panicked = std::io::Error::other("the database driver panicked");
            Err(sqlx::Error::Io(panicked))
        })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::task::yield_now;

    use super::*;

    /// Work that needs three polls and counts how often it ends.
    fn work(ended: &Arc<AtomicU32>) -> impl Future<Output = u32> + Send + use<> {
        let ended = Arc::clone(ended);
        async move {
            yield_now().await;
            yield_now().await;
            ended.fetch_add(1, Ordering::SeqCst) + 1
        }
    }

    #[tokio::test]
    async fn work_that_was_started_ends_wherever_it_is_dropped() {
        for polls in 0..=2 {
            let ended = Arc::<AtomicU32>::default();
            let mut dropped = run_to_completion(work(&ended));
            for _ in 0..polls {
                assert_eq!((&mut dropped).now_or_never(), None);
            }
            drop(dropped);
            for _ in 0..5 {
                yield_now().await;
            }
            assert_eq!(
                ended.load(Ordering::SeqCst),
                u32::from(polls > 0),
                "{polls}"
            );
        }
        let ended = Arc::<AtomicU32>::default();
        assert_eq!(run_to_completion(work(&ended)).await, 1);
    }

    #[tokio::test]
    async fn a_panic_is_an_error_and_is_not_polled_again() {
        let panics = catch_panic(async {
            yield_now().await;
            panic!("as a driver does")
        });
        let ended: Result<(), _> = run_to_completion(panics).await;
        assert!(matches!(ended, Err(sqlx::Error::Io(_))), "{ended:?}");
    }
}
