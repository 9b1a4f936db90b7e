//! Sweep over the polls of a call: the call is dropped at each poll in turn, and every guarantee is checked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use idem_runtime::record::{Record, RecordState};
use tokio::task::JoinSet;

use crate::calls::{Entry, Mode};
use crate::databases::{Database, DatabaseFixture};
use crate::http::Journal;
use crate::origins::{AnyFixture, CONNECTIONS, ConnectionState, Fixture, Origin, Place};
use crate::poll::{Boxed, Moment, drop_at};
use crate::report::Case;
use crate::trace::{Trace, Traces};

/// Time limit for a call after a drop: one store time-out, and a margin for a loaded machine. The lease is far longer,
/// so a claim without an owner fails the case.
pub(crate) const CALL_LIMIT: Duration = Duration::from_secs(10);

/// Upper bound of the number of polls of a call. A listing of Redis reads the keys of all tests.
const MOST_POLLS: u32 = 2000;

/// Longest wait for the check of one drop before the next drop starts concurrently.
const WAITS: Duration = Duration::from_millis(200);

/// The fixture whose connections are under test, and a witness: a fixture with separate connections, which sees only
/// committed data.
#[derive(Clone)]
pub(crate) struct Fixtures<H> {
    pub(crate) under_test: H,
    pub(crate) witness: H,
}

/// A drop that was made, or a call that completed before its moment.
pub(crate) struct Dropped {
    pub(crate) completed: bool,
    pub(crate) polls: u32,
    /// Checks the state after the drop. Returns the number of records, effects and messages that it read.
    pub(crate) check: Boxed<'static, Result<u64>>,
}

/// Makes one call up to this moment, and drops it there.
pub(crate) type Scenario<H> =
    Arc<dyn Fn(Fixtures<H>, Moment) -> Boxed<'static, Result<Dropped>> + Send + Sync>;

/// Creates a scenario from this closure.
pub(crate) fn scenario<H, F>(
    make: impl Fn(Fixtures<H>, Moment) -> F + Send + Sync + 'static,
) -> Scenario<H>
where
    F: Future<Output = Result<Dropped>> + Send + 'static,
{
    Arc::new(move |fixtures, moment| Box::pin(make(fixtures, moment)))
}

/// Effects of a key that another session sees. `None` if the effects are not in a database.
pub(crate) type Effects<H> = fn(&H, String) -> Boxed<'static, Result<Option<Vec<String>>>>;

pub(crate) fn no_effects<H>(_: &H, _: String) -> Boxed<'static, Result<Option<Vec<String>>>> {
    Box::pin(async { Ok(None) })
}

pub(crate) fn charges<S: Database>(
    fixture: &DatabaseFixture<S>,
    key: String,
) -> Boxed<'static, Result<Option<Vec<String>>>> {
    let pool = fixture.pool.clone();
    Box::pin(async move { Ok(Some(S::charges(&pool, &key).await?)) })
}

/// Scenario of an entry: call, drop, call again.
pub(crate) fn of_entry<H: AnyFixture>(entry: Entry<H>, effects: Effects<H>) -> Scenario<H> {
    scenario(move |fixtures: Fixtures<H>, moment| {
        let entry = entry.clone();
        async move {
            let trace = Trace::new();
            let call = entry.call(&fixtures.under_test, &trace);
            let polled = drop_at(call, moment).await?;
            let completed = polled.output.is_some();
            if let Some(answer) = polled.output {
                let receipt = answer.context("a call that was not dropped failed")?;
                ensure!(
                    trace.gave(&receipt),
                    "the receipt of another run: {receipt}"
                );
            }
            // This process and another one make the next call in turn.
            let elsewhere = moment.polls() % 2 == 1;
            let check = check(entry, effects, fixtures, trace, completed, elsewhere);
            Ok(Dropped {
                completed,
                polls: polled.polls,
                check: Box::pin(check),
            })
        }
    })
}

/// Calls again with the key of a dropped call, and compares the results with the documentation of its mode.
pub(crate) async fn check<H: AnyFixture>(
    entry: Entry<H>,
    effects: Effects<H>,
    fixtures: Fixtures<H>,
    trace: Arc<Trace>,
    completed: bool,
    elsewhere: bool,
) -> Result<u64> {
    let (begun, ended) = trace.counts();
    let hanging = begun > 0 && ended == 0;
    let witness = fixtures.witness.base().clone();
    let next = if elsewhere {
        &fixtures.witness
    } else {
        &fixtures.under_test
    };
    let mut records = 0;
    if entry.mode == Mode::Rerun && hanging {
        let record = read(&entry, &witness, &trace).await?;
        records += 1;
        let record = record.context("the record of a body that had begun is gone")?;
        ensure!(
            record.state == RecordState::Running && !record.is_lapsed(),
            "the body had begun, but the record is {:?} (lapsed: {})",
            record.state,
            record.is_lapsed()
        );
        ensure!(trace.counts().0 == 1, "the body ran twice");
        return Ok(records);
    }
    if entry.mode == Mode::Transaction {
        records += agree(&entry, effects, &fixtures, &trace).await?;
    }
    let answer = answer(&entry, next, &trace).await?;
    let expected = match entry.mode {
        Mode::Refuse if hanging => RecordState::Interrupted,
        _ => RecordState::Completed,
    };
    match answer {
        Answer::Receipt(receipt) => {
            ensure!(
                expected == RecordState::Completed,
                "the body had begun under `refuse`, but the next call returned {receipt}"
            );
            ensure!(
                trace.gave(&receipt),
                "the receipt of another run: {receipt}"
            );
            if let Some(found) = effects(&fixtures.witness, trace.key.clone()).await? {
                records += 1;
                let expected = match entry.mode {
                    Mode::Transaction => vec![receipt],
                    _ => vec![trace.key.clone()],
                };
                ensure!(
                    found == expected,
                    "the effects are {found:?}, not {expected:?}"
                );
            }
        }
        Answer::Interrupted => ensure!(
            expected == RecordState::Interrupted,
            "interrupted, although {begun} bodies had begun and {ended} had ended"
        ),
    }
    if entry.operation.is_some() {
        let record = read(&entry, &witness, &trace).await?;
        records += 1;
        let state = record.map(|it| it.state);
        ensure!(
            state == Some(expected),
            "another session sees {state:?}, not {expected:?}"
        );
    }
    let (runs, _) = trace.counts();
    let most = match entry.mode {
        // A run that was rolled back does not count.
        Mode::Transaction => u32::MAX,
        Mode::Reconcile if hanging => 2,
        _ => 1,
    };
    ensure!(
        runs <= most,
        "{runs} bodies ran, {begun} of them before the drop"
    );
    ensure!(!completed || runs == 1, "a call that completed ran again");
    if let Some(problem) = trace.problems().first() {
        bail!("{problem}");
    }
    Ok(records)
}

/// Checks that another session sees the effect if and only if it sees the record completed. A commit may be in flight.
async fn agree<H: AnyFixture>(
    entry: &Entry<H>,
    effects: Effects<H>,
    fixtures: &Fixtures<H>,
    trace: &Trace,
) -> Result<u64> {
    let began = Instant::now();
    let mut records = 0;
    loop {
        let record = read(entry, fixtures.witness.base(), trace).await?;
        let found = effects(&fixtures.witness, trace.key.clone()).await?;
        let found = found.unwrap_or_default();
        records += 2;
        let completed = record.is_some_and(|it| it.state == RecordState::Completed);
        if usize::from(completed) == found.len() {
            return Ok(records);
        }
        ensure!(
            began.elapsed() < CALL_LIMIT,
            "completed: {completed}, but the effects are {found:?}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Record as another session sees it.
pub(crate) async fn read<H: AnyFixture>(
    entry: &Entry<H>,
    witness: &Fixture,
    trace: &Trace,
) -> Result<Option<Record>> {
    let Some(operation) = entry.operation else {
        return Ok(None);
    };
    let none = idem_runtime::Scope::none();
    let found = witness
        .idem
        .records()
        .find_scoped(operation, &trace.key, &none);
    found.await.context("the witness cannot read the record")
}

enum Answer {
    Receipt(String),
    Interrupted,
}

/// Calls until there is a final answer.
async fn answer<H: AnyFixture>(entry: &Entry<H>, next: &H, trace: &Arc<Trace>) -> Result<Answer> {
    let began = Instant::now();
    let mut last = None;
    while began.elapsed() < CALL_LIMIT {
        let call = tokio::time::timeout(CALL_LIMIT, entry.call(next, trace));
        match call.await {
            Err(_) => bail!("the next call was not answered"),
            Ok(Ok(receipt)) => return Ok(Answer::Receipt(receipt)),
            Ok(Err(failure)) if failure.is_interrupted() => return Ok(Answer::Interrupted),
            Ok(Err(failure)) if failure.is_retryable() => last = Some(failure),
            Ok(Err(failure)) => bail!("the next call failed: {failure:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    bail!("no later call succeeded in time, the last one failed: {last:?}")
}

/// Drops a scenario at each of its polls, on connections in each state, and checks all guarantees after each drop.
pub(crate) async fn sweep<P: Place>(
    origin: &Origin<P::Store>,
    name: &str,
    scenario: &Scenario<P::Fixture>,
) -> Result<Case> {
    let place = P::open(origin).await?;
    let traces = Arc::new(Traces::default());
    let journal = Journal::open().await?;
    let mut case = Case::default();
    let witness = place.fixture(ConnectionState::Warm, &traces).await?;
    witness.base().web.start(&journal).await?;
    for connection_state in place.connection_states() {
        for moment in [Moment::Sent as fn(u32) -> Moment, Moment::Answered] {
            // A pool without connections is in the same state at either moment.
            if *connection_state == ConnectionState::Cold && moment(0) != Moment::Sent(0) {
                continue;
            }
            let mut under_test = place.fixture(*connection_state, &traces).await?;
            under_test.base().web.start(&journal).await?;
            let mut checks = JoinSet::new();
            if *connection_state == ConnectionState::Warm {
                // One run for each connection, so that each has prepared the statements.
                for _ in 0..CONNECTIONS {
                    let fixtures = Fixtures {
                        under_test: under_test.clone(),
                        witness: witness.clone(),
                    };
                    let dropped = scenario(fixtures, Moment::Sent(u32::MAX)).await;
                    let dropped = dropped.with_context(|| format!("{name}, not dropped"))?;
                    case.counts.records += dropped.check.await?;
                }
            }
            for polls in 0..MOST_POLLS {
                if case.is_hopeless() {
                    break;
                }
                if *connection_state == ConnectionState::Cold && polls > 0 {
                    while let Some(checked) = checks.join_next().await {
                        note(&mut case, checked);
                    }
                    under_test.close().await;
                    under_test = place.fixture(*connection_state, &traces).await?;
                    under_test.base().web.start(&journal).await?;
                }
                let moment = moment(polls);
                let what = format!("{name}, {connection_state:?}, {moment}");
                let fixtures = Fixtures {
                    under_test: under_test.clone(),
                    witness: witness.clone(),
                };
                let dropped = match scenario(fixtures, moment).await {
                    Ok(dropped) => dropped,
                    Err(error) => {
                        case.problem(format!("{what}: {error:#}"));
                        continue;
                    }
                };
                case.counts.drops += u64::from(!dropped.completed);
                case.counts.polls += u64::from(dropped.polls);
                match under_test.inspect().await {
                    Ok(connections) => case.counts.connections += connections,
                    Err(error) => {
                        case.problem(format!("{what}: {error:#}"));
                        // The fault of these connections has been reported.
                        under_test = place.fixture(*connection_state, &traces).await?;
                        under_test.base().web.start(&journal).await?;
                    }
                }
                let check = dropped.check;
                let checked = checks.spawn(async move { check.await.context(what) });
                let began = Instant::now();
                while !checked.is_finished() && began.elapsed() < WAITS {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                if dropped.completed {
                    case.counts.most_polls = case.counts.most_polls.max(dropped.polls);
                    break;
                }
                ensure!(polls + 1 < MOST_POLLS, "{name} never completes");
            }
            while let Some(checked) = checks.join_next().await {
                note(&mut case, checked);
            }
            under_test.close().await;
        }
    }
    witness.close().await;
    Ok(case)
}

/// Counts a finished check.
pub(crate) fn note(case: &mut Case, checked: Result<Result<u64>, tokio::task::JoinError>) {
    match checked {
        Ok(Ok(records)) => case.counts.records += records,
        Ok(Err(error)) => case.problem(format!("{error:#}")),
        Err(error) => case.problem(format!("a check panicked: {error}")),
    }
}
