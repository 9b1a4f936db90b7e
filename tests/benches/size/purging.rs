//! What purging costs first calls, and what many purgers do to one another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use idem_runtime::record::Timestamp;
use idem_runtime::{Idem, Purger, PurgerGuard};
use idem_tests::ratio::Effort;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

use crate::database::Store;
use crate::{PURGED, Sized, finish, fresh, sorted};

/// Number of tasks that make first calls.
const TASKS: usize = 16;
/// Time for which first calls are made in one slice of a round.
const SLICE: Duration = Duration::from_secs(5);
/// Number of records that are due at the begin of a round: more than its slices remove.
const DUE: u64 = 200_000;
/// Number of records that are due for many purgers.
const DUE_AT_ONCE: u64 = 40_000;
/// Number of records that are removed for each first call.
const RATE: f64 = 1.5;
const PURGERS: [usize; 2] = [1, 40];

/// Who purges beside the first calls.
#[derive(Clone, Copy)]
enum Beside {
    Nobody,
    /// Batches of this size. The next one begins once half of it is due by the number of first calls and [`RATE`].
    AtRate(u32),
    /// The engine's purger, which has more to remove than it can.
    AtFullSpeed,
}

/// The purger with a backlog is last: the records that it removed are counted by those that it left.
const BESIDE: [(&str, Beside); 4] = [
    ("nobody purges", Beside::Nobody),
    ("1.5 times the rate, batches of 100", Beside::AtRate(100)),
    (
        "1.5 times the rate, batches of 1,000",
        Beside::AtRate(1_000),
    ),
    ("the purger with a backlog", Beside::AtFullSpeed),
];

/// A slice of a round.
#[derive(Clone, Copy)]
struct Slice {
    calls: u64,
    removed: u64,
    seconds: f64,
}

impl Slice {
    fn time_of_a_call(self) -> f64 {
        self.seconds / self.calls as f64
    }
}

pub(crate) async fn measure(sized: &Sized, effort: Effort) {
    let (rounds, slice, due, due_at_once) = match effort {
        Effort::Check => (1, Duration::from_millis(20), 5 * PURGED, 2 * PURGED),
        Effort::Measure => (9, SLICE, DUE, DUE_AT_ONCE),
    };
    let name = sized.database.name;
    println!("\n{name}: first calls by {TASKS} tasks, while records are purged");
    let mut slices = [const { Vec::new() }; BESIDE.len()];
    for round in 0..rounds {
        sized.add_due(due).await;
        let mut left = due;
        let last = BESIDE.len() - 1;
        for turn in 0..BESIDE.len() {
            // The order of those before the last one rotates.
            let row = if turn == last {
                last
            } else {
                (turn + round) % last
            };
            let mut measured = first_calls_beside(&sized.store, BESIDE[row].1, slice).await;
            if turn == last {
                measured.removed = left - purge_all(&sized.store).await;
            }
            left -= measured.removed;
            slices[row].push(measured);
        }
    }
    for ((title, _), own) in BESIDE.iter().zip(&slices) {
        let of_all = |value: fn(&Slice) -> f64| sorted(own.iter().map(value).collect());
        let ratios = own.iter().zip(&slices[0]);
        let ratios = ratios.map(|(own, base)| own.time_of_a_call() / base.time_of_a_call());
        let ratios = sorted(ratios.collect());
        let middle = rounds / 2;
        println!(
            "  {title:<37} {:>5.0} us a call, {:.2}x ({:.2} to {:.2}), {:.2} records removed for a call, {:>6.0} a second",
            of_all(|it| it.time_of_a_call() * 1e6)[middle],
            ratios[middle],
            ratios[rounds / 4],
            ratios[rounds - 1 - rounds / 4],
            of_all(|it| it.removed as f64 / it.calls as f64)[middle],
            of_all(|it| it.removed as f64 / it.seconds)[middle],
        );
    }
    println!("{name}: purgers at once on one table");
    let mut rates = PURGERS.map(|_| Vec::new());
    let mut errors = [0; PURGERS.len()];
    for _ in 0..rounds {
        for (row, purgers) in PURGERS.into_iter().enumerate() {
            sized.add_due(due_at_once).await;
            // Each begins without the dead rows of the one before.
            sized.database.tidy(&sized.table).await;
            let began = Instant::now();
            let mut running = JoinSet::new();
            for _ in 0..purgers {
                running.spawn(purge_counting(Arc::clone(&sized.store)));
            }
            let counts = running.join_all().await;
            let taken = began.elapsed().as_secs_f64();
            assert_eq!(counts.iter().map(|it| it.0).sum::<u64>(), due_at_once);
            errors[row] += counts.iter().map(|it| it.1).sum::<u64>();
            rates[row].push(due_at_once as f64 / taken);
        }
    }
    for (row, purgers) in PURGERS.into_iter().enumerate() {
        let ratios = rates[row].iter().zip(&rates[0]);
        let ratios = sorted(ratios.map(|(rate, alone)| rate / alone).collect());
        println!(
            "  {purgers:>3}: {:>7.0} records removed a second, {:.2}x ({:.2} to {:.2}), {} errors",
            sorted(rates[row].clone())[rounds / 2],
            ratios[rounds / 2],
            ratios[rounds / 4],
            ratios[rounds - 1 - rounds / 4],
            errors[row],
        );
    }
}

/// Makes first calls while records are purged. The records that the engine's purger removes are not counted here.
async fn first_calls_beside(store: &Store, beside: Beside, slice: Duration) -> Slice {
    let progress = Arc::new(Progress::default());
    let purging = start(store, beside, &progress);
    let began = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..TASKS {
        let (store, progress) = (Arc::clone(store), Arc::clone(&progress));
        running.spawn(async move {
            while began.elapsed() < slice {
                finish(&store, &fresh()).await;
                progress.calls.fetch_add(1, Ordering::Relaxed);
                progress.called.notify_one();
            }
        });
    }
    running.join_all().await;
    let seconds = began.elapsed().as_secs_f64();
    progress.is_over.store(true, Ordering::Relaxed);
    progress.called.notify_one();
    let removed = match purging {
        Purging::None => 0,
        Purging::Task(task) => task.await.unwrap(),
        Purging::Purger(guard) => {
            guard.stop().await;
            0
        }
    };
    Slice {
        calls: progress.calls.load(Ordering::Relaxed),
        removed,
        seconds,
    }
}

/// Progress of the first calls of a slice.
#[derive(Default)]
struct Progress {
    calls: AtomicU64,
    called: Notify,
    is_over: AtomicBool,
}

/// A purge in the background.
enum Purging {
    None,
    /// Returns the number of removed records.
    Task(JoinHandle<u64>),
    Purger(PurgerGuard),
}

fn start(store: &Store, beside: Beside, progress: &Arc<Progress>) -> Purging {
    let (store, progress) = (Arc::clone(store), Arc::clone(progress));
    match beside {
        Beside::Nobody => Purging::None,
        Beside::AtRate(batch) => Purging::Task(tokio::spawn(async move {
            let mut removed = 0;
            loop {
                progress.called.notified().await;
                if progress.is_over.load(Ordering::Relaxed) {
                    return removed;
                }
                let calls = progress.calls.load(Ordering::Relaxed);
                if calls as f64 * RATE >= removed as f64 + f64::from(batch) / 2.0 {
                    removed += store.purge(batch, Timestamp::MAX).await.unwrap().removed;
                }
            }
        })),
        Beside::AtFullSpeed => {
            let purger = Purger::new(&Idem::new(store)).poll_interval(Duration::from_millis(1));
            Purging::Purger(purger.start().unwrap())
        }
    }
}

async fn purge_all(store: &Store) -> u64 {
    let mut removed = 0;
    loop {
        let purged = store.purge(PURGED as u32, Timestamp::MAX).await.unwrap();
        removed += purged.removed;
        if purged.removed == 0 {
            return removed;
        }
    }
}

/// Purges until nothing is due. Returns the number of records removed, and of errors.
async fn purge_counting(store: Store) -> (u64, u64) {
    let (mut removed, mut errors) = (0, 0);
    loop {
        match store.purge(PURGED as u32, Timestamp::MAX).await {
            Ok(purged) => {
                removed += purged.removed;
                if purged.removed == 0 && !purged.more {
                    return (removed, errors);
                }
            }
            Err(_) => errors += 1,
        }
    }
}
