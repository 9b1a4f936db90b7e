//! Kills processes at random moments while they work on one store, and compares the results with a ledger of the real
//! effects.
//!
//! `cargo run -p idem-tests --bin crash -- --store postgres --kills 500` starts a private server and worker processes
//! that all use the same few keys. It kills one worker with SIGKILL every few milliseconds, and starts another in its
//! place. With `--server-kills 20` it also kills the server, which is durable and restarts with its data. Workers
//! charge under `rerun` and under `refuse`, with some gateway time-outs, and report the answer to each call. In the end
//! the program calls every key once more, and compares the reported answers with the records and with the ledger, which
//! is a separate file:
//!
//! - lost outcomes: a caller got a receipt that is not in the record, or that differs from an earlier caller's receipt;
//! - double effects: more than one ledger row for a key. Under `rerun` a kill between effect and record causes them,
//!   which is the meaning of "at least once"; under `refuse` there must be none;
//! - stuck keys: a key that can neither be called to completion nor is INTERRUPTED for an operator.
//!
//! With `--mode tx` the workers charge in transactions (`tx = tx`) of the database that holds the records: SQLite,
//! PostgreSQL or MariaDB. The ledger is a table next to the records. Some charges fail after their effect, and some are
//! dropped half way. Then nothing may be lost or double: there is one ledger row for every key whose caller got a
//! receipt, at most one for every other key, a completed record for each row, and no other record. The long run is
//! `--mode tx --store all --kills 1000 --server-kills 60 --seconds 900`.
//!
//! With `--beside FILE` half of the workers are processes of another build of this program, such as that of an earlier
//! release: `cargo xtask prove --formats` builds one. Each worker migrates the tables when it starts. Workers of both
//! builds call every key at once and again after its leases, so that each build replays the results of the other one, and
//! takes over the calls of its killed workers.
//!
//! With `--mode mixed` calls of all modes share a pool of four connections, and callers drop their calls; see
//! [`mixed`].

mod backend;
mod beside;
mod mixed;
mod process;
mod report;
mod transactions;
mod worker;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::bail;
use idem_tests::private::{Kind, Private, Writes};
use lexopt::prelude::{Long, Value, ValueExt};
use rand::RngExt;

use self::beside::{Beside, Build};
use self::process::Worker;
use self::report::Answers;

const USAGE: &str = "\
Usage: crash [--mode MODE] [--store NAME]... [--kills N] [--server-kills N] [--stops N] [--drops N] [--workers N]
             [--seconds N] [--beside FILE]

  --mode MODE        leased: at least once and at most once; tx: exactly once; or mixed: all kinds of calls, an outbox
                     and a purger on one pool of 4 connections, with callers that drop their calls (leased)
  --store NAME       sqlite, postgres, pgbouncer (not with mixed), mariadb, mysql, redis (not with tx), redis-cluster and
                     memory (only with mixed), or all; may be repeated (sqlite)
  --kills N          worker processes to kill, for each store except memory (200)
  --server-kills N   times to kill the server, if the store has one (0; mixed: one in 50 kills)
  --stops N          mixed: times to stop and continue the server (one in 50 kills)
  --drops N          mixed: lowest number of calls to drop half way (2000)
  --workers N        concurrent workers (4; mixed: 3)
  --seconds N        longest time of killing, for each store (240; mixed: 3600)
  --beside FILE      this program of another build, whose workers run beside those of this one (not with mixed)

The long round of mixed is `--mode mixed --store all --kills 1000 --drops 100000`.
";

#[derive(Debug)]
enum Role {
    Supervisor(Plan),
    Worker(Mode, worker::Orders),
}

/// Kind of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Leased,
    Transactional,
    Mixed,
}

impl Mode {
    fn named(word: &str) -> anyhow::Result<Self> {
        match word {
            "leased" => Ok(Self::Leased),
            "tx" => Ok(Self::Transactional),
            "mixed" => Ok(Self::Mixed),
            _ => bail!("unknown mode {word:?}: use leased, tx or mixed"),
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Leased => "leased",
            Self::Transactional => "tx",
            Self::Mixed => "mixed",
        }
    }
}

/// Faults to inject while each store is tested.
#[derive(Debug)]
struct Plan {
    mode: Mode,
    stores: Vec<Kind>,
    kills: u32,
    server_kills: u32,
    stops: u32,
    drops: u64,
    workers: usize,
    limit: Duration,
    /// Program of another build.
    beside: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = match parse() {
        Ok(Some(Role::Supervisor(plan))) => all(&plan).await,
        Ok(Some(Role::Worker(Mode::Leased, orders))) => worker::work(orders).await,
        Ok(Some(Role::Worker(Mode::Transactional, orders))) => transactions::work(orders).await,
        Ok(Some(Role::Worker(Mode::Mixed, orders))) => mixed::work(orders).await,
        Ok(None) => {
            print!("{USAGE}");
            Ok(())
        }
        Err(error) => Err(error),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("crash: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn parse() -> anyhow::Result<Option<Role>> {
    let mut words = Vec::new();
    let mut mode = Mode::Leased;
    let mut kills = 200_u32;
    let mut drops = 2000;
    let (mut server_kills, mut stops, mut workers, mut seconds) = (None, None, None, None);
    let mut beside = None;
    let mut args = lexopt::Parser::from_env();
    while let Some(arg) = args.next()? {
        match arg {
            Long("mode") => mode = Mode::named(&args.value()?.string()?)?,
            Long("store") => words.push(args.value()?.string()?),
            Long("kills") => kills = args.value()?.parse()?,
            Long("server-kills") => server_kills = Some(args.value()?.parse()?),
            Long("stops") => stops = Some(args.value()?.parse()?),
            Long("drops") => drops = args.value()?.parse()?,
            Long("workers") => workers = Some(args.value()?.parse()?),
            Long("seconds") => seconds = Some(args.value()?.parse()?),
            Long("beside") => beside = Some(PathBuf::from(args.value()?)),
            Long("help") => return Ok(None),
            // Internal command with which the supervisor starts its workers.
            Value(word) if word == "work" => {
                let mode = Mode::named(&args.value()?.string()?)?;
                let orders = worker::Orders {
                    store: args.value()?.string()?,
                    ledger: PathBuf::from(args.value()?),
                    begun_at: args.value()?.parse()?,
                };
                return Ok(Some(Role::Worker(mode, orders)));
            }
            other => return Err(other.unexpected().into()),
        }
    }
    if words.is_empty() {
        words.push("sqlite".to_owned());
    }
    let mixed = mode == Mode::Mixed;
    let some = if mixed { kills.div_ceil(50) } else { 0 };
    let plan = Plan {
        mode,
        stores: {
            let stores = words.iter().map(|word| backend::named(word, mode));
            let stores: anyhow::Result<Vec<_>> = stores.collect();
            stores?.concat()
        },
        kills,
        server_kills: server_kills.unwrap_or(some),
        stops: stops.unwrap_or(some),
        drops,
        workers: workers.unwrap_or(if mixed { 3 } else { 4 }),
        limit: Duration::from_secs(seconds.unwrap_or(if mixed { 3600 } else { 240 })),
        beside,
    };
    if mixed && plan.beside.is_some() {
        bail!("`--beside` has no mode `mixed`: choose another mode");
    }
    if plan.workers == 0 {
        bail!("`--workers` must be at least 1");
    }
    Ok(Some(Role::Supervisor(plan)))
}

/// Tests the stores in order. If a store fails, the others are tested nevertheless.
async fn all(plan: &Plan) -> anyhow::Result<()> {
    let mut failed = Vec::new();
    for store in &plan.stores {
        let done = match plan.mode {
            Mode::Mixed => mixed::supervise(*store, plan).await,
            Mode::Leased | Mode::Transactional => supervise(*store, plan).await,
        };
        if let Err(error) = done {
            eprintln!("{store}: {error:#}");
            failed.push(store.to_string());
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    bail!("broken guarantees on: {}", failed.join(", "))
}

/// Time after which half of the workers call each key again: longer than a lease.
const LAG: u64 = 700;

/// Longest pause between two kills.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

async fn supervise(store: Kind, plan: &Plan) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let ledger = dir.path().join("ledger.sqlite");
    let place = Private::start(store, Writes::Flushed, dir.path())?;
    if plan.mode == Mode::Transactional {
        transactions::prepare(&place.address).await?;
    } else {
        worker::prepare(&place.address, &ledger).await?;
    }
    let begun_at = worker::wall_clock();
    let has_server = !place.servers().is_empty();
    let server_kills = if has_server { plan.server_kills } else { 0 };
    let answers = Arc::new(Mutex::new(Answers::new(server_kills > 0)));
    let beside = Arc::new(Mutex::new(Beside::new()));
    let is_beside = plan.beside.is_some();
    let program = std::env::current_exe()?;
    let start = |number: usize| {
        let (answers, builds) = (Arc::clone(&answers), Arc::clone(&beside));
        let build = Build::in_place(number);
        let hear = move |line: &str| {
            answers.lock().expect("no listener panics").hear(line);
            if is_beside {
                builds.lock().expect("no listener panics").hear(build, line);
            }
        };
        let program = match &plan.beside {
            Some(earlier) if build == Build::Earlier => earlier,
            _ => &program,
        };
        // Of each build, every second worker comes to a key when the leases of the first one have lapsed.
        let lag = match plan.beside {
            Some(_) if number % 4 >= 2 => LAG,
            _ => 0,
        };
        let worker = Worker::start(
            program,
            plan.mode,
            &place.address,
            &ledger,
            begun_at + lag,
            hear,
        )?;
        beside
            .lock()
            .expect("no listener panics")
            .started(worker.id(), build);
        anyhow::Ok(worker)
    };

    let heard = || answers.lock().expect("no listener panics").heard();
    let started = Instant::now();
    let mut running = (0..plan.workers)
        .map(&start)
        .collect::<anyhow::Result<Vec<_>>>()?;
    let (mut killed, mut server_killed) = (0, 0);
    while (killed < plan.kills || server_killed < server_kills) && started.elapsed() < plan.limit {
        let pause = Duration::from_millis(rand::rng().random_range(5..80));
        let (before, paused) = (heard(), Instant::now());
        tokio::time::sleep(pause).await;
        // On a busy machine, a worker would be killed before it has connected.
        while heard() == before && paused.elapsed() < LONGEST_PAUSE {
            tokio::time::sleep(pause).await;
        }
        // The kills of the server are spread evenly over the kills of the workers.
        if u64::from(server_killed) * u64::from(plan.kills)
            < u64::from(killed) * u64::from(server_kills)
        {
            place.kill_and_restart(0)?;
            server_killed += 1;
        }
        if killed < plan.kills {
            let victim = rand::rng().random_range(0..running.len());
            let dead = std::mem::replace(&mut running[victim], start(victim)?);
            dead.kill().await?;
            killed += 1;
        }
    }
    for worker in running {
        worker.kill().await?;
    }

    let answers = std::mem::take(&mut *answers.lock().expect("no listener panics"));
    let is_transactional = plan.mode == Mode::Transactional;
    let verdict = if is_transactional {
        if has_server {
            // After this, an unfinished commit of a killed worker has happened or not.
            place.kill_and_restart(0)?;
        }
        let report = transactions::judge(store, &place.address, answers).await?;
        println!("{report}");
        report.verdict()
    } else {
        let report = report::judge(store, &place.address, &ledger, answers).await?;
        println!("{report}");
        report.verdict()
    };
    println!(
        "{store}: {killed} kills, {server_killed} kills of the server in {:.0?}",
        started.elapsed()
    );
    if is_beside {
        let mut beside = std::mem::replace(
            &mut *beside.lock().expect("no listener panics"),
            Beside::new(),
        );
        beside.read_histories(&place.address).await?;
        println!("{store}: {beside}");
        beside.verdict(!is_transactional)?;
    }
    if killed < plan.kills || server_killed < server_kills {
        bail!(
            "only {killed} of {} kills within {:?}",
            plan.kills,
            plan.limit
        );
    }
    verdict
}

/// Number of events for each key.
type Counts = BTreeMap<String, u64>;
