//! Two concurrent calls with one key, of which one is dropped, and callers that are attached to a call.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use idem_runtime::advanced::RunOptions;
use idem_runtime::record::RecordState;
use idem_runtime::{Call, KeyStatus, NoError, OnCrash};

use crate::Handle;
use crate::calls::TTL;
use crate::origins::AnyFixture;
use crate::poll::{Moment, drop_at};
use crate::sweep::{CALL_LIMIT, Dropped, Fixtures, Scenario, scenario};
use crate::trace::{Failure, Trace};

const OPERATION: &str = "drops.duplicate";

/// Scenarios of this module, by name.
pub(crate) fn scenarios<H: AnyFixture>() -> Vec<(&'static str, Scenario<H>)> {
    vec![
        ("duplicate", scenario(duplicate)),
        ("outcome_attach", scenario(attach)),
    ]
}

/// Makes a call that waits for the current owner of its key.
async fn call(idem: Handle, trace: Arc<Trace>) -> Result<String, Failure> {
    let call = Call::new(OPERATION, &trace.key, "request", TTL);
    let call = call.on_crash(OnCrash::Refuse).wait(CALL_LIMIT);
    let body = async |_| Ok(trace.body().await);
    idem.run_with(call, RunOptions::new(), body).await
}

/// Makes two calls and drops one of them. The rounds vary in which call claims the key and which waits. The other call
/// succeeds, and at most one body runs.
async fn duplicate<H: AnyFixture>(fixtures: Fixtures<H>, moment: Moment) -> Result<Dropped> {
    let trace = Trace::new();
    let idem = fixtures.under_test.base().idem.clone();
    let stays = tokio::spawn(call(idem.clone(), Arc::clone(&trace)));
    let polled = drop_at(call(idem, Arc::clone(&trace)), moment).await?;
    let completed = polled.output.is_some();
    if let Some(answer) = polled.output {
        answer.context("a call that was not dropped failed")?;
    }
    let check = async move {
        let answer = tokio::time::timeout(CALL_LIMIT + Duration::from_secs(5), stays);
        let answer = answer.await.context("the other call was not answered")?;
        let expected = match answer.context("the other call panicked")? {
            Ok(receipt) => {
                ensure!(
                    trace.gave(&receipt),
                    "the receipt of another run: {receipt}"
                );
                RecordState::Completed
            }
            Err(failure) if failure.is_interrupted() && trace.counts() == (1, 0) => {
                RecordState::Interrupted
            }
            Err(failure) => bail!("the other call failed: {failure:?}"),
        };
        let (runs, _) = trace.counts();
        ensure!(runs == 1, "{runs} bodies ran");
        let records = fixtures.witness.base().idem.records();
        let found = records.find(OPERATION, &trace.key).await?;
        let state = found.map(|it| it.state);
        ensure!(
            state == Some(expected),
            "another session sees {state:?}, not {expected:?}"
        );
        Ok(1)
    };
    Ok(Dropped {
        completed,
        polls: polled.polls,
        check: Box::pin(check),
    })
}

/// Attaches to the call of another handle, and drops that wait. The call and later readers notice nothing.
async fn attach<H: AnyFixture>(fixtures: Fixtures<H>, moment: Moment) -> Result<Dropped> {
    let trace = Trace::new();
    let owner = fixtures.witness.base().idem.clone();
    let runs = tokio::spawn(call(owner, Arc::clone(&trace)));
    let idem = fixtures.under_test.base().idem.clone();
    let query = |trace: &Trace| idem.outcome::<String, NoError>(OPERATION, &trace.key);
    let polled = drop_at(query(&trace).attach(CALL_LIMIT), moment).await?;
    let completed = polled.output.is_some();
    if let Some(status) = polled.output {
        status.context("a wait that was not dropped failed")?;
    }
    let check = async move {
        let receipt = tokio::time::timeout(CALL_LIMIT, runs)
            .await
            .context("the call hangs")?;
        let receipt = receipt
            .context("the call panicked")?
            .context("the call failed")?;
        ensure!(trace.counts().0 == 1, "{} bodies ran", trace.counts().0);
        let status = idem
            .outcome::<String, NoError>(OPERATION, &trace.key)
            .await?;
        let KeyStatus::Ended(Ok(seen), _) = status else {
            bail!("the call has ended, and is {status:?}");
        };
        ensure!(seen == receipt, "another receipt: {seen}");
        Ok(2)
    };
    Ok(Dropped {
        completed,
        polls: polled.polls,
        check: Box::pin(check),
    })
}
