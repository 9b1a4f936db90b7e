//! Steady load: a number of tasks that make one call after the other, each with its own key. Unlike in waves, calls begin
//! and end at any time, so that claims, completions and steps of different calls share batches.
//!
//! The contestants take turns of a fraction of a second, and are compared within a round.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use idem_report::Measured;
use tokio::task::JoinSet;

use crate::ratio::{Effort, publish};

const ROUNDS: usize = 9;
/// Time for which one contestant runs in one round.
const SLICE: Duration = Duration::from_millis(300);

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Run = Box<dyn Fn(usize, Duration) -> Work<Turn>>;

/// Length of a turn, and its number of calls.
pub type Turn = (Duration, u64);

/// A name, and how to make calls.
pub struct Contestant {
    name: &'static str,
    run: Run,
}

impl Contestant {
    /// A contestant that makes one call with each number. Numbers are never repeated.
    pub fn new<F>(name: &'static str, call: impl Fn(u64) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let call = Arc::new(call);
        Self::with_own_tasks(name, move |tasks, slice| {
            let call = Arc::clone(&call);
            async move { turn(&call, tasks, slice).await }
        })
    }

    /// A contestant that receives the number of tasks and the length of its turn, and makes calls in its own way, such as
    /// in another process.
    pub fn with_own_tasks<F>(
        name: &'static str,
        run: impl Fn(usize, Duration) -> F + 'static,
    ) -> Self
    where
        F: Future<Output = Turn> + Send + 'static,
    {
        Self {
            name,
            run: Box::new(move |tasks, slice| Box::pin(run(tasks, slice))),
        }
    }
}

/// Makes calls until the time is over.
async fn turn<F>(
    call: &Arc<impl Fn(u64) -> F + Send + Sync + 'static>,
    tasks: usize,
    slice: Duration,
) -> Turn
where
    F: Future<Output = ()> + Send + 'static,
{
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let began = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let call = Arc::clone(call);
        running.spawn(async move {
            let mut calls = 0;
            loop {
                call(NEXT.fetch_add(1, Ordering::Relaxed)).await;
                calls += 1;
                if began.elapsed() > slice {
                    return calls;
                }
            }
        });
    }
    let calls = running.join_all().await.iter().sum();
    (began.elapsed(), calls)
}

/// Name of the counter with a server's processor time in nanoseconds. [`measure`] prints a separate table of it.
pub const SERVER_TIME: &str = "server time";

/// Measurements of one contestant.
#[derive(Clone, Default)]
struct Rounds {
    /// Nanoseconds per call, by round.
    times: Vec<f64>,
    /// Nanoseconds of the server's processors per call, by round. Empty if nobody counts them.
    server_times: Vec<f64>,
    calls: u64,
    /// Growth of the other counters.
    growth: BTreeMap<&'static str, i64>,
}

impl Rounds {
    fn add(&mut self, (time, calls): Turn, growth: BTreeMap<&'static str, i64>) {
        let calls = calls.max(1);
        self.times.push(time.as_nanos() as f64 / calls as f64);
        self.calls += calls;
        for (name, grown) in growth {
            if name == SERVER_TIME {
                // A clock with coarse ticks may not advance during a short turn.
                self.server_times.push(grown.max(1) as f64 / calls as f64);
            } else {
                *self.growth.entry(name).or_insert(0) += grown;
            }
        }
    }

    fn per_call(&self) -> BTreeMap<String, f64> {
        let growth = self.growth.iter();
        growth
            .map(|(name, total)| (format!("{name}/call"), *total as f64 / self.calls as f64))
            .collect()
    }
}

/// Measures, prints a table with the first contestant as its baseline, and passes it to `cargo xtask bench`. `counters`
/// reads totals of the server by name; the table has their growth per call. If one of them is [`SERVER_TIME`], a second
/// table follows: the processor time that the server spends on a call.
///
/// # Panics
///
/// The report cannot be written.
pub async fn measure(
    title: &str,
    contestants: &[Contestant],
    counters: impl AsyncFn() -> BTreeMap<&'static str, i64>,
    tasks: usize,
    effort: Effort,
) {
    let (rounds, slice) = match effort {
        Effort::Check => (1, Duration::from_millis(5)),
        Effort::Measure => (ROUNDS, SLICE),
    };
    let mut all = vec![Rounds::default(); contestants.len()];
    for round in 0..rounds {
        for turn in 0..contestants.len() {
            // The order rotates, so that no contestant always runs after the same one.
            let who = (turn + round) % contestants.len();
            let before = counters().await;
            let made = (contestants[who].run)(tasks, slice).await;
            let mut growth = counters().await;
            for (name, total) in &mut growth {
                *total -= before.get(name).unwrap_or(&0);
            }
            all[who].add(made, growth);
        }
    }
    let with = |times: fn(&Rounds) -> &[f64]| {
        let measured = contestants.iter().zip(&all);
        let measured = measured.map(|(contestant, rounds)| Measured {
            name: contestant.name.to_owned(),
            times: times(rounds).to_vec(),
            counters: rounds.per_call(),
            limits: None,
        });
        measured.collect::<Vec<_>>()
    };
    publish(title, with(|it| &it.times));
    if all.iter().any(|it| !it.server_times.is_empty()) {
        let title = format!("{title}: processor time of the server");
        publish(&title, with(|it| &it.server_times));
    }
}
