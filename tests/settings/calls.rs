//! Calls on any store. Each acknowledgement is compared with what another connection sees.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures_util::future::join_all;
use idem_runtime::advanced::RunOptions;
use idem_runtime::operator::{Counting, OperatorStore};
use idem_runtime::record::{Record, RecordState, Timestamp};
use idem_runtime::store::{AuditFilter, Filter, ManualChange, PageRequest, Resolved};
use idem_runtime::{Attempt, Call, Error, Idem, OnCrash, Scope, Store};

pub(crate) const OPERATION: &str = "tests.settings";
/// Number of lists that operators read at once.
const LISTS: usize = 8;
pub(crate) const TTL: Duration = Duration::from_secs(3600);

/// Characters that a setting may give another meaning, and an empty line.
pub(crate) const TEXT: &str = "a\\'b\"%_ \\x41 ü \u{1f600}\n\n``--/*!*/ $1 ?1 {}  ";
/// Such characters in one line.
pub(crate) const LINE: &str = "a\\'b\"%_ \\x41 ü \u{1f600} ``--/*!*/ $1 ?1 {}";
/// Key with such characters.
const KEY: &str = "k\\'\"%_;--`$1?1 ";

/// Error of a body: one of the toolkit, or of its own.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Idempotency(#[from] Error),
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error("as asked")]
    Asked,
}

pub(crate) fn call(key: &str) -> Call {
    Call::new(OPERATION, key, &TEXT, TTL)
}

/// Handle with enough patience for a busy machine.
pub(crate) fn handle<S: Store>(store: S) -> Idem<S> {
    Idem::builder(store)
        .store_timeout(Duration::from_secs(20))
        .store_patience(Duration::from_secs(60))
        .build()
}

/// Reads the record of a key through another handle.
pub(crate) async fn seen<W: Store>(elsewhere: &Idem<W>, key: &str) -> Result<Option<Record>> {
    let records = elsewhere.records();
    Ok(records.find_scoped(OPERATION, key, &Scope::none()).await?)
}

/// Fails unless the record of an acknowledged call is completed for others.
pub(crate) async fn acknowledged<W: Store>(elsewhere: &Idem<W>, key: &str) -> Result<()> {
    let record = seen(elsewhere, key).await?;
    let state = record.map(|record| record.state);
    ensure!(
        state == Some(RecordState::Completed),
        "{key}: acknowledged, and another connection sees {state:?}"
    );
    Ok(())
}

/// Makes leased calls, and fails if one does not do what it says.
pub(crate) async fn leased<S: Store + Clone, W: Store>(
    idem: &Idem<S>,
    elsewhere: &Idem<W>,
) -> Result<()> {
    for on_crash in [OnCrash::Rerun, OnCrash::Refuse] {
        let key = format!("{KEY}{on_crash:?}");
        let once = call(&key).on_crash(on_crash);
        let answer: Result<String, Error> = idem.run(once, async || Ok(TEXT.to_owned())).await;
        ensure!(answer? == TEXT, "{key}: another value");
        acknowledged(elsewhere, &key).await?;
        let again = call(&key).on_crash(on_crash);
        let replay: Result<String, Error> = idem
            .run(again, async || Ok("it ran again".to_owned()))
            .await;
        ensure!(replay? == TEXT, "{key}: the replay differs");
    }
    duplicates(idem, elsewhere).await?;
    failures(idem, elsewhere).await
}

/// Concurrent callers of a few keys: each key runs once.
async fn duplicates<S: Store + Clone, W: Store>(idem: &Idem<S>, elsewhere: &Idem<W>) -> Result<()> {
    const KEYS: usize = 8;
    let runs: [AtomicU32; KEYS] = std::array::from_fn(|_| AtomicU32::new(0));
    let run = async |number: usize| {
        let key = format!("duplicate {}", number % KEYS);
        // Callers of other handles do not share a flight.
        let idem = handle(idem.store().clone());
        let call = call(&key)
            .wait(Duration::from_secs(60))
            .on_crash(OnCrash::Refuse);
        let answer: Result<u32, Error> = idem
            .run(call, async || {
                tokio::task::yield_now().await;
                Ok(runs[number % KEYS].fetch_add(1, Ordering::SeqCst))
            })
            .await;
        let value = answer.with_context(|| key.clone())?;
        ensure!(value == 0, "{key}: it ran again");
        acknowledged(elsewhere, &key).await
    };
    let answers = join_all((0..4 * KEYS).map(run)).await;
    answers.into_iter().collect::<Result<()>>()?;
    for runs in &runs {
        let runs = runs.load(Ordering::SeqCst);
        ensure!(runs == 1, "a body ran {runs} times");
    }
    Ok(())
}

/// Errors, steps, and attempts after a release.
async fn failures<S: Store, W: Store>(idem: &Idem<S>, elsewhere: &Idem<W>) -> Result<()> {
    let key = "failure";
    let steps = AtomicU32::new(0);
    for last in [false, true] {
        let body = async |attempt: Attempt| {
            let step = attempt.step(KEY, async || {
                steps.fetch_add(1, Ordering::SeqCst);
                Ok::<_, Failure>(TEXT.to_owned())
            });
            let value = step.await?;
            attempt.renew().await?;
            match last {
                true => Ok(value),
                false => Err(Failure::Asked),
            }
        };
        let options = RunOptions::new();
        let answer: Result<String, Failure> = idem.run_with(call(key), options, body).await;
        match last {
            true => ensure!(answer? == TEXT, "another value of a step"),
            false => {
                ensure!(matches!(answer, Err(Failure::Asked)), "{key}: {answer:?}");
                let record = seen(elsewhere, key).await?;
                let state = record.map(|record| record.state);
                ensure!(state == Some(RecordState::Released), "{key}: {state:?}");
            }
        }
    }
    let steps = steps.load(Ordering::SeqCst);
    ensure!(steps == 1, "a saved step ran {steps} times");
    acknowledged(elsewhere, key).await
}

/// Lists and counts records, and changes one manually.
pub(crate) async fn by_operators<S: OperatorStore, W: Store>(
    idem: &Idem<S>,
    elsewhere: &Idem<W>,
) -> Result<()> {
    let all = list(idem).await?;
    // More at once than the server may have connections for.
    let lists = join_all((0..LISTS).map(|_| list(idem))).await;
    for listed in lists.into_iter().chain([list(elsewhere).await]) {
        ensure!(listed? == all, "another connection lists others");
    }
    let stats = idem.store().stats(Counting::Exactly).await?;
    let counted: u64 = stats.groups.iter().map(|it| it.count.number()).sum();
    ensure!(
        counted == all.len() as u64,
        "{counted} records are counted, and {} are listed",
        all.len()
    );
    let failed: Result<u32, Failure> = idem
        .run(call("by hand"), async || Err(Failure::Asked))
        .await;
    ensure!(matches!(failed, Err(Failure::Asked)), "{failed:?}");
    let record = seen(idem, "by hand").await?.context("no record")?;
    let change = ManualChange::new("ann", LINE)?;
    let erased = idem
        .records()
        .by(&change)
        .erase(&record.observation())
        .await?;
    ensure!(
        erased == Resolved::Done,
        "a record that nobody changes is stale"
    );
    let left = seen(elsewhere, "by hand").await?;
    ensure!(
        left.is_none(),
        "erased, and another connection sees {left:?}"
    );
    let (filter, page) = (AuditFilter::default(), PageRequest::default());
    let entries = elsewhere.records().audit(&filter, &page).await?.entries;
    ensure!(
        entries.iter().any(|entry| entry.change == change),
        "a manual change has no entry: {entries:?}"
    );
    Ok(())
}

/// Keys of all records, sorted.
async fn list<S: Store>(idem: &Idem<S>) -> Result<Vec<String>> {
    let filter = Filter {
        operation: Some(OPERATION.to_owned()),
        ..Filter::default()
    };
    let mut keys = Vec::new();
    let mut page = PageRequest {
        limit: 5,
        after: None,
    };
    loop {
        let listed = idem.records().list(&filter, &page).await?;
        ensure!(listed.unreadable.is_empty(), "{:?}", listed.unreadable);
        let records = listed.records.iter();
        keys.extend(records.map(|it| it.record.identity.key.as_str().to_owned()));
        match listed.next {
            None => break,
            next => page.after = next,
        }
    }
    keys.sort();
    Ok(keys)
}

/// Purges until nothing is due. Returns the number of records that were removed.
pub(crate) async fn purge<S: Store>(store: &S) -> Result<u64> {
    let mut removed = 0;
    loop {
        let purged = store.purge(7, Timestamp::MAX).await?;
        removed += purged.removed;
        if !purged.more {
            return Ok(removed);
        }
    }
}
