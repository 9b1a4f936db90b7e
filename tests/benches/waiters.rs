//! Many callers in one process: callers that wait for one key, keys in flight, and callers of a key whose body fails.
//! All are tasks of one thread, on a store in memory, so that the engine is what is measured.
//!
//! The tables show the bytes that each caller holds on the heap while all of them wait, its task included, and the time
//! for each caller: until all wait, and from the end of the body until the last one has its answer. The ratios are to
//! 1,000 callers of the same round. They stay near 1 if the work for a caller does not grow with the number of callers.
//!
//! `cargo bench -p idem-benches --bench waiters -- waiting` runs one of the tables: `waiting`, `flight`, `failing`.
#![expect(
    clippy::unwrap_used,
    reason = "a benchmark that cannot run has nothing to say"
)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use allocation_counter::measure;
use idem_report::{Measured, Report};
use idem_runtime::{Call, Error, Idem, MemoryStore};
use idem_tests::ratio::{Effort, is_asked_for};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, LocalSet, yield_now};

/// The baseline.
const FEW: usize = 1_000;
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Longer than any table takes.
const WAIT: Duration = Duration::from_secs(600);

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Idempotency(#[from] Error),
    #[error("the bank is closed")]
    Closed,
}

type Handle = Idem<MemoryStore>;

/// Result of one round.
struct Round {
    /// Bytes on the heap for each caller while all of them wait.
    bytes: i64,
    /// Time until all of them wait.
    joining: Duration,
    /// Time until the last one has its answer.
    answering: Duration,
}

/// How the calls of a table run.
#[derive(Clone, Copy)]
enum Kind {
    /// All have one key, and wait for one body.
    Waiting,
    /// Each has its own key.
    InFlight,
    /// All have one key, and each body fails: the callers run it one after the other.
    Failing,
}

fn main() {
    let effort = Effort::from_arguments();
    let tables = [
        (
            "waiting",
            "callers that wait for one key",
            Kind::Waiting,
            [FEW, 10_000, 100_000],
        ),
        (
            "flight",
            "keys in flight",
            Kind::InFlight,
            [FEW, 100_000, 1_000_000],
        ),
        (
            "failing",
            "callers of a key whose body fails",
            Kind::Failing,
            [FEW, 2_000, 4_000],
        ),
    ];
    for (word, title, kind, numbers) in tables {
        if is_asked_for(word) {
            print(title, kind, numbers, effort);
        }
    }
}

fn print(title: &str, kind: Kind, numbers: [usize; 3], effort: Effort) {
    let (rounds, numbers) = match effort {
        Effort::Check => (1, numbers.map(|it| it.min(FEW) / 10)),
        Effort::Measure => (5, numbers),
    };
    let mut all: [Vec<Round>; 3] = Default::default();
    for round in 0..rounds {
        for turn in 0..numbers.len() {
            // The order rotates, so that no number always runs after the same one.
            let which = (turn + round) % numbers.len();
            all[which].push(run(kind, numbers[which]));
        }
    }
    let report = |what: &str, time: fn(&Round) -> Duration, counters: Counters<'_>| {
        let measured = numbers.iter().zip(&all).map(|(number, rounds)| Measured {
            name: format!("{number} callers"),
            times: rounds
                .iter()
                .map(|round| time(round).as_secs_f64() * 1e9 / *number as f64)
                .collect(),
            counters: counters(rounds),
            limits: None,
        });
        let title = format!("{title}, {what} of each");
        let report = Report::new(&title, measured.collect()).unwrap();
        report.publish().unwrap();
    };
    report("time to join", |it| it.joining, &|rounds| {
        let bytes = median(rounds.iter().map(|it| it.bytes as f64).collect());
        BTreeMap::from([("bytes".to_owned(), bytes)])
    });
    report("time to answer", |it| it.answering, &|rounds| {
        let last = rounds.iter().map(|it| it.answering.as_secs_f64() * 1e3);
        BTreeMap::from([("last answer, in ms".to_owned(), median(last.collect()))])
    });
}

/// Further figures of the rounds.
type Counters<'a> = &'a dyn Fn(&[Round]) -> BTreeMap<String, f64>;

fn run(kind: Kind, number: usize) -> Round {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let tasks = LocalSet::new();
    let idem = Idem::new(MemoryStore::new());
    let gate = Rc::new(Semaphore::new(0));
    let joined = Rc::new(Cell::new(0));
    let running = Rc::new(Cell::new(0));
    let mut callers = Vec::with_capacity(number);
    let began = Instant::now();
    let held = measure(|| {
        for caller in 0..number {
            let key = match kind {
                Kind::Waiting | Kind::Failing => "one".to_owned(),
                Kind::InFlight => format!("key-{caller}"),
            };
            let call = call(
                idem.clone(),
                key,
                kind,
                Rc::clone(&gate),
                Rc::clone(&joined),
                Rc::clone(&running),
            );
            callers.push(tasks.spawn_local(call));
        }
        settle(&runtime, &tasks, &joined, number);
    });
    let joining = began.elapsed();
    let bodies = match kind {
        Kind::Waiting | Kind::Failing => 1,
        Kind::InFlight => number,
    };
    assert_eq!(running.get(), bodies, "each other call waits");
    let began = Instant::now();
    gate.add_permits(number);
    tasks.block_on(&runtime, answers(callers, kind));
    Round {
        bytes: held.bytes_current / number as i64,
        joining,
        answering: began.elapsed(),
    }
}

async fn call(
    idem: Handle,
    key: String,
    kind: Kind,
    gate: Rc<Semaphore>,
    joined: Rc<Cell<usize>>,
    running: Rc<Cell<usize>>,
) -> Result<u64, Failure> {
    joined.set(joined.get() + 1);
    let call = Call::new("bench.wait", &key, &7_u64, DAY).wait(WAIT);
    idem.run(call, async || {
        running.set(running.get() + 1);
        gate.acquire().await.unwrap().forget();
        match kind {
            Kind::Waiting | Kind::InFlight => Ok(34),
            Kind::Failing => {
                // The callers that wait see that it runs.
                yield_now().await;
                Err(Failure::Closed)
            }
        }
    })
    .await
}

/// Lets each task run until it waits. The store answers at the first poll of a call.
fn settle(runtime: &Runtime, tasks: &LocalSet, joined: &Cell<usize>, number: usize) {
    tasks.block_on(runtime, async {
        while joined.get() < number {
            yield_now().await;
        }
    });
}

async fn answers(callers: Vec<JoinHandle<Result<u64, Failure>>>, kind: Kind) {
    for caller in callers {
        let answer = caller.await.unwrap();
        match kind {
            Kind::Waiting | Kind::InFlight => assert_eq!(answer.unwrap(), 34),
            Kind::Failing => assert!(matches!(answer, Err(Failure::Closed))),
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
