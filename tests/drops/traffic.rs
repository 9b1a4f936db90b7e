//! Drops at seeded random moments, during concurrent calls of other keys on the same pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::task::JoinSet;

use crate::calls::Entry;
use crate::http::Journal;
use crate::origins::{AnyFixture, ConnectionState, Origin, Place};
use crate::poll::{HANGS_AFTER, Moment, drop_at};
use crate::report::Case;
use crate::sweep::{CALL_LIMIT, Effects, Fixtures, check, note};
use crate::trace::{Trace, Traces};

/// Variable for the number of random drops on each store.
const DROPS: &str = "IDEM_DROPS";
/// Variable for the seed of the random moments.
const SEED: &str = "IDEM_DROPS_SEED";

/// Number of tasks whose calls are never dropped.
const NEIGHBOURS: usize = 8;
/// Number of tasks that make calls and drop them.
const DROPPERS: usize = 4;
/// Number of drops between two checks of the connections.
const ROUND: usize = 60;

/// Number of random drops on each store, and the seed of their moments.
pub(crate) fn settings() -> Result<(usize, u64)> {
    let read = |name: &str| {
        let value = std::env::var(name).ok();
        let value = value.map(|it| it.parse::<u64>().with_context(|| format!("{name}={it}")));
        value.transpose()
    };
    let drops = read(DROPS)?.unwrap_or(300);
    let seed = read(SEED)?.unwrap_or_else(rand::random);
    Ok((drops as usize, seed))
}

/// An entry with its effects.
pub(crate) type Effective<H> = (Entry<H>, Effects<H>);

/// Drops calls at random moments while other calls run.
pub(crate) async fn traffic<P: Place>(
    origin: &Origin<P::Store>,
    entries: Vec<Effective<P::Fixture>>,
) -> Result<Case> {
    let (drops, seed) = settings()?;
    let place = P::open(origin).await?;
    let traces = Arc::new(Traces::default());
    let journal = Journal::open().await?;
    let witness = place.fixture(ConnectionState::Warm, &traces).await?;
    let under_test = place.fixture(ConnectionState::Warm, &traces).await?;
    for fixture in [&witness, &under_test] {
        fixture.base().web.start(&journal).await?;
    }
    let fixtures = Fixtures {
        under_test,
        witness,
    };
    let entries = Arc::new(entries);
    let mut case = Case::default();
    let mut left = drops;
    let mut round = 0;
    while left > 0 && !case.is_hopeless() {
        let now = left.min(ROUND);
        left -= now;
        beside_traffic(&fixtures, &entries, now, seed ^ round, &mut case).await?;
        round += 1;
    }
    fixtures.under_test.close().await;
    fixtures.witness.close().await;
    Ok(case)
}

/// A dropped or completed call: the index of its entry, its trace, and true if it completed.
type Finished = (usize, Arc<Trace>, bool);

async fn beside_traffic<H: AnyFixture>(
    fixtures: &Fixtures<H>,
    entries: &Arc<Vec<Effective<H>>>,
    drops: usize,
    seed: u64,
    case: &mut Case,
) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    let mut neighbours = JoinSet::new();
    for first in 0..NEIGHBOURS {
        let (entries, fixtures, stop) = (Arc::clone(entries), fixtures.clone(), Arc::clone(&stop));
        neighbours.spawn(async move {
            let mut calls = 0;
            let mut next = first;
            while !stop.load(Ordering::Relaxed) || calls == 0 {
                let (entry, _) = &entries[next % entries.len()];
                answered_in_time(entry, &fixtures.under_test)
                    .await
                    .with_context(|| format!("an unrelated call of {} failed", entry.name))?;
                next += 1;
                calls += 1;
            }
            anyhow::Ok(calls)
        });
    }
    let mut droppers = JoinSet::new();
    for n in 0..DROPPERS {
        let share = drops / DROPPERS + usize::from(n < drops % DROPPERS);
        let (entries, fixtures) = (Arc::clone(entries), fixtures.clone());
        let rng = StdRng::seed_from_u64(seed.wrapping_mul(1 + n as u64).wrapping_add(n as u64));
        droppers.spawn(drop_at_random(entries, fixtures.under_test, share, rng));
    }
    let mut finished: Vec<Finished> = Vec::new();
    while let Some(dropped) = droppers.join_next().await {
        let (dropped, counts) = dropped.context("a dropper panicked")?;
        case.counts.drops += counts.0;
        case.counts.polls += counts.1;
        for dropped in dropped {
            match dropped {
                Ok(dropped) => finished.push(dropped),
                Err(error) => case.problem(format!("seed {seed}: {error:#}")),
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = neighbours.join_next().await {
        match ended {
            Ok(Ok(calls)) => case.counts.traffic += calls,
            Ok(Err(error)) => case.problem(format!("seed {seed}: {error:#}")),
            Err(error) => case.problem(format!("seed {seed}: a neighbour panicked: {error}")),
        }
    }
    match fixtures.under_test.inspect().await {
        Ok(connections) => case.counts.connections += connections,
        Err(error) => case.problem(format!("seed {seed}: {error:#}")),
    }
    let mut checks = JoinSet::new();
    for (at, (which, trace, completed)) in finished.into_iter().enumerate() {
        let (entry, effects) = entries[which].clone();
        let (fixtures, elsewhere) = (fixtures.clone(), at % 2 == 1);
        let what = format!("seed {seed}, {}", entry.name);
        checks.spawn(async move {
            let checked = check(entry, effects, fixtures, trace, completed, elsewhere);
            checked.await.context(what)
        });
        if checks.len() >= NEIGHBOURS
            && let Some(checked) = checks.join_next().await
        {
            note(case, checked);
        }
    }
    while let Some(checked) = checks.join_next().await {
        note(case, checked);
    }
    Ok(())
}

/// Checks that a call that is not dropped gets its own value, in time.
async fn answered_in_time<H: AnyFixture>(entry: &Entry<H>, fixture: &H) -> Result<()> {
    let trace = Trace::new();
    let began = Instant::now();
    let call = tokio::time::timeout(CALL_LIMIT, entry.call(fixture, &trace));
    let Ok(answer) = call.await else {
        bail!("the call was not answered");
    };
    let receipt = answer.with_context(|| format!("after {:?}", began.elapsed()))?;
    ensure!(
        trace.gave(&receipt),
        "the call returned the receipt of another run: {receipt}"
    );
    Ok(())
}

/// Makes this many calls, and drops each after a random number of polls or a random time.
async fn drop_at_random<H: AnyFixture>(
    entries: Arc<Vec<Effective<H>>>,
    fixture: H,
    calls: usize,
    mut rng: StdRng,
) -> (Vec<Result<Finished>>, (u64, u64)) {
    let mut finished = Vec::new();
    let (mut drops, mut polls) = (0, 0);
    // For each entry, the approximate number of polls of a call that completed.
    let mut lengths = vec![8_u32; entries.len()];
    for _ in 0..calls {
        let which = rng.random_range(0..entries.len());
        let (entry, _) = &entries[which];
        let trace = Trace::new();
        let call = entry.call(&fixture, &trace);
        let output = if rng.random_bool(0.5) {
            let after = (rng.random::<f64>() * f64::from(lengths[which])) as u32;
            let moment = match rng.random_bool(0.5) {
                true => Moment::Sent(after),
                false => Moment::Answered(after),
            };
            match drop_at(call, moment).await {
                Ok(polled) => {
                    polls += u64::from(polled.polls);
                    lengths[which] = match polled.output {
                        Some(_) => polled.polls.max(1),
                        None => lengths[which].max(after + 4),
                    };
                    polled.output
                }
                Err(error) => {
                    finished.push(Err(error.context(entry.name)));
                    continue;
                }
            }
        } else {
            // The whole future is one poll for the caller: it runs in a task, which is aborted.
            let after = Duration::from_micros(rng.random_range(0..8_000));
            let mut task = tokio::spawn(call);
            let ended = tokio::time::timeout(after, &mut task).await;
            let ended = match ended {
                Ok(ended) => ended,
                Err(_) => {
                    task.abort();
                    match tokio::time::timeout(HANGS_AFTER, task).await {
                        Ok(ended) => ended,
                        Err(_) => {
                            finished.push(Err(anyhow::anyhow!(
                                "{}: the task cannot be aborted",
                                entry.name
                            )));
                            continue;
                        }
                    }
                }
            };
            match ended {
                Ok(output) => Some(output),
                Err(error) if error.is_cancelled() => None,
                Err(error) => {
                    finished.push(Err(anyhow::anyhow!("{}: {error}", entry.name)));
                    continue;
                }
            }
        };
        let completed = output.is_some();
        drops += u64::from(!completed);
        finished.push(match output {
            Some(Err(failure)) => Err(anyhow::Error::from(failure).context(entry.name)),
            _ => Ok((which, trace, completed)),
        });
    }
    (finished, (drops, polls))
}
