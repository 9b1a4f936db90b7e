//! Calls of the current code with the keys of an earlier release, and what operators do with its records.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use idem_runtime::advanced::RunOptions;
use idem_runtime::operator::OperatorStore;
use idem_runtime::record::RecordState;
use idem_runtime::store::{AuditFilter, Filter, PageRequest, Resolved};
use idem_runtime::{Error, Idem, Reconciled, Recovery, Store};
use idem_tests::until;
use serde::Deserialize;

use super::description::Description;
use super::entry::{Entry, Failure, Receipt, change, handle, options};

type Opened = Arc<dyn OperatorStore>;

/// Number that a taken over call returns, so that it cannot be mistaken for a stored result.
const AGAIN: &str = "made by the current code";

/// Makes each call again: with another request, and then with its own.
pub(super) async fn check(store: &Opened, expected: &Description) {
    let (recovered, others): (Vec<_>, Vec<_>) = expected
        .entries
        .iter()
        .partition(|it| it.answer == "recovered");
    for entry in &others {
        if entry.state.is_some() && !entry.by_fingerprint {
            is_refused_for_another_request(store, entry).await;
        }
        is_answered(store, entry).await;
        // The answer is the same once more, unless the call was made or reconciled meanwhile.
        if !["runs", "reconciled"].contains(&&*entry.answer) {
            is_answered(store, entry).await;
        }
    }
    for entry in recovered {
        is_recovered(store, entry).await;
    }
}

async fn is_refused_for_another_request(store: &Opened, entry: &Entry) {
    let mut other = entry.request.clone();
    other["cents"] = 501.into();
    let idem = handle(Arc::clone(store), entry);
    let body = async |_| -> Result<Receipt, Failure> { panic!("{}: it ran", entry.key) };
    let answer = idem.run_with(entry.call(&other), options(), body).await;
    let is_reused = matches!(answer, Err(Failure::Call(Error::KeyReused)));
    assert!(is_reused, "{}: {answer:?}", entry.key);
}

async fn is_answered(store: &Opened, entry: &Entry) {
    let idem = handle(Arc::clone(store), entry);
    let before = store.get(&entry.id()).await.unwrap();
    let call = entry.call(&entry.request);
    let key = &entry.key;
    if entry.answer == "unrecorded" {
        let answer = idem.run(call, async || Ok::<_, Error>(0.5)).await;
        assert!(
            matches!(answer, Err(Error::Unrecorded)),
            "{key}: {answer:?}"
        );
        return;
    }
    let mut options = options();
    if entry.on_crash == "reconcile" {
        options = options.reconcile(async |_| Ok(Reconciled::Done(Receipt::of(AGAIN))));
    }
    let mut has_run = false;
    let answer = idem.run_with(call, options, async |attempt| {
        has_run = true;
        for (name, saved) in &entry.steps {
            let value: serde_json::Value = attempt
                .step(name, async || Err(Failure::TimedOut))
                .await
                .unwrap_or_else(|error| panic!("{key}: the step {name} is not saved: {error:?}"));
            assert_eq!(format!("json/1 {value}"), *saved, "{key}");
        }
        if let Some(before) = &before {
            let token = attempt.fencing_token().unwrap();
            assert!(token > before.fencing_token.number(), "{key}");
            assert_eq!(attempt.number(), before.attempt + 1, "{key}");
        }
        assert_eq!(attempt.record_id().to_string(), entry.record_id);
        let derived = [
            attempt.downstream_key("bank"),
            attempt.step_downstream_key("charge"),
        ];
        assert_eq!(
            derived.map(|it| it.as_str().to_owned()).to_vec(),
            entry.downstream_keys
        );
        Ok(Receipt::of(AGAIN))
    });
    let answer = answer.await;
    let is_expected = match (&*entry.answer, &answer) {
        ("receipt", Ok(receipt)) => *receipt == Receipt::of(key),
        ("runs" | "reconciled", Ok(receipt)) => *receipt == Receipt::of(AGAIN),
        ("declined", Err(Failure::Declined { code })) => *code == 51,
        ("interrupted", Err(Failure::Call(Error::Interrupted)))
        | ("in-flight", Err(Failure::Call(Error::InFlight { .. })))
        | ("expired", Err(Failure::Call(Error::Expired))) => true,
        _ => false,
    };
    assert!(
        is_expected,
        "{key}: expected {:?}, got {answer:?}",
        entry.answer
    );
    assert_eq!(has_run, entry.answer == "runs", "{key}");
}

/// The input of the crashed call is found and decoded, and the call is completed with it.
async fn is_recovered(store: &Opened, entry: &Entry) {
    #[derive(Deserialize)]
    struct Input {
        letter: u64,
    }
    let idem = handle(Arc::clone(store), entry);
    let runs = Arc::new(AtomicU32::new(0));
    let (service, of, counted) = (idem.clone(), entry.clone(), Arc::clone(&runs));
    let recovery = Recovery::new(&idem)
        .poll_interval(Duration::from_millis(10))
        .on(entry.operation.clone(), move |input: Input| {
            let (service, of, counted) = (service.clone(), of.clone(), Arc::clone(&counted));
            async move {
                assert_eq!(input.letter, 7);
                let call = of.call(&of.request);
                let body = async |_| {
                    counted.fetch_add(1, Ordering::SeqCst);
                    Ok(Receipt::of(AGAIN))
                };
                let options: RunOptions<'_, Receipt, Failure> = options();
                service.run_with(call, options, body).await
            }
        })
        .start()
        .unwrap();
    until(async || state_of(store, entry).await == Some(RecordState::Completed)).await;
    recovery.stop().await;
    assert_eq!(runs.load(Ordering::SeqCst), 1, "{}", entry.key);
}

/// Resolves by hand what is still stuck, and erases everything else. The audit continues that of the release.
pub(super) async fn operate(store: &Opened, expected: &Description) {
    let idem = Idem::new(Arc::clone(store));
    let change = change();
    let by = idem.records().by(&change);
    let mut entries = expected.audit.len();
    for entry in &expected.entries {
        let Some(record) = idem.records().get(&entry.id()).await.unwrap() else {
            panic!("{} is gone", entry.key);
        };
        let observed = record.observation();
        if record.state == RecordState::Interrupted {
            assert_eq!(
                by.release(&observed).await.unwrap(),
                Resolved::Done,
                "{}",
                entry.key
            );
            let runs = Entry {
                answer: "runs".to_owned(),
                ..entry.clone()
            };
            is_answered(store, &runs).await;
            entries += 1;
        }
        let record = idem.records().get(&entry.id()).await.unwrap().unwrap();
        let erased = by.erase(&record.observation()).await.unwrap();
        if record.has_live_owner() {
            assert_eq!(erased, Resolved::Stale, "{}", entry.key);
            continue;
        }
        assert_eq!(erased, Resolved::Done, "{}", entry.key);
        entries += 1;
    }
    let page = PageRequest {
        limit: 1000,
        after: None,
    };
    let listed = idem
        .records()
        .list(&Filter::default(), &page)
        .await
        .unwrap();
    let running = expected
        .entries
        .iter()
        .filter(|it| it.answer == "in-flight");
    assert_eq!(
        (listed.records.len(), listed.unreadable.len()),
        (running.count(), 0)
    );
    let audit = idem
        .records()
        .audit(&AuditFilter::default(), &page)
        .await
        .unwrap();
    assert_eq!((audit.entries.len(), audit.unreadable.len()), (entries, 0));
}

/// State of the record of a call.
async fn state_of(store: &Arc<dyn OperatorStore>, entry: &Entry) -> Option<RecordState> {
    let idem = Idem::new(Arc::clone(store));
    let record = idem.records().get(&entry.id()).await.unwrap();
    record.map(|it| it.state)
}
