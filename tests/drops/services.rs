//! Services that are not calls: the operator's interface, purging, migrating, recovery, and the relay.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use idem_runtime::advanced::RunOptions;
use idem_runtime::outbox::{Message, Relay};
use idem_runtime::record::{Record, RecordState, Timestamp};
use idem_runtime::store::{Filter, ManualChange, PageRequest, Resolved};
use idem_runtime::{Call, Error, Recovery, TypedOperation};

use idem_tests::claims::end_lease;
use idem_tests::sql::INPUTS_DUE;

use crate::calls::{REFUSE, TTL, refuse};
use crate::databases::{Database, DatabaseFixture};
use crate::origins::{AnyFixture, Fixture};
use crate::poll::{Moment, drop_at};
use crate::sweep::{CALL_LIMIT, Dropped, Fixtures, Scenario, scenario};
use crate::trace::{Failure, Trace};

/// Manual resolution of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manual {
    Complete,
    Fail,
    Correct,
    Release,
    Erase,
}

/// Scenarios that every store has, by name.
pub(crate) fn scenarios<H: AnyFixture>() -> Vec<(&'static str, Scenario<H>)> {
    vec![
        ("records_find", scenario(find)),
        ("records_list", scenario(list)),
        ("records_complete", manually(Manual::Complete)),
        ("records_fail", manually(Manual::Fail)),
        ("records_correct", manually(Manual::Correct)),
        ("records_release", manually(Manual::Release)),
        ("records_erase", manually(Manual::Erase)),
        ("purge", scenario(purge)),
    ]
}

/// Scenarios of a database, by name.
pub(crate) fn of_database<S: Database>() -> Vec<(&'static str, Scenario<DatabaseFixture<S>>)> {
    vec![
        ("recovery", scenario(recover::<S>)),
        ("migrate", scenario(migrate::<S>)),
        ("outbox_relay", scenario(relay::<S>)),
    ]
}

async fn record(fixture: &Fixture, operation: &str, key: &str) -> Result<Option<Record>> {
    Ok(fixture.idem.records().find(operation, key).await?)
}

/// Polls until there is a value. Returns the value, and the number of polls. The checks of a case must be `Send`, which the
/// compiler cannot see of [`idem_tests::until`] with a condition that borrows.
async fn until<T, F>(what: &str, mut check: impl FnMut() -> F) -> Result<(T, u64)>
where
    F: Future<Output = Result<Option<T>>>,
{
    let began = Instant::now();
    for polls in 1.. {
        if let Some(found) = check().await? {
            return Ok((found, polls));
        }
        if began.elapsed() > CALL_LIMIT {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    bail!("not in time: {what}")
}

/// Creates a record that a call left INTERRUPTED.
async fn interrupted(fixture: &Fixture) -> Result<(Arc<Trace>, Record)> {
    let trace = Trace::hanging();
    tokio::select! {
        answer = refuse(&fixture.idem, &trace) => bail!("its body hangs: {answer:?}"),
        () = trace.has_begun() => {}
    }
    let found = until("interrupted", async || {
        let found = record(fixture, REFUSE, &trace.key).await?;
        Ok(found.filter(|it| it.state == RecordState::Interrupted))
    });
    let (found, _) = found.await?;
    Ok((trace, found))
}

async fn find<H: AnyFixture>(fixtures: Fixtures<H>, moment: Moment) -> Result<Dropped> {
    let witness = fixtures.witness.base().clone();
    let (trace, _) = interrupted(&witness).await?;
    let under_test = fixtures.under_test.base().clone();
    let found = record(&under_test, REFUSE, &trace.key);
    let polled = drop_at(found, moment).await?;
    let completed = polled.output.is_some();
    if let Some(found) = polled.output {
        ensure!(found?.is_some(), "the record is missing");
    }
    let check = async move {
        let found = record(&under_test, REFUSE, &trace.key).await?;
        let seen = record(&witness, REFUSE, &trace.key).await?;
        let states = (found.map(|it| it.state), seen.map(|it| it.state));
        let expected = (
            Some(RecordState::Interrupted),
            Some(RecordState::Interrupted),
        );
        ensure!(states == expected, "the record became {states:?}");
        Ok(2)
    };
    Ok(Dropped {
        completed,
        polls: polled.polls,
        check: Box::pin(check),
    })
}

/// Lists the same records for each drop. A listing of Redis is woken at least once for each record: if each drop added a
/// record, the number of polls might grow as fast as the moments of the sweep, which would never end.
async fn list<H: AnyFixture>(fixtures: Fixtures<H>, moment: Moment) -> Result<Dropped> {
    const RECORDS: u64 = 3;
    const PAGE: u32 = 2;
    let under_test = fixtures.under_test.base().clone();
    let all = async |idem: &crate::Handle| {
        let filter = Filter::default();
        let mut page = PageRequest {
            limit: PAGE,
            after: None,
        };
        let mut records = 0;
        loop {
            let found = idem.records().list(&filter, &page).await?;
            records += found.records.len() as u64;
            page.after = found.next;
            if page.after.is_none() {
                return anyhow::Ok(records);
            }
        }
    };
    let witness = fixtures.witness.base();
    for _ in all(&witness.idem).await?..RECORDS {
        interrupted(witness).await?;
    }
    let polled = drop_at(all(&under_test.idem), moment).await?;
    let check = async move {
        let found = all(&under_test.idem).await?;
        ensure!(
            found == RECORDS,
            "{found} records are listed, not {RECORDS}"
        );
        Ok(found)
    };
    Ok(Dropped {
        completed: polled.output.transpose()?.is_some(),
        polls: polled.polls,
        check: Box::pin(check),
    })
}

fn manually<H: AnyFixture>(how: Manual) -> Scenario<H> {
    scenario(move |fixtures: Fixtures<H>, moment| resolve(fixtures, moment, how))
}

const MANUAL: TypedOperation<String, String> = TypedOperation::new(REFUSE);

async fn resolve<H: AnyFixture>(
    fixtures: Fixtures<H>,
    moment: Moment,
    how: Manual,
) -> Result<Dropped> {
    let witness = fixtures.witness.base().clone();
    let under_test = fixtures.under_test.base().clone();
    let (trace, mut found) = interrupted(&witness).await?;
    let value = trace.key.clone();
    let mut before = RecordState::Interrupted;
    if how == Manual::Correct {
        let change = ManualChange::new("drops", "a mistake")?;
        let records = witness.idem.records().by(&change);
        records
            .complete(MANUAL, &found.observation(), &value)
            .await?;
        let ended = record(&witness, REFUSE, &trace.key).await?;
        found = ended.context("the record is missing")?;
        before = RecordState::Completed;
    }
    let make = async |fixture: &Fixture, record: &Record| {
        let change = ManualChange::new("drops", "a test")?;
        let (records, observed) = (fixture.idem.records().by(&change), record.observation());
        match how {
            Manual::Complete => Ok(records.complete(MANUAL, &observed, &value).await?),
            Manual::Fail => Ok(records.fail(MANUAL, &observed, &value).await?),
            Manual::Correct => Ok(records.correct_to_error(MANUAL, &observed, &value).await?),
            Manual::Release => Ok(records.release(&observed).await?),
            Manual::Erase => anyhow::Ok(records.erase(&observed).await?),
        }
    };
    let polled = drop_at(make(&under_test, &found), moment).await?;
    let completed = polled.output.is_some();
    if let Some(resolved) = polled.output {
        ensure!(
            resolved? == Resolved::Done,
            "an interrupted record was not resolved"
        );
    }
    let expected = match how {
        Manual::Complete => Some(RecordState::Completed),
        Manual::Fail | Manual::Correct => Some(RecordState::Failed),
        Manual::Release => Some(RecordState::Released),
        Manual::Erase => None,
    };
    let key = trace.key.clone();
    let check = async move {
        // The transition is atomic. If it was dropped, its statement may still be in flight, and then one of the two
        // resolutions finds the record unchanged.
        let ended = until("resolved", async || {
            let found = record(&witness, REFUSE, &key).await?;
            let state = found.as_ref().map(|it| it.state);
            if state == expected {
                return Ok(Some(()));
            }
            ensure!(
                !completed,
                "a resolution was acknowledged, but the record is {state:?}"
            );
            ensure!(state == Some(before), "the record became {state:?}");
            if let Some(found) = found {
                let observed = found.observation();
                let change = ManualChange::new("drops", "a test")?;
                let records = witness.idem.records().by(&change);
                let value = key.clone();
                match how {
                    Manual::Complete => records.complete(MANUAL, &observed, &value).await?,
                    Manual::Fail => records.fail(MANUAL, &observed, &value).await?,
                    Manual::Correct => records.correct_to_error(MANUAL, &observed, &value).await?,
                    Manual::Release => records.release(&observed).await?,
                    Manual::Erase => records.erase(&observed).await?,
                };
            }
            Ok(None)
        });
        let ((), polls) = ended.await?;
        Ok(polls)
    };
    Ok(Dropped {
        completed,
        polls: polled.polls,
        check: Box::pin(check),
    })
}

/// Drops a purge of expired records.
async fn purge<H: AnyFixture>(fixtures: Fixtures<H>, moment: Moment) -> Result<Dropped> {
    const OPERATION: &str = "drops.purge";
    let witness = fixtures.witness.base().clone();
    let under_test = fixtures.under_test.base().clone();
    for _ in 0..3 {
        let trace = Trace::new();
        let call = Call::new(OPERATION, &trace.key, "request", Duration::from_millis(1));
        let answer: Result<String, Failure> = witness
            .idem
            .run(call, async || Ok(trace.body().await))
            .await;
        answer?;
    }
    let polled = drop_at(under_test.idem.store().purge(100, Timestamp::MAX), moment).await?;
    let completed = polled.output.is_some();
    polled.output.transpose()?;
    let check = async move {
        let filter = Filter {
            operation: Some(OPERATION.to_owned()),
            ..Filter::default()
        };
        let page = PageRequest {
            limit: 100,
            after: None,
        };
        let purged = until("purged", async || {
            under_test.idem.store().purge(100, Timestamp::MAX).await?;
            let found = witness.idem.records().list(&filter, &page).await?;
            Ok(found.records.is_empty().then_some(()))
        });
        purged.await?;
        Ok(1)
    };
    Ok(Dropped {
        completed,
        polls: polled.polls,
        check: Box::pin(check),
    })
}

/// A future that wakes about once a millisecond: the futures dropped with it run in tasks, whose polls cannot be
/// counted.
async fn ticking(mut done: impl FnMut() -> bool) {
    while !done() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Drops a recovery of a call whose owner crashed, and runs another recovery to its end.
async fn recover<S: Database>(
    fixtures: Fixtures<DatabaseFixture<S>>,
    moment: Moment,
) -> Result<Dropped> {
    let pool = S::any(&fixtures.witness.pool);
    let witness = fixtures.witness.base().clone();
    let under_test = fixtures.under_test.base().clone();
    let died = Trace::hanging();
    let operation = format!("drops.recovery.{}", died.key);
    let call = move |key: &str| {
        let call = Call::new(operation.clone(), key, "request", TTL);
        (operation.clone(), call.recover_with(key))
    };
    let (operation, first) = call(&died.key);
    let run = witness.idem.run_with(first, RunOptions::new(), async |_| {
        Ok::<_, Failure>(died.body().await)
    });
    tokio::select! {
        answer = run => bail!("its body hangs: {answer:?}"),
        () = died.has_begun() => {}
    }
    let left = record(&witness, &operation, &died.key).await?;
    end_lease(witness.idem.store(), &left.context("no record")?).await?;
    pool.execute(INPUTS_DUE).await?;
    let trace = Trace::new();
    let start = |fixture: &Fixture| {
        let (idem, trace, call) = (fixture.idem.clone(), Arc::clone(&trace), call.clone());
        let pause = Duration::from_millis(10);
        let recovery = Recovery::new(&fixture.idem)
            .poll_interval(Duration::from_millis(1))
            .backoff(pause, pause)
            .max_attempts(1000);
        let handler = move |key: String| {
            let (idem, trace, (_, call)) = (idem.clone(), Arc::clone(&trace), call(&key));
            async move {
                let body = async |_| Ok::<_, Failure>(trace.body().await);
                idem.run_with(call, RunOptions::new(), body).await
            }
        };
        recovery.on(operation.clone(), handler).start()
    };
    let recovering = async {
        let recovery = start(&under_test)?;
        ticking(|| trace.counts().1 > 0).await;
        recovery.stop().await;
        Ok::<_, Error>(())
    };
    let polled = drop_at(recovering, moment).await?;
    let completed = polled.output.is_some();
    polled.output.transpose()?;
    let second = start(&witness)?;
    let key = died.key.clone();
    let operation = operation.clone();
    let check = async move {
        let ended = until("recovered", async || {
            let found = record(&witness, &operation, &key).await?;
            let found = found.context("no record")?;
            // The dropped recovery may have claimed the record, even a moment ago. The second one completes the call even
            // if its lease has ended, because no third one takes over.
            if found.state == RecordState::Running {
                end_lease(witness.idem.store(), &found).await?;
            }
            pool.execute(INPUTS_DUE).await?;
            Ok(Some(found).filter(|it| it.state == RecordState::Completed))
        });
        let (_, polls) = ended.await?;
        second.stop().await;
        Ok(polls)
    };
    Ok(Dropped {
        completed,
        polls: polled.polls,
        check: Box::pin(check),
    })
}

async fn migrate<S: Database>(
    fixtures: Fixtures<DatabaseFixture<S>>,
    moment: Moment,
) -> Result<Dropped> {
    let fixture = fixtures.under_test.clone();
    let both = async {
        fixture.idem.store().apply_migrations().await?;
        fixture.outbox.migrate().await
    };
    let polled = drop_at(both, moment).await?;
    let completed = polled.output.is_some();
    polled.output.transpose()?;
    let fixture = fixtures.under_test;
    let check = async move {
        let again = async {
            fixture.idem.store().apply_migrations().await?;
            fixture.outbox.migrate().await
        };
        let again = tokio::time::timeout(CALL_LIMIT, again).await;
        again.context("the second migration hangs")??;
        Ok(0)
    };
    Ok(Dropped {
        completed,
        polls: polled.polls,
        check: Box::pin(check),
    })
}

/// Drops a relay with messages, and runs another relay to its end.
async fn relay<S: Database>(
    fixtures: Fixtures<DatabaseFixture<S>>,
    moment: Moment,
) -> Result<Dropped> {
    let witness = fixtures.witness.clone();
    let delivered = Trace::new();
    let topic = format!("topic.{}", delivered.key);
    let mut outer = S::begin_outer(&witness.pool).await?;
    for n in 0..3 {
        let key = format!("{}-{n}", delivered.key);
        let message = witness.outbox.message(&topic, "charged").key(&key);
        S::enqueue(S::connection(&mut outer), message).await?;
    }
    S::commit_outer(outer).await?;
    let start = |fixture: &DatabaseFixture<S>| {
        let delivered = Arc::clone(&delivered);
        let handler = move |message: Message<String>| {
            let delivered = Arc::clone(&delivered);
            async move {
                delivered.begin();
                delivered.pause().await;
                delivered.end(message.key().as_str().to_owned());
                Ok::<_, std::io::Error>(())
            }
        };
        let relay = Relay::new(&fixture.outbox).on(topic.clone(), handler);
        relay
            .lease(Duration::from_millis(500))
            .poll_interval(Duration::from_millis(2))
            .start()
    };
    let all = {
        let delivered = Arc::clone(&delivered);
        move || (0..3).all(|n| delivered.gave(&format!("{}-{n}", delivered.key)))
    };
    let relaying = async {
        let relay = start(&fixtures.under_test)?;
        ticking(&all).await;
        relay.stop().await;
        Ok::<_, Error>(())
    };
    let polled = drop_at(relaying, moment).await?;
    let completed = polled.output.is_some();
    polled.output.transpose()?;
    let second = start(&witness)?;
    let check = async move {
        let gone = until("relayed", async || {
            let mut left = 0;
            for n in 0..3 {
                left += S::messages(&witness.pool, &format!("{}-{n}", delivered.key)).await?;
            }
            Ok((left == 0).then_some(()))
        });
        gone.await?;
        ensure!(all(), "a message was removed, but no handler got it");
        second.stop().await;
        Ok(3)
    };
    Ok(Dropped {
        completed,
        polls: polled.polls,
        check: Box::pin(check),
    })
}
