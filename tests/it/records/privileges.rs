//! Privileges that the book lists, for the user of a service and for operators.

use std::time::Duration;

use idem_runtime::advanced::RunOptions;
use idem_runtime::error::StoreErrorKind;
use idem_runtime::operator::{Counting, OperatorStore};
use idem_runtime::record::{Payload, RecordState, Timestamp};
use idem_runtime::store::{
    AuditFilter, FencedWrite, Filter, ManualChange, PageRequest, Resolution, Resolved,
};
use idem_runtime::{Attempt, Error, Idem};
use idem_tests::sql::Sql;

use crate::records::{HOUR, claim, outcome, own};

/// Tables that a service reads and writes.
pub(crate) const OF_SERVICE: [&str; 4] = [
    "idem_records",
    "idem_records_steps",
    "idem_records_recovery",
    "idem_records_fencing_floor",
];
/// Tables that operators read, and add to.
pub(crate) const OF_OPERATORS: &str = "idem_records_audit";

/// Tables that an operator who only looks reads, besides that of the audit.
pub(crate) const OF_LOOKS: [&str; 5] = [
    "idem_records",
    "idem_records_steps",
    "idem_records_recovery",
    "idem_records_operations",
    "idem_records_migrations",
];

/// An operator with the documented privileges to look finds, lists, explains and counts the record `b`, and changes nothing.
async fn look<S: Sql + OperatorStore>(looking: &S::Pool) {
    let store = S::over(looking);
    let idem = Idem::new(store.clone());
    let records = idem.records();
    let open = claim("b");
    let record = store.get(&open.id).await.unwrap().unwrap();
    let key = open.identity.key.clone();
    let found = records.find_in_all_operations(&key, &open.identity.scope);
    found.await.unwrap();
    let page = PageRequest::default();
    let listed = records.list(&Filter::default(), &page).await.unwrap();
    assert!(!listed.records.is_empty());
    assert!(records.attempts(&open.id).await.unwrap().is_some());
    records.set_manually(&record).await.unwrap();
    let form = records.stored_form(&open.identity.operation, RecordState::Completed);
    form.await.unwrap();
    store.steps_of(&open.id, true).await.unwrap();
    store.stats(Counting::default()).await.unwrap();
    store.stats(Counting::Exactly).await.unwrap();
    assert!(
        store
            .migration_plan()
            .await
            .unwrap()
            .unwrap()
            .pending
            .is_empty()
    );
    let audit = records.audit(&AuditFilter::default(), &page).await.unwrap();
    assert_eq!(audit.entries, []);

    let change = ManualChange::new("eve", "only looks").unwrap();
    let changes = records.by(&change);
    let seen = record.observation();
    for refused in [
        changes.release(&seen).await.map(drop),
        changes.erase(&seen).await.map(drop),
    ] {
        let error = refused.unwrap_err();
        let Error::Store(error) = &error else {
            panic!("{error:?}");
        };
        assert_eq!(error.kind(), StoreErrorKind::Denied, "{error:?}");
        let text = error.to_string();
        assert!(text.contains("connect as the user of operators"), "{text}");
    }
    for refused in [
        store.claim(&claim("c")).await.map(drop),
        store.resolve(&seen, &Resolution::Release).await.map(drop),
    ] {
        assert_eq!(refused.unwrap_err().kind(), StoreErrorKind::Denied);
    }
    let after = store.get(&open.id).await.unwrap().unwrap();
    assert_eq!(after.observation(), seen);
}

/// A service with the documented privileges does all that calls need, operators also change records manually, an operator
/// who looks changes nothing, and none of them changes or deletes an entry of the audit.
pub(crate) async fn suffice<S: Sql + OperatorStore>(
    service: &S::Pool,
    operators: &S::Pool,
    looking: &S::Pool,
) {
    let store = S::over(service);
    let payload = || Payload {
        codec: "json/1".into(),
        bytes: (*b"1").into(),
    };
    let owner = own(&store, &claim("a")).await;
    let applied =
        |written: Result<FencedWrite, _>| assert_eq!(written.unwrap(), FencedWrite::Applied);
    applied(store.renew(&owner, HOUR).await);
    applied(
        store
            .steps()
            .unwrap()
            .save_step(&owner, "one", &payload())
            .await,
    );
    let inputs = store.recovery().unwrap();
    applied(inputs.save_input(&owner, &payload(), Duration::ZERO).await);
    let operation = claim("a").identity.operation;
    for input in inputs.due(&operation, 10).await.unwrap() {
        assert_eq!(inputs.forget(&input).await.unwrap(), Resolved::Done);
    }
    applied(store.complete(&owner, &outcome(b"1")).await);
    let idem = Idem::new(store.clone());
    let call = idem_runtime::Call::new("privileges", "a", &1, HOUR);
    let body = async |_: &mut S::Connection, _: Attempt| Ok::<_, Error>(7);
    let run = idem.run_in_transaction(call, RunOptions::new(), body);
    assert_eq!(run.await.unwrap(), 7);
    store.purge(10, Timestamp::MAX).await.unwrap();
    let observed = store.get(&owner.id).await.unwrap().unwrap().observation();
    let erased = store.resolve(&observed, &Resolution::Erase);
    assert_eq!(erased.await.unwrap(), Resolved::Done);

    let owner = own(&store, &claim("b")).await;
    applied(store.interrupt(&owner).await);
    let observed = store.get(&owner.id).await.unwrap().unwrap().observation();
    let change = ManualChange::new("ann", "the letter has arrived").unwrap();
    let complete = Resolution::Complete(outcome(b"1"));
    let audit = store.audit().unwrap();
    let refused = audit.resolve_manually(&observed, &complete, &change).await;
    assert_eq!(refused.unwrap_err().kind(), StoreErrorKind::Denied);
    look::<S>(looking).await;
    let store = S::over(operators);
    let audit = store.audit().unwrap();
    let resolved = audit.resolve_manually(&observed, &complete, &change).await;
    assert_eq!(resolved.unwrap(), Resolved::Done);
    for pool in [service, operators, looking] {
        for change in [
            "DELETE FROM idem_records_audit",
            "UPDATE idem_records_audit SET actor = 'bob'",
        ] {
            let mut lent = S::acquire(pool).await.unwrap();
            let refused = S::text(S::lent(&mut lent), change).await.unwrap_err();
            let denied = refused.to_string().to_lowercase();
            assert!(denied.contains("denied"), "{change}: {refused}");
        }
    }
    let (all, page) = (AuditFilter::default(), PageRequest::default());
    let entries = audit.audit(&all, &page).await.unwrap().entries;
    assert_eq!(entries.len(), 1);
    let user = entries[0].user.as_deref().unwrap_or_default();
    assert!(user.starts_with('o'), "the user of operators is {user}");
    let seen = store.get(&owner.id).await.unwrap().unwrap().observation();
    let correct = Resolution::Correct(outcome(b"2"));
    let corrected = audit.resolve_manually(&seen, &correct, &change).await;
    assert_eq!(corrected.unwrap(), Resolved::Done);
}
