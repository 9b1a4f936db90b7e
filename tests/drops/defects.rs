//! Regression tests for defects after dropped calls, repeated often enough to show each defect again.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use futures_util::future::join_all;
use idem_runtime::{Error, MySqlStore};
use idem_tests::sql::Sql as _;
use sqlx::ConnectOptions as _;
use sqlx::mysql::MySqlPoolOptions;

use crate::calls::{self, Entry, Mode};
use crate::databases::{Database, DatabaseFixture, InDatabase};
use crate::origins::{AnyFixture, CONNECTIONS, ConnectionState, LEASE, Origin, Place};
use crate::poll::{Moment, drop_at};
use crate::report::Case;
use crate::sweep::{CALL_LIMIT, Fixtures, Scenario, check, no_effects, note};
use crate::trace::{Failure, Trace, Traces};
use crate::transactions::{self, Joining};
use crate::wire::Wire;

/// Number of drops in each case.
const DROPS: u32 = 400;

async fn fixtures<P: Place>(
    place: &P,
    connection_state: ConnectionState,
) -> Result<Fixtures<P::Fixture>> {
    let traces = Arc::new(Traces::default());
    Ok(Fixtures {
        under_test: place.fixture(connection_state, &traces).await?,
        witness: place.fixture(ConnectionState::Warm, &traces).await?,
    })
}

async fn close<H: AnyFixture>(fixtures: Fixtures<H>) {
    fixtures.under_test.close().await;
    fixtures.witness.close().await;
}

/// A call was dropped while its `BEGIN` was in flight. The pool then lent a connection with an open transaction, on
/// which leased calls were acknowledged and never committed.
pub(crate) async fn a_dropped_begin_leaves_no_transaction_open<S: Database>(
    origin: Origin<S>,
) -> Result<Case> {
    let mut case = Case::default();
    let place = InDatabase::<S>::open(&origin).await?;
    let mut fixtures = fixtures(&place, ConnectionState::Warm).await?;
    let entry = entry_in_transaction::<S>()?;
    for n in 0..DROPS {
        if case.is_hopeless() {
            break;
        }
        // The first polls acquire a connection and begin a transaction on it.
        let call = entry.call(&fixtures.under_test, &Trace::new());
        count(&mut case, drop_at(call, Moment::Sent(1 + n % 4)).await);
        match fixtures.under_test.inspect().await {
            Ok(connections) => case.counts.connections += connections,
            Err(error) => {
                case.problem(format!("drop {n}: {error:#}"));
                // The transaction would stay open on these connections.
                let traces = Arc::new(Traces::default());
                fixtures.under_test = place.fixture(ConnectionState::Warm, &traces).await?;
            }
        }
    }
    // A write that is acknowledged now is committed.
    let refusing = entry_refused::<DatabaseFixture<S>>()?;
    for _ in 0..20 {
        let trace = Trace::new();
        let answer = refusing.call(&fixtures.under_test, &trace).await;
        let checked = match answer {
            Ok(_) => {
                check(
                    refusing.clone(),
                    no_effects,
                    fixtures.clone(),
                    trace,
                    true,
                    true,
                )
                .await
            }
            Err(failure) => Err(failure.into()),
        };
        note(&mut case, Ok(checked));
    }
    close(fixtures).await;
    Ok(case)
}

/// A call was dropped while its claim was in flight. The cleanup looked for the claim before it had committed, and the
/// record had no owner for the rest of the lease.
pub(crate) async fn a_dropped_claim_is_released<P: Place>(
    origin: Origin<P::Store>,
    concurrent: u32,
) -> Result<Case> {
    let mut case = Case::default();
    let place = P::open(&origin).await?;
    let fixtures = fixtures(&place, ConnectionState::Warm).await?;
    let entry = entry_refused::<P::Fixture>()?;
    let mut untouched = Vec::new();
    for round in 0..DROPS / concurrent {
        let dropped = (0..concurrent).map(|n| {
            let trace = Trace::new();
            let call = entry.call(&fixtures.under_test, &trace);
            let polls = 1 + (round + n) % 4;
            async move {
                let polled = drop_at(call, Moment::Sent(polls)).await;
                (polled, trace)
            }
        });
        for (polled, trace) in join_all(dropped).await {
            let dropped = count(&mut case, polled);
            if dropped && trace.counts().0 == 0 {
                untouched.push(trace);
            }
        }
    }
    ensure!(
        !untouched.is_empty(),
        "every body had begun before its drop"
    );
    // In separate tasks, so that the last one does not wait for the others.
    let mut checks = tokio::task::JoinSet::new();
    for (n, trace) in untouched.into_iter().enumerate() {
        let (entry, fixtures) = (entry.clone(), fixtures.clone());
        checks.spawn(check(entry, no_effects, fixtures, trace, false, n % 2 == 1));
        if checks.len() >= 16
            && let Some(checked) = checks.join_next().await
        {
            note(&mut case, checked);
        }
    }
    while let Some(checked) = checks.join_next().await {
        note(&mut case, checked);
    }
    close(fixtures).await;
    Ok(case)
}

/// A call was dropped while its savepoint was in flight. The caller's whole transaction was rolled back, and each later
/// statement committed on its own.
pub(crate) async fn a_dropped_savepoint_leaves_the_callers_transaction_whole<S: Database>(
    origin: Origin<S>,
) -> Result<Case> {
    let mut case = Case::default();
    let place = InDatabase::<S>::open(&origin).await?;
    let joining: Scenario<DatabaseFixture<S>> = transactions::joining(Joining::Run);
    for connection_state in [ConnectionState::Warm, ConnectionState::Uncached] {
        let mut fixtures = fixtures(&place, connection_state).await?;
        for n in 0..DROPS / 2 {
            if case.is_hopeless() {
                break;
            }
            match joining(fixtures.clone(), Moment::Sent(1 + n % 4)).await {
                Ok(dropped) => {
                    case.counts.drops += u64::from(!dropped.completed);
                    case.counts.polls += u64::from(dropped.polls);
                    note(&mut case, Ok(dropped.check.await));
                }
                Err(error) => {
                    case.problem(format!("drop {n}, {connection_state:?}: {error:#}"));
                    // The affected connection may be lost permanently.
                    let traces = Arc::new(Traces::default());
                    fixtures.under_test = place.fixture(connection_state, &traces).await?;
                }
            }
        }
        match fixtures.under_test.inspect().await {
            Ok(connections) => case.counts.connections += connections,
            Err(error) => case.problem(format!("{connection_state:?}: {error:#}")),
        }
        close(fixtures).await;
    }
    Ok(case)
}

/// A call was dropped while its statement was being prepared. Its connection was out of step with the server, and never
/// returned to the pool.
pub(crate) async fn dropped_calls_leave_every_connection_to_the_pool<S: Database>(
    origin: Origin<S>,
) -> Result<Case> {
    let mut case = Case::default();
    let place = InDatabase::<S>::open(&origin).await?;
    let entry = entry_in_transaction::<S>()?;
    for connection_state in [ConnectionState::Cold, ConnectionState::Uncached] {
        let fixtures = fixtures(&place, connection_state).await?;
        for n in 0..DROPS {
            let moment = match n % 2 {
                0 => Moment::Sent(1 + n / 2 % 20),
                _ => Moment::Answered(1 + n / 2 % 20),
            };
            let call = entry.call(&fixtures.under_test, &Trace::new());
            count(&mut case, drop_at(call, moment).await);
            if case.is_hopeless() {
                break;
            }
        }
        match fixtures.under_test.inspect().await {
            Ok(connections) => case.counts.connections += connections,
            Err(error) => case.problem(format!("{connection_state:?}: {error:#}")),
        }
        // A pool that has lost a connection cannot be closed.
        fixtures.witness.close().await;
    }
    Ok(case)
}

/// The driver panics at an answer that it cannot parse: the caller gets a store error.
pub(crate) async fn a_panic_of_the_driver_is_an_error(origin: Origin<MySqlStore>) -> Result<Case> {
    let mut case = Case::default();
    let witness = origin.home().await?;
    let options = MySqlStore::options(&witness);
    MySqlStore::prepare(&witness).await?;
    let url = options.to_url_lossy();
    let port = url.port().context("the URL has no port")?;
    let server = format!("{}:{port}", url.host_str().context("the URL has no host")?);
    let wire = Wire::start(server).await?;
    let options = options.host("127.0.0.1").port(wire.address.port());
    let mut entries = calls::entries::<DatabaseFixture<MySqlStore>>();
    entries.retain(|it| matches!(it.name, "run" | "run_with_refuse" | "step"));
    entries.extend(transactions::entries());
    entries.push(transactions::step());
    for entry in entries {
        let what = entry.name;
        // The panic must be in the store's own statement, not in a ping before it.
        let pool = MySqlPoolOptions::new()
            .max_connections(CONNECTIONS)
            .test_before_acquire(false)
            .connect_with(options.clone())
            .await?;
        let (traces, asked, witness) = (Arc::default(), pool.clone(), witness.clone());
        let inspect = move || MySqlStore::inspect(asked.clone(), witness.clone());
        let fixture = DatabaseFixture::<MySqlStore>::new(&pool, &traces, inspect);
        for _ in 0..CONNECTIONS {
            entry.call(&fixture, &Trace::new()).await?;
        }
        // A connection is pinged once more when it returns to the pool.
        while pool.num_idle() < pool.size() as usize {
            tokio::task::yield_now().await;
        }
        wire.cut_next();
        let called = drop_at(entry.call(&fixture, &Trace::new()), Moment::Sent(u32::MAX)).await;
        ensure!(wire.has_cut(), "{what}: no answer was cut short");
        case.counts.connections += 1;
        match called {
            Ok(polled) => match polled.output {
                // A claim is retried on another connection.
                Some(Ok(_) | Err(Failure::Idem(Error::Store(_)))) => {}
                other => case.problem(format!("{what}: answered {other:?}")),
            },
            Err(error) => case.problem(format!("{what}: {error:#}")),
        }
        // A connection whose driver panicked is not lent again.
        for _ in 0..CONNECTIONS {
            let next = drop_at(entry.call(&fixture, &Trace::new()), Moment::Sent(u32::MAX));
            match next.await {
                Ok(polled) if matches!(polled.output, Some(Ok(_))) => {}
                Ok(polled) => case.problem(format!("{what}, next: {:?}", polled.output)),
                Err(error) => case.problem(format!("{what}, next: {error:#}")),
            }
        }
        match fixture.inspect().await {
            Ok(connections) => case.counts.connections += connections,
            Err(error) => case.problem(format!("{what}: {error:#}")),
        }
    }
    Ok(case)
}

/// Counts a future that was to be dropped. Returns true if it was.
fn count<T>(case: &mut Case, polled: Result<crate::poll::Polled<Result<T, Failure>>>) -> bool {
    match polled {
        Ok(polled) => {
            let dropped = polled.output.is_none();
            case.counts.drops += u64::from(dropped);
            case.counts.polls += u64::from(polled.polls);
            if let Some(Err(failure)) = polled.output {
                case.problem(format!("a call that was not dropped failed: {failure:?}"));
            }
            dropped
        }
        Err(error) => {
            case.problem(format!("{error:#}"));
            false
        }
    }
}

fn entry_in_transaction<S: Database>() -> Result<Entry<DatabaseFixture<S>>> {
    let entries = transactions::entries::<S>();
    let found = entries.into_iter().find(|it| it.mode == Mode::Transaction);
    found.context("no entry uses `tx`")
}

fn entry_refused<H: AnyFixture>() -> Result<Entry<H>> {
    debug_assert!(CALL_LIMIT < LEASE, "a stray claim would lapse unnoticed");
    let entries = calls::entries::<H>();
    let found = entries.into_iter().find(|it| it.mode == Mode::Refuse);
    found.context("no entry uses `refuse`")
}
