//! Runs futures in tasks of their own, so that their callers cannot cancel them, and waits for these tasks.

use std::pin::Pin;

use tokio::runtime::Handle as Runtime;
use tracing::Instrument as _;
use tracing::instrument::WithSubscriber as _;

#[cfg(feature = "http")]
use super::detached_tasks::DetachedTask;
use super::detached_tasks::DetachedTasks;
use super::provenance::{Observer, observed};
use super::{Idem, install};
use crate::error::Error;
use crate::store::Store;

/// The runtime was shut down, and the task with it.
#[derive(Debug)]
pub(crate) struct ShutDown;

/// Runs a future in a task of its own, and waits for it. A panic of the future continues in the caller.
///
/// The task starts before this function returns, and a caller that drops the returned future leaves it running. The
/// task has the span, the subscriber and the default handle of the caller. Its first idempotent call is observed by
/// the caller.
pub(super) fn run_in_a_task<F>(
    tasks: &DetachedTasks,
    runtime: &Runtime,
    future: F,
) -> impl Future<Output = Result<F::Output, ShutDown>> + use<F>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let counted = tasks.begin();
    let counted = async move {
        let output = future.await;
        drop(counted);
        output
    };
    let future = counted.in_current_span().with_current_subscriber();
    let mut future: Pin<Box<dyn Future<Output = F::Output> + Send>> = Box::pin(future);
    if let Some(idem) = install::of_the_task() {
        future = Box::pin(async move { idem.with_default(future).await });
    }
    if let Some(observer) = Observer::take() {
        future = Box::pin(observed(observer, future));
    }
    let task = runtime.spawn(future);
    async move {
        match task.await {
            Ok(output) => Ok(output),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(ShutDown),
            },
        }
    }
}

impl<S: Store + ?Sized> Idem<S> {
    /// Runs a future in a task of its own, and returns its result. If the caller is dropped, the future runs on:
    /// an HTTP client that disconnects, for example, does not cancel the calls in it.
    ///
    /// `#[idempotent(detached)]` and [`run_detached`](Self::run_detached) do this for the body of one call. This method
    /// is for a future with several calls, or with transactional ones.
    ///
    /// - The future must be `Send + 'static`, because it may outlive its caller: move what it uses into it.
    /// - A panic of the future continues in the caller, if there still is one.
    /// - The task has the tracing span and subscriber of the caller, and the handle of
    ///   [`with_default`](Self::with_default). Other task-local values are those of no task: read them before, and move
    ///   them in.
    /// - At the shutdown of the runtime the task is dropped at its next await, which counts as a crash.
    ///   [`drain`](Self::drain) waits for it.
    ///
    /// # Errors
    /// The future's error; [`Error::NoRuntime`] outside of a tokio runtime; [`Error::LeaseLost`] if the runtime was shut
    /// down before the future ended.
    ///
    /// # Cancel safety
    /// The future runs to its end, whenever the caller is dropped. A caller that is dropped before its first poll has
    /// started nothing.
    ///
    /// # Example
    /// ```
    /// use idem_runtime::{Error, Idem, Key, MemoryStore, idempotent};
    ///
    /// #[idempotent(key = key, ttl = "24h", name = "orders.place", store = idem)]
    /// async fn place(idem: &Idem, key: &Key, cents: u64) -> Result<u64, Error> {
    ///     Ok(cents)
    /// }
    ///
    /// #[idempotent(key = key, ttl = "24h", name = "orders.bill", store = idem)]
    /// async fn bill(idem: &Idem, key: &Key, cents: u64) -> Result<u64, Error> {
    ///     Ok(cents)
    /// }
    ///
    /// async fn handler(idem: Idem, key: Key) -> Result<u64, Error> {
    ///     let calls = idem.clone();
    ///     idem.detach(async move {
    ///         let cents = place(&calls, &key, 500).await?;
    ///         bill(&calls, &key, cents).await
    ///     })
    ///     .await
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Error> {
    /// # let idem = Idem::new(MemoryStore::new()).erased();
    /// # assert_eq!(handler(idem, Key::generate()).await?, 500);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn detach<T, E>(
        &self,
        future: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let runtime = Runtime::try_current().map_err(|_| Error::NoRuntime)?;
        match run_in_a_task(&self.engine().detached, &runtime, future).await {
            Ok(result) => result,
            Err(ShutDown) => Err(Error::LeaseLost.into()),
        }
    }

    /// Waits until no detached body and no detached future is running, and no handler behind an `IdempotencyLayer`. All
    /// of them may outlive their callers, so await this before the runtime is shut down. The shutdown drops what still
    /// runs, as a crash would.
    ///
    /// New calls are still accepted, so stop the server first. To wait for a limited time, use `tokio::time::timeout`:
    /// [`detached_tasks`](Self::detached_tasks) is then the number of those that remain.
    ///
    /// Clones of a handle share the count.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// ```no_run
    /// # use idem_runtime::Idem;
    /// # async fn serve(idem: Idem, server: impl Future<Output = ()>) {
    /// server.await; // returns after its graceful shutdown
    /// idem.drain().await;
    /// # }
    /// ```
    pub async fn drain(&self) {
        self.engine().detached.finished().await;
    }

    /// Number of the tasks that [`drain`](Self::drain) waits for.
    pub fn detached_tasks(&self) -> usize {
        self.engine().detached.running()
    }

    /// Counts a task that this module has not started.
    #[cfg(feature = "http")]
    pub(crate) fn count_detached(&self) -> DetachedTask {
        self.engine().detached.begin()
    }
}
