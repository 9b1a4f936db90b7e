//! Futures of the public API, dropped at each of their polls and at random moments, on each store with its real server.
//!
//! After each drop, every connection of the pool can be acquired and is in no transaction, the next call with the key
//! succeeds within one store time-out, and another session sees all acknowledged writes. No body ran twice if its mode
//! forbids it, and the caller's own transaction is intact. The application's own futures on the shared pool are dropped as
//! well. At the end, every gauge of the metrics is back at zero. `IDEM_DROPS=100000` drops that many calls during concurrent
//! traffic on each store, and `IDEM_DROPS_SEED` repeats the moments of an earlier run.

use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use idem_runtime::{Idem, MemoryStore, MySqlStore, RedisStore, Store};
use idem_tests::each_place;
use idem_tests::places::{self, Backend};
use idem_tests::recording::Recording;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;

use self::calls::Mode;
use self::databases::{Database, DatabaseFixture, InDatabase};
use self::origins::{AnyFixture, Fixture, Memory, Origin, Place, Redis};
use self::report::Case;
use self::sweep::Scenario;
use self::traffic::Effective;

mod application;
mod calls;
mod databases;
mod defects;
mod duplicates;
mod http;
mod origins;
mod poll;
mod report;
mod services;
mod sweep;
mod trace;
mod traffic;
mod transactions;
mod wire;

/// Handle on a store of any type.
type Handle = Idem<Arc<dyn Store>>;

fn main() -> Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    // Each case waits for its server about as long as it computes.
    arguments.test_threads.get_or_insert(4);
    let recording = Recording::default();
    metrics::set_global_recorder(recording.clone())?;
    let trials = Trials(Arc::new(Runtime::new()?));
    let runtime = Arc::clone(&trials.0);
    let mut all = Vec::new();
    each_place! { [] place => all.extend(Tried::trials(&place, &trials)); }
    for place in [places::mariadb(), places::mysql()] {
        all.push(trials.case::<InDatabase<MySqlStore>, _>(
            &place,
            "defects",
            "driver_panic",
            defects::a_panic_of_the_driver_is_an_error,
        ));
    }
    if !arguments.list {
        let (drops, seed) = traffic::settings()?;
        println!("{drops} random drops on each store, with the seed {seed}");
    }
    let conclusion = libtest_mimic::run(&arguments, all);
    // Failures are the last thing that is printed.
    if !conclusion.has_failed() {
        report::print_table();
        runtime.block_on(gauges_return_to_zero(&recording, conclusion.num_passed))?;
    }
    Ok(conclusion.exit_code())
}

/// Waits until no call holds a lease or waits. All of them have ended or were dropped, but settling may go on in the
/// background.
async fn gauges_return_to_zero(recording: &Recording, passed: u64) -> Result<()> {
    let deadline = Instant::now() + sweep::CALL_LIMIT * 6;
    loop {
        let gauges = recording.gauges();
        let raised: Vec<_> = gauges.iter().filter(|(_, level)| **level != 0.0).collect();
        if raised.is_empty() {
            ensure!(
                passed == 0 || !gauges.is_empty(),
                "no gauge was ever raised"
            );
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "gauges stay raised: {raised:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A case while it runs.
type Running = Pin<Box<dyn Future<Output = Result<Case>>>>;

/// Type of store that has trials in each of its places.
trait Tried: Backend {
    fn trials(origin: &Origin<Self>, trials: &Trials) -> Vec<Trial>;
}

impl Tried for Arc<MemoryStore> {
    fn trials(origin: &Origin<Self>, trials: &Trials) -> Vec<Trial> {
        trials.leased::<Memory>(origin)
    }
}

impl Tried for RedisStore {
    fn trials(origin: &Origin<Self>, trials: &Trials) -> Vec<Trial> {
        trials.leased::<Redis>(origin)
    }
}

impl<S: Database> Tried for S {
    fn trials(origin: &Origin<S>, trials: &Trials) -> Vec<Trial> {
        trials.database(origin)
    }
}

struct Trials(Arc<Runtime>);

impl Trials {
    /// Creates the trial of a case, ignored if no server is configured.
    fn case<P: Place, F>(
        &self,
        origin: &Origin<P::Store>,
        kind: &str,
        entry: &str,
        run: impl FnOnce(Origin<P::Store>) -> F + Send + 'static,
    ) -> Trial
    where
        F: Future<Output = Result<Case>>,
    {
        let store = origin.name();
        let name = format!("{store}::{kind}::{entry}");
        let entry = match kind {
            "every_poll" => entry.to_owned(),
            _ => format!("{kind}: {entry}"),
        };
        let is_unset = origin
            .needs()
            .iter()
            .any(|it| std::env::var_os(it).is_none());
        let (runtime, origin) = (Arc::clone(&self.0), origin.clone());
        let trial = Trial::test(name, move || {
            let ended = runtime.block_on(run(origin));
            let case = ended.map_err(|error| Failed::from(format!("{error:#}")))?;
            case.end(store, &entry)
        });
        trial.with_ignored_flag(is_unset)
    }

    fn sweep<P: Place>(
        &self,
        origin: &Origin<P::Store>,
        name: &'static str,
        scenario: Scenario<P::Fixture>,
    ) -> Trial {
        self.case::<P, _>(origin, "every_poll", name, move |origin| async move {
            sweep::sweep::<P>(&origin, name, &scenario).await
        })
    }

    /// Cases of every store.
    fn common<P: Place>(&self, origin: &Origin<P::Store>) -> Vec<Trial> {
        let mut trials = Vec::new();
        for entry in calls::entries::<P::Fixture>() {
            let name = entry.name;
            let scenario = sweep::of_entry(entry, sweep::no_effects);
            trials.push(self.sweep::<P>(origin, name, scenario));
        }
        let mut scenarios = services::scenarios::<P::Fixture>();
        scenarios.extend(duplicates::scenarios());
        for (name, scenario) in scenarios {
            trials.push(self.sweep::<P>(origin, name, scenario));
        }
        trials
    }

    /// Cases of a store without transactions.
    fn leased<P: Place<Fixture = Fixture>>(&self, origin: &Origin<P::Store>) -> Vec<Trial> {
        let mut trials = self.common::<P>(origin);
        trials.push(
            self.case::<P, _>(origin, "traffic", "leased", async |origin| {
                traffic::traffic::<P>(&origin, leased_entries()).await
            }),
        );
        trials
    }

    /// Cases of a database.
    fn database<S: Database>(&self, origin: &Origin<S>) -> Vec<Trial> {
        let mut trials = self.common::<InDatabase<S>>(origin);
        let mut scenarios = services::of_database::<S>();
        scenarios.extend(transactions::scenarios::<S>());
        for (name, scenario) in scenarios {
            trials.push(self.sweep::<InDatabase<S>>(origin, name, scenario));
        }
        trials.push(self.case::<InDatabase<S>, _>(
            origin,
            "traffic",
            "leased_and_tx",
            async |origin| {
                let mut entries: Vec<Effective<DatabaseFixture<S>>> = leased_entries();
                for entry in transactions::entries() {
                    entries.push((entry, sweep::charges));
                }
                entries.push((transactions::step(), sweep::charges));
                traffic::traffic::<InDatabase<S>>(&origin, entries).await
            },
        ));
        let mut defect = |name, run: fn(Origin<S>) -> Running| {
            trials.push(self.case::<InDatabase<S>, _>(origin, "defects", name, run));
        };
        defect("dropped_begin", |origin| {
            Box::pin(defects::a_dropped_begin_leaves_no_transaction_open(origin))
        });
        defect("dropped_claim_1", |origin| {
            Box::pin(defects::a_dropped_claim_is_released::<InDatabase<S>>(
                origin, 1,
            ))
        });
        defect("dropped_claim_16", |origin| {
            Box::pin(defects::a_dropped_claim_is_released::<InDatabase<S>>(
                origin, 16,
            ))
        });
        defect("dropped_savepoint", |origin| {
            Box::pin(defects::a_dropped_savepoint_leaves_the_callers_transaction_whole(origin))
        });
        defect("lost_connections", |origin| {
            Box::pin(defects::dropped_calls_leave_every_connection_to_the_pool(
                origin,
            ))
        });
        if origin.can("alone") {
            trials.push(self.case::<InDatabase<S>, _>(
                origin,
                "application",
                "dropped_futures",
                application::acknowledged_calls_are_committed,
            ));
        }
        trials
    }
}

/// Leased calls that are dropped at random moments: those whose bodies run in the caller's own future.
fn leased_entries<H: AnyFixture>() -> Vec<Effective<H>> {
    let entries = calls::entries::<H>().into_iter();
    let own = entries.filter(|it| it.mode != Mode::ToItsEnd);
    own.map(|entry| (entry, sweep::no_effects as _)).collect()
}
