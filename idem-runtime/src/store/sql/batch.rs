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
/// Largest number of requests in a batch.
const MAX_BATCH: usize = 128;
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

/// A request that waits, with the sender of its response.
pub(in crate::store) trait Pending: Send + 'static {
    /// Returns true if the caller has left, and nobody receives the response.
    fn is_abandoned(&self) -> bool;
}

impl<S: Send + 'static, A: Send + 'static> Pending for (S, oneshot::Sender<A>) {
    fn is_abandoned(&self) -> bool {
        self.1.is_closed()
    }
}

/// Batches the requests of an executor. Cloning is cheap and shares the slots and the queue.
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
    /// Requests, and the times of their arrival.
    pending: Vec<(Instant, T::Pending)>,
    /// True while a task is flushing the queue.
    is_flushing: bool,
    flushers: Flushers,
    /// Duration of the last batch.
    last_took: Duration,
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
            slots,
            max_slot_wait,
            overdue: Arc::default(),
            queue: Arc::new(Mutex::new(Queue {
                pending: Vec::new(),
                is_flushing: false,
                flushers: Flushers::new(slot_count),
                last_took: Duration::ZERO,
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
        F: Future<Output = Result<A, E>>,
    {
        if self.slots.available_permits() == self.slot_count
            && let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned()
        {
            sink::batch(1);
            return self.run_in_slot(slot, Box::pin(run_single())).await;
        }
        let (sender, response) = oneshot::channel();
        if self.enqueue(request(sender)) {
            tokio::spawn(self.clone().flush(executor()));
        }
        if let Ok(response) = response.await {
            return Ok(response);
        }
        match self.acquire_slot(1).await {
            Some(slot) => self.run_in_slot(slot, Box::pin(run_single())).await,
            None => Box::pin(run_single()).await,
        }
    }

    /// Waits until this number of slots is free, and takes one of them. Always returns one, because the semaphore is
    /// never closed.
    async fn acquire_slot(&self, free: u32) -> Option<OwnedSemaphorePermit> {
        let mut slots = pin!(Arc::clone(&self.slots).acquire_many_owned(free));
        let Some(max_slot_wait) = self.max_slot_wait else {
            return slots.await.ok()?.split(1);
        };
        loop {
            match timeout(max_slot_wait, &mut slots).await {
                Ok(slots) => return slots.ok()?.split(1),
                Err(_) => self.overdue.notify_waiters(),
            }
        }
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
        let len = queue.pending.len().min(MAX_BATCH);
        let (arrivals, requests) = queue.pending.drain(..len).unzip();
        Some(Batch {
            requests,
            arrivals,
            started: Instant::now(),
            flushers: queue.flushers.current(),
        })
    }

    /// Runs a batch in a slot, and notes how long its requests took. The time of a batch that waited for a lock says
    /// nothing about the number of flushers.
    async fn run(&self, executor: &T, batch: Batch<T::Pending>, slot: OwnedSemaphorePermit) {
        let work = Box::pin(executor.run(batch.requests));
        match select(work, pin!(self.overdue.notified())).await {
            Either::Left(((), _)) => {
                let now = Instant::now();
                let times = batch.arrivals.iter().map(|arrival| now - *arrival);
                let total = times.sum();
                let mut queue = self.queue();
                let requests = batch.arrivals.len();
                queue.flushers.note(batch.flushers, requests, total);
                queue.last_took = now - batch.started;
            }
            Either::Right(((), work)) => {
                drop(slot);
                work.await;
            }
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
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures_util::poll;
    use tokio::runtime::{Builder, Handle};
    use tokio::task::JoinSet;

    use super::*;

    /// Squares numbers in batches, records the batches, and sends no response for odd numbers.
    #[derive(Clone, Default)]
    struct Squares(Arc<Mutex<Vec<Vec<u32>>>>);

    impl BatchExecutor for Squares {
        type Pending = (u32, oneshot::Sender<u32>);

        async fn run(&self, batch: Vec<Self::Pending>) {
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
            batcher
                .submit(executor, |sender| (number, sender), single)
                .await
                .unwrap()
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

    /// Counts the batches of one executor, and reports each count. A clone begins anew, as one without a connection.
    #[derive(Default)]
    struct Counting {
        ran: AtomicU32,
        counts: Arc<Mutex<Vec<u32>>>,
    }

    impl Clone for Counting {
        fn clone(&self) -> Self {
            Self {
                ran: AtomicU32::default(),
                counts: Arc::clone(&self.counts),
            }
        }
    }

    impl BatchExecutor for Counting {
        type Pending = ((), oneshot::Sender<()>);

        async fn run(&self, batch: Vec<Self::Pending>) {
            let count = self.ran.fetch_add(1, Ordering::Relaxed) + 1;
            self.counts.lock().unwrap().push(count);
            for ((), sender) in batch {
                let _ = sender.send(());
            }
        }
    }

    /// The store keeps the connection of a batch in its executor.
    #[tokio::test]
    async fn one_flusher_keeps_its_executor_for_the_next_batch() {
        let executor = Counting::default();
        let batcher = Batcher::new(Arc::new(Semaphore::new(1)), None);
        let taken = Arc::clone(&batcher.slots).acquire_owned().await.unwrap();
        let mut asking = JoinSet::new();
        for _ in 0..=MAX_BATCH {
            let (executor, batcher) = (executor.clone(), batcher.clone());
            asking.spawn(async move {
                let single = || async { Ok::<_, ()>(()) };
                batcher
                    .submit(|| executor, |sender| ((), sender), single)
                    .await
            });
        }
        while batcher.queue().pending.len() <= MAX_BATCH {
            yield_now().await;
        }
        drop(taken);
        assert!(asking.join_all().await.iter().all(Result::is_ok));
        assert_eq!(*executor.counts.lock().unwrap(), [1, 2]);
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
            |sender| (0, sender),
            || async { ended.await.map_err(drop) },
        );
        let squares = Squares::default();
        let other = async {
            let begun = Instant::now();
            assert_eq!(squares.square(&batcher, 2).await, 4);
            assert!(begun.elapsed() <= MAX_SLOT_WAIT + Duration::from_millis(1));
            end.send(9).unwrap();
        };
        let (stuck, ()) = tokio::join!(stuck, other);
        assert_eq!(stuck, Ok(9));
        assert_eq!(squares.batches(), [[2]]);
    }

    /// Number of yields while a batch gathers, with work between them.
    async fn yields(batcher: &Batcher<Squares>, mut between: impl AsyncFnMut(u32)) -> u32 {
        let (mut gathering, mut yields) = (pin!(batcher.gather()), 0);
        while poll!(gathering.as_mut()).is_pending() {
            yields += 1;
            between(yields).await;
        }
        yields
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_gathers_while_requests_join_it() {
        let batcher = with_slots(1, None);
        let join = |count| {
            let requests = (0..count).map(|_| (Instant::now(), (0, oneshot::channel().0)));
            batcher.queue().pending.extend(requests);
        };
        join(1);
        assert_eq!(yields(&batcher, async |_| {}).await, MIN_YIELDS);
        let joined_at_third = yields(&batcher, async |count| join(usize::from(count == 3)));
        assert_eq!(joined_at_third.await, 3 + MIN_YIELDS);

        // For a twentieth of the last batch's time, and for a bounded number of yields if the time stands still.
        batcher.queue().last_took = Duration::from_millis(100);
        let millisecond = async |_| tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(yields(&batcher, millisecond).await, 5);
        assert_eq!(yields(&batcher, async |_| {}).await, MAX_YIELDS);

        let gathered = batcher.queue().pending.len();
        join(MAX_BATCH - gathered);
        assert_eq!(yields(&batcher, async |_| {}).await, 0);
    }

    /// Flushes of 20 ms, of which only a number can run concurrently.
    #[derive(Clone)]
    struct Flushes(Arc<Semaphore>);

    impl Flushes {
        async fn flush(&self) {
            let _turn = self.0.acquire().await.unwrap();
            sleep(Duration::from_millis(20)).await;
        }
    }

    impl BatchExecutor for Flushes {
        type Pending = ((), oneshot::Sender<()>);

        async fn run(&self, batch: Vec<Self::Pending>) {
            self.flush().await;
            for ((), sender) in batch {
                let _ = sender.send(());
            }
        }
    }

    /// Runs the requests of 16 callers that arrive at different times, and returns the numbers of flushers.
    async fn numbers_of_flushers(concurrent_flushes: usize) -> Vec<u32> {
        let batcher = Batcher::new(Arc::new(Semaphore::new(4)), None);
        let flushes = Flushes(Arc::new(Semaphore::new(concurrent_flushes)));
        let mut callers = JoinSet::new();
        for caller in 0..16 {
            let (batcher, flushes) = (batcher.clone(), flushes.clone());
            callers.spawn(async move {
                let mut numbers = Vec::new();
                for call in 0..1000 {
                    sleep(Duration::from_millis((7 * caller + call) % 23)).await;
                    let single = || async {
                        flushes.flush().await;
                        Ok::<_, ()>(())
                    };
                    let executor = || flushes.clone();
                    let request = |sender| ((), sender);
                    batcher.submit(executor, request, single).await.unwrap();
                    numbers.push(batcher.queue().flushers.current());
                }
                numbers
            });
        }
        callers.join_all().await.concat()
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_flushers_follows_the_disk() {
        let share_of_one = async |concurrent_flushes| {
            let numbers = numbers_of_flushers(concurrent_flushes).await;
            let ones = numbers.iter().filter(|number| **number == 1).count();
            ones as f64 / numbers.len() as f64
        };
        // Flushes that follow each other do not end earlier if more of them wait.
        assert!(share_of_one(1).await > 0.8);
        assert!(share_of_one(4).await < 0.4);
    }
}
