//! Calls that arrive at a fixed rate.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use idem_report::{Measured, Report};
use idem_tests::private::{Kind, Private};
use idem_tests::ratio::{Effort, percentile};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::contestants::{Make, Pair};
use crate::processor::Processor;

/// Number of tasks that find the capacity.
const TASKS: usize = 64;
/// Shares of the capacity at which calls arrive.
const SHARES: [f64; 4] = [0.25, 0.5, 0.75, 0.9];
const ROUNDS: usize = 3;

static NEXT: AtomicU64 = AtomicU64::new(0);

fn next() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Calls a second that tasks complete one after the other.
async fn capacity(make: &Make, lasts: Duration) -> f64 {
    let end = Instant::now() + lasts;
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let make = make.clone();
        tasks.spawn(async move {
            let mut calls = 0_u32;
            while Instant::now() < end {
                make(next()).await;
                calls += 1;
            }
            calls
        });
    }
    let calls: u32 = tasks.join_all().await.into_iter().sum();
    f64::from(calls) / lasts.as_secs_f64()
}

/// Lets calls arrive for a time, and returns the time of each, counted from the tick in which it was to arrive.
async fn arrive(make: &Make, rate: f64, lasts: Duration) -> Vec<Duration> {
    let begun = Instant::now();
    let (mut tasks, mut arrived, mut tick) = (JoinSet::new(), 0_u32, begun);
    while tick < begun + lasts {
        let due = (tick - begun).as_secs_f64() * rate;
        while f64::from(arrived) <= due {
            arrived += 1;
            let make = make.clone();
            tasks.spawn(async move {
                make(next()).await;
                tick.elapsed()
            });
        }
        tick += Duration::from_millis(1);
        sleep_until(tick).await;
    }
    tasks.join_all().await
}

/// What a contestant did at a rate.
#[derive(Default)]
struct Result {
    times: Vec<Duration>,
    medians: Vec<f64>,
    client: Duration,
    servers: Duration,
}

impl Result {
    fn measured(mut self, name: &str, rate: f64) -> Measured {
        self.times.sort_unstable();
        let milliseconds = |share| percentile(&self.times, share).as_secs_f64() * 1e3;
        let per_call = |it: Duration| it.as_secs_f64() * 1e6 / self.times.len() as f64;
        let counters = [
            ("calls/s", rate),
            ("p50 ms", milliseconds(0.5)),
            ("p99 ms", milliseconds(0.99)),
            ("p99.9 ms", milliseconds(0.999)),
            ("client us", per_call(self.client)),
            ("servers us", per_call(self.servers)),
        ];
        Measured {
            name: name.to_owned(),
            times: self.medians,
            counters: BTreeMap::from(counters.map(|(name, it)| (name.to_owned(), it))),
            limits: None,
        }
    }
}

pub(crate) async fn measure(kind: Kind, pair: &Pair, private: &Private, effort: Effort) {
    let (rounds, slice) = match effort {
        Effort::Check => (1, Duration::from_millis(20)),
        Effort::Measure => (ROUNDS, Duration::from_secs(1)),
    };
    let mut slower = f64::MAX;
    for make in [&pair.by_hand, &pair.ours] {
        capacity(make, slice / 4).await;
        slower = slower.min(capacity(make, slice).await);
    }
    for share in SHARES {
        let mut results = [Result::default(), Result::default()];
        for round in 0..rounds {
            for turn in 0..2 {
                // The order alternates, so that neither always runs after the other.
                let who = (turn + round) % 2;
                let make = [&pair.by_hand, &pair.ours][who];
                let before = Processor::now(private);
                let mut times = arrive(make, slower * share, slice).await;
                let used = Processor::now(private).since(before);
                times.sort_unstable();
                let result = &mut results[who];
                result
                    .medians
                    .push(percentile(&times, 0.5).as_nanos() as f64);
                result.times.append(&mut times);
                result.client += used.client;
                result.servers += used.servers;
            }
        }
        let [by_hand, ours] = results;
        println!("{slower:.0} calls a second are the capacity:");
        let title = format!("{kind}, {}, {} % of the capacity", pair.name, share * 1e2);
        let rate = slower * share;
        let measured = vec![
            by_hand.measured("by hand", rate),
            ours.measured("annotated", rate),
        ];
        Report::new(&title, measured).unwrap().publish().unwrap();
    }
}
