//! Overload: calls that arrive at two and four times the rate that a store can serve, whether or not others are answered.
//!
//! For each store the bench measures how many calls a second 256 tasks complete, one after the other: the peak. Then calls
//! arrive at a fixed rate, for four seconds each: at three quarters of the peak, at twice and at four times the peak. Each
//! call has its own key. Either its caller leaves after a second, or it has a deadline of a second and its caller stays.
//! After the overload, calls arrive at half of the peak for two seconds.
//!
//! On SQL stores the same is measured with a transaction that inserts a row.
//!
//! Finally, two handles make the same 5,000 calls at once, each with one step, and repeat those that fail in a way that a
//! retry may mend.
//!
//! The table shows, for each rate:
//!
//! - the time per answered call, and the answers of the second that had the fewest, both in ratio to the peak;
//! - p50, p99 and p99.9 of the answers. The last second is served after the overload, so the table also has the p99.9
//!   without the calls that arrived in it;
//! - the calls that were refused, had left or failed;
//! - the share of calls that were answered in the second second after the overload;
//! - the log lines a second, the growth of the process in MB, and the claims without an owner five seconds later.
//!
//! `cargo bench -p idem-benches --bench overload -- postgres` measures one store.
#![expect(
    clippy::unwrap_used,
    reason = "a benchmark that cannot run has nothing to say"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use idem_report::{Measured, Report};
use idem_runtime::advanced::RunOptions;
use idem_runtime::record::RecordState;
use idem_runtime::store::{Filter, PageRequest};
use idem_runtime::{
    Attempt, Call, Error, Idem, MySqlStore, PostgresStore, SqliteStore, idempotent,
};
use idem_tests::backends;
use idem_tests::ledger::{ChargeError, Database};
use idem_tests::private::{Kind, Private, Writes};
use idem_tests::ratio::{is_asked_for, percentile};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::span;
use tracing::{Event, Level, Metadata, Subscriber};

/// Stores that are measured.
const KINDS: [Kind; 5] = [
    Kind::Postgres,
    Kind::MariaDb,
    Kind::MySql,
    Kind::Sqlite,
    Kind::Redis,
];
/// Number of tasks that find the peak.
const TASKS: usize = 256;
/// Time for which calls arrive at a rate.
const LASTS: Duration = Duration::from_secs(4);
/// Time after which a caller leaves, or a call is refused.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time after which no claim is without an owner.
const SETTLED: Duration = Duration::from_secs(5);
/// Number of calls that begin at once.
const BURST: usize = 5_000;
/// Pause before a call of the burst is repeated.
const AGAIN: Duration = Duration::from_millis(150);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// What callers do about calls that take long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Callers {
    Leave,
    Stay,
}

/// Work of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Nothing,
    Step,
    Transaction,
}

type Answer = Pin<Box<dyn Future<Output = Result<u64, Error>> + Send>>;

/// Makes a transactional call with a number and a deadline.
type Transact = Arc<dyn Fn(u64, Instant) -> Answer + Send + Sync>;

/// A store under load.
#[derive(Clone)]
struct Bed {
    idem: Idem,
    /// Makes transactional calls, if the store has transactions.
    transact: Option<Transact>,
    /// The server, if it is a Redis.
    redis: Option<redis::Client>,
    /// Number of calls so far, which are also their keys.
    calls: Arc<AtomicU64>,
}

/// Number of warnings and errors that the process would have logged.
static LOG_LINES: AtomicU64 = AtomicU64::new(0);

/// Counts log lines.
struct LogLines;

impl Subscriber for LogLines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &Event<'_>) {
        LOG_LINES.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// What became of the calls that arrived in a period.
#[derive(Debug, Default)]
struct Arrivals {
    /// Number of answers by the second in which the call arrived.
    answered: Vec<u64>,
    /// Times of the answers.
    times: Vec<Duration>,
    /// Times of the answers to calls that did not arrive in the last second. Of the others some are served after the
    /// overload, late.
    during: Vec<Duration>,
    refused: u64,
    left: u64,
    failed: BTreeMap<String, u64>,
}

impl Bed {
    /// Makes one call with a new key.
    async fn call(&self, work: Work, deadline: Option<Instant>) -> Result<u64, Error> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        if let (Work::Transaction, Some(transact)) = (work, &self.transact) {
            let deadline = deadline.unwrap_or_else(|| Instant::now() + DAY);
            return transact(number, deadline).await;
        }
        let mut call = Call::new("bench.overload", &number.to_string(), &number, DAY);
        if let Some(deadline) = deadline {
            call = call.deadline(deadline);
        }
        let body = async |attempt: Attempt| match work {
            Work::Nothing | Work::Transaction => Ok(number),
            Work::Step => attempt.step("effect", async || Ok(number)).await,
        };
        self.idem.run_with(call, RunOptions::new(), body).await
    }

    /// Calls a second that tasks complete one after the other.
    async fn peak(&self, work: Work) -> f64 {
        let end = Instant::now() + LASTS;
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            let bed = self.clone();
            tasks.spawn(async move {
                let mut calls = 0_u32;
                while Instant::now() < end {
                    bed.call(work, None).await.unwrap();
                    calls += 1;
                }
                calls
            });
        }
        let calls: u32 = tasks.join_all().await.into_iter().sum();
        f64::from(calls) / LASTS.as_secs_f64()
    }

    /// Lets calls arrive at this rate for a time.
    async fn arrive(&self, rate: f64, lasts: Duration, work: Work, callers: Callers) -> Arrivals {
        let begun = Instant::now();
        let mut tasks = JoinSet::new();
        let mut arrived = 0_u32;
        let mut tick = begun;
        while tick < begun + lasts {
            let due = (tick - begun).as_secs_f64() * rate;
            while f64::from(arrived) < due {
                arrived += 1;
                let bed = self.clone();
                let second = (tick - begun).as_secs();
                tasks.spawn(async move {
                    let answer = match callers {
                        Callers::Leave => timeout(PATIENCE, bed.call(work, None)).await.ok(),
                        Callers::Stay => Some(bed.call(work, Some(tick + PATIENCE)).await),
                    };
                    // From the time at which the call was to arrive: a generator that is late is no excuse.
                    (second, tick.elapsed(), answer)
                });
            }
            tick += Duration::from_millis(1);
            sleep_until(tick).await;
        }
        let mut arrivals = Arrivals::default();
        let seconds = usize::try_from(lasts.as_secs()).unwrap();
        arrivals.answered.resize(seconds, 0);
        while let Some(done) = tasks.join_next().await {
            let (second, took, answer) = done.unwrap();
            match answer {
                Some(Ok(_)) => {
                    arrivals.answered[usize::try_from(second).unwrap()] += 1;
                    arrivals.times.push(took);
                    if second < (lasts - PATIENCE).as_secs() {
                        arrivals.during.push(took);
                    }
                }
                Some(Err(Error::Overloaded { .. })) => arrivals.refused += 1,
                Some(Err(error)) => *arrivals.failed.entry(error.to_string()).or_default() += 1,
                None => arrivals.left += 1,
            }
        }
        arrivals.times.sort_unstable();
        arrivals.during.sort_unstable();
        arrivals
    }

    /// Number of claims without an outcome.
    async fn unfinished(&self) -> usize {
        if let Some(redis) = &self.redis {
            return running_in(redis).await;
        }
        let filter = Filter {
            state: Some(RecordState::Running),
            ..Filter::default()
        };
        let page = PageRequest::default();
        let records = self.idem.records().list(&filter, &page).await.unwrap();
        records.records.len()
    }
}

/// Number of RUNNING records in a Redis. A listing would read all records whole, which takes longer than a store call may,
/// after this many calls. This reads their letter alone, by the layout of the store.
async fn running_in(redis: &redis::Client) -> usize {
    const STATE: isize = 2;
    let mut connection = redis.get_multiplexed_async_connection().await.unwrap();
    let (mut cursor, mut running) = (0_u64, 0);
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor)
            .arg("MATCH")
            .arg("idem:*")
            .arg("COUNT")
            .arg(5_000);
        let (next, keys): (u64, Vec<Vec<u8>>) = scan.query_async(&mut connection).await.unwrap();
        let mut letters = redis::pipe();
        for key in keys {
            letters.getrange(key, STATE, STATE);
        }
        let letters: Vec<String> = letters.query_async(&mut connection).await.unwrap();
        running += letters.iter().filter(|it| *it == "r").count();
        if next == 0 {
            return running;
        }
        cursor = next;
    }
}

/// The time that a share of these answers, in their order, did not exceed.
fn milliseconds(sorted: &[Duration], share: f64) -> f64 {
    percentile(sorted, share).as_secs_f64() * 1e3
}

/// Two handles make the same calls at once, and repeat those that may succeed later.
async fn burst(handles: [Idem; 2]) {
    let effects: Arc<Vec<AtomicU8>> = Arc::new((0..BURST).map(|_| AtomicU8::new(0)).collect());
    let (begun, lines) = (Instant::now(), LOG_LINES.load(Ordering::Relaxed));
    let mut tasks = JoinSet::new();
    for idem in handles {
        for number in 0..BURST {
            let (idem, effects) = (idem.clone(), Arc::clone(&effects));
            tasks.spawn(async move {
                loop {
                    let call = Call::new("bench.burst", &number.to_string(), &number, DAY);
                    let body = async |attempt: Attempt| {
                        let effect = async || {
                            effects[number].fetch_add(1, Ordering::Relaxed);
                            Ok::<_, Error>(number as u64)
                        };
                        attempt.step("effect", effect).await
                    };
                    match idem.run_with(call, RunOptions::new(), body).await {
                        Ok(_) => return,
                        Err(error) if error.is_retryable() => sleep(AGAIN).await,
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    }
    tasks.join_all().await;
    let repeated = effects.iter().filter(|it| it.load(Ordering::Relaxed) > 1);
    println!(
        "two handles, {BURST} calls with a step at once: {:.1} s, {} effects repeated, {} log lines",
        begun.elapsed().as_secs_f64(),
        repeated.count(),
        LOG_LINES.load(Ordering::Relaxed) - lines,
    );
}

/// Largest memory of the process so far, in MB.
fn memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|it| it.starts_with("VmHWM:")).unwrap();
    let kilobytes: f64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kilobytes / 1e3
}

fn main() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    tracing::subscriber::set_global_default(LogLines).unwrap();
    let runtime = Runtime::new().unwrap();
    for kind in KINDS {
        if is_asked_for(&kind.to_string()) {
            for work in works(kind) {
                runtime.block_on(measure(kind, work, directory.path()));
            }
        }
    }
}

/// Work that is measured on a store.
fn works(kind: Kind) -> Vec<Work> {
    let mut works = vec![Work::Nothing, Work::Step];
    if kind != Kind::Redis {
        works.push(Work::Transaction);
    }
    works
}

#[idempotent(key = number, ttl = "24h", name = "bench.insert", store = idem, tx = tx, deadline = deadline)]
async fn insert<S: Database>(
    idem: &Idem<S>,
    number: u64,
    deadline: Instant,
) -> Result<u64, ChargeError> {
    S::charge(tx, &number.to_string(), "a receipt").await?;
    Ok(number)
}

async fn transact<S: Database>(address: &str) -> Transact {
    const CONNECTIONS: u32 = 16;
    let options = S::options_at(address).unwrap();
    let pool = S::pool(&options, CONNECTIONS, true);
    let store = S::over(&pool);
    store.make_ledger(&pool).await.unwrap();
    let idem = Idem::new(store);
    Arc::new(move |number, deadline| {
        let idem = idem.clone();
        Box::pin(async move {
            match insert(&idem, number, deadline).await {
                Ok(number) => Ok(number),
                Err(ChargeError::Idempotency(error)) => Err(error),
                Err(ChargeError::Ledger(error)) => panic!("{error}"),
            }
        })
    })
}

async fn measure(kind: Kind, work: Work, directory: &Path) {
    let directory = directory.join(format!("{kind}-{work:?}"));
    std::fs::create_dir(&directory).unwrap();
    let private = Private::start(kind, Writes::Flushed, &directory).unwrap();
    let redis = (kind == Kind::Redis).then(|| redis::Client::open(&*private.address).unwrap());
    let bed = Bed {
        idem: backends::open(&private.address).await.unwrap(),
        transact: match (work, kind) {
            (Work::Transaction, Kind::Postgres) => {
                Some(transact::<PostgresStore>(&private.address).await)
            }
            (Work::Transaction, Kind::Sqlite) => {
                Some(transact::<SqliteStore>(&private.address).await)
            }
            (Work::Transaction, _) => Some(transact::<MySqlStore>(&private.address).await),
            _ => None,
        },
        redis,
        calls: Arc::default(),
    };
    bed.peak(work).await;
    let peak = bed.peak(work).await;
    let title = match work {
        Work::Nothing => format!("{kind}"),
        Work::Step => format!("{kind}, with a step"),
        Work::Transaction => format!("{kind}, in a transaction"),
    };
    println!("{title}: {peak:.0} calls a second");
    let mut measured = vec![Measured {
        name: "peak".to_owned(),
        times: vec![1e9 / peak],
        ..Measured::default()
    }];
    let mut usual = None;
    for (factor, callers) in [
        (0.75, Callers::Leave),
        (2.0, Callers::Leave),
        (2.0, Callers::Stay),
        (4.0, Callers::Leave),
        (4.0, Callers::Stay),
    ] {
        let (before, lines) = (memory(), LOG_LINES.load(Ordering::Relaxed));
        let arrivals = bed.arrive(peak * factor, LASTS, work, callers).await;
        let after = bed
            .arrive(peak / 2.0, Duration::from_secs(2), work, callers)
            .await;
        sleep(SETTLED).await;
        let unfinished = bed.unfinished().await;
        let goodput = arrivals.answered.iter().sum::<u64>() as f64 / LASTS.as_secs_f64();
        let tail = milliseconds(&arrivals.during, 0.999);
        let slowest = arrivals.answered.iter().min().copied().unwrap_or_default() as f64;
        let lines = (LOG_LINES.load(Ordering::Relaxed) - lines) as f64 / LASTS.as_secs_f64();
        let usual = *usual.get_or_insert(tail);
        println!(
            "{factor:>5}x {callers:?}: goodput {:.2} of the peak, by second {:?}, {} refused, {} left, failed {:?}; \
             p50 {:.1} p99 {:.1} ms, p99.9 before the last second {tail:.1} ms ({usual:.1} usual); after it {:?} of {:.0} a second; {unfinished} \
             without an owner; {:+.0} MB; {lines:.0} log lines a second",
            goodput / peak,
            arrivals.answered,
            arrivals.refused,
            arrivals.left,
            arrivals.failed,
            milliseconds(&arrivals.times, 0.5),
            milliseconds(&arrivals.times, 0.99),
            after.answered,
            peak / 2.0,
            memory() - before,
        );
        measured.push(Measured {
            name: format!("{factor} times the peak, callers {callers:?}").to_lowercase(),
            times: vec![1e9 / goodput.max(1e-3)],
            counters: BTreeMap::from([
                ("answered".to_owned(), goodput / peak),
                ("p50 ms".to_owned(), milliseconds(&arrivals.times, 0.5)),
                ("p99 ms".to_owned(), milliseconds(&arrivals.times, 0.99)),
                ("p99.9 ms before the last second".to_owned(), tail),
                ("p99.9 ms".to_owned(), milliseconds(&arrivals.times, 0.999)),
                ("slowest second".to_owned(), slowest / peak),
                ("refused".to_owned(), arrivals.refused as f64),
                ("left".to_owned(), arrivals.left as f64),
                (
                    "failed".to_owned(),
                    arrivals.failed.values().sum::<u64>() as f64,
                ),
                ("unfinished".to_owned(), unfinished as f64),
                ("log lines".to_owned(), lines),
                ("MB more".to_owned(), memory() - before),
                (
                    "answered after it".to_owned(),
                    after.answered[1] as f64 / (peak / 2.0),
                ),
            ]),
            limits: None,
        });
    }
    if work == Work::Step {
        let other = backends::open(&private.address).await.unwrap();
        burst([bed.idem, other]).await;
    }
    Report::new(&title, measured).unwrap().publish().unwrap();
}
