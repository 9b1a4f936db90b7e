//! What purging costs first calls, and what many purgers do to one another.

use std::sync::Arc;
use std::time::{Duration, Instant};

use idem_runtime::{Idem, Purger, PurgerGuard};
use idem_tests::ratio::Effort;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::interval;

use crate::database::Store;
use crate::{PURGED, Sized, finish, fresh, sorted};

/// Number of tasks that make first calls.
const TASKS: usize = 16;
/// Time for which first calls are made in one round.
const SLICE: Duration = Duration::from_millis(700);
/// Number of records that are due at the begin of a round.
const DUE: u64 = 40_000;
const PURGERS: [usize; 2] = [1, 40];

/// Who purges beside the first calls.
#[derive(Clone, Copy)]
enum Beside {
    Nobody,
    /// A batch at the begin, and then batches at 1.5 times the rate of the first calls of the round. In a short round the
    /// first one makes it more.
    Steadily,
    /// The engine's purger, which has more to remove than it can.
    AtFullSpeed,
}

const BESIDE: [(&str, Beside); 3] = [
    ("nobody purges", Beside::Nobody),
    ("steady batches", Beside::Steadily),
    ("the purger with a backlog", Beside::AtFullSpeed),
];

pub(crate) async fn measure(sized: &Sized, effort: Effort) {
    let (rounds, slice, due) = match effort {
        Effort::Check => (1, Duration::from_millis(20), 2 * PURGED),
        Effort::Measure => (9, SLICE, DUE),
    };
    let name = sized.database.name;
    println!("\n{name}: first calls by {TASKS} tasks, while records are purged");
    // By row, then by round: microseconds per call, and records removed in a second.
    let mut times = [const { Vec::new() }; 3];
    let mut removed = [const { Vec::new() }; 3];
    for _ in 0..rounds {
        let mut rate = 0.0;
        // The row without a purge comes first, because the next one needs its rate.
        for (row, (_, beside)) in BESIDE.into_iter().enumerate() {
            sized.add_due(due).await;
            let began = Instant::now();
            let purging = start(sized, beside, rate);
            let calls = first_calls(&sized.store, slice).await;
            let taken = began.elapsed().as_secs_f64();
            purging.stop().await;
            if row == 0 {
                rate = calls as f64 / taken;
            }
            times[row].push(taken * 1e6 / calls as f64);
            let left = purge_all(&sized.store).await;
            removed[row].push((due - left) as f64 / taken);
        }
    }
    for (row, (title, _)) in BESIDE.iter().enumerate() {
        let ratios = times[row]
            .iter()
            .zip(&times[0])
            .map(|(own, base)| own / base);
        let ratios = sorted(ratios.collect());
        println!(
            "  {title:<30} {:>7.0} us a call, {:.2}x ({:.2} to {:.2}), {:>7.0} records removed a second",
            sorted(times[row].clone())[rounds / 2],
            ratios[rounds / 2],
            ratios[rounds / 4],
            ratios[rounds - 1 - rounds / 4],
            sorted(removed[row].clone())[rounds / 2],
        );
    }
    println!("{name}: purgers at once on one table");
    for purgers in PURGERS {
        let mut rates = Vec::new();
        let mut errors = 0;
        for _ in 0..rounds.min(3) {
            sized.add_due(due).await;
            let began = Instant::now();
            let mut running = JoinSet::new();
            for _ in 0..purgers {
                running.spawn(purge_counting(Arc::clone(&sized.store)));
            }
            let counts = running.join_all().await;
            let taken = began.elapsed().as_secs_f64();
            assert_eq!(counts.iter().map(|it| it.0).sum::<u64>(), due);
            errors += counts.iter().map(|it| it.1).sum::<u64>();
            rates.push(due as f64 / taken);
        }
        println!(
            "  {purgers:>3}: {:>7.0} records removed a second, {errors} errors",
            sorted(rates.clone())[rates.len() / 2]
        );
    }
}

/// A purge in the background.
enum Purging {
    None,
    Task(JoinHandle<()>),
    Purger(PurgerGuard),
}

impl Purging {
    async fn stop(self) {
        match self {
            Self::None => {}
            Self::Purger(guard) => guard.stop().await,
            Self::Task(task) => {
                task.abort();
                // Its result is that it was cancelled.
                drop(task.await);
            }
        }
    }
}

fn start(sized: &Sized, beside: Beside, rate: f64) -> Purging {
    let store = Arc::clone(&sized.store);
    match beside {
        Beside::Nobody => Purging::None,
        Beside::Steadily => {
            let pause = Duration::from_secs_f64(PURGED as f64 / (1.5 * rate.max(1.0)));
            Purging::Task(tokio::spawn(async move {
                let mut ticks = interval(pause);
                loop {
                    ticks.tick().await;
                    store.purge(PURGED as u32).await.unwrap();
                }
            }))
        }
        Beside::AtFullSpeed => {
            let purger = Purger::new(&Idem::new(store)).poll_interval(Duration::from_millis(1));
            Purging::Purger(purger.start().unwrap())
        }
    }
}

async fn first_calls(store: &Store, slice: Duration) -> u64 {
    let began = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..TASKS {
        let store = Arc::clone(store);
        running.spawn(async move {
            let mut calls = 0;
            while began.elapsed() < slice {
                finish(&store, &fresh()).await;
                calls += 1;
            }
            calls
        });
    }
    running.join_all().await.iter().sum()
}

async fn purge_all(store: &Store) -> u64 {
    let mut removed = 0;
    loop {
        let purged = store.purge(PURGED as u32).await.unwrap();
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
        match store.purge(PURGED as u32).await {
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
