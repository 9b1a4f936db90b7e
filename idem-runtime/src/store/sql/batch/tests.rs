//! The batcher with executors that follow a script.

use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::future::join_all;
use futures_util::poll;
use tokio::runtime::{Builder, Handle};
use tokio::task::JoinSet;

use super::*;

impl From<Unanswered> for () {
    fn from(_: Unanswered) {}
}

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

/// Two runtimes share a batcher, and one of them stands still with the task that flushes the queue, and with one slot or
/// with all of them.
#[test]
fn a_runtime_that_stands_still_holds_up_no_other() {
    for held in [1, 2] {
        let (squares, batcher) = (Squares::default(), with_slots(2, Some(MAX_SLOT_WAIT)));
        let still = Builder::new_current_thread().enable_all().build().unwrap();
        let slots = still.block_on(async {
            let slots = batcher.slots().acquire_many_owned(held);
            let slots = slots.await.unwrap();
            let first = squares.square(&batcher, 2);
            assert!(poll!(pin!(first)).is_pending(), "its task is spawned here");
            slots
        });
        let mut paused = Builder::new_current_thread();
        let other = paused.enable_all().start_paused(true).build().unwrap();
        other.block_on(async {
            // The batcher reads the clock of the runtime that polls it.
            batcher.queue().progress = Instant::now();
            let begun = Instant::now();
            assert_eq!(squares.square(&batcher, 4).await, 16);
            assert!(begun.elapsed() < 3 * STALLED, "{:?}", begun.elapsed());
            let begun = Instant::now();
            assert_eq!(squares.square(&batcher, 6).await, 36);
            assert!(begun.elapsed() < STALLED, "{:?}", begun.elapsed());
        });
        drop(slots);
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
    let taken = batcher.slots().acquire_owned().await.unwrap();
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
    assert_eq!(batcher.slots().available_permits(), 1);
    assert!(!batcher.queue().is_flushing);
}

#[tokio::test]
async fn one_task_serves_all_requests_of_a_queue() {
    let (squares, batcher) = (Squares::default(), with_slots(1, None));
    let taken = batcher.slots().acquire_owned().await.unwrap();
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
    let taken = batcher.slots().acquire_owned().await.unwrap();
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
    let taken = batcher.slots().acquire_owned().await.unwrap();
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
    let taken = batcher.slots().try_acquire_owned().unwrap();
    runtime().block_on(async {
        let (squares, other) = (squares.clone(), batcher.clone());
        tokio::spawn(async move { squares.square(&other, 2).await });
        until_queued(&batcher, 1).await;
        // The flushing task waits for the slot, and is dropped with its runtime.
        yield_now().await;
    });
    drop(taken);
    assert_eq!(runtime().block_on(squares.square(&batcher, 4)), 16);
    let taken = batcher.slots().try_acquire_owned().unwrap();
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

/// Runs batches that get no answer.
#[derive(Clone)]
struct Silent;

impl BatchExecutor for Silent {
    type Pending = ((), oneshot::Sender<()>);

    async fn run(&self, _batch: Vec<Self::Pending>) {
        pending::<()>().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_without_an_answer_fails_its_requests_and_frees_its_slot() {
    let batcher = Batcher::new(Arc::new(Semaphore::new(1)), Some(MAX_SLOT_WAIT));
    let taken = batcher.slots().acquire_owned().await.unwrap();
    let begun = Instant::now();
    let requests = (0..3).map(|_| {
        let single = || async { panic!("the request may have taken effect") };
        batcher.submit(|| Silent, |sender| ((), sender), single)
    });
    let requests = join_all(requests);
    let queued = async {
        while batcher.queue().pending.len() < 3 {
            yield_now().await;
        }
        drop(taken);
    };
    let (answers, ()) = tokio::join!(requests, queued);
    assert_eq!(answers, [Err(()); 3]);
    let took = begun.elapsed();
    assert!(took >= UNANSWERED && took < 2 * UNANSWERED, "{took:?}");
    assert_eq!(batcher.slots().available_permits(), 1);
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
