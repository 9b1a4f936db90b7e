//! Calls in their own transactions and in the caller's, steps, and messages in the caller's transaction.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use idem_runtime::advanced::RunOptions;
use idem_runtime::record::RecordState;
use idem_runtime::{Call, Idem, idempotent};

use crate::calls::{Entry, Mode, TTL, asking};
use crate::databases::{Database, DatabaseFixture, Text};
use crate::poll::{HANGS_AFTER, Moment, Polled, drop_at};
use crate::sweep::{self, CALL_LIMIT, Dropped, Fixtures, Scenario, scenario};
use crate::trace::{Failure, Trace};

const MACRO: &str = "drops.tx";
const RUN: &str = "drops.run_in_transaction";
const STEP: &str = "drops.step_tx";
const JOINED: &str = "drops.joined";

#[idempotent(key = &trace.key, ttl = "1h", name = MACRO, store = idem, tx = tx, skip(trace))]
async fn in_transaction<S: Database>(idem: &Idem<S>, trace: &Trace) -> Result<String, Failure> {
    charge::<S>(tx, trace, Text::Prepared).await
}

#[idempotent(key = &trace.key, ttl = "1h", name = JOINED, store = idem, tx = tx, skip(trace))]
async fn joined<S: Database>(
    idem: &Idem<S>,
    tx: &mut S::Connection,
    trace: &Trace,
) -> Result<String, Failure> {
    charge::<S>(tx, trace, Text::Plain).await
}

/// The body: its effect is in the transaction, with polls before and after it.
async fn charge<S: Database>(
    connection: &mut S::Connection,
    trace: &Trace,
    text: Text,
) -> Result<String, Failure> {
    let receipt = trace.begin();
    trace.pause().await;
    S::charge(connection, &trace.key, &receipt, text).await?;
    trace.pause().await;
    Ok(trace.end(receipt))
}

/// Calls with their own transaction.
pub(crate) fn entries<S: Database>() -> Vec<Entry<DatabaseFixture<S>>> {
    vec![
        Entry::new(
            "idempotent_tx",
            MACRO,
            Mode::Transaction,
            |fixture: DatabaseFixture<S>, trace| async move {
                in_transaction(&fixture.idem, &trace).await
            },
        ),
        Entry::new(
            "run_in_transaction",
            RUN,
            Mode::Transaction,
            |fixture: DatabaseFixture<S>, trace| async move {
                let call = Call::new(RUN, &trace.key, "request", TTL);
                fixture
                    .idem
                    .run_in_transaction(call, RunOptions::new(), async |tx, _| {
                        charge::<S>(tx, &trace, Text::Prepared).await
                    })
                    .await
            },
        ),
    ]
}

/// A leased call with a step in a transaction.
pub(crate) fn step<S: Database>() -> Entry<DatabaseFixture<S>> {
    Entry::new(
        "step_tx",
        STEP,
        Mode::Reconcile,
        |fixture: DatabaseFixture<S>, trace| async move {
            let call = Call::new(STEP, &trace.key, "request", TTL);
            let handling = asking(&trace);
            let idem = &fixture.idem;
            idem.run_with(call, handling, async |attempt| {
                let receipt = trace.begin();
                let step = attempt.step_tx(idem, "charge", async |tx| {
                    trace.begin_step("charge");
                    trace.pause().await;
                    S::charge(tx, &trace.key, &trace.key, Text::Prepared).await?;
                    trace.pause().await;
                    Ok::<_, Failure>(())
                });
                step.await?;
                trace.save_step("charge");
                trace.pause().await;
                Ok(trace.end(receipt))
            })
            .await
        },
    )
}

/// Operation that joins the transaction of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Joining {
    Macro,
    Run,
    Enqueue,
}

/// Drops a call that joins the caller's transaction, between two of the caller's statements. The caller commits and
/// rolls back in turn.
pub(crate) fn joining<S: Database>(joining: Joining) -> Scenario<DatabaseFixture<S>> {
    scenario(move |fixtures: Fixtures<DatabaseFixture<S>>, moment| {
        join_and_drop(fixtures, joining, moment)
    })
}

async fn join_and_drop<S: Database>(
    fixtures: Fixtures<DatabaseFixture<S>>,
    joining: Joining,
    moment: Moment,
) -> Result<Dropped> {
    let trace = Trace::new();
    let (before, after) = (format!("{}b", trace.key), format!("{}a", trace.key));
    let fixture = fixtures.under_test.clone();
    // Each poll is dropped at two moments: the caller commits after one of them, and rolls back after the other.
    let is_even = moment.polls().is_multiple_of(2);
    let commits = matches!(moment, Moment::Sent(_)) == is_even || moment.polls() == u32::MAX;
    let whole = async {
        let mut outer = S::begin_outer(&fixture.pool)
            .await
            .context("the caller's BEGIN failed")?;
        let tx = S::connection(&mut outer);
        let statement = S::charge(tx, &before, "before", Text::Plain).await;
        statement.context("the caller's first statement failed")?;
        let tx = S::connection(&mut outer);
        let polled = drop_at(join(&fixture, tx, &trace, joining), moment).await?;
        let Polled { output, polls } = polled;
        let completed = output.is_some();
        if let Some(answer) = output {
            answer.context("a call that was not dropped failed")?;
        }
        let tx = S::connection(&mut outer);
        let statement = S::charge(tx, &after, "after", Text::Plain).await;
        statement.context("the caller's next statement failed")?;
        match commits {
            true => S::commit_outer(outer)
                .await
                .context("the caller's COMMIT failed")?,
            false => S::rollback_outer(outer)
                .await
                .context("the caller's ROLLBACK failed")?,
        }
        anyhow::Ok((completed, polls))
    };
    let whole = tokio::time::timeout(HANGS_AFTER, whole).await;
    let (completed, polls) = whole.context("the caller's transaction hangs")??;
    let check = async move {
        let pool = &fixtures.witness.pool;
        let expected = usize::from(commits);
        for (key, name) in [(&before, "before"), (&after, "after")] {
            let found = S::charges(pool, key).await?.len();
            ensure!(
                found == expected,
                "the caller's statement {name} the call took effect {found} times (committed: {commits})"
            );
        }
        if joining == Joining::Enqueue {
            let found = S::messages(pool, &trace.key).await?;
            let most = i64::from(commits);
            ensure!(found <= most, "{found} messages, committed: {commits}");
            ensure!(
                !completed || found == most,
                "an enqueued message is missing"
            );
            return Ok(3);
        }
        let none = idem_runtime::Scope::none();
        let found = fixtures
            .witness
            .idem
            .records()
            .find_scoped(JOINED, &trace.key, &none)
            .await?;
        let charges = S::charges(pool, &trace.key).await?.len();
        let recorded = match found.as_ref().map(|it| it.state) {
            None => 0,
            Some(RecordState::Completed) => 1,
            Some(state) => anyhow::bail!("the record of a joined call is {state:?}"),
        };
        ensure!(
            charges == recorded,
            "{charges} effects, {recorded} completed records"
        );
        ensure!(
            commits || charges == 0,
            "an effect is visible without the caller's commit"
        );
        ensure!(
            !completed || charges == expected,
            "a call that completed left {charges} effects"
        );
        // In the next transaction the call succeeds, or returns its stored outcome.
        let receipt = again(&fixtures.witness, &trace, joining).await?;
        let charges = S::charges(pool, &trace.key).await?;
        ensure!(
            charges == [receipt],
            "the effects after the next call: {charges:?}"
        );
        Ok(7)
    };
    Ok(Dropped {
        completed,
        polls,
        check: Box::pin(check),
    })
}

/// Makes the call on a connection that is in a transaction.
async fn join<S: Database>(
    fixture: &DatabaseFixture<S>,
    tx: &mut S::Connection,
    trace: &Trace,
    joining: Joining,
) -> Result<String, Failure> {
    match joining {
        Joining::Macro => joined(&fixture.idem, tx, trace).await,
        Joining::Run => {
            let call = Call::new(JOINED, &trace.key, "request", TTL);
            let body = async |tx: &mut S::Connection, _| charge::<S>(tx, trace, Text::Plain).await;
            let idem = &fixture.idem;
            idem.join_transaction(tx, call, RunOptions::new(), body)
                .await
        }
        Joining::Enqueue => {
            let message = fixture.outbox.message("drops", "charged").key(&trace.key);
            S::enqueue(tx, message).await?;
            Ok(trace.end(trace.key.clone()))
        }
    }
}

/// Makes the call in a new transaction, until it succeeds.
async fn again<S: Database>(
    fixture: &DatabaseFixture<S>,
    trace: &Trace,
    joining: Joining,
) -> Result<String> {
    let began = Instant::now();
    loop {
        let mut outer = S::begin_outer(&fixture.pool).await?;
        match join(fixture, S::connection(&mut outer), trace, joining).await {
            Ok(receipt) => {
                S::commit_outer(outer).await?;
                return Ok(receipt);
            }
            Err(failure) => {
                let passes = failure.is_retryable() && began.elapsed() < CALL_LIMIT;
                ensure!(passes, "the next call failed: {failure:?}");
                S::rollback_outer(outer).await?;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// Scenarios of this module, by name.
pub(crate) fn scenarios<S: Database>() -> Vec<(&'static str, Scenario<DatabaseFixture<S>>)> {
    let mut scenarios = Vec::new();
    for entry in entries::<S>() {
        scenarios.push((entry.name, sweep::of_entry(entry, sweep::charges)));
    }
    scenarios.push(("step_tx", sweep::of_entry(step::<S>(), sweep::charges)));
    scenarios.push(("idempotent_tx_joined", joining(Joining::Macro)));
    scenarios.push(("join_transaction", joining(Joining::Run)));
    scenarios.push(("outbox_enqueue", joining(Joining::Enqueue)));
    scenarios
}
