//! Futures of the public API, dropped at each of their polls and at random moments, on each store with its real server.
//!
//! After each drop, every connection of the pool can be acquired and is in no transaction, the next call with the key
//! succeeds within one store time-out, and another session sees all acknowledged writes. No body ran twice if its mode
//! forbids it, and the caller's own transaction is intact. At the end, every gauge of the metrics is back at zero. `IDEM_DROPS=100000` drops that many calls during concurrent
//! traffic on each store, and `IDEM_DROPS_SEED` repeats the moments of an earlier run.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use idem_runtime::{Idem, MySqlStore, PostgresStore, SqliteStore, Store};
use idem_tests::recording::Recording;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;

use self::calls::Mode;
use self::databases::{Database, DatabaseFixture, InDatabase};
use self::places::{AnyFixture, Fixture, Memory, Place, Redis, RedisCluster};
use self::report::Case;
use self::sweep::Scenario;
use self::traffic::Effective;

mod calls;
mod databases;
mod defects;
mod duplicates;
mod http;
mod places;
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
    let mut all = trials.leased::<Memory>();
    all.extend(trials.leased::<Redis>());
    all.extend(trials.leased::<RedisCluster>());
    all.extend(trials.database::<SqliteStore, false>());
    all.extend(trials.database::<PostgresStore, false>());
    all.extend(trials.database::<PostgresStore, true>());
    all.extend(trials.database::<MySqlStore, false>());
    all.push(
        trials.case::<InDatabase<MySqlStore, false>, _>("defects", "driver_panic", || {
            defects::a_panic_of_the_driver_is_an_error()
        }),
    );
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

struct Trials(Arc<Runtime>);

impl Trials {
    /// Creates the trial of a case, ignored if no server is configured.
    fn case<P: Place, F>(
        &self,
        kind: &str,
        entry: &str,
        run: impl FnOnce() -> F + Send + 'static,
    ) -> Trial
    where
        F: Future<Output = Result<Case>>,
    {
        let name = format!("{}::{kind}::{entry}", P::NAME);
        let entry = match kind {
            "every_poll" => entry.to_owned(),
            _ => format!("{kind}: {entry}"),
        };
        let runtime = Arc::clone(&self.0);
        let trial = Trial::test(name, move || {
            let ended = runtime.block_on(run());
            let case = ended.map_err(|error| Failed::from(format!("{error:#}")))?;
            case.end(P::NAME, &entry)
        });
        trial.with_ignored_flag(P::NEEDS.is_some_and(|it| std::env::var_os(it).is_none()))
    }

    fn sweep<P: Place>(&self, name: &'static str, scenario: Scenario<P::Fixture>) -> Trial {
        self.case::<P, _>("every_poll", name, move || async move {
            sweep::sweep::<P>(name, &scenario).await
        })
    }

    /// Cases of every store.
    fn common<P: Place>(&self) -> Vec<Trial> {
        let mut trials = Vec::new();
        for entry in calls::entries::<P::Fixture>() {
            let name = entry.name;
            let scenario = sweep::of_entry(entry, sweep::no_effects);
            trials.push(self.sweep::<P>(name, scenario));
        }
        let mut scenarios = services::scenarios::<P::Fixture>();
        scenarios.extend(duplicates::scenarios());
        for (name, scenario) in scenarios {
            trials.push(self.sweep::<P>(name, scenario));
        }
        trials
    }

    /// Cases of a store without transactions.
    fn leased<P: Place<Fixture = Fixture>>(&self) -> Vec<Trial> {
        let mut trials = self.common::<P>();
        trials.push(self.case::<P, _>("traffic", "leased", || {
            traffic::traffic::<P>(leased_entries())
        }));
        trials
    }

    /// Cases of a database, whose tables may have the portable form.
    fn database<S: Database, const PORTABLE: bool>(&self) -> Vec<Trial> {
        let mut trials = self.common::<InDatabase<S, PORTABLE>>();
        let (name, scenario) = services::recovering();
        trials.push(self.sweep::<InDatabase<S, PORTABLE>>(name, scenario));
        for (name, scenario) in services::of_database::<S>() {
            trials.push(self.sweep::<InDatabase<S, PORTABLE>>(name, scenario));
        }
        for (name, scenario) in transactions::scenarios::<S>() {
            trials.push(self.sweep::<InDatabase<S, PORTABLE>>(name, scenario));
        }
        trials.push(
            self.case::<InDatabase<S, PORTABLE>, _>("traffic", "leased_and_tx", || {
                let mut entries: Vec<Effective<DatabaseFixture<S>>> = leased_entries();
                for entry in transactions::entries() {
                    entries.push((entry, sweep::charges));
                }
                entries.push((transactions::step(), sweep::charges));
                traffic::traffic::<InDatabase<S, PORTABLE>>(entries)
            }),
        );
        trials.push(
            self.case::<InDatabase<S, PORTABLE>, _>("defects", "dropped_begin", || {
                defects::a_dropped_begin_leaves_no_transaction_open::<S, PORTABLE>()
            }),
        );
        for (name, concurrent) in [("dropped_claim_1", 1), ("dropped_claim_16", 16)] {
            trials.push(
                self.case::<InDatabase<S, PORTABLE>, _>("defects", name, move || {
                    defects::a_dropped_claim_is_released::<InDatabase<S, PORTABLE>>(concurrent)
                }),
            );
        }
        trials.push(self.case::<InDatabase<S, PORTABLE>, _>(
            "defects",
            "dropped_savepoint",
            || defects::a_dropped_savepoint_leaves_the_callers_transaction_whole::<S, PORTABLE>(),
        ));
        trials.push(
            self.case::<InDatabase<S, PORTABLE>, _>("defects", "lost_connections", || {
                defects::dropped_calls_leave_every_connection_to_the_pool::<S, PORTABLE>()
            }),
        );
        trials
    }
}

/// Leased calls that are dropped at random moments: those whose bodies run in the caller's own future.
fn leased_entries<H: AnyFixture>() -> Vec<Effective<H>> {
    let entries = calls::entries::<H>().into_iter();
    let own = entries.filter(|it| it.mode != Mode::ToItsEnd);
    own.map(|entry| (entry, sweep::no_effects as _)).collect()
}
