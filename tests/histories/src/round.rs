//! A round: clients contend for many records of one store, under faults, and the checker sees every history.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use idem_store::record::Record;
use idem_tests::private::{Kind, Private};
use idem_tests::sql::AnyPool;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::checker::{Allowed, Verdict, check};
use crate::clients::{Contended, Pace, Rng, Subject, contend};
use crate::history::{Clock, History, Moment, What};
use crate::places::{Place, kill_and_restart};
use crate::purges::Purges;
use crate::story;
use crate::witness::Witness;

/// Number of records for which clients contend at the same time.
const AT_ONCE: usize = 24;
/// Percentage of replies that the proxy loses.
const LOST: u8 = 1;
/// Longest time until no connection of a store is in use.
const CLOSED_WITHIN: Duration = Duration::from_secs(60);
/// Largest change of the wall clock during a history, beyond which the history is not checked.
const STEADY: Duration = Duration::from_millis(1);

/// Plan of a round.
#[derive(Debug, Clone)]
pub struct Round {
    /// The store.
    pub kind: Kind,
    /// Number of contended records to check.
    pub records: u64,
    /// First seed: each record has one.
    pub seed: u64,
    /// Faults of the server.
    pub faults: Faults,
}

/// Faults of the server. Clients drop their own requests in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Faults {
    /// Nothing.
    None,
    /// Replies are lost, and the server is killed again and again after this pause.
    LossesAndKills(Duration),
    /// Other code leaves a transaction open on a connection of the store's pool, again and again after this pause.
    ForeignTransactions(Duration),
}

/// Result of a round.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Histories that the checker has decided.
    pub records: u64,
    /// Those in which requests of several clients were under way at the same moment.
    pub contended: u64,
    /// Requests.
    pub requests: u64,
    /// Requests that were never answered: lost, dropped, or under way when the server was killed.
    pub open: u64,
    /// Histories that were accepted only with what the store is [allowed](Allowed) beside the reference.
    pub allowed: u64,
    /// Times that the server was killed.
    pub kills: u64,
    /// Times that the [witness](crate::witness) was asked.
    pub witnessed: u64,
    /// Records that the witness saw at the end of their histories, and again after the connections of the store were closed.
    pub kept: u64,
    /// Histories that were not checked, because somebody set the clock meanwhile.
    pub unchecked: u64,
    /// Longest search of the checker, and the seed of its history.
    pub longest: (Duration, u64),
    /// Histories that the checker did not accept, as texts.
    pub rejected: Vec<String>,
    /// Errors that no caller could retry.
    pub unexpected: Vec<String>,
}

impl Report {
    /// Returns true if nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.rejected.is_empty() && self.unexpected.is_empty()
    }

    /// Adds the numbers of another round.
    pub fn merge(&mut self, other: Self) {
        self.records += other.records;
        self.contended += other.contended;
        self.requests += other.requests;
        self.open += other.open;
        self.allowed += other.allowed;
        self.kills += other.kills;
        self.witnessed += other.witnessed;
        self.kept += other.kept;
        self.unchecked += other.unchecked;
        self.longest = self.longest.max(other.longest);
        self.rejected.extend(other.rejected);
        self.unexpected.extend(other.unexpected);
    }

    fn add(&mut self, kind: Kind, checked: Checked) {
        let Checked {
            history,
            unexpected,
            verdict,
            needs_allowance,
            seed,
            took,
            ..
        } = checked;
        self.unexpected.extend(unexpected);
        let Some(verdict) = verdict else {
            self.unchecked += 1;
            return;
        };
        self.records += 1;
        self.contended += u64::from(history.is_contended());
        self.requests += history.events.iter().filter(|it| it.is_request()).count() as u64;
        self.open += history.open() as u64;
        self.witnessed += history.events.iter().filter(|it| it.is_witness()).count() as u64;
        self.allowed += u64::from(needs_allowance);
        self.longest = self.longest.max((took, seed));
        if verdict != Verdict::Accepted {
            let story = story::kept(kind, verdict, seed, &history);
            self.rejected.push(story);
        }
    }
}

/// A history with its verdict; without one if the clock was set meanwhile.
struct Checked {
    seed: u64,
    history: History,
    /// The record at the end, if no request can change it any more.
    end: Option<Record>,
    unexpected: Vec<String>,
    verdict: Option<Verdict>,
    needs_allowance: bool,
    /// Time that the checker took.
    took: Duration,
}

/// Kills of the server: their beginnings and, once the server is up again, their ends.
#[derive(Debug, Clone, Default)]
struct Kills {
    all: Arc<Mutex<Vec<Kill>>>,
    /// Held during a kill, and by who wants none.
    calm: Arc<tokio::sync::Mutex<()>>,
}

type Kill = (Moment, Option<Moment>);

impl Kills {
    /// Adds the kills during a history to it.
    fn add_to(&self, history: &mut History) {
        let begun = history.begun();
        let kills = self.lock();
        let during = kills
            .iter()
            .filter(|(_, to)| to.is_none_or(|to| to.order > begun));
        for (from, to) in during {
            history.mark(What::Kill, *from, *to);
        }
        history.events.sort_by_key(|event| event.sent);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Kill>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a round, and calls `progress` after each history.
///
/// # Errors
/// The server did not start or did not come back, or a task failed.
///
/// # Cancel safety
/// If the future is dropped, the round ends, and its server stops.
pub async fn run(round: &Round, progress: impl Fn(&Report)) -> anyhow::Result<Report> {
    let folder = tempfile::tempdir()?;
    let place = Place::open(round.kind, folder.path()).await?;
    let (up, is_up) = watch::channel(true);
    let (kills, purges) = (Kills::default(), Purges::default());
    let mut background = JoinSet::new();
    let purging = purges.clone();
    background.spawn(purging.run(place.direct.clone(), place.clock, is_up.clone()));
    let allowed = allowed(round.kind, round.faults);
    match round.faults {
        Faults::None => {}
        Faults::LossesAndKills(pause) => {
            for proxy in &place.proxies {
                proxy.lose_replies(LOST);
            }
            background.spawn(kill_again_and_again(
                place.servers.clone(),
                up.clone(),
                pause,
                kills.clone(),
                place.clock,
            ));
        }
        Faults::ForeignTransactions(pause) => {
            background.spawn(leave_open_again_and_again(place.pools.clone(), pause));
        }
    }
    // The memory store has no connections.
    let witness = (round.kind != Kind::Memory)
        .then(|| Witness::new(place.direct.clone(), place.clock, is_up.clone()));
    let subject = Subject {
        stores: place.stores,
        clock: place.clock,
        is_up,
        purges,
        witness,
    };
    let mut ends = Vec::new();
    let mut report = tokio::select! {
        report = contests(round, &subject, &kills, allowed, &mut ends, progress) => report?,
        Some(ended) = background.join_next() => {
            ended??;
            bail!("the purges or the kills ended before the round");
        }
    };
    report.kills = kills.lock().len() as u64;
    let _calm = kills.calm.lock().await;
    if let (true, Some(witness)) = (report.is_clean(), &subject.witness) {
        for pool in &place.pools {
            let closed = tokio::time::timeout(CLOSED_WITHIN, pool.close()).await;
            closed.context("a connection of the store is still in use")?;
        }
        report.kept = ends.len() as u64;
        report.rejected.extend(witness.missing(&ends).await?);
    }
    Ok(report)
}

/// Checks a history that the reference alone does not explain. Each allowance multiplies what there is to search, and few
/// histories need several.
fn check_leniently(history: &History, allowed: Allowed) -> Verdict {
    let mut verdict = Verdict::Rejected;
    for repetitions in 0..=allowed.repetitions {
        if verdict == Verdict::Rejected {
            let allowed = Allowed {
                repetitions,
                ..allowed
            };
            verdict = check(history, allowed);
        }
    }
    verdict
}

/// What a store may do beyond the reference.
fn allowed(kind: Kind, faults: Faults) -> Allowed {
    let is_sql = matches!(
        kind,
        Kind::Sqlite | Kind::Postgres | Kind::MariaDb | Kind::MySql
    );
    Allowed {
        repetitions: match kind {
            // An update does not return what it granted. The store reads it afterwards, and begins again if the record
            // has changed meanwhile.
            Kind::MariaDb | Kind::MySql => 4,
            // Requests of a batch that got no answer are sent again, one by one.
            Kind::Postgres if faults != Faults::None => 2,
            _ => 0,
        },
        late_claims: is_sql,
        losses: false,
    }
}

/// Leaves transactions open on connections of pools.
async fn leave_open_again_and_again(pools: Vec<AnyPool>, pause: Duration) -> anyhow::Result<()> {
    for pool in pools.iter().cycle() {
        tokio::time::sleep(pause).await;
        // A connection may have such a transaction, or the store closes it at this moment.
        let _ = pool.leave_open().await;
    }
    bail!("the store has no pool")
}

/// Kills a server, and starts it again.
async fn kill_again_and_again(
    servers: Arc<Private>,
    up: watch::Sender<bool>,
    pause: Duration,
    kills: Kills,
    clock: Clock,
) -> anyhow::Result<()> {
    loop {
        tokio::time::sleep(pause).await;
        let _calm = kills.calm.lock().await;
        let (servers, turn) = (servers.clone(), kills.lock().len());
        up.send_replace(false);
        kills.lock().push((clock.now(), None));
        tokio::task::spawn_blocking(move || kill_and_restart(&servers, turn)).await??;
        kills.lock()[turn].1 = Some(clock.now());
        up.send_replace(true);
    }
}

/// Lets clients contend for one record after the other, several at the same time, and checks the histories.
async fn contests(
    round: &Round,
    subject: &Subject,
    kills: &Kills,
    allowed: Allowed,
    ends: &mut Vec<Record>,
    progress: impl Fn(&Report),
) -> anyhow::Result<Report> {
    let mut seeds = round.seed..;
    let mut report = Report::default();
    let mut running = JoinSet::new();
    while report.contended < round.records && report.is_clean() {
        ensure!(
            report.records + report.unchecked < round.records * 2 + 100,
            "too few records were contended for: {report:?}"
        );
        while running.len() < AT_ONCE
            && let Some(seed) = seeds.next()
        {
            let (subject, kills) = (subject.clone(), kills.clone());
            running.spawn(contest(subject, kills, seed, round.kind, allowed));
        }
        if let Some(checked) = running.join_next().await {
            let mut checked = checked?;
            ends.extend(checked.end.take());
            report.add(round.kind, checked);
            progress(&report);
        }
    }
    Ok(report)
}

/// Lets clients contend for the record of a seed, and checks the history.
async fn contest(
    subject: Subject,
    kills: Kills,
    seed: u64,
    kind: Kind,
    allowed: Allowed,
) -> Checked {
    let mut rng = Rng::new(seed);
    let pace = Pace {
        clients: 2 + rng.below(4) as usize,
        requests: 4 + rng.below(5),
        // A lease lasts longer by the uncertainty of the clock, which is a tenth of a second on etcd.
        pause: rng.below(if kind == Kind::Etcd { 160 } else { 8 }),
        dropped: 0.03,
        way: if kind == Kind::Memory { 2000 } else { 0 },
    };
    let watched = Clock::wall();
    let key = format!("record-{seed}");
    let Contended {
        mut history,
        unexpected,
        end,
    } = contend(&subject, &key, rng.number(), &pace).await;
    // A request without an answer may still change the record.
    let end = end.filter(|_| history.open() == 0);
    kills.add_to(&mut history);
    let is_steady = watched.drift() < STEADY;
    let judged = tokio::task::spawn_blocking(move || {
        let began = Instant::now();
        let strictly = is_steady.then(|| check(&history, Allowed::default()));
        let verdict = match strictly {
            Some(Verdict::Rejected) => Some(check_leniently(&history, allowed)),
            _ => strictly,
        };
        (history, verdict, verdict != strictly, began.elapsed())
    });
    match judged.await {
        Ok((history, verdict, needs_allowance, took)) => Checked {
            seed,
            history,
            end,
            unexpected,
            verdict,
            needs_allowance,
            took,
        },
        Err(error) => Checked {
            seed,
            history: History::default(),
            end: None,
            unexpected: vec![format!("the checker failed: {error}")],
            verdict: Some(Verdict::Undecided),
            needs_allowance: false,
            took: Duration::ZERO,
        },
    }
}
