//! The application's own futures on the pool that it shares with the store, dropped at each of their polls. Whatever they
//! leave on a connection, a call that is acknowledged afterwards is visible to another session, and stays visible when all
//! connections of the pool are closed.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use futures_util::future::join_all;
use idem_runtime::record::RecordState;

use crate::calls;
use crate::databases::{Database, DatabaseFixture, InDatabase, Text};
use crate::origins::{AnyFixture, CONNECTIONS, ConnectionState, Origin, Place as _};
use crate::poll::{Moment, Polled, drop_at};
use crate::report::Case;
use crate::sweep::{self, Fixtures};
use crate::trace::{Trace, Traces};
use crate::traffic::Effective;
use crate::transactions;

/// Upper bound of the number of polls of one of these futures.
const MOST_POLLS: u32 = 200;
/// Number of rounds over all polls: sqlx forgets only a `BEGIN` that is dropped at one certain moment.
const ROUNDS: u32 = 4;

/// What the application does in a future.
#[derive(Debug, Clone, Copy)]
enum Work {
    /// `pool.begin()`.
    Begin,
    /// A statement on a connection of the pool.
    Statement,
    /// A transaction from its beginning to its commit.
    Transaction,
}

/// A call that was acknowledged.
type Acknowledged<S> = (Effective<DatabaseFixture<S>>, Arc<Trace>);

/// The calls that follow a drop. A transaction of the store's own can commit what was left open, so leased calls come first.
struct Calls<S: Database> {
    leased: Vec<Effective<DatabaseFixture<S>>>,
    transactional: Vec<Effective<DatabaseFixture<S>>>,
    acknowledged: Vec<Acknowledged<S>>,
}

/// Drops futures of the application, and makes calls after each drop.
pub(crate) async fn acknowledged_calls_are_committed<S: Database>(
    origin: Origin<S>,
) -> Result<Case> {
    let mut case = Case::default();
    let place = InDatabase::<S>::open(&origin).await?;
    let traces = Arc::new(Traces::default());
    let witness = place.fixture(ConnectionState::Warm, &traces).await?;
    for state in [ConnectionState::Warm, ConnectionState::Cold] {
        for work in [Work::Begin, Work::Statement, Work::Transaction] {
            let fixtures = Fixtures {
                under_test: place.fixture(state, &traces).await?,
                witness: witness.clone(),
            };
            let mut calls = Calls::new();
            for round in 0..ROUNDS {
                let moment = match round % 2 {
                    0 => Moment::Sent,
                    _ => Moment::Answered,
                };
                for polls in 1..MOST_POLLS {
                    let what = format!("{work:?}, {state:?}, {}", moment(polls));
                    let pool = &fixtures.under_test.pool;
                    let dropped = drop_at(run::<S>(work, pool), moment(polls)).await;
                    let Polled { output, polls } = dropped.context(what.clone())?;
                    case.counts.polls += u64::from(polls);
                    case.counts.drops += u64::from(output.is_none());
                    calls.make(&fixtures, &what, &mut case).await;
                    if output.is_some() || case.is_hopeless() {
                        break;
                    }
                }
            }
            // What was never committed is gone now.
            fixtures.under_test.close().await;
            calls.check_all(&fixtures, &mut case).await;
        }
    }
    witness.close().await;
    Ok(case)
}

/// The future of the application. Statements are sent as text: if MySQL prepares one that is dropped, the connection is out
/// of step with the server, and only sqlx could repair that.
async fn run<S: Database>(work: Work, pool: &S::Pool) -> Result<(), sqlx::Error> {
    match work {
        Work::Begin => S::begin_outer(pool).await.map(drop),
        Work::Statement => {
            let mut lent = S::acquire(pool).await?;
            S::text(S::lent(&mut lent), "SELECT 1").await
        }
        Work::Transaction => {
            let mut outer = S::begin_outer(pool).await?;
            let tx = S::connection(&mut outer);
            S::charge(tx, "application", "application", Text::Plain).await?;
            S::commit_outer(outer).await
        }
    }
}

impl<S: Database> Calls<S> {
    fn new() -> Self {
        let leased = calls::entries::<DatabaseFixture<S>>().into_iter();
        let leased = leased.filter(|it| matches!(it.name, "run_with_refuse" | "step"));
        let leased = leased.map(|entry| (entry, sweep::no_effects as _));
        let mut transactional: Vec<Effective<_>> = Vec::new();
        for entry in transactions::entries() {
            transactional.push((entry, sweep::charges));
        }
        transactional.push((transactions::step(), sweep::charges));
        Self {
            leased: leased.collect(),
            transactional,
            acknowledged: Vec::new(),
        }
    }

    /// Makes calls on each connection of the pool. Each must be acknowledged, and another session must see it then.
    async fn make(&mut self, fixtures: &Fixtures<DatabaseFixture<S>>, what: &str, case: &mut Case) {
        for entries in [&self.leased, &self.transactional] {
            let chosen = entries.iter().cycle().take(CONNECTIONS as usize);
            let made = chosen.map(async |effective| {
                let trace = Trace::new();
                let called = effective.0.call(&fixtures.under_test, &trace).await;
                let seen = match called {
                    Ok(_) => is_seen(effective, fixtures, &trace).await,
                    Err(failure) => Err(failure.into()),
                };
                (effective.clone(), trace, seen)
            });
            for (effective, trace, seen) in join_all(made).await {
                case.counts.traffic += 1;
                match seen {
                    Ok(records) => case.counts.records += records,
                    Err(error) => case.problem(format!("{what}, {}: {error:#}", effective.0.name)),
                }
                self.acknowledged.push((effective, trace));
            }
        }
    }

    /// Checks each acknowledged call once more.
    async fn check_all(&self, fixtures: &Fixtures<DatabaseFixture<S>>, case: &mut Case) {
        for (effective, trace) in &self.acknowledged {
            match is_seen(effective, fixtures, trace).await {
                Ok(records) => case.counts.records += records,
                Err(error) => {
                    let name = effective.0.name;
                    case.problem(format!("{name}, after the pool was closed: {error:#}"));
                }
            }
        }
    }
}

/// Checks that another session sees the outcome and the effect of an acknowledged call. Returns the number of records and
/// effects that it read.
async fn is_seen<S: Database>(
    (entry, effects): &Effective<DatabaseFixture<S>>,
    fixtures: &Fixtures<DatabaseFixture<S>>,
    trace: &Trace,
) -> Result<u64> {
    let witness = &fixtures.witness;
    let record = sweep::read(entry, witness.base(), trace).await?;
    let state = record.map(|it| it.state);
    ensure!(
        state == Some(RecordState::Completed),
        "acknowledged, but another session sees {state:?}"
    );
    let (bodies, _) = trace.counts();
    ensure!(bodies == 1, "{bodies} bodies ran");
    let Some(found) = effects(witness, trace.key.clone()).await? else {
        return Ok(1);
    };
    let found = found.len();
    ensure!(
        found == 1,
        "acknowledged, but another session sees {found} effects"
    );
    Ok(2)
}
