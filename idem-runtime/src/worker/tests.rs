//! The worker with a search that follows a script, in paused time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tokio::runtime::Builder;
use tokio::sync::{Notify, Semaphore};
use tokio::time::sleep;

use super::*;

const DONE: TaskEnd = TaskEnd { more_is_due: false };
const MORE_IS_DUE: TaskEnd = TaskEnd { more_is_due: true };

const INTERVAL: Duration = Duration::from_secs(10);
/// Longer than any pause of these tests.
const LONG: Duration = Duration::from_secs(3_600);

/// Behaviour of one search.
enum Act {
    Finds(Found),
    /// Starts a task, and finds this.
    Starts(Found, TaskEnd),
    /// Starts a task that panics.
    StartsPanic,
    Panics,
    Hangs,
}

/// A script, and what became of it.
struct Stage {
    acts: Mutex<VecDeque<Act>>,
    searched: Mutex<Vec<Instant>>,
    /// Ends one task for each permit.
    gate: Semaphore,
    wake: Notify,
    ended: Mutex<Vec<&'static str>>,
}

impl Stage {
    fn new(acts: impl IntoIterator<Item = Act>) -> Arc<Self> {
        Arc::new(Self {
            acts: Mutex::new(acts.into_iter().collect()),
            searched: Mutex::default(),
            gate: Semaphore::new(0),
            wake: Notify::new(),
            ended: Mutex::default(),
        })
    }

    fn searches(&self) -> usize {
        self.searched.lock().unwrap().len()
    }

    /// Pauses between the searches so far.
    fn pauses(&self) -> Vec<Duration> {
        let searched = self.searched.lock().unwrap();
        searched.windows(2).map(|it| it[1] - it[0]).collect()
    }

    fn ended(&self) -> Vec<&'static str> {
        self.ended.lock().unwrap().clone()
    }
}

/// Reports how a future ended: at its end, or by being dropped before.
struct Ends(Arc<Stage>, &'static str);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.ended.lock().unwrap().push(self.1);
    }
}

struct Script(Arc<Stage>);

impl Search for Script {
    async fn search(&mut self, tasks: &mut Tasks) -> Found {
        self.0.searched.lock().unwrap().push(Instant::now());
        let act = self.0.acts.lock().unwrap().pop_front();
        let stage = Arc::clone(&self.0);
        match act.unwrap_or(Act::Finds(Found::All)) {
            Act::Finds(found) => found,
            Act::Starts(found, end) => {
                tasks.start(async move {
                    let mut ends = Ends(Arc::clone(&stage), "task dropped");
                    stage.gate.acquire().await.unwrap().forget();
                    ends.1 = "task done";
                    end
                });
                found
            }
            Act::StartsPanic => {
                tasks.start(async { panic!("in a task") });
                Found::Full
            }
            Act::Panics => panic!("in a search"),
            Act::Hangs => {
                let mut ends = Ends(Arc::clone(&stage), "search dropped");
                sleep(LONG).await;
                ends.1 = "search done";
                Found::All
            }
        }
    }

    async fn woken(&mut self) {
        self.0.wake.notified().await;
    }
}

fn schedule() -> Schedule {
    Schedule {
        first: Duration::ZERO,
        interval: INTERVAL,
        concurrency: 1,
    }
}

fn start(stage: &Arc<Stage>) -> WorkerGuard {
    WorkerGuard::start(schedule(), |_| Script(Arc::clone(stage))).unwrap()
}

/// Lets the worker run until it waits.
async fn settle() {
    sleep(Duration::from_millis(2)).await;
}

fn is_jittered(pause: Duration, longest: Duration) -> bool {
    // The timer rounds up to milliseconds.
    pause >= longest.mul_f64(0.8) && pause <= longest + Duration::from_millis(1)
}

#[tokio::test(start_paused = true)]
async fn a_worker_searches_after_its_first_pause_and_then_about_once_an_interval() {
    let stage = Stage::new([]);
    let begin = Instant::now();
    let schedule = Schedule {
        first: Duration::from_secs(3),
        ..schedule()
    };
    let worker = WorkerGuard::start(schedule, |_| Script(Arc::clone(&stage))).unwrap();
    sleep(LONG).await;
    worker.stop().await;
    let first = stage.searched.lock().unwrap()[0] - begin;
    assert_eq!(first, Duration::from_secs(3));
    let pauses = stage.pauses();
    assert!(pauses.len() > 300);
    assert!(pauses.iter().all(|it| is_jittered(*it, INTERVAL)));
}

#[tokio::test(start_paused = true)]
async fn stopping_waits_for_the_search_and_the_tasks_and_begins_no_more() {
    let stage = Stage::new([Act::Starts(Found::All, MORE_IS_DUE)]);
    let worker = start(&stage);
    settle().await;
    let stopping = tokio::spawn(worker.stop());
    sleep(LONG).await;
    assert!(!stopping.is_finished(), "a task is at work");
    stage.gate.add_permits(1);
    stopping.await.unwrap();
    assert_eq!((stage.searches(), stage.ended()), (1, vec!["task done"]));

    let stage = Stage::new([Act::Hangs]);
    let worker = start(&stage);
    settle().await;
    worker.stop().await;
    assert_eq!((stage.searches(), stage.ended()), (1, vec!["search done"]));
}

#[tokio::test(start_paused = true)]
async fn dropping_the_guard_cancels_the_search_and_the_tasks() {
    let stage = Stage::new([Act::Starts(Found::More, DONE), Act::Hangs]);
    let schedule = Schedule {
        concurrency: 2,
        ..schedule()
    };
    let worker = WorkerGuard::start(schedule, |_| Script(Arc::clone(&stage))).unwrap();
    sleep(2 * SOON).await;
    assert_eq!((stage.searches(), stage.ended()), (2, vec![]));
    drop(worker);
    settle().await;
    let mut ended = stage.ended();
    ended.sort_unstable();
    assert_eq!(ended, ["search dropped", "task dropped"]);
    sleep(LONG).await;
    assert_eq!(stage.searches(), 2);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_future_of_stopping_cancels_the_tasks() {
    let stage = Stage::new([Act::Starts(Found::All, DONE)]);
    let worker = start(&stage);
    settle().await;
    let stopped = tokio::time::timeout(INTERVAL, worker.stop()).await;
    assert!(stopped.is_err());
    settle().await;
    assert_eq!(stage.ended(), ["task dropped"]);
}

#[tokio::test(start_paused = true)]
async fn a_detached_worker_runs_on() {
    let stage = Stage::new([]);
    start(&stage).detach();
    sleep(LONG).await;
    assert!(stage.pauses().len() > 300);
    assert!(stage.pauses().iter().all(|it| is_jittered(*it, INTERVAL)));
}

#[test]
fn a_worker_ends_with_its_runtime() {
    let runtime = || {
        let mut builder = Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().unwrap()
    };
    let stage = Stage::new([Act::Starts(Found::All, DONE)]);
    let first = runtime();
    let worker = first.block_on(async {
        let worker = start(&stage);
        settle().await;
        worker
    });
    drop(first);
    assert_eq!(stage.ended(), ["task dropped"]);
    // There is nothing left to wait for.
    runtime().block_on(worker.stop());

    let outside = WorkerGuard::start(schedule(), |_| Script(Arc::clone(&stage)));
    assert!(matches!(outside, Err(Error::NoRuntime)));
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_search_is_a_failure() {
    let stage = Stage::new([Act::Panics, Act::Panics]);
    let worker = start(&stage);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(stage.searches(), 3);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_task_that_panics_frees_its_place() {
    let stage = Stage::new([Act::StartsPanic, Act::StartsPanic]);
    let worker = start(&stage);
    settle().await;
    assert_eq!(stage.searches(), 3);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn failures_are_followed_by_growing_pauses() {
    let failures = (0..30).map(|_| Act::Finds(Found::Failed));
    let stage = Stage::new(failures.chain([Act::Finds(Found::All), Act::Finds(Found::Failed)]));
    let worker = start(&stage);
    // A wake-up does not make a store that fails busier.
    for _ in 0..10 {
        stage.wake.notify_one();
        settle().await;
    }
    sleep(LONG).await;
    worker.stop().await;
    let pauses = stage.pauses();
    let (early, late) = (pauses[0], pauses[29]);
    assert!(early >= Duration::from_millis(10), "{early:?}");
    assert!(early <= Duration::from_millis(21), "{early:?}");
    assert!(late >= Duration::from_millis(2_500), "{late:?}");
    assert!(late <= Duration::from_millis(5_001), "{late:?}");
    // After a success, the back-off begins anew.
    assert!(pauses[31] <= Duration::from_millis(21), "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_room_waits_for_the_end_of_a_task() {
    let stage = Stage::new([
        Act::Starts(Found::Full, DONE),
        Act::Starts(Found::Full, DONE),
    ]);
    let worker = start(&stage);
    for searches in 1..=2 {
        stage.wake.notify_one();
        sleep(LONG).await;
        assert_eq!(stage.searches(), searches);
        stage.gate.add_permits(1);
        settle().await;
    }
    assert_eq!(stage.searches(), 3);
    worker.stop().await;
}

#[tokio::test(start_paused = true)]
async fn only_a_task_that_made_more_work_due_brings_the_next_search_forward() {
    for (end, searches) in [(DONE, 1), (MORE_IS_DUE, 2)] {
        let stage = Stage::new([Act::Starts(Found::All, end)]);
        let schedule = Schedule {
            concurrency: 2,
            ..schedule()
        };
        let worker = WorkerGuard::start(schedule, |_| Script(Arc::clone(&stage))).unwrap();
        settle().await;
        stage.gate.add_permits(1);
        settle().await;
        assert_eq!(stage.searches(), searches, "{end:?}");
        worker.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_wake_up_is_followed_by_searches_with_growing_pauses() {
    let stage = Stage::new([]);
    let worker = start(&stage);
    settle().await;
    let woken = Instant::now();
    stage.wake.notify_one();
    sleep(LONG).await;
    worker.stop().await;
    assert_eq!(stage.searched.lock().unwrap()[1] - woken, SOON);
    let mut expected = SOON;
    for pause in &stage.pauses()[1..] {
        assert!(is_jittered(*pause, expected), "{pause:?}, not {expected:?}");
        expected = INTERVAL.min(2 * expected);
    }
}

#[test]
fn the_first_mistake_in_handlers_is_returned() {
    #[derive(Debug, PartialEq)]
    enum Mistake {
        None,
        Name,
        Twice(String),
    }
    let checked = |names: &[&str]| {
        let mut handlers = Handlers::new();
        for name in names {
            match name.is_empty() {
                true => handlers.refuse(Mistake::Name),
                false => handlers.add((*name).to_owned(), (), Mistake::Twice),
            }
        }
        let handlers = handlers.checked(Mistake::None)?;
        Ok(handlers.into_keys().collect::<Vec<_>>())
    };
    assert_eq!(checked(&[]), Err(Mistake::None));
    assert_eq!(checked(&["b", "a"]), Ok(vec!["a".into(), "b".into()]));
    assert_eq!(checked(&["a", "a", ""]), Err(Mistake::Twice("a".into())));
    assert_eq!(checked(&["", "a", "a"]), Err(Mistake::Name));
}

#[test]
fn pauses_double_up_to_the_longest() {
    let settings = Settings {
        poll_interval: INTERVAL,
        concurrency: 1,
        max_attempts: 1,
        first_pause: Duration::from_secs(1),
        longest_pause: Duration::from_secs(60),
    };
    let pauses = [0, 1, 2, 3, 7, u32::MAX].map(|failed| settings.pause_after(failed).as_secs());
    assert_eq!(pauses, [1, 1, 2, 4, 60, 60]);
    let none = Settings {
        first_pause: Duration::ZERO,
        ..settings
    };
    assert_eq!(none.pause_after(7), Duration::ZERO);
}
