//! Records in the hands of an operator: found, sent over a network, and resolved.

use idem_runtime::error::InvalidCall;
use idem_runtime::record::{Observation, Record, RecordState};
use idem_runtime::store::{Filter, PageRequest, Resolved};
use idem_runtime::{Error, Idem, Key, MemoryStore, OnCrash, Scope, Store, TypedOperation};

use super::{Effects, Failure, LEASE, OPERATION, TTL, call, idem};

/// Leaves an interrupted record of this key.
async fn interrupt<S: Store + ?Sized>(idem: &Idem<S>, key: &str) -> Record {
    let refused = idem
        .run(call(key, 1).on_crash(OnCrash::Refuse), async || {
            Err::<u32, _>(Failure::Lost)
        })
        .await;
    assert!(refused.is_err());
    let record = idem.records().find(OPERATION.name(), key).await.unwrap();
    let record = record.unwrap();
    assert_eq!(record.state, RecordState::Interrupted);
    record
}

/// Sends a record to a browser, and its observation back.
fn through_a_browser(record: &Record) -> Observation {
    let shown: serde_json::Value = serde_json::to_value(record).unwrap();
    let read: Record = serde_json::from_value(shown).unwrap();
    assert_eq!(read, *record);
    let decision = serde_json::json!({ "record": record.observation(), "action": "release" });
    let decision: serde_json::Value = serde_json::from_str(&decision.to_string()).unwrap();
    assert!(decision["record"].is_string(), "{decision}");
    serde_json::from_value(decision["record"].clone()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_was_made_in_a_browser_applies_to_the_record_that_was_shown() {
    let idem = idem();
    let record = interrupt(&idem, "k").await;
    let seen = through_a_browser(&record);
    let released = crate::records::manually(&idem)
        .release(&seen)
        .await
        .unwrap();
    assert_eq!(released, Resolved::Done);
    assert_eq!(
        Effects::default().run(&idem, call("k", 1)).await.unwrap(),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn a_decision_about_a_record_that_changed_meanwhile_has_no_effect() {
    let idem = idem();
    let record = interrupt(&idem, "k").await;
    let seen = through_a_browser(&record);
    // Another operator says that nothing was done, and the next call is interrupted as well.
    crate::records::manually(&idem)
        .release(&record.observation())
        .await
        .unwrap();
    let now = interrupt(&idem, "k").await;
    for resolved in [
        crate::records::manually(&idem).release(&seen).await,
        crate::records::manually(&idem)
            .complete(OPERATION, &seen, &7)
            .await,
        crate::records::manually(&idem).erase(&seen).await,
    ] {
        assert_eq!(resolved.unwrap(), Resolved::Stale);
    }
    let after = idem.records().get(&record.id).await.unwrap().unwrap();
    assert_eq!(after.observation(), now.observation());
}

#[tokio::test(start_paused = true)]
async fn a_result_of_another_operation_is_refused_before_anything_is_written() {
    const OTHER: TypedOperation<String, String> = TypedOperation::new("test.other");
    let idem = idem();
    let record = interrupt(&idem, "k").await;
    let seen = record.observation();
    let oops = "oops".to_owned();
    for refused in [
        crate::records::manually(&idem)
            .complete(OTHER, &seen, &oops)
            .await,
        crate::records::manually(&idem)
            .fail(OTHER, &seen, &oops)
            .await,
    ] {
        let error = refused.unwrap_err();
        assert!(
            matches!(
                &error,
                Error::InvalidCall(InvalidCall::OtherOperation { expected: "test.other", found })
                    if found == "test.operation"
            ),
            "{error:?}"
        );
        assert!(error.to_string().contains("`test.operation`"), "{error}");
    }
    let after = idem.records().get(&record.id).await.unwrap().unwrap();
    assert_eq!(after.observation(), seen);
    let done = crate::records::manually(&idem)
        .complete(OPERATION, &seen, &7)
        .await
        .unwrap();
    assert_eq!(done, Resolved::Done);
    assert_eq!(
        Effects::default().run(&idem, call("k", 1)).await.unwrap(),
        7
    );
    // The record is gone: the observation is stale.
    tokio::time::advance(TTL * 2).await;
    let done = crate::records::manually(&idem)
        .complete(OTHER, &seen, &oops)
        .await
        .unwrap();
    assert_eq!(done, Resolved::Stale);
}

#[tokio::test(start_paused = true)]
async fn a_record_is_found_in_the_scope_of_its_key() {
    let idem = idem();
    let ann = Scope::new("ann").unwrap();
    let call = || call("k", 1).scope(&ann);
    Effects::default().run(&idem, call()).await.unwrap();
    let records = idem.records();
    let operation = OPERATION.name();
    assert!(records.find(operation, "k").await.unwrap().is_none());
    let scoped = records.find_scoped(operation, "k", &ann).await.unwrap();
    let key = Key::new("k").unwrap().scoped(&ann);
    let carried = records.find(operation, &key).await.unwrap();
    assert_eq!(scoped.unwrap().id, carried.unwrap().id);
}

#[tokio::test(start_paused = true)]
async fn stuck_records_are_found_by_a_handle_on_any_boxed_store() {
    let store: Box<dyn Store> = Box::new(MemoryStore::new());
    let idem = Idem::new(store);
    let interrupted = interrupt(&idem, "interrupted").await;
    Effects::default()
        .run(&idem, call("done", 1))
        .await
        .unwrap();
    let mut lapsing = Box::pin(idem.run(call("lapsed", 1), async || {
        std::future::pending::<Result<u32, Failure>>().await
    }));
    assert!(futures_util::poll!(&mut lapsing).is_pending());
    drop(lapsing);
    let stuck = Filter {
        stuck: true,
        ..Filter::default()
    };
    let keys = async || {
        let page = idem.records().list(&stuck, &PageRequest::default()).await;
        let mut keys: Vec<_> = page.unwrap().records;
        keys.sort_by_key(|it| it.record.state != RecordState::Interrupted);
        keys.iter()
            .map(|it| it.record.identity.key.as_str().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(keys().await, ["interrupted"]);
    tokio::time::advance(LEASE * 2).await;
    assert_eq!(keys().await, ["interrupted", "lapsed"]);
    assert_eq!(interrupted.id.to_string().parse(), Ok(interrupted.id));
}
