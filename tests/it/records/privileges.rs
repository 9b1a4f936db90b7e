//! Privileges that the book lists, for the user of a service and for operators.

use std::time::Duration;

use idem_runtime::advanced::RunOptions;
use idem_runtime::error::StoreErrorKind;
use idem_runtime::operator::OperatorStore;
use idem_runtime::record::{Payload, Timestamp};
use idem_runtime::store::{
    AuditFilter, FencedWrite, ManualChange, PageRequest, Resolution, Resolved,
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

/// A service with the documented privileges does all that calls need, operators also change records manually, and
/// neither changes or deletes an entry of the audit.
pub(crate) async fn suffice<S: Sql + OperatorStore>(service: &S::Pool, operators: &S::Pool) {
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
    let store = S::over(operators);
    let audit = store.audit().unwrap();
    let resolved = audit.resolve_manually(&observed, &complete, &change).await;
    assert_eq!(resolved.unwrap(), Resolved::Done);
    for pool in [service, operators] {
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
}
