//! Kills processes at random moments while they work on one store, and then asks a ledger what really happened.
//!
//! `cargo run -p idem-tests --bin crash -- --store postgres --kills 500` starts a private server and worker processes on
//! it, all of them busy with the same few keys, kills one with SIGKILL every few milliseconds, and starts another in its
//! place; with `--server-kills 20` it does the same to the server, which is durable and comes back with its data. Workers
//! charge under `rerun` and under `refuse`, with gateway time-outs mixed in, and say what each call answered. In the end
//! every key is called once more, and what the workers were told is held against the records and the ledger, a file of
//! its own:
//!
//! - lost outcomes: a caller was given a receipt that the record does not hold, or another one than an earlier caller;
//! - double effects: more than one ledger row a key. Under `rerun` a kill between effect and record makes them, which
//!   is what "at least once" means; under `refuse` there must be none;
//! - stuck keys: a key that can neither be called to its end nor stands INTERRUPTED for a person.
//!
//! With `--mode tx` the workers charge in transactions (`tx = tx`) of the database that the records are in, SQLite,
//! PostgreSQL or MariaDB, and the ledger is a table beside them. Some charges fail behind their effect, some are dropped
//! half way. Then nothing at all may be lost or double: a ledger row for every key whose caller was given a receipt, at
//! most one for every other, and a completed record for each row and no record besides. `--mode tx --store all --kills
//! 1000 --server-kills 60 --seconds 900` is the long round.

mod backend;
mod report;
mod transactions;
mod worker;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use lexopt::prelude::{Long, Value, ValueExt};
use rand::RngExt;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use self::backend::Place;
use self::report::Answers;

const USAGE: &str = "\
Usage: crash [--mode MODE] [--store NAME]... [--kills N] [--server-kills N] [--workers N] [--seconds N]

  --mode MODE        leased: at least once and at most once, side by side, or tx: exactly once (leased)
  --store NAME       sqlite, postgres, mariadb, redis (which has no tx), or all; may be repeated (sqlite)
  --kills N          how many worker processes to kill, for each store (200)
  --server-kills N   how many times to kill the server meanwhile; SQLite has none (0)
  --workers N        how many work at a time (4)
  --seconds N        when to stop killing at the latest, for each store (240)
";

#[derive(Debug)]
enum Role {
    Supervisor(Plan),
    Worker(Mode, worker::Orders),
}

/// What the calls are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Leased,
    Transactional,
}

impl Mode {
    fn named(word: &str) -> anyhow::Result<Self> {
        match word {
            "leased" => Ok(Self::Leased),
            "tx" => Ok(Self::Transactional),
            _ => bail!("there is no mode {word:?}: leased, tx"),
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Leased => "leased",
            Self::Transactional => "tx",
        }
    }
}

/// What to do to each of the stores.
#[derive(Debug)]
struct Plan {
    mode: Mode,
    stores: Vec<backend::Name>,
    kills: u32,
    server_kills: u32,
    workers: usize,
    limit: Duration,
}

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = match parse() {
        Ok(Some(Role::Supervisor(plan))) => all(&plan).await,
        Ok(Some(Role::Worker(Mode::Leased, orders))) => worker::work(orders).await,
        Ok(Some(Role::Worker(Mode::Transactional, orders))) => transactions::work(orders).await,
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
    let mut plan = Plan {
        mode: Mode::Leased,
        stores: Vec::new(),
        kills: 200,
        server_kills: 0,
        workers: 4,
        limit: Duration::from_secs(240),
    };
    let mut args = lexopt::Parser::from_env();
    while let Some(arg) = args.next()? {
        match arg {
            Long("mode") => plan.mode = Mode::named(&args.value()?.string()?)?,
            Long("store") => words.push(args.value()?.string()?),
            Long("kills") => plan.kills = args.value()?.parse()?,
            Long("server-kills") => plan.server_kills = args.value()?.parse()?,
            Long("workers") => plan.workers = args.value()?.parse()?,
            Long("seconds") => plan.limit = Duration::from_secs(args.value()?.parse()?),
            Long("help") => return Ok(None),
            // How the supervisor starts its workers.
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
    if plan.workers == 0 {
        bail!("--workers takes at least 1");
    }
    if words.is_empty() {
        words.push("sqlite".to_owned());
    }
    for word in words {
        plan.stores.extend(backend::named(&word, plan.mode)?);
    }
    Ok(Some(Role::Supervisor(plan)))
}

/// One store after the other; what is wrong with one does not hide what is with the next.
async fn all(plan: &Plan) -> anyhow::Result<()> {
    let mut failed = Vec::new();
    for store in &plan.stores {
        if let Err(error) = supervise(*store, plan).await {
            eprintln!("{store}: {error:#}");
            failed.push(store.to_string());
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    bail!("not as promised: {}", failed.join(", "))
}

/// A worker process and the task that listens to it.
struct Worker {
    process: Child,
    listener: JoinHandle<()>,
}

async fn supervise(store: backend::Name, plan: &Plan) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let ledger = dir.path().join("ledger.sqlite");
    let place = Place::start(store, dir.path())?;
    match plan.mode {
        Mode::Leased => worker::prepare(&place.address, &ledger).await?,
        Mode::Transactional => transactions::prepare(&place.address).await?,
    }
    let begun_at = worker::wall_clock();
    let server_kills = place.server.as_ref().map_or(0, |_| plan.server_kills);
    let answers = Arc::new(Mutex::new(Answers::new(server_kills > 0)));
    let start = || Worker::start(plan.mode, &place.address, &ledger, begun_at, &answers);

    let started = Instant::now();
    let mut running = (0..plan.workers)
        .map(|_| start())
        .collect::<anyhow::Result<Vec<_>>>()?;
    let (mut killed, mut server_killed) = (0, 0);
    while (killed < plan.kills || server_killed < server_kills) && started.elapsed() < plan.limit {
        let pause = rand::rng().random_range(5..80);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        // The server's turns are spread evenly over those of the workers.
        if let Some(server) = &place.server
            && u64::from(server_killed) * u64::from(plan.kills)
                < u64::from(killed) * u64::from(server_kills)
        {
            server.kill()?;
            server.restart()?;
            server_killed += 1;
        }
        if killed < plan.kills {
            let victim = rand::rng().random_range(0..running.len());
            let dead = std::mem::replace(&mut running[victim], start()?);
            dead.kill().await?;
            killed += 1;
        }
    }
    for worker in running {
        worker.kill().await?;
    }

    let answers = std::mem::take(&mut *answers.lock().expect("no listener panics"));
    let verdict = match plan.mode {
        Mode::Leased => {
            let report = report::judge(store, &place.address, &ledger, answers).await?;
            println!("{report}");
            report.verdict()
        }
        Mode::Transactional => {
            if let Some(server) = &place.server {
                // A commit of the dead that is under way has then happened or not.
                server.kill()?;
                server.restart()?;
            }
            let report = transactions::judge(store, &place.address, answers).await?;
            println!("{report}");
            report.verdict()
        }
    };
    println!(
        "{store}: {killed} kills, {server_killed} kills of the server in {:.0?}",
        started.elapsed()
    );
    if killed < plan.kills || server_killed < server_kills {
        bail!(
            "only {killed} of {} kills within {:?}",
            plan.kills,
            plan.limit
        );
    }
    verdict
}

impl Worker {
    fn start(
        mode: Mode,
        store: &str,
        ledger: &Path,
        begun_at: u64,
        answers: &Arc<Mutex<Answers>>,
    ) -> anyhow::Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["work", mode.as_str()])
            .arg(store)
            .arg(ledger)
            .arg(begun_at.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("a worker could not be started")?;
        let stdout = process.stdout.take().context("its output is piped")?;
        let answers = Arc::clone(answers);
        let listener = tokio::spawn(async move {
            let mut lines = BufReader::new(stdout).split(b'\n');
            while let Ok(Some(line)) = lines.next_segment().await {
                // The last line of a worker that was killed may be cut short; nobody was told anything then.
                if let Ok(line) = String::from_utf8(line) {
                    answers.lock().expect("no listener panics").hear(&line);
                }
            }
        });
        Ok(Self { process, listener })
    }

    /// SIGKILL, and everything that it said before.
    async fn kill(mut self) -> anyhow::Result<()> {
        self.process.kill().await?;
        self.listener.await?;
        Ok(())
    }
}

/// How often something happened, by key.
type Counts = BTreeMap<String, u64>;
