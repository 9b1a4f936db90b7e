//! Steps that are asked for while others are under way run together: one statement for all of them, or one commit.
//!
//! Nobody waits for company, and there is no timer: whoever finds nothing under way runs alone, as if there were no
//! batches. The others run together as soon as a slot is free, with all that was asked for in the same moment. So the more
//! is asked for at once, the less each of it costs.

#[cfg(any(feature = "postgres", feature = "mysql"))]
mod servers;

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::sync::oneshot;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::yield_now;
use tokio::time::timeout;

#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(in crate::store) use servers::once_each;

/// How many statements of a kind are under way before others wait to be run together.
const AT_ONCE: usize = 2;
/// How long others wait at most because of a statement that does not end.
const HELD_UP: Duration = Duration::from_millis(5);
/// How many steps run together at most.
const LIMIT: usize = 128;
/// How often the tasks that are ready to run are let go first, before what was asked for is run.
const MOMENTS: usize = 4;

/// How steps of a kind run together.
pub(in crate::store) trait Together: Clone + Send + Sync + 'static {
    /// What is asked for.
    type Step: Send + 'static;
    /// What comes of it.
    type Answer: Send + 'static;

    /// Runs steps together. Those that it does not answer run again alone, so each of them may be taken twice.
    fn run(&self, steps: Vec<Asked<Self>>) -> impl Future<Output = ()> + Send;
}

/// A step, and where its answer goes. Whoever asked may have gone away.
pub(in crate::store) type Asked<T> = (
    <T as Together>::Step,
    oneshot::Sender<<T as Together>::Answer>,
);

/// The steps of one kind. Cloning is cheap and shares the slots and those who wait.
pub(in crate::store) struct Batches<T: Together> {
    slots: Arc<Semaphore>,
    count: usize,
    /// How long a slot is waited for that is taken by what does not end: a statement that waits for a lock must not keep
    /// all others out. Whoever has waited that long tells all that hold one to give it back.
    patience: Option<Duration>,
    overdue: Arc<Notify>,
    waiting: Arc<Mutex<Waiting<T>>>,
}

struct Waiting<T: Together> {
    steps: Vec<Asked<T>>,
    /// Whether a task is waiting for a slot on behalf of all of them.
    is_served: bool,
}

impl<T: Together> Batches<T> {
    pub(in crate::store) fn new(slots: Arc<Semaphore>, patience: Option<Duration>) -> Self {
        Self {
            count: slots.available_permits(),
            slots,
            patience,
            overdue: Arc::default(),
            waiting: Arc::new(Mutex::new(Waiting {
                steps: Vec::new(),
                is_served: false,
            })),
        }
    }

    /// For statements that run side by side.
    pub(in crate::store) fn of_statements() -> Self {
        Self::new(Arc::new(Semaphore::new(AT_ONCE)), Some(HELD_UP))
    }

    /// Takes a step: alone where nothing else is under way, else with others.
    ///
    /// Dropped, it has taken the step or not; what runs together goes on.
    pub(in crate::store) async fn take<E>(
        &self,
        together: impl FnOnce() -> T,
        step: impl FnOnce() -> T::Step,
        alone: impl Future<Output = Result<T::Answer, E>>,
    ) -> Result<T::Answer, E> {
        if self.slots.available_permits() == self.count
            && let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned()
        {
            return self.hold(slot, alone).await;
        }
        let (sender, answer) = oneshot::channel();
        if self.wait((step(), sender)) {
            tokio::spawn(self.clone().serve(together()));
        }
        if let Ok(answer) = answer.await {
            return Ok(answer);
        }
        match self.slot().await {
            Some(slot) => self.hold(slot, alone).await,
            None => alone.await,
        }
    }

    /// Waits for a slot. There is always one: they are never closed.
    async fn slot(&self) -> Option<OwnedSemaphorePermit> {
        let mut free = pin!(Arc::clone(&self.slots).acquire_owned());
        if let Some(patience) = self.patience {
            loop {
                match timeout(patience, &mut free).await {
                    Ok(slot) => return slot.ok(),
                    Err(_) => self.overdue.notify_waiters(),
                }
            }
        }
        free.await.ok()
    }

    /// Whether a task has to be started that serves those who wait.
    fn wait(&self, step: Asked<T>) -> bool {
        let mut waiting = self.waiting();
        waiting.steps.push(step);
        !std::mem::replace(&mut waiting.is_served, true)
    }

    /// Runs what waits, until nothing does.
    async fn serve(self, together: T) {
        let left = Left(&self);
        while let Some(slot) = self.slot().await {
            for _ in 0..MOMENTS {
                yield_now().await;
            }
            let steps = {
                let mut waiting = self.waiting();
                if waiting.steps.is_empty() {
                    waiting.is_served = false;
                    std::mem::forget(left);
                    return;
                }
                // What nobody waits for any more is not run: a claim of a caller that has gone would have to be given back.
                waiting.steps.retain(|(_, sender)| !sender.is_closed());
                let rest = waiting.steps.len().min(LIMIT);
                waiting.steps.drain(..rest).collect::<Vec<_>>()
            };
            if steps.is_empty() {
                continue;
            }
            let (batches, together) = (self.clone(), together.clone());
            tokio::spawn(async move { batches.hold(slot, together.run(steps)).await });
        }
    }

    /// Works in a slot, and gives it back before the end where others have waited too long.
    async fn hold<A>(&self, slot: OwnedSemaphorePermit, work: impl Future<Output = A>) -> A {
        match select(pin!(work), pin!(self.overdue.notified())).await {
            Either::Left((done, _)) => done,
            Either::Right(((), work)) => {
                drop(slot);
                work.await
            }
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Together> Clone for Batches<T> {
    fn clone(&self) -> Self {
        Self {
            slots: Arc::clone(&self.slots),
            count: self.count,
            patience: self.patience,
            overdue: Arc::clone(&self.overdue),
            waiting: Arc::clone(&self.waiting),
        }
    }
}

impl<T: Together> fmt::Debug for Batches<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batches")
            .field("slots", &self.slots.available_permits())
            .finish_non_exhaustive()
    }
}

/// Those whom a task leaves behind that ends early, as it does with its runtime: they run alone, and the next one who
/// waits starts another.
struct Left<'a, T: Together>(&'a Batches<T>);

impl<T: Together> Drop for Left<'_, T> {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting();
        waiting.is_served = false;
        waiting.steps.clear();
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;
    use tokio::task::JoinSet;

    use super::*;

    /// Squares numbers together, notes which, and leaves out the odd ones.
    #[derive(Clone, Default)]
    struct Squares(Arc<Mutex<Vec<Vec<u32>>>>);

    impl Together for Squares {
        type Step = u32;
        type Answer = u32;

        async fn run(&self, steps: Vec<Asked<Self>>) {
            let numbers = steps.iter().map(|(number, _)| *number).collect();
            self.0.lock().unwrap().push(numbers);
            yield_now().await;
            for (number, sender) in steps {
                if number % 2 == 0 {
                    let _ = sender.send(number * number);
                }
            }
        }
    }

    impl Squares {
        async fn square(&self, batches: &Batches<Self>, number: u32) -> u32 {
            let alone = async { Ok::<_, ()>(number * number) };
            let together = || self.clone();
            batches.take(together, || number, alone).await.unwrap()
        }

        fn batches(&self) -> Vec<Vec<u32>> {
            self.0.lock().unwrap().clone()
        }
    }

    fn slots(count: usize, patience: Option<Duration>) -> Batches<Squares> {
        Batches::new(Arc::new(Semaphore::new(count)), patience)
    }

    async fn until_waiting(batches: &Batches<Squares>, count: usize) {
        while batches.waiting().steps.len() < count {
            yield_now().await;
        }
    }

    #[tokio::test]
    async fn whoever_finds_nothing_under_way_runs_alone() {
        let (squares, batches) = (Squares::default(), slots(1, None));
        for number in 0..10 {
            assert_eq!(squares.square(&batches, number).await, number * number);
        }
        assert!(squares.batches().is_empty());
    }

    #[tokio::test]
    async fn whoever_finds_something_runs_with_the_others_and_alone_where_that_failed() {
        let (squares, batches) = (Squares::default(), slots(1, None));
        let taken = Arc::clone(&batches.slots).acquire_owned().await.unwrap();
        let mut asking = JoinSet::new();
        for number in 0..200 {
            let (squares, batches) = (squares.clone(), batches.clone());
            asking.spawn(async move { (number, squares.square(&batches, number).await) });
        }
        until_waiting(&batches, 200).await;
        drop(taken);
        for (number, square) in asking.join_all().await {
            assert_eq!(square, number * number);
        }
        let sizes: Vec<_> = squares.batches().iter().map(Vec::len).collect();
        assert_eq!(sizes, [LIMIT, 200 - LIMIT]);
        assert_eq!(batches.slots.available_permits(), 1);
        assert!(!batches.waiting().is_served);
    }

    #[tokio::test]
    async fn whoever_goes_away_keeps_nobody_waiting() {
        let (squares, batches) = (Squares::default(), slots(1, None));
        let taken = Arc::clone(&batches.slots).acquire_owned().await.unwrap();
        let mut asking = JoinSet::new();
        for number in [2, 4] {
            let (squares, batches) = (squares.clone(), batches.clone());
            asking.spawn(async move { squares.square(&batches, number).await });
        }
        until_waiting(&batches, 2).await;
        asking.abort_all();
        while asking.join_next().await.is_some() {}
        drop(taken);
        assert_eq!(squares.square(&batches, 6).await, 36);
        assert_eq!(squares.square(&batches, 8).await, 64);
        let ran = squares.batches().concat();
        assert!(
            !ran.contains(&2) && !ran.contains(&4),
            "nobody waits for these"
        );
    }

    #[test]
    fn a_runtime_that_ends_leaves_the_store_to_the_next() {
        let (squares, batches) = (Squares::default(), slots(1, None));
        let runtime = || Builder::new_current_thread().build().unwrap();
        let taken = Arc::clone(&batches.slots).try_acquire_owned().unwrap();
        runtime().block_on(async {
            let (squares, other) = (squares.clone(), batches.clone());
            tokio::spawn(async move { squares.square(&other, 2).await });
            until_waiting(&batches, 1).await;
            // The task that serves waits for the slot, and goes with its runtime.
            yield_now().await;
        });
        drop(taken);
        assert_eq!(runtime().block_on(squares.square(&batches, 4)), 16);
        let taken = Arc::clone(&batches.slots).try_acquire_owned().unwrap();
        let squared = runtime().block_on(async {
            let squared = squares.square(&batches, 6);
            let (squared, ()) = tokio::join!(squared, async {
                until_waiting(&batches, 1).await;
                drop(taken);
            });
            squared
        });
        assert_eq!(squared, 36);
        assert_eq!(squares.batches(), [[6]]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_end_gives_its_slot_back() {
        const PATIENCE: Duration = Duration::from_millis(5);
        let batches = slots(1, Some(PATIENCE));
        let (end, ended) = oneshot::channel::<u32>();
        let stuck = batches.take(Squares::default, || 0, async { ended.await.map_err(drop) });
        let squares = Squares::default();
        let other = async {
            let begun = tokio::time::Instant::now();
            assert_eq!(squares.square(&batches, 2).await, 4);
            assert!(begun.elapsed() <= PATIENCE + Duration::from_millis(1));
            end.send(9).unwrap();
        };
        let (stuck, ()) = tokio::join!(stuck, other);
        assert_eq!(stuck, Ok(9));
        assert_eq!(squares.batches(), [[2]]);
    }
}
