//! Kills processes at random moments while they work on one store, and then asks a ledger what really happened.
//!
//! `cargo run -p idem-tests --bin crash -- --kills 500` starts worker processes on one SQLite file, all of them busy
//! with the same few keys, kills one with SIGKILL every few milliseconds, and starts another in its place. Workers
//! charge under `rerun` and under `refuse`, with gateway time-outs mixed in, and say what each call answered. In the end
//! every key is called once more, and what the workers were told is held against the records and the ledger:
//!
//! - lost outcomes: a caller was given a receipt that the record does not hold, or another one than an earlier caller;
//! - double effects: more than one ledger row a key. Under `rerun` a kill between effect and record makes them, which
//!   is what "at least once" means; under `refuse` there must be none;
//! - stuck keys: a key that can neither be called to its end nor stands INTERRUPTED for a person.

mod report;
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

use self::report::Answers;

const USAGE: &str = "\
Usage: crash [--kills N] [--workers N] [--seconds N]

  --kills N     how many processes to kill (200)
  --workers N   how many work at a time (4)
  --seconds N   when to stop killing at the latest (240)
";

#[derive(Debug)]
enum Role {
    Supervisor {
        kills: u32,
        workers: usize,
        limit: Duration,
    },
    Worker(worker::Orders),
}

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = match parse() {
        Ok(Some(Role::Supervisor {
            kills,
            workers,
            limit,
        })) => supervise(kills, workers, limit).await,
        Ok(Some(Role::Worker(orders))) => worker::work(orders).await,
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
    let (mut kills, mut workers, mut seconds) = (200, 4, 240);
    let mut args = lexopt::Parser::from_env();
    while let Some(arg) = args.next()? {
        match arg {
            Long("kills") => kills = args.value()?.parse()?,
            Long("workers") => workers = args.value()?.parse()?,
            Long("seconds") => seconds = args.value()?.parse()?,
            Long("help") => return Ok(None),
            // How the supervisor starts its workers.
            Value(word) if word == "work" => {
                let orders = worker::Orders {
                    store: PathBuf::from(args.value()?),
                    begun_at: args.value()?.parse()?,
                };
                return Ok(Some(Role::Worker(orders)));
            }
            other => return Err(other.unexpected().into()),
        }
    }
    if workers == 0 {
        bail!("--workers takes at least 1");
    }
    Ok(Some(Role::Supervisor {
        kills,
        workers,
        limit: Duration::from_secs(seconds),
    }))
}

/// A worker process and the task that listens to it.
struct Worker {
    process: Child,
    listener: JoinHandle<()>,
}

async fn supervise(kills: u32, workers: usize, limit: Duration) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let store = dir.path().join("crash.sqlite");
    worker::prepare(&store).await?;
    let begun_at = worker::wall_clock();
    let answers = Arc::new(Mutex::new(Answers::default()));
    let start = || Worker::start(&store, begun_at, &answers);

    let started = Instant::now();
    let mut running = (0..workers)
        .map(|_| start())
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut killed = 0;
    while killed < kills && started.elapsed() < limit {
        let pause = rand::rng().random_range(5..80);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let victim = rand::rng().random_range(0..running.len());
        let dead = std::mem::replace(&mut running[victim], start()?);
        dead.kill().await?;
        killed += 1;
    }
    for worker in running {
        worker.kill().await?;
    }

    let answers = std::mem::take(&mut *answers.lock().expect("no listener panics"));
    let report = report::judge(&store, answers).await?;
    println!("{report}");
    println!("sqlite: {killed} kills in {:.0?}", started.elapsed());
    if killed < kills {
        bail!("only {killed} of {kills} kills within {limit:?}");
    }
    report.verdict()
}

impl Worker {
    fn start(
        store: &Path,
        begun_at: u64,
        answers: &Arc<Mutex<Answers>>,
    ) -> anyhow::Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg("work")
            .arg(store)
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
