//! Lets servers fail over while a service works on them, and compares the outcomes that callers got with the records and
//! the real effects.
//!
//! `cargo run -p idem-tests --bin failover -- --engine postgres-sync --rounds 10` starts private servers and a service of
//! three clients. Several callers call each key concurrently and retry after errors, under `rerun`, under `refuse`, and
//! in transactions (`tx`) if the store has them. In each round one server fails while the calls run, another takes its
//! place, and the calls continue. In the end each key is called once more. Counted are:
//!
//! - lost outcomes: an acknowledged outcome that the store no longer has. There must be none where the documentation
//!   promises that;
//! - keys with two acknowledged outcomes, and effects that happened twice;
//! - disagreements: a row in the ledger without its record, or a completed record without its row (`tx`);
//! - fencing tokens of records that are lower than one that an attempt had;
//! - stuck keys: callers that got no answer although the servers had recovered and all leases were over.
//!
//! A value that its caller got with a warning, because the store had not acknowledged it, is no acknowledged outcome.
//! The caller repeats its call.
//!
//! To add an engine, implement [`engine::Engine`] in a module of its own, and name it in [`Name`].

mod answer;
mod calls;
mod engine;
mod etcd;
mod galera;
mod group;
mod load;
mod network;
mod patroni;
mod postgres;
mod report;
mod sentinel;

use std::fmt;
use std::process::ExitCode;

use anyhow::bail;
use idem_servers::Primaries;
use lexopt::prelude::{Long, ValueExt};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use self::engine::Engine;
use self::etcd::Etcd;
use self::galera::Galera;
use self::group::Group;
use self::load::Plan;
use self::patroni::UnderPatroni;
use self::postgres::{Postgres, Replication};
use self::report::Report;
use self::sentinel::{Guard, Sentinel};

const USAGE: &str = "\
Usage: failover [--engine NAME]... [--rounds N] [--keys N]

  --engine NAME   postgres-sync, postgres-async, patroni, galera, group, group-all, sentinel, sentinel-wait,
                  sentinel-both, etcd, or all; may be repeated (postgres-sync)
  --rounds N      failovers of each engine (3)
  --keys N        keys that are answered before each failover, and keys that are begun after it (60)
";

/// Engine under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    PostgresSync,
    PostgresAsync,
    Patroni,
    Galera,
    Group,
    GroupAll,
    Sentinel,
    SentinelWait,
    SentinelBoth,
    Etcd,
}

impl Name {
    const ALL: [Self; 10] = [
        Self::PostgresSync,
        Self::PostgresAsync,
        Self::Patroni,
        Self::Galera,
        Self::Group,
        Self::GroupAll,
        Self::Sentinel,
        Self::SentinelWait,
        Self::SentinelBoth,
        Self::Etcd,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::PostgresSync => "postgres-sync",
            Self::PostgresAsync => "postgres-async",
            Self::Patroni => "patroni",
            Self::Galera => "galera",
            Self::Group => "group",
            Self::GroupAll => "group-all",
            Self::Sentinel => "sentinel",
            Self::SentinelWait => "sentinel-wait",
            Self::SentinelBoth => "sentinel-both",
            Self::Etcd => "etcd",
        }
    }

    /// Starts the servers, and runs all rounds.
    async fn run(self, plan: Plan) -> anyhow::Result<Report> {
        match self {
            Self::PostgresSync => {
                let engine = Postgres::start(Replication::Synchronous).await?;
                self.run_on(engine, plan).await
            }
            Self::PostgresAsync => {
                let engine = Postgres::start(Replication::Asynchronous).await?;
                self.run_on(engine, plan).await
            }
            Self::Patroni => self.run_on(UnderPatroni::start().await?, plan).await,
            Self::Galera => {
                let engine = Galera::start().await?;
                self.run_on(engine, plan).await
            }
            Self::Group => {
                let engine = Group::start(Primaries::One).await?;
                self.run_on(engine, plan).await
            }
            Self::GroupAll => {
                let engine = Group::start(Primaries::All).await?;
                self.run_on(engine, plan).await
            }
            Self::Sentinel => self.run_on(Sentinel::start(Guard::None)?, plan).await,
            Self::SentinelWait => self.run_on(Sentinel::start(Guard::Wait)?, plan).await,
            Self::SentinelBoth => {
                let engine = Sentinel::start(Guard::WaitAndMinReplicas)?;
                self.run_on(engine, plan).await
            }
            Self::Etcd => self.run_on(Etcd::start()?, plan).await,
        }
    }

    /// Runs all rounds, and compares what the callers heard with the records and the effects.
    async fn run_on<E: Engine>(self, mut engine: E, plan: Plan) -> anyhow::Result<Report> {
        let name = self.as_str();
        let run = load::run(name, &mut engine, plan).await?;
        report::judge(name, engine.keeps_acknowledged(), plan.rounds, &run).await
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Parses the engines that a command-line word names.
fn named(word: &str) -> anyhow::Result<Vec<Name>> {
    if word == "all" {
        return Ok(Name::ALL.to_vec());
    }
    match Name::ALL.into_iter().find(|it| it.as_str() == word) {
        Some(name) => Ok(vec![name]),
        None => {
            let names = Name::ALL.map(Name::as_str).join(", ");
            bail!("unknown engine {word:?}: use {names} or all")
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::registry().with(answer::Warnings).init();
    let outcome = match parse() {
        Ok(Some((names, plan))) => all(&names, plan).await,
        Ok(None) => {
            print!("{USAGE}");
            Ok(())
        }
        Err(error) => Err(error),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("failover: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn parse() -> anyhow::Result<Option<(Vec<Name>, Plan)>> {
    let mut names = Vec::new();
    let mut plan = Plan {
        rounds: 3,
        keys: 60,
    };
    let mut args = lexopt::Parser::from_env();
    while let Some(arg) = args.next()? {
        match arg {
            Long("engine") => names.extend(named(&args.value()?.string()?)?),
            Long("rounds") => plan.rounds = args.value()?.parse()?,
            Long("keys") => plan.keys = args.value()?.parse()?,
            Long("help") => return Ok(None),
            other => return Err(other.unexpected().into()),
        }
    }
    if names.is_empty() {
        names.push(Name::PostgresSync);
    }
    Ok(Some((names, plan)))
}

/// Tests the engines in order. If an engine fails, the others are tested nevertheless.
async fn all(names: &[Name], plan: Plan) -> anyhow::Result<()> {
    let mut failed = Vec::new();
    for name in names {
        let verdict = name.run(plan).await.and_then(|report| {
            println!("{report}");
            report.verdict()
        });
        if let Err(error) = verdict {
            eprintln!("{name}: {error:#}");
            failed.push(name.as_str());
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    bail!("broken guarantees on: {}", failed.join(", "))
}
