//! One pool, all modes: leased, refused, transactional and joined calls, steps, an outbox with a relay, and a purger
//! share one pool of four connections in each worker process, and most callers drop their calls at random.
//!
//! During this, workers are killed, the server is stopped, continued and killed, and another session locks records for
//! seconds. Every few seconds there is a pause. In a pause no call is in flight, and each worker checks
//!
//! - its pool: all connections can be acquired, and none is in a transaction;
//! - the records of calls that were dropped before their body was polled: no such record is still running;
//!
//! and the supervisor reads, in its own session, the outcomes that were acknowledged since the last pause. In the end
//! the server is killed once more, and all reports are compared with the database, see [`verdict`].
//!
//! Redis has no transactions: its workers make leased calls and steps over the store's single connection. The memory
//! store has no processes: its callers drop their calls, and nothing is killed.

mod callers;
mod calls;
mod checks;
mod database;
mod dropping;
mod faults;
#[cfg(test)]
mod proofs;
mod relaying;
mod reports;
mod verdict;
mod worker;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use idem_runtime::record::RecordState;
use idem_runtime::{Idem, MemoryStore, Store};
use idem_tests::private::{Kind, Private, Writes};
use idem_tests::{at_database, backends};
use rand::RngExt;
use tokio::sync::mpsc;

use self::database::OnePool;
use self::faults::{Locker, Outages};
use self::reports::{Reports, Suspect, Voice, lock};
use crate::process::Worker;
use crate::worker::{until_it_answers, wall_clock};
use crate::{Mode, Plan};

pub(crate) use self::worker::work;

/// Length of the work between two pauses.
const WORKING: Duration = Duration::from_secs(3);
/// Longest time that a worker may take to pause and check.
const CHECKED_WITHIN: Duration = Duration::from_secs(90);
/// Number of acknowledged outcomes that are read in a pause; all of them are read in the end.
const LOOKED_UP: usize = 300;

/// Faults that were injected into a store, and checks that were made.
#[derive(Debug, Default)]
struct Done {
    kills: u32,
    server_kills: u32,
    stops: u32,
    locks: Arc<AtomicU64>,
    looked_up: u64,
}

/// A worker: another process, or a task of this one.
enum Member {
    Process(Worker),
    Here(mpsc::UnboundedSender<String>),
}

struct Crew<'a> {
    address: &'a str,
    /// Handle on a store that only this process has.
    memory: Option<Idem>,
    begun_at: u64,
    reports: Arc<Mutex<Reports>>,
    members: Vec<(usize, Member)>,
    hired: usize,
    pauses: u64,
}

impl Crew<'_> {
    fn hire(&mut self) -> anyhow::Result<(usize, Member)> {
        self.hired += 1;
        let id = self.hired;
        let voice = Voice::Here(id, Arc::clone(&self.reports));
        let member = match &self.memory {
            Some(idem) => {
                let (orders, commands) = mpsc::unbounded_channel();
                tokio::spawn(worker::work_here(
                    idem.clone(),
                    self.begun_at,
                    voice,
                    commands,
                ));
                Member::Here(orders)
            }
            None => {
                let hear = move |line: &str| voice.say(line);
                Member::Process(Worker::start(
                    &std::env::current_exe()?,
                    Mode::Mixed,
                    self.address,
                    Path::new("-"),
                    self.begun_at,
                    hear,
                )?)
            }
        };
        Ok((id, member))
    }

    /// Kills a random worker except the first, which keeps its pool for the whole run.
    async fn kill_one(&mut self) -> anyhow::Result<()> {
        let victim =
            rand::rng().random_range(usize::from(self.members.len() > 1)..self.members.len());
        let hired = self.hire()?;
        match std::mem::replace(&mut self.members[victim], hired) {
            (_, Member::Process(worker)) => worker.kill().await,
            (_, Member::Here(_)) => Ok(()),
        }
    }

    async fn order(&mut self, order: &str) {
        for (_, member) in &mut self.members {
            match member {
                Member::Process(worker) => worker.order(order).await,
                Member::Here(orders) => drop(orders.send(order.to_owned())),
            }
        }
    }

    /// Pauses all workers and has them check.
    async fn pause(&mut self) {
        self.pauses += 1;
        let begun_at = wall_clock();
        self.order(&format!("pause {}", self.pauses)).await;
        let deadline = Instant::now() + CHECKED_WITHIN;
        loop {
            let checked = lock(&self.reports).checked.clone();
            let mut silent = Vec::new();
            let mut died = Vec::new();
            for (id, member) in &mut self.members {
                let has_died = match member {
                    Member::Process(worker) => worker.has_died(),
                    Member::Here(_) => false,
                };
                if has_died {
                    died.push(*id);
                } else if checked.get(id) != Some(&self.pauses) {
                    silent.push(*id);
                }
            }
            let is_over = silent.is_empty() || Instant::now() > deadline;
            if is_over {
                for (kind, workers) in [("died", died), ("silent", silent)] {
                    for worker in workers {
                        self.suspect(kind, begun_at, format!("worker {worker}"));
                    }
                }
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn suspect(&self, kind: &str, begun_at: u64, what: String) {
        lock(&self.reports).suspects.push(Suspect {
            kind: kind.to_owned(),
            what,
            begun_at,
            ended_at: wall_clock(),
        });
    }

    /// Reads, in another session, the outcomes that were acknowledged since the last time.
    async fn look_up(&self, idem: &Idem) -> u64 {
        let mut fresh = std::mem::take(&mut lock(&self.reports).fresh);
        let older = fresh.len().saturating_sub(LOOKED_UP);
        fresh.drain(..older);
        let looked_up = fresh.len() as u64;
        for ((mode, key), receipt) in fresh {
            let begun_at = wall_clock();
            let found = find(idem, &mode, &key).await;
            let is_there =
                matches!(&found, Ok(Some((RecordState::Completed, Some(it)))) if *it == receipt);
            if !is_there {
                let what = format!("{mode} {key}: acknowledged {receipt}, found {found:?}");
                self.suspect("unseen", begun_at, what);
            }
        }
        looked_up
    }

    async fn dismiss(self) -> anyhow::Result<()> {
        for (_, member) in self.members {
            if let Member::Process(worker) = member {
                worker.kill().await?;
            }
        }
        Ok(())
    }
}

/// State and receipt of a record. Replaces a connection that was lost.
async fn find(
    idem: &Idem,
    mode: &str,
    key: &str,
) -> anyhow::Result<Option<(RecordState, Option<String>)>> {
    let operation = format!("mixed.{mode}");
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match idem.records().find(&operation, key).await {
            Ok(found) => return Ok(found.map(|record| (record.state, verdict::receipt(&record)))),
            Err(_) if Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Opens a handle for the supervisor.
async fn open(address: &str) -> anyhow::Result<Idem> {
    let store: Arc<dyn Store> = match address {
        "memory://" => Arc::new(MemoryStore::new()),
        address => backends::open_named(address, "").await?,
    };
    Ok(worker::handle(store).erased())
}

/// Opens a handle on a server that has just been started. Retries, because a cluster may not serve immediately.
async fn open_at_last(address: &str) -> anyhow::Result<Idem> {
    let opened = until_it_answers(|| open(address));
    tokio::time::timeout(CHECKED_WITHIN, opened)
        .await
        .context("the started server does not answer")
}

/// Creates the tables.
async fn prepare(address: &str) -> anyhow::Result<()> {
    at_database!(address, S => prepare_on::<S>(address).await, else Ok(()))
}

async fn prepare_on<S: OnePool>(address: &str) -> anyhow::Result<()> {
    let (store, pool) = S::open(address, "prepare").await?;
    store.make_ledger(&pool).await?;
    S::outbox(&pool).migrate().await?;
    Ok(())
}

pub(crate) async fn supervise(store: Kind, plan: &Plan) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let place = Private::start(store, Writes::Flushed, dir.path())?;
    prepare(&place.address).await?;
    let idem = open_at_last(&place.address).await?;
    let memory = (store == Kind::Memory).then(|| idem.clone());
    let started = Instant::now();
    let mut crew = Crew {
        address: &place.address,
        memory: memory.clone(),
        begun_at: wall_clock(),
        reports: Arc::default(),
        members: Vec::new(),
        hired: 0,
        pauses: 0,
    };
    let workers = if memory.is_some() { 1 } else { plan.workers };
    for _ in 0..workers {
        let hired = crew.hire()?;
        crew.members.push(hired);
    }
    let (outages, mut done) = (Outages::default(), Done::default());
    let goals = Goals::of(plan, &place, memory.is_some());
    loop {
        round(&mut crew, &place, &goals, &outages, &mut done).await?;
        crew.pause().await;
        done.looked_up += crew.look_up(&idem).await;
        let reached = goals.reached(&done, lock(&crew.reports).drops) >= 1.0;
        if reached || started.elapsed() > plan.limit {
            break;
        }
        crew.order("go").await;
    }
    let (reports, pauses, begun_at) = (Arc::clone(&crew.reports), crew.pauses, crew.begun_at);
    crew.dismiss().await?;

    // An acknowledged outcome survives a crash of the server.
    for server in place.servers() {
        server.kill()?;
        server.restart()?;
    }
    let idem = match &memory {
        Some(_) => idem,
        None => open_at_last(&place.address).await?,
    };
    let verdict = verdict::judge(&place.address, &idem, &reports, &outages, begun_at).await?;
    println!(
        "{store} mixed: {} kills, {} kills of the server, {} stops, {} locks in {:.0?}; {} outcomes looked up in \
         {} pauses",
        done.kills,
        done.server_kills,
        done.stops,
        done.locks.load(Ordering::Relaxed),
        started.elapsed(),
        done.looked_up,
        pauses,
    );
    println!("{store} mixed: {verdict}");
    let reached = goals.reached(&done, lock(&reports).drops);
    verdict.verdict()?;
    if reached < 1.0 {
        bail!(
            "only {:.0} % was done within {:?}",
            reached * 100.0,
            plan.limit
        );
    }
    Ok(())
}

/// Faults to inject for this store.
struct Goals {
    kills: u32,
    server_kills: u32,
    stops: u32,
    drops: u64,
}

impl Goals {
    fn of(plan: &Plan, place: &Private, is_here: bool) -> Self {
        let if_server = |goal| if place.servers().is_empty() { 0 } else { goal };
        Self {
            kills: if is_here { 0 } else { plan.kills },
            server_kills: if_server(plan.server_kills),
            stops: if_server(plan.stops),
            drops: plan.drops,
        }
    }

    /// Smallest share of a goal that has been reached.
    fn reached(&self, done: &Done, drops: u64) -> f64 {
        let outages = share(
            u64::from(done.server_kills + done.stops),
            u64::from(self.server_kills + self.stops),
        );
        self.worked(done, drops).min(outages)
    }

    /// Smallest share without the outages, which are spread evenly over the rest.
    fn worked(&self, done: &Done, drops: u64) -> f64 {
        share(u64::from(done.kills), u64::from(self.kills)).min(share(drops, self.drops))
    }
}

fn share(done: u64, goal: u64) -> f64 {
    match goal {
        0 => 1.0,
        _ => done as f64 / goal as f64,
    }
}

/// Lets the workers work, and injects faults in the meantime; at most one outage in each round.
async fn round(
    crew: &mut Crew<'_>,
    place: &Private,
    goals: &Goals,
    outages: &Outages,
    done: &mut Done,
) -> anyhow::Result<()> {
    let over = Instant::now() + WORKING;
    let locker = Locker::start(&place.address, crew.begun_at, &done.locks);
    let worked = goals.worked(done, lock(&crew.reports).drops);
    let had = f64::from(done.server_kills + done.stops);
    let all = f64::from(goals.server_kills + goals.stops);
    let outage = async {
        if had >= all || had > all * worked {
            return anyhow::Ok((0, 0));
        }
        let pause = rand::rng().random_range(500..2_000);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        // Stops and kills alternate, as long as both are left.
        if done.stops < goals.stops
            && (done.stops <= done.server_kills || done.server_kills >= goals.server_kills)
        {
            outages.stop(place.servers()).await?;
            return Ok((1, 0));
        }
        outages.kill(place.servers())?;
        Ok((0, 1))
    };
    let kills = async {
        let mut kills = 0;
        while Instant::now() < over {
            let pause = rand::rng().random_range(100..400);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            if done.kills + kills < goals.kills {
                crew.kill_one().await?;
                kills += 1;
            }
        }
        anyhow::Ok(kills)
    };
    let ((stops, server_kills), kills) = tokio::try_join!(outage, kills)?;
    done.stops += stops;
    done.server_kills += server_kills;
    done.kills += kills;
    if let Some(locker) = locker {
        locker.stop().await;
    }
    Ok(())
}
