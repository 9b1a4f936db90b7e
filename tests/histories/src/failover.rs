//! Failovers of Redis: the primary is killed while its replica lacks the latest writes, and the replica takes its place.
//!
//! The documentation of `RedisStore` says what may be lost: the last transitions of a record, and nothing before the
//! replica was cut off. A history is accepted if exactly this explains it. It counts as a loss if it is rejected without
//! that.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use idem_runtime::RedisStore;
use idem_servers::{Options, Server};
use idem_store::Store;
use idem_tests::private::Kind;
use idem_tests::proxy::Proxy;
use idem_tests::until;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::checker::{Allowed, Verdict, check};
use crate::clients::{Contended, Pace, Subject, contend};
use crate::history::{Clock, History, Moment, What};
use crate::places::through_proxy;
use crate::purges::Purges;
use crate::story;

/// Time before the replica is cut off, and time from then to the failover.
const PHASE: Duration = Duration::from_millis(300);

/// Losses by failovers.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Histories.
    pub records: u64,
    /// Histories in which requests of several clients were under way at the same moment.
    pub contended: u64,
    /// Failovers.
    pub failovers: u64,
    /// Records that lost transitions, as the documentation says.
    pub lost: u64,
    /// Records that lost nothing that an answer shows.
    pub intact: u64,
    /// Histories that the documented losses do not explain, as texts.
    pub rejected: Vec<String>,
    /// Errors that no caller could retry.
    pub unexpected: Vec<String>,
}

/// A primary, its replica, and the proxy that leads to one of them.
struct Pair {
    primary: Arc<Server>,
    replica: Arc<Server>,
    proxy: Proxy,
    store: Arc<dyn Store>,
}

/// Contends for this many records during one failover, and checks the histories.
///
/// # Errors
/// The servers did not start, or do not answer.
///
/// # Panics
/// Panics if the replica does not get the writes of the primary within two minutes.
///
/// # Cancel safety
/// If the future is dropped, the servers stop.
pub async fn run(records: u64, seed: u64) -> anyhow::Result<Report> {
    let pair = Pair::start().await?;
    let (up, is_up) = watch::channel(true);
    let subject = Subject {
        stores: vec![Arc::clone(&pair.store)],
        clock: Clock::wall(),
        is_up,
        purges: Purges::default(),
        witness: None,
    };
    let pace = Pace {
        clients: 3,
        requests: 10,
        pause: 180,
        dropped: 0.0,
        way: 0,
    };
    let mut contests = JoinSet::new();
    for seed in seed..seed + records {
        let (subject, pace) = (subject.clone(), pace.clone());
        contests.spawn(async move {
            let key = format!("record-{seed}");
            (seed, contend(&subject, &key, seed, &pace).await)
        });
    }
    tokio::time::sleep(PHASE).await;
    let marks = pair.fail_over(&up, subject.clock).await?;
    let mut report = Report {
        failovers: 1,
        ..Report::default()
    };
    while let Some(contended) = contests.join_next().await {
        let (seed, contended) = contended?;
        let marks = marks.clone();
        let judged = tokio::task::spawn_blocking(move || judge(contended, &marks));
        report.add(seed, judged.await?);
    }
    Ok(report)
}

/// Events of the servers, each with the moments that it lies between.
type Marks = Vec<(What, Moment, Moment)>;

/// A history with its verdict.
struct Judged {
    history: History,
    unexpected: Vec<String>,
    verdict: Verdict,
    has_lost: bool,
}

fn judge(contended: Contended, marks: &Marks) -> Judged {
    let Contended {
        mut history,
        unexpected,
        ..
    } = contended;
    for (what, from, to) in marks {
        history.mark(what.clone(), *from, Some(*to));
    }
    history.events.sort_by_key(|event| event.sent);
    let nothing = Allowed::default();
    let has_lost = check(&history, nothing) != Verdict::Accepted;
    let verdict = match has_lost {
        true => check(
            &history,
            Allowed {
                losses: true,
                ..nothing
            },
        ),
        false => Verdict::Accepted,
    };
    Judged {
        history,
        unexpected,
        verdict,
        has_lost,
    }
}

impl Report {
    fn add(&mut self, seed: u64, judged: Judged) {
        self.records += 1;
        self.contended += u64::from(judged.history.is_contended());
        self.unexpected.extend(judged.unexpected);
        match judged.verdict {
            Verdict::Accepted if judged.has_lost => self.lost += 1,
            Verdict::Accepted => self.intact += 1,
            verdict => {
                let story = story::kept(Kind::Redis, verdict, seed, &judged.history);
                self.rejected.push(story);
            }
        }
    }

    /// Adds the numbers of another failover.
    pub fn merge(&mut self, other: Self) {
        self.records += other.records;
        self.contended += other.contended;
        self.failovers += other.failovers;
        self.lost += other.lost;
        self.intact += other.intact;
        self.rejected.extend(other.rejected);
        self.unexpected.extend(other.unexpected);
    }

    /// Returns true if nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.rejected.is_empty() && self.unexpected.is_empty()
    }
}

impl Pair {
    async fn start() -> anyhow::Result<Self> {
        let primary = Server::redis(&Options::fast())?;
        let replica = Server::redis(&Options::fast())?;
        replica.query(&format!("REPLICAOF 127.0.0.1 {}", primary.port()))?;
        until(async || {
            let replication = replica.query("INFO replication");
            replication.is_ok_and(|it| it.contains("master_link_status:up"))
        })
        .await;
        let (proxy, url) = through_proxy(&primary).await?;
        let store = Arc::new(RedisStore::connect(&url).await?);
        Ok(Self {
            primary: Arc::new(primary),
            replica: Arc::new(replica),
            proxy,
            store,
        })
    }

    /// Cuts the replica off, kills the primary later, and lets the replica take its place.
    async fn fail_over(&self, up: &watch::Sender<bool>, clock: Clock) -> anyhow::Result<Marks> {
        let cut = clock.now();
        // Everything that was acknowledged before this moment is in the primary's log up to here.
        let written = offset(&self.primary, "master_repl_offset:")?;
        let received = || offset(&self.replica, "slave_repl_offset:");
        until(async || received().is_ok_and(|it| it >= written)).await;
        self.replica.query("REPLICAOF NO ONE")?;
        let was_cut = clock.now();
        tokio::time::sleep(PHASE).await;
        up.send_replace(false);
        let failing = clock.now();
        self.primary.kill()?;
        self.proxy
            .lead_to(SocketAddr::from(([127, 0, 0, 1], self.replica.port())));
        let failed_over = clock.now();
        up.send_replace(true);
        Ok(vec![
            (What::CutOff, cut, was_cut),
            (What::Failover, failing, failed_over),
        ])
    }
}

/// A number of `INFO replication`.
fn offset(server: &Server, name: &str) -> anyhow::Result<u64> {
    let replication = server.query("INFO replication")?;
    let mut values = replication.lines().filter_map(|it| it.strip_prefix(name));
    let value = values.next().with_context(|| format!("no {name}"))?;
    Ok(value.trim().parse()?)
}
