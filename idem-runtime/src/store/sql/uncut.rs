//! Work on a connection that must not be cut in half.
//!
//! A future that is dropped while it waits for a server leaves its connection in the middle of an exchange. Some exchanges
//! survive that, others do not: a connection whose `BEGIN` was not awaited goes back to its pool with an open transaction
//! (what is done on it later is acknowledged and never committed), and one of MySQL whose statement was being prepared
//! takes the next answer for another one. So such work owns its connection, and goes on in a task if its caller leaves.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
use tokio::runtime::Handle;

/// Work that is polled in place until its caller drops it, and by a task from then on.
pub(in crate::store) struct Uncut<T: Send + 'static> {
    work: Option<Work<T>>,
    is_begun: bool,
}

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Brings work to its end even if the caller goes away, for as long as the runtime lives. Its result is dropped then.
pub(in crate::store) fn uncut<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Uncut<T> {
    Uncut {
        work: Some(Box::pin(work)),
        is_begun: false,
    }
}

impl<T: Send + 'static> Future for Uncut<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        // Work that panics is gone: it must not be polled once more by a task.
        let Some(mut work) = self.work.take() else {
            return Poll::Pending;
        };
        self.is_begun = true;
        let polled = work.as_mut().poll(cx);
        if polled.is_pending() {
            self.work = Some(work);
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Uncut<T> {
    fn drop(&mut self) {
        if self.is_begun
            && let Some(work) = self.work.take()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(async move { drop(work.await) });
        }
    }
}

/// Turns a panic of the driver into an error, so that the connection can be closed.
pub(in crate::store) async fn caught<T>(
    work: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    // What the panic said may name a value. The panic hook has printed it.
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

    /// Work of three polls that counts its ends.
    fn work(ended: &Arc<AtomicU32>) -> impl Future<Output = u32> + Send + use<> {
        let ended = Arc::clone(ended);
        async move {
            yield_now().await;
            yield_now().await;
            ended.fetch_add(1, Ordering::SeqCst) + 1
        }
    }

    #[tokio::test]
    async fn work_that_was_begun_ends_wherever_it_is_dropped() {
        for polls in 0..=2 {
            let ended = Arc::<AtomicU32>::default();
            let mut dropped = uncut(work(&ended));
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
        assert_eq!(uncut(work(&ended)).await, 1);
    }

    #[tokio::test]
    async fn a_panic_is_an_error_and_is_not_polled_again() {
        let panics = caught(async {
            yield_now().await;
            panic!("as a driver does")
        });
        let ended: Result<(), _> = uncut(panics).await;
        assert!(matches!(ended, Err(sqlx::Error::Io(_))), "{ended:?}");
    }
}
