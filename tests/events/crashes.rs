//! The metrics by which crashed calls are seen although nobody retries them, and claims that fail.

use std::time::Duration;

use idem_runtime::conformance::faults::{FaultStore, Op};
use idem_runtime::store::{Filter, ManualChange, PageRequest};
use idem_runtime::{Call, Error, Idem, MemoryStore, OnCrash};
use idem_tests::recording::Recording;
use tokio::time::sleep;

use crate::{LEASE, kill};

const HOUR: Duration = Duration::from_secs(3600);
const OPERATION: &str = "test.crashed";

fn call(key: &str) -> Call {
    Call::new(OPERATION, key, &1_u64, HOUR)
}

fn stuck(recording: &Recording, state: &str) -> Option<f64> {
    recording.gauge(&format!(
        "idem_stuck_records{{operation=\"{OPERATION}\",state=\"{state}\"}}"
    ))
}

fn oldest(recording: &Recording) -> Option<f64> {
    recording.gauge(&format!(
        "idem_oldest_stuck_record_age_seconds{{operation=\"{OPERATION}\",state=\"lapsed\"}}"
    ))
}

/// Releases all stuck records.
async fn release_all(idem: &Idem<FaultStore<MemoryStore>>) {
    let filter = Filter {
        stuck: true,
        ..Filter::default()
    };
    let first = PageRequest::default();
    let change = ManualChange::new("ann", "the letters were not posted").unwrap();
    loop {
        let page = idem.records().list(&filter, &first).await;
        let records = page.unwrap().records;
        if records.is_empty() {
            return;
        }
        for listed in records {
            let observed = listed.record.observation();
            idem.records().by(&change).release(&observed).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn stuck_records_are_reported_without_any_retry_until_they_are_resolved() {
    let recording = Recording::default();
    let _guard = metrics::set_default_local_recorder(&recording);
    let store = FaultStore::new(MemoryStore::new());
    let idem = Idem::new(store.clone());
    kill(&idem, call("first")).await;
    sleep(LEASE * 2).await;
    // More than one page, and one of an operator's kind.
    for number in 0..1_200 {
        kill(&idem, call(&number.to_string())).await;
    }
    let jammed = idem.run(call("jammed").on_crash(OnCrash::Refuse), async || {
        Err::<(), _>(Error::LeaseLost)
    });
    assert!(jammed.await.is_err());

    let minute = Duration::from_secs(60);
    let reporter = idem.report_stuck(minute).unwrap();
    sleep(minute / 6).await;
    assert_eq!(stuck(&recording, "lapsed"), Some(1.0), "the others run");
    assert_eq!(stuck(&recording, "interrupted"), Some(1.0));
    sleep(minute * 2).await;
    assert_eq!(stuck(&recording, "lapsed"), Some(1_201.0));
    assert!(oldest(&recording) > Some(120.0), "{:?}", oldest(&recording));

    // What was counted stays while the store is away.
    store.outage();
    sleep(minute * 3).await;
    assert_eq!(stuck(&recording, "lapsed"), Some(1_201.0));
    store.reset();
    release_all(&idem).await;
    sleep(minute * 3).await;
    let gauges = ["interrupted", "lapsed"].map(|state| stuck(&recording, state));
    assert_eq!(gauges, [Some(0.0); 2], "the operation has no stuck record");
    assert_eq!(oldest(&recording), Some(0.0));

    kill(&idem, call("last")).await;
    sleep(LEASE + minute * 2).await;
    assert_eq!(stuck(&recording, "lapsed"), Some(1.0));
    reporter.stop().await;
    assert_eq!(stuck(&recording, "lapsed"), Some(0.0));
}

#[tokio::test(start_paused = true)]
async fn the_duration_of_a_claim_that_fails_is_recorded() {
    let recording = Recording::default();
    let _guard = metrics::set_default_local_recorder(&recording);
    let store = FaultStore::new(MemoryStore::new());
    let idem = Idem::builder(store.clone())
        .store_patience(Duration::from_secs(5))
        .build();
    store.outage();
    let failed = idem.run(call("k"), async || Ok::<(), Error>(()));
    assert!(matches!(failed.await, Err(Error::Store(_))));
    let durations = recording.histogram(&format!(
        "idem_claim_duration_seconds{{operation=\"{OPERATION}\"}}"
    ));
    let &[seconds] = durations.as_slice() else {
        panic!("one claim: {durations:?}");
    };
    assert!((1.0..=5.0).contains(&seconds), "{seconds}");
    assert_eq!(store.count(Op::Complete), 0);
}
