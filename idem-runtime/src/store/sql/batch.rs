//! Group commit: requests that arrive while others are in flight run as one statement, or with one commit.
//!
//! Batching adds no delay and no timer: if nothing is in flight, a request runs immediately on its own. Otherwise the
//! request waits for a free slot, and then runs together with all requests that arrived while it waited. The more
//! requests arrive concurrently, the less each of them costs.

#[cfg(any(feature = "postgres", feature = "mysql"))]
mod servers;

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::sync::oneshot;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::metrics::sink;
use crate::mutex::lock;

#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(in crate::store) use servers::one_per_record;

/// Number of concurrent statements of one kind. Requests beyond this number are batched.
const MAX_IN_FLIGHT: usize = 2;
/// Longest time that requests wait for a slot whose statement does not end.
const MAX_SLOT_WAIT: Duration = Duration::from_millis(5);
/// Largest number of requests in a batch.
const MAX_BATCH: usize = 128;
/// Number of yields before a batch is flushed, so that ready tasks can join it.
const YIELDS_BEFORE_FLUSH: usize = 4;

/// Runs requests of one kind as a batch.
pub(in crate::store) trait BatchExecutor: Clone + Send + Sync + 'static {
    type Request: Send + 'static;
    type Response: Send + 'static;

    /// Runs a batch. Requests that get no response are run again individually, so each request may run twice.
    fn run(&self, batch: Vec<Pending<Self>>) -> impl Future<Output = ()> + Send;
}

/// A request and the sender of its response. The receiver may be gone.
pub(in crate::store) type Pending<T> = (
    <T as BatchExecutor>::Request,
    oneshot::Sender<<T as BatchExecutor>::Response>,
);

/// Batches the requests of one kind. Cloning is cheap and shares the slots and the queue.
pub(in crate::store) struct Batcher<T: BatchExecutor> {
    slots: Arc<Semaphore>,
    slot_count: usize,
    /// Longest wait for a slot, so that a statement that waits for a lock does not block all other requests. After that
    /// time, all holders of a slot are notified to release it.
    max_slot_wait: Option<Duration>,
    overdue: Arc<Notify>,
    queue: Arc<Mutex<Queue<T>>>,
}

struct Queue<T: BatchExecutor> {
    pending: Vec<Pending<T>>,
    /// True while a task is flushing the queue.
    is_flushing: bool,
}

impl<T: BatchExecutor> Batcher<T> {
    pub(in crate::store) fn new(slots: Arc<Semaphore>, max_slot_wait: Option<Duration>) -> Self {
        Self {
            slot_count: slots.available_permits(),
            slots,
            max_slot_wait,
            overdue: Arc::default(),
            queue: Arc::new(Mutex::new(Queue {
                pending: Vec::new(),
                is_flushing: false,
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
    pub(in crate::store) async fn submit<E, F>(
        &self,
        executor: impl FnOnce() -> T,
        request: impl FnOnce() -> T::Request,
        run_single: impl FnOnce() -> F,
    ) -> Result<T::Response, E>
    where
        F: Future<Output = Result<T::Response, E>>,
    {
        if self.slots.available_permits() == self.slot_count
            && let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned()
        {
            sink::batch(1);
            return self.run_in_slot(slot, Box::pin(run_single())).await;
        }
        let (sender, response) = oneshot::channel();
        if self.enqueue((request(), sender)) {
            tokio::spawn(self.clone().flush(executor()));
        }
        if let Ok(response) = response.await {
            return Ok(response);
        }
        match self.acquire_slot().await {
            Some(slot) => self.run_in_slot(slot, Box::pin(run_single())).await,
            None => Box::pin(run_single()).await,
        }
    }

    /// Waits for a slot. Always returns one, because the semaphore is never closed.
    async fn acquire_slot(&self) -> Option<OwnedSemaphorePermit> {
        let mut free = pin!(Arc::clone(&self.slots).acquire_owned());
        if let Some(max_slot_wait) = self.max_slot_wait {
            loop {
                match timeout(max_slot_wait, &mut free).await {
                    Ok(slot) => return slot.ok(),
                    Err(_) => self.overdue.notify_waiters(),
                }
            }
        }
        free.await.ok()
    }

    /// Adds a request to the queue. Returns true if the caller has to start a task that flushes the queue.
    fn enqueue(&self, request: Pending<T>) -> bool {
        let mut queue = self.queue();
        queue.pending.push(request);
        !std::mem::replace(&mut queue.is_flushing, true)
    }

    /// Runs batches until the queue is empty.
    async fn flush(self, executor: T) {
        let guard = FlushGuard(&self);
        while let Some(slot) = self.acquire_slot().await {
            for _ in 0..YIELDS_BEFORE_FLUSH {
                yield_now().await;
            }
            let batch = {
                let mut queue = self.queue();
                if queue.pending.is_empty() {
                    queue.is_flushing = false;
                    std::mem::forget(guard);
                    return;
                }
                // A request whose caller is gone does not run: its claim would have to be released.
                queue.pending.retain(|(_, sender)| !sender.is_closed());
                let len = queue.pending.len().min(MAX_BATCH);
                queue.pending.drain(..len).collect::<Vec<_>>()
            };
            if batch.is_empty() {
                continue;
            }
            sink::batch(batch.len());
            let (batcher, executor) = (self.clone(), executor.clone());
            tokio::spawn(async move {
                let work = Box::pin(executor.run(batch));
                batcher.run_in_slot(slot, work).await;
            });
        }
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
            .field("slots", &self.slots.available_permits())
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

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, Handle};
    use tokio::task::JoinSet;

    use super::*;

    /// Squares numbers in batches, records the batches, and sends no response for odd numbers.
    #[derive(Clone, Default)]
    struct Squares(Arc<Mutex<Vec<Vec<u32>>>>);

    impl BatchExecutor for Squares {
        type Request = u32;
        type Response = u32;

        async fn run(&self, batch: Vec<Pending<Self>>) {
            let numbers = batch.iter().map(|(number, _)| *number).collect();
            self.0.lock().unwrap().push(numbers);
            yield_now().await;
            for (number, sender) in batch {
                if number % 2 == 0 {
                    let _ = sender.send(number * number);
                }
            }
        }
    }

    impl Squares {
        async fn square(&self, batcher: &Batcher<Self>, number: u32) -> u32 {
            let single = || async { Ok::<_, ()>(number * number) };
            let executor = || self.clone();
            batcher.submit(executor, || number, single).await.unwrap()
        }

        fn batches(&self) -> Vec<Vec<u32>> {
            self.0.lock().unwrap().clone()
        }
    }

    fn with_slots(count: usize, max_slot_wait: Option<Duration>) -> Batcher<Squares> {
        Batcher::new(Arc::new(Semaphore::new(count)), max_slot_wait)
    }

    async fn until_queued(batcher: &Batcher<Squares>, count: usize) {
        while batcher.queue().pending.len() < count {
            yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_request_that_finds_nothing_in_flight_runs_on_its_own() {
        let (squares, batcher) = (Squares::default(), with_slots(1, None));
        for number in 0..10 {
            assert_eq!(squares.square(&batcher, number).await, number * number);
        }
        assert!(squares.batches().is_empty());
    }

    #[tokio::test]
    async fn further_requests_run_in_batches_and_individually_where_that_failed() {
        let (squares, batcher) = (Squares::default(), with_slots(1, None));
        let taken = Arc::clone(&batcher.slots).acquire_owned().await.unwrap();
        let mut asking = JoinSet::new();
        for number in 0..200 {
            let (squares, batcher) = (squares.clone(), batcher.clone());
            asking.spawn(async move { (number, squares.square(&batcher, number).await) });
        }
        until_queued(&batcher, 200).await;
        drop(taken);
        for (number, square) in asking.join_all().await {
            assert_eq!(square, number * number);
        }
        let sizes: Vec<_> = squares.batches().iter().map(Vec::len).collect();
        assert_eq!(sizes, [MAX_BATCH, 200 - MAX_BATCH]);
        assert_eq!(batcher.slots.available_permits(), 1);
        assert!(!batcher.queue().is_flushing);
    }

    #[tokio::test]
    async fn one_task_serves_all_requests_of_a_queue() {
        let (squares, batcher) = (Squares::default(), with_slots(1, None));
        let taken = Arc::clone(&batcher.slots).acquire_owned().await.unwrap();
        let square = |number| squares.square(&batcher, number);
        let queued = async {
            until_queued(&batcher, 3).await;
            assert_eq!(Handle::current().metrics().num_alive_tasks(), 1);
            drop(taken);
        };
        let (two, four, six, ()) = tokio::join!(square(2), square(4), square(6), queued);
        assert_eq!([two, four, six], [4, 16, 36]);
        assert_eq!(squares.batches(), [[2, 4, 6]]);
    }

    #[tokio::test]
    async fn a_caller_that_is_gone_holds_up_no_other() {
        let (squares, batcher) = (Squares::default(), with_slots(1, None));
        let taken = Arc::clone(&batcher.slots).acquire_owned().await.unwrap();
        let mut asking = JoinSet::new();
        for number in [2, 4] {
            let (squares, batcher) = (squares.clone(), batcher.clone());
            asking.spawn(async move { squares.square(&batcher, number).await });
        }
        until_queued(&batcher, 2).await;
        asking.abort_all();
        while asking.join_next().await.is_some() {}
        drop(taken);
        assert_eq!(squares.square(&batcher, 6).await, 36);
        assert_eq!(squares.square(&batcher, 8).await, 64);
        let ran = squares.batches().concat();
        assert!(
            !ran.contains(&2) && !ran.contains(&4),
            "the callers of these are gone"
        );
    }

    #[test]
    fn a_runtime_that_ends_leaves_the_batcher_to_the_next() {
        let (squares, batcher) = (Squares::default(), with_slots(1, None));
        let runtime = || Builder::new_current_thread().build().unwrap();
        let taken = Arc::clone(&batcher.slots).try_acquire_owned().unwrap();
        runtime().block_on(async {
            let (squares, other) = (squares.clone(), batcher.clone());
            tokio::spawn(async move { squares.square(&other, 2).await });
            until_queued(&batcher, 1).await;
            // The flushing task waits for the slot, and is dropped with its runtime.
            yield_now().await;
        });
        drop(taken);
        assert_eq!(runtime().block_on(squares.square(&batcher, 4)), 16);
        let taken = Arc::clone(&batcher.slots).try_acquire_owned().unwrap();
        let squared = runtime().block_on(async {
            let squared = squares.square(&batcher, 6);
            let (squared, ()) = tokio::join!(squared, async {
                until_queued(&batcher, 1).await;
                drop(taken);
            });
            squared
        });
        assert_eq!(squared, 36);
        assert_eq!(squares.batches(), [[6]]);
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_does_not_end_gives_its_slot_back() {
        let batcher = with_slots(1, Some(MAX_SLOT_WAIT));
        let (end, ended) = oneshot::channel::<u32>();
        let stuck = batcher.submit(
            Squares::default,
            || 0,
            || async { ended.await.map_err(drop) },
        );
        let squares = Squares::default();
        let other = async {
            let begun = tokio::time::Instant::now();
            assert_eq!(squares.square(&batcher, 2).await, 4);
            assert!(begun.elapsed() <= MAX_SLOT_WAIT + Duration::from_millis(1));
            end.send(9).unwrap();
        };
        let (stuck, ()) = tokio::join!(stuck, other);
        assert_eq!(stuck, Ok(9));
        assert_eq!(squares.batches(), [[2]]);
    }
}
