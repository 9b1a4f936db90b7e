//! How many guarded requests are under way, and when the last one is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Waits for the handlers that run behind a layer: a client that goes away does not stop them, and neither does a
/// server that has closed its connections.
///
/// ```no_run
/// # use idem_runtime::http::IdempotencyLayer;
/// # async fn serve(layer: IdempotencyLayer, server: impl Future<Output = ()>) {
/// let drain = layer.drain();
/// server.await; // until it was told to stop, and its connections are closed
/// drain.finished().await;
/// # }
/// ```
///
/// Clones, and layers that were given the same one, are counted together.
#[derive(Debug, Clone, Default)]
pub struct Drain(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    running: AtomicUsize,
    idle: Notify,
}

impl Drain {
    /// One for several layers.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many guarded requests are under way.
    pub fn running(&self) -> usize {
        self.0.running.load(Ordering::SeqCst)
    }

    /// Returns once none is under way. It refuses no new ones: stop the server first.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn finished(&self) {
        loop {
            // Made before the count is read: it hears of everything from here on.
            let idle = self.0.idle.notified();
            if self.running() == 0 {
                return;
            }
            idle.await;
        }
    }

    /// None where as many are under way already.
    pub(super) fn enter(&self, most: usize) -> Option<Entered> {
        let entered = self
            .0
            .running
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |running| {
                (running < most).then_some(running + 1)
            });
        entered.ok().map(|_| Entered(self.clone()))
    }
}

/// One that is under way.
#[derive(Debug)]
pub(super) struct Entered(Drain);

impl Drop for Entered {
    fn drop(&mut self) {
        if self.0.0.running.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.0.idle.notify_waiters();
        }
    }
}
