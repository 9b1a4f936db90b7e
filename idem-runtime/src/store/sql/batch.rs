//! Group commit: requests that arrive while others are in flight run as one statement, or with one commit.
//!
//! If nothing is in flight, a request runs immediately on its own. Otherwise the request waits for a free slot, and then
//! runs together with all requests that arrived while it waited, and with those that arrive while the callers of the last
//! batch return. No timer is involved. The more requests arrive concurrently, the less each of them costs.
//! `flushers.rs` chooses the number of slots.

#[cfg(any(feature = "postgres", feature = "mysql"))]
mod servers;

use std::fmt;
use std::future::pending;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::sync::oneshot;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

use super::flushers::Flushers;
use crate::error::{StoreError, StoreErrorKind};
use crate::metrics::sink;
use crate::mutex::lock;

#[cfg(feature = "postgres")]
pub(in crate::store) use servers::is_large;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(in crate::store) use servers::{Completion, one_per_record};

/// Largest number of batches that run concurrently.
const MAX_IN_FLIGHT: usize = 4;
/// Longest time that requests wait for a slot whose statement does not end.
const MAX_SLOT_WAIT: Duration = Duration::from_millis(5);
/// Time without any progress after which a queued request no longer relies on others. The task that flushes the queue, or the
/// holder of a slot, may be in a runtime that is blocked or that nobody polls. A request of a batch that has begun there is
/// repeated by its caller, after the time limit of a store call.
const STALLED: Duration = Duration::from_secs(1);
/// Longest time for which a batch waits for its answer. It waits for no lock, so that a server that takes longer is most likely
/// at the end of a connection that is dead.
const UNANSWERED: Duration = Duration::from_secs(4);
/// Largest number of requests in a batch.
pub(in crate::store) const MAX_BATCH: usize = 128;
/// Number of yields before a batch starts, so that ready tasks can join it.
const MIN_YIELDS: u32 = 4;
/// Largest number of yields for each request that joins.
const MAX_YIELDS: u32 = 64;
/// A batch starts when nobody has joined it for the duration of the last batch divided by this number.
const GATHERING_SHARE: u32 = 20;

/// Runs requests as a batch.
pub(in crate::store) trait BatchExecutor: Clone + Send + Sync + 'static {
    type Pending: Pending;

    /// Runs a batch. Requests that get no response are run again individually, so each request may run twice.
    fn run(&self, batch: Vec<Self::Pending>) -> impl Future<Output = ()> + Send;
}

/// Error of a request whose batch got no answer. It may have taken effect.
pub(in crate::store) struct Unanswered;

impl From<Unanswered> for StoreError {
    fn from(_: Unanswered) -> Self {
        Self::new(
            StoreErrorKind::Timeout,
            format!("the database gave no answer within {UNANSWERED:?}, try again"),
        )
    }
}

/// A request that waits, with the sender of its response.
pub(in crate::store) trait Pending: Send + 'static {
    /// Returns true if the caller has left, and nobody receives the response.
    fn is_abandoned(&self) -> bool;

    /// Returns true if the request is of a call that runs. Such requests go first: the work is done, or a lease depends
    /// on it.
    fn has_begun(&self) -> bool {
        false
    }
}

impl<S: Send + 'static, A: Send + 'static> Pending for (S, oneshot::Sender<A>) {
    fn is_abandoned(&self) -> bool {
        self.1.is_closed()
    }
}

/// Batches the requests of an executor. Cloning is cheap and shares the slots and the queue.
pub(in crate::store) struct Batcher<T: BatchExecutor> {
    /// Replaced if all of them are held by tasks that stand still.
    slots: Arc<Mutex<Arc<Semaphore>>>,
    slot_count: usize,
    /// Longest wait for a slot, so that a statement that waits for a lock does not block all other requests. After that
    /// time, all holders of a slot are notified to release it.
    max_slot_wait: Option<Duration>,
    overdue: Arc<Notify>,
    queue: Arc<Mutex<Queue<T>>>,
}

struct Queue<T: BatchExecutor> {
    /// Requests, and the times of their arrival.
    pending: Vec<(Instant, T::Pending)>,
    /// True while a task is flushing the queue.
    is_flushing: bool,
    flushers: Flushers,
    /// Duration of the last batch.
    last_took: Duration,
    /// Time at which the last batch began, or ended in its slot.
    progress: Instant,
    /// Time at which a caller last took over from a task that stood still.
    taken_over: Option<Instant>,
}

/// Requests that run as one batch.
struct Batch<P> {
    requests: Vec<P>,
    arrivals: Vec<Instant>,
    started: Instant,
    /// Number of flushers when the batch started.
    flushers: u32,
}

impl<T: BatchExecutor> Batcher<T> {
    pub(in crate::store) fn new(slots: Arc<Semaphore>, max_slot_wait: Option<Duration>) -> Self {
        let slot_count = slots.available_permits();
        Self {
            slot_count,
            slots: Arc::new(Mutex::new(slots)),
            max_slot_wait,
            overdue: Arc::default(),
            queue: Arc::new(Mutex::new(Queue {
                pending: Vec::new(),
                is_flushing: false,
                flushers: Flushers::new(slot_count),
                last_took: Duration::ZERO,
                progress: Instant::now(),
                taken_over: None,
            })),
        }
    }

    /// Creates a batcher for statements that run concurrently.
    pub(in crate::store) fn for_statements() -> Self {
        Self::new(Arc::new(Semaphore::new(MAX_IN_FLIGHT)), Some(MAX_SLOT_WAIT))
    }

    /// Runs a request: immediately if nothing else is in flight, otherwise in a batch.
    ///
    /// The future of a request that runs on its own is boxed when it is needed. It is several kilobytes large, and each
    /// of its three uses would otherwise have its place in the future of every request, which is moved and allocated.
    ///
    /// # Cancel safety
    /// If the future is dropped, the request has run or not. The batch that contains it runs to its end.
    pub(in crate::store) async fn submit<A, E, F>(
        &self,
        executor: impl FnOnce() -> T,
        request: impl FnOnce(oneshot::Sender<A>) -> T::Pending,
        run_single: impl FnOnce() -> F,
    ) -> Result<A, E>
    where
        E: From<Unanswered>,
        F: Future<Output = Result<A, E>>,
    {
        let slots = self.slots();
        if slots.available_permits() == self.slot_count
            && let Ok(slot) = slots.try_acquire_owned()
        {
            sink::batch(1);
            return self.run_in_slot(slot, Box::pin(run_single())).await;
        }
        let (sender, response) = oneshot::channel();
        let begun = Instant::now();
        let mut executor = Some(executor);
        if self.enqueue(request(sender))
            && let Some(executor) = executor.take()
        {
            tokio::spawn(self.clone().flush(executor()));
        }
        let mut response = pin!(response);
        loop {
            match self.within_a_stall(&mut response).await {
                Some(Ok(response)) => return Ok(response),
                // Its caller may have left, or repeats it.
                Some(Err(_)) if self.is_limited() && begun.elapsed() >= UNANSWERED => {
                    return Err(Unanswered.into());
                }
                Some(Err(_)) => break,
                // Takes over from the task that flushes the queue. If that one goes on later, both do.
                None if self.takes_over() => {
                    if let Some(executor) = executor.take() {
                        tokio::spawn(self.clone().flush(executor()));
                    }
                }
                None => {}
            }
        }
        match self.acquire_slot(1).await {
            Some(slot) => self.run_in_slot(slot, Box::pin(run_single())).await,
            None => Box::pin(run_single()).await,
        }
    }

    /// Waits for a response, for as long as a stall takes to notice. The only slot of a database with one writer is its
    /// turn to write: there nothing can be taken over.
    async fn within_a_stall<F: Future>(&self, response: F) -> Option<F::Output> {
        match self.max_slot_wait {
            Some(_) => timeout(STALLED, response).await.ok(),
            None => Some(response.await),
        }
    }

    /// Waits until this number of slots is free, and takes one of them. If the slots are held by tasks that stand still, new
    /// ones take their place. Always returns one, because the semaphores are never closed.
    async fn acquire_slot(&self, free: u32) -> Option<OwnedSemaphorePermit> {
        loop {
            let slots = self.slots();
            let mut acquiring = pin!(Arc::clone(&slots).acquire_many_owned(free));
            let Some(max_slot_wait) = self.max_slot_wait else {
                return acquiring.await.ok()?.split(1);
            };
            let begun = Instant::now();
            while begun.elapsed() < STALLED || !self.is_stalled() {
                match timeout(max_slot_wait, &mut acquiring).await {
                    Ok(slots) => return slots.ok()?.split(1),
                    Err(_) => self.overdue.notify_waiters(),
                }
            }
            let mut current = lock(&self.slots);
            if Arc::ptr_eq(&current, &slots) {
                *current = Arc::new(Semaphore::new(self.slot_count));
            }
        }
    }

    fn slots(&self) -> Arc<Semaphore> {
        Arc::clone(&lock(&self.slots))
    }

    /// Returns true if the caller is to flush the queue in the place of a task that stands still: one caller a stall.
    fn takes_over(&self) -> bool {
        let mut queue = self.queue();
        let now = Instant::now();
        let is_new = |at| now.duration_since(at) >= 2 * STALLED;
        let takes_over =
            now.duration_since(queue.progress) >= STALLED && queue.taken_over.is_none_or(is_new);
        if takes_over {
            queue.taken_over = Some(now);
        }
        takes_over
    }

    /// Returns true if no batch has begun or ended lately.
    fn is_stalled(&self) -> bool {
        self.queue().progress.elapsed() >= STALLED
    }

    /// Adds a request to the queue. Returns true if the caller has to start a task that flushes the queue.
    fn enqueue(&self, request: T::Pending) -> bool {
        let arrival = Instant::now();
        let mut queue = self.queue();
        queue.pending.push((arrival, request));
        !std::mem::replace(&mut queue.is_flushing, true)
    }

    /// Runs batches until the queue is empty.
    async fn flush(self, mut executor: T) {
        let guard = FlushGuard(&self);
        loop {
            let free = self.queue().flushers.permits();
            let Some(slot) = self.acquire_slot(free).await else {
                return;
            };
            self.gather().await;
            let Some(batch) = self.next_batch() else {
                std::mem::forget(guard);
                return;
            };
            if batch.requests.is_empty() {
                continue;
            }
            sink::batch(batch.requests.len());
            if batch.flushers > 1 {
                tokio::spawn(self.clone().run_and_return(executor.clone(), batch, slot));
                continue;
            }
            // One flusher: this task would only wait for another one. It keeps its executor for the next batch.
            let next = executor.clone();
            let work = Box::pin(self.clone().run_and_return(executor, batch, slot));
            executor = match select(work, pin!(self.patience())).await {
                Either::Left((executor, _)) => executor,
                Either::Right(((), work)) => {
                    self.overdue.notify_waiters();
                    tokio::spawn(work);
                    next
                }
            };
        }
    }

    /// Longest time for which the flushing task waits for its batch.
    async fn patience(&self) {
        match self.max_slot_wait {
            Some(max_slot_wait) => sleep(max_slot_wait).await,
            None => pending().await,
        }
    }

    /// Runs a batch, and returns the executor.
    async fn run_and_return(
        self,
        executor: T,
        batch: Batch<T::Pending>,
        slot: OwnedSemaphorePermit,
    ) -> T {
        self.run(&executor, batch, slot).await;
        executor
    }

    /// Yields while requests join the next batch. The callers that the last batch has answered are about to make their
    /// next requests: if the batch started without them, each of two halves would wait for the other one.
    async fn gather(&self) {
        let (mut waiting, last_took) = {
            let queue = self.queue();
            (queue.pending.len(), queue.last_took)
        };
        let (mut since, mut yields) = (Instant::now(), 0);
        while waiting < MAX_BATCH && yields < MAX_YIELDS {
            yield_now().await;
            yields += 1;
            let joined = self.queue().pending.len();
            if joined != waiting {
                (waiting, since, yields) = (joined, Instant::now(), 0);
            } else if yields >= MIN_YIELDS && since.elapsed() >= last_took / GATHERING_SHARE {
                return;
            }
        }
    }

    /// Takes the requests of the next batch. Returns `None` if none waits: flushing has then ended.
    fn next_batch(&self) -> Option<Batch<T::Pending>> {
        let mut queue = self.queue();
        if queue.pending.is_empty() {
            queue.is_flushing = false;
            return None;
        }
        // A request whose caller is gone does not run: its claim would have to be released.
        queue.pending.retain(|(_, request)| !request.is_abandoned());
        if queue.pending.len() > MAX_BATCH {
            queue
                .pending
                .sort_by_key(|(_, request)| !request.has_begun());
        }
        let len = queue.pending.len().min(MAX_BATCH);
        let (arrivals, requests) = queue.pending.drain(..len).unzip();
        queue.progress = Instant::now();
        Some(Batch {
            requests,
            arrivals,
            started: queue.progress,
            flushers: queue.flushers.current(),
        })
    }

    /// Runs a batch in a slot, and notes how long its requests took. The time of a batch that waited for a lock says
    /// nothing about the number of flushers.
    async fn run(&self, executor: &T, batch: Batch<T::Pending>, slot: OwnedSemaphorePermit) {
        // Without an answer, the requests are dropped with their senders.
        let work = Box::pin(self.within_limit(executor.run(batch.requests)));
        match select(work, pin!(self.overdue.notified())).await {
            Either::Left(((), _)) => {
                let now = Instant::now();
                let times = batch.arrivals.iter().map(|arrival| now - *arrival);
                let total = times.sum();
                let mut queue = self.queue();
                let requests = batch.arrivals.len();
                queue.flushers.note(batch.flushers, requests, total);
                queue.last_took = now - batch.started;
                queue.progress = now;
            }
            Either::Right(((), work)) => {
                drop(slot);
                work.await;
            }
        }
    }

    /// Drives a batch for as long as its answer may take.
    async fn within_limit(&self, batch: impl Future<Output = ()>) {
        match self.is_limited() {
            // The requests get their error by their closed channels.
            true => {
                let _ = timeout(UNANSWERED, batch).await;
            }
            false => batch.await,
        }
    }

    /// Returns true if the database may stay silent. One with one writer is a file.
    fn is_limited(&self) -> bool {
        self.max_slot_wait.is_some()
    }

    /// Runs work in a slot, and releases the slot early if other requests have waited too long for one.
    async fn run_in_slot<A>(
        &self,
        slot: OwnedSemaphorePermit,
        work: Pin<Box<impl Future<Output = A>>>,
    ) -> A {
        match select(work, pin!(self.overdue.notified())).await {
            Either::Left((done, _)) => done,
            Either::Right(((), work)) => {
                drop(slot);
                work.await
            }
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        lock(&self.queue)
    }
}

impl<T: BatchExecutor> Clone for Batcher<T> {
    fn clone(&self) -> Self {
        Self {
            slots: Arc::clone(&self.slots),
            slot_count: self.slot_count,
            max_slot_wait: self.max_slot_wait,
            overdue: Arc::clone(&self.overdue),
            queue: Arc::clone(&self.queue),
        }
    }
}

impl<T: BatchExecutor> fmt::Debug for Batcher<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher")
            .field("slots", &self.slots().available_permits())
            .finish_non_exhaustive()
    }
}

/// Guard that empties the queue if the flushing task ends early because its runtime shuts down. The callers then run
/// their requests individually, and the next queued request starts another task.
struct FlushGuard<'a, T: BatchExecutor>(&'a Batcher<T>);

impl<T: BatchExecutor> Drop for FlushGuard<'_, T> {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.is_flushing = false;
        queue.pending.clear();
    }
}

// The path is given, because the simulation of `tests/sim` compiles this file from elsewhere.
#[cfg(test)]
#[path = "batch/tests.rs"]
mod tests;
