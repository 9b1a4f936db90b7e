//! The worker under recoveries, relays and purgers: a background task that searches a store for work, runs what it
//! finds in further tasks, and stops when it is told to.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::error::Error;
use crate::random;
use crate::timing::{Backoff, Caught, DECADES, later};

// The path is given, because the simulation of `tests/sim` compiles this file from elsewhere.
#[cfg(test)]
#[path = "worker/tests.rs"]
mod tests;

/// Pause before another search if there may be work already. After an enqueue, about the time until its transaction
/// commits.
pub(crate) const SOON: Duration = Duration::from_millis(5);

/// Settings of a worker that calls handlers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) poll_interval: Duration,
    pub(crate) concurrency: usize,
    pub(crate) max_attempts: u32,
    pub(crate) first_pause: Duration,
    pub(crate) longest_pause: Duration,
}

impl Settings {
    /// Pause after this number of failed attempts: doubled with each, up to the longest.
    pub(crate) fn pause_after(&self, failed: u32) -> Duration {
        let doublings = 2_u32.saturating_pow(failed.saturating_sub(1));
        self.first_pause
            .saturating_mul(doublings)
            .min(self.longest_pause)
    }
}

/// Handlers by the name of an operation or topic, and the first mistake in them. Methods of a builder are infallible, so
/// starting the worker returns the mistake.
pub(crate) struct Handlers<H, E> {
    by_name: BTreeMap<String, H>,
    mistake: Option<E>,
}

impl<H, E> Handlers<H, E> {
    pub(crate) const fn new() -> Self {
        Self {
            by_name: BTreeMap::new(),
            mistake: None,
        }
    }

    /// Adds a handler. `twice` creates the error for a name that has a handler already.
    pub(crate) fn add(&mut self, name: String, handler: H, twice: impl FnOnce(String) -> E) {
        match self.by_name.entry(name) {
            Entry::Vacant(vacant) => {
                vacant.insert(handler);
            }
            Entry::Occupied(occupied) => {
                let name = occupied.key().clone();
                self.refuse(twice(name));
            }
        }
    }

    /// Remembers a mistake, unless there was one before.
    pub(crate) fn refuse(&mut self, mistake: E) {
        self.mistake.get_or_insert(mistake);
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// Returns the handlers, at least one, or the first mistake.
    pub(crate) fn checked(self, none: E) -> Result<BTreeMap<String, H>, E> {
        match self.mistake {
            Some(mistake) => Err(mistake),
            None if self.by_name.is_empty() => Err(none),
            None => Ok(self.by_name),
        }
    }
}

/// Searches for the work of a worker.
pub(crate) trait Search: Send + 'static {
    /// Searches the store once, and starts a task for each piece of work. Ends early if the worker is to stop.
    fn search(&mut self, tasks: &mut Tasks) -> impl Future<Output = Found> + Send;

    /// Ends when there may be work that the last search could not see.
    fn woken(&mut self) -> impl Future<Output = ()> + Send {
        pending()
    }
}

/// Result of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// No more work is due.
    All,
    /// More work may be due already. The next search begins after a pause as long as this one took: searches leave half
    /// of the time to others, on stores with a single writer too.
    More,
    /// More work may be due than there was room for.
    Full,
    /// The search may begin its work after this pause only.
    NotYet(Duration),
    /// The store failed, which the search has reported.
    Failed,
}

/// Result of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TaskEnd {
    /// True if ending the task made work due that only a search finds.
    pub(crate) more_is_due: bool,
}

/// The tasks that a worker has started. Dropping them aborts them.
pub(crate) struct Tasks {
    running: JoinSet<TaskEnd>,
    limit: usize,
    has_started: bool,
}

impl Tasks {
    /// Number of tasks that may be started now.
    pub(crate) fn room(&self) -> usize {
        self.limit.saturating_sub(self.running.len())
    }

    /// Starts a task. It takes a place until it ends, also by a panic.
    pub(crate) fn start(&mut self, task: impl Future<Output = TaskEnd> + Send + 'static) {
        self.has_started = true;
        self.running.spawn(task);
    }

    /// Frees the places of the tasks that have ended.
    fn reap(&mut self) {
        while self.running.try_join_next().is_some() {}
    }
}

/// Tells whether the worker is to stop.
#[derive(Debug, Clone)]
pub(crate) struct Stop(watch::Receiver<bool>);

impl Stop {
    pub(crate) fn is_requested(&self) -> bool {
        *self.0.borrow()
    }

    async fn requested(&mut self) {
        if self.0.wait_for(|stop| *stop).await.is_err() {
            // The worker is detached: nobody is left who could stop it.
            pending::<()>().await;
        }
    }
}

/// Times at which a worker searches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schedule {
    /// Pause before the first search.
    pub(crate) first: Duration,
    /// Longest pause between two searches, unless the store fails.
    pub(crate) interval: Duration,
    /// Maximum number of tasks at a time.
    pub(crate) concurrency: usize,
}

/// A running worker. Dropping the guard stops the worker without waiting: its search and its tasks are cancelled at
/// their next await point.
#[derive(Debug)]
pub(crate) struct WorkerGuard {
    stop: watch::Sender<bool>,
    /// None once the worker is detached.
    task: Option<JoinHandle<()>>,
}

impl WorkerGuard {
    /// Starts a worker on this tokio runtime.
    pub(crate) fn start<S: Search>(
        schedule: Schedule,
        search: impl FnOnce(Stop) -> S,
    ) -> Result<Self, Error> {
        let runtime = Handle::try_current().map_err(|_| Error::NoRuntime)?;
        let (stop, stopped) = watch::channel(false);
        let stopped = Stop(stopped);
        let worker = Worker {
            search: search(stopped.clone()),
            tasks: Tasks {
                running: JoinSet::new(),
                limit: schedule.concurrency,
                has_started: false,
            },
            pace: Pace::new(schedule),
            stop: stopped,
        };
        Ok(Self {
            stop,
            task: Some(runtime.spawn(worker.run())),
        })
    }

    /// Starts no further task, and waits until the current search and all tasks have ended.
    pub(crate) async fn stop(mut self) {
        self.stop.send_replace(true);
        if let Some(task) = &mut self.task {
            // The worker does not panic. It is aborted only if its runtime ends.
            let _ = task.await;
        }
    }

    /// Leaves the worker running until its runtime ends.
    pub(crate) fn detach(mut self) {
        self.task = None;
    }
}

impl Drop for WorkerGuard {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

struct Worker<S> {
    search: S,
    tasks: Tasks,
    pace: Pace,
    stop: Stop,
}

/// Reason for which a worker ends its wait.
enum Event {
    Stop,
    Due,
    Woken,
    /// A task ended. Without its result if it panicked.
    Ended(Option<TaskEnd>),
}

impl<S: Search> Worker<S> {
    async fn run(mut self) {
        while self.wait().await {
            self.search().await;
        }
        while self.tasks.running.join_next().await.is_some() {}
    }

    async fn search(&mut self) {
        self.tasks.reap();
        if self.tasks.room() == 0 {
            self.pace.found(Found::Full, false, Duration::ZERO);
            return;
        }
        self.tasks.has_started = false;
        let began = Instant::now();
        let search = Box::pin(async { Ok(self.search.search(&mut self.tasks).await) });
        let found = Caught(search).await.unwrap_or_else(|_| {
            tracing::error!(
                target: "idem",
                "a background search panicked, see the panic's message; trying again",
            );
            Found::Failed
        });
        let took = began.elapsed();
        self.pace.found(found, self.tasks.has_started, took);
    }

    /// Waits until the next search is due. Returns false if the worker is to stop.
    async fn wait(&mut self) -> bool {
        loop {
            match self.event().await {
                Event::Stop => return false,
                Event::Due => return true,
                Event::Woken => self.pace.wake(),
                Event::Ended(end) => {
                    let is_done = end.is_some_and(|end| !end.more_is_due);
                    if self.pace.next.is_none() || !is_done {
                        return true;
                    }
                }
            }
        }
    }

    async fn event(&mut self) -> Event {
        let next = self.pace.next;
        let running = &mut self.tasks.running;
        let mut stop = pin!(self.stop.requested());
        let mut woken = pin!(self.search.woken());
        let mut timer = pin!(next.map(sleep_until));
        poll_fn(|cx: &mut Context<'_>| {
            if stop.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Event::Stop);
            }
            if let Poll::Ready(Some(ended)) = running.poll_join_next(cx) {
                return Poll::Ready(Event::Ended(ended.ok()));
            }
            let Some(timer) = timer.as_mut().as_pin_mut() else {
                return Poll::Pending;
            };
            // Checked first, because a wake-up only brings the search forward.
            if timer.poll(cx).is_ready() {
                return Poll::Ready(Event::Due);
            }
            woken.as_mut().poll(cx).map(|()| Event::Woken)
        })
        .await
    }
}

/// Decides when to search next.
#[derive(Debug)]
struct Pace {
    interval: Duration,
    /// Next pause. Shorter than the interval after a wake-up, and then doubled with each search that finds nothing.
    pause: Duration,
    /// Set while searches fail.
    failures: Option<Backoff>,
    /// Time of the next search. None if it waits for the end of a task.
    next: Option<Instant>,
}

impl Pace {
    fn new(schedule: Schedule) -> Self {
        let interval = schedule.interval.min(DECADES);
        Self {
            interval,
            pause: interval,
            failures: None,
            next: Some(later(Instant::now(), schedule.first)),
        }
    }

    fn found(&mut self, found: Found, has_started: bool, took: Duration) {
        if found != Found::Failed {
            self.failures = None;
        }
        let pause = match found {
            Found::Full => None,
            Found::NotYet(pause) => Some(pause),
            Found::More => Some(took.max(SOON)),
            Found::Failed => {
                let failures = self.failures.get_or_insert_with(Backoff::of_searches);
                Some(failures.pause())
            }
            Found::All => {
                let pause = jittered(self.pause);
                if !has_started {
                    self.pause = self.interval.min(self.pause * 2);
                }
                Some(pause)
            }
        };
        self.next = pause.map(|pause| later(Instant::now(), pause));
    }

    /// Searches soon, unless the store fails.
    fn wake(&mut self) {
        self.pause = SOON.min(self.interval);
        let soon = later(Instant::now(), self.pause);
        if self.failures.is_none() {
            self.next = self.next.map(|next| next.min(soon));
        }
    }
}

/// Shortens a pause by up to a fifth, at random, so that the processes of a service do not search at the same time.
pub(crate) fn jittered(pause: Duration) -> Duration {
    pause.min(DECADES).mul_f64(0.8 + 0.2 * random::fraction())
}
