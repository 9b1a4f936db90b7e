//! Corrections of outcomes that an operator set, on each store.

use std::sync::Arc;
use std::time::Duration;

use idem_runtime::advanced::RunOptions;
use idem_runtime::error::InvalidCall;
use idem_runtime::operator::Explanation;
use idem_runtime::record::{Outcome, Payload, Record, RecordState};
use idem_runtime::store::{
    AuditAction, AuditFilter, ManualChange, PageRequest, Resolution, Resolved, ValueHash,
};
use idem_runtime::{Attempt, Call, Error, Idem, OnCrash, Reconciled, Store, TypedOperation};
use idem_tests::{on_stores, places};

use crate::records::{claim, manually, own};

on_stores! { [] places::shared:
    a_corrected_outcome_is_replayed_and_told,
    only_what_an_operator_set_is_corrected,
    the_outcome_of_an_earlier_generation_does_not_count,
    one_of_two_corrections_wins,
    a_value_of_another_form_is_found_out,
    the_user_of_the_database_is_in_the_audit,
}

const CHARGE: TypedOperation<u64, String> = TypedOperation::new("charges.create");
const TTL: Duration = Duration::from_secs(600);

type Handle = Idem<Arc<dyn Store>>;
type Failure = Box<dyn std::error::Error + Send + Sync>;

fn call(key: &str) -> Call {
    Call::new(CHARGE, key, &(), TTL).on_crash(OnCrash::Refuse)
}

async fn interrupted(idem: &Handle, key: &str) -> Record {
    let jammed = idem.run(call(key), async || Err::<u64, Failure>("jammed".into()));
    jammed.await.unwrap_err();
    found(idem, key).await
}

async fn found(idem: &Handle, key: &str) -> Record {
    let record = idem.records().find(CHARGE.name(), key).await.unwrap();
    record.expect("the record is there")
}

async fn replayed(idem: &Handle, key: &str) -> Result<u64, Error> {
    let body = async || -> Result<u64, Error> { panic!("the body ran") };
    idem.run(call(key), body).await
}

fn hash(json: &str) -> Option<ValueHash> {
    Some(ValueHash::of(&payload(json)))
}

fn payload(json: &str) -> Payload {
    Payload {
        codec: "json/1".into(),
        bytes: json.as_bytes().into(),
    }
}

async fn a_corrected_outcome_is_replayed_and_told(store: Arc<dyn Store>) {
    let idem = Idem::new(store);
    let seen = interrupted(&idem, "k").await.observation();
    let done = manually(&idem).complete(CHARGE, &seen, &7).await.unwrap();
    assert_eq!(done, Resolved::Done);
    assert_eq!(replayed(&idem, "k").await.unwrap(), 7);

    let before = found(&idem, "k").await;
    let bob = ManualChange::new("bob", "it was 8").unwrap();
    let changes = idem.records().by(&bob);
    let corrected = changes.correct(CHARGE, &before.observation(), &8).await;
    assert_eq!(corrected.unwrap(), Resolved::Done);
    assert_eq!(replayed(&idem, "k").await.unwrap(), 8);
    let after = found(&idem, "k").await;
    assert_eq!(
        (after.ended_at, after.expires_at(), after.attempt),
        (before.ended_at, before.expires_at(), before.attempt)
    );

    // Who decides on an older view changes nothing.
    let late = changes.correct(CHARGE, &before.observation(), &9).await;
    assert_eq!(late.unwrap(), Resolved::Stale);
    assert_eq!(replayed(&idem, "k").await.unwrap(), 8);

    let set_by = idem.records().set_manually(&after).await.unwrap().unwrap();
    assert_eq!(
        (set_by.action, set_by.change.actor()),
        (AuditAction::Corrected, "bob")
    );
    let entry = set_by.record().unwrap();
    assert_eq!((entry.old_value, entry.new_value), (hash("7"), hash("8")));
    let explanation = Explanation::of(&after).with_manual_change(&after, &set_by);
    assert!(explanation.allows("correct"), "{explanation:?}");
    for part in ["corrected manually", "by bob", "\u{201c}it was 8\u{201d}"] {
        assert!(explanation.happened.contains(part), "{explanation:?}");
    }

    // A correction can be corrected, also to an error.
    let no = "no".to_owned();
    let seen = after.observation();
    let failed = changes.correct_to_error(CHARGE, &seen, &no).await;
    assert_eq!(failed.unwrap(), Resolved::Done);
    let record = found(&idem, "k").await;
    assert_eq!(record.state, RecordState::Failed);
    assert_eq!(record.payload.unwrap().bytes[..], *b"\"no\"");
    let filter = AuditFilter {
        id: Some(record.id),
        ..AuditFilter::default()
    };
    let page = PageRequest::default();
    let audit = idem.records().audit(&filter, &page).await.unwrap();
    let actions: Vec<_> = audit.entries.iter().map(|it| it.action).collect();
    let corrected = AuditAction::Corrected;
    assert_eq!(actions, [corrected, corrected, AuditAction::Completed]);
}

/// Neither the outcome of an owner nor the answer of a reconciliation can be corrected, and the store refuses it as well.
async fn only_what_an_operator_set_is_corrected(store: Arc<dyn Store>) {
    let idem = Idem::new(store);
    let run = idem.run(call("owner"), async || Ok::<_, Error>(1));
    assert_eq!(run.await.unwrap(), 1);
    let reconciled = || Call::new(CHARGE, "reconciled", &(), TTL);
    let options = || RunOptions::new().reconcile(async |_| Ok(Reconciled::Done(2)));
    let jammed = async |_: Attempt| Err::<u64, Failure>("jammed".into());
    let first = idem.run_with(reconciled(), options(), jammed).await;
    first.unwrap_err();
    let done = async |_: Attempt| Ok::<u64, Failure>(3);
    let again = idem.run_with(reconciled(), options(), done).await;
    assert_eq!(again.unwrap(), 2);
    for key in ["owner", "reconciled"] {
        let record = found(&idem, key).await;
        assert_eq!(record.state, RecordState::Completed);
        assert_eq!(idem.records().set_manually(&record).await.unwrap(), None);
        let seen = record.observation();
        let refused = manually(&idem).correct(CHARGE, &seen, &9).await;
        let error = refused.unwrap_err();
        assert!(
            matches!(error, Error::InvalidCall(InvalidCall::NotSetManually)),
            "{error:?}"
        );
        assert!(error.to_string().contains("not set manually"), "{error}");
        assert_eq!(found(&idem, key).await.observation(), seen);
    }
    let seen = found(&idem, "owner").await.observation();
    let correction = Resolution::Correct(Outcome::Completed(payload("9")));
    let resolved = idem.store().resolve(&seen, &correction).await;
    assert_eq!(resolved.unwrap(), Resolved::Stale);
    // An open record is completed, not corrected.
    let seen = interrupted(&idem, "open").await.observation();
    let refused = manually(&idem).correct(CHARGE, &seen, &9).await;
    assert!(matches!(
        refused,
        Err(Error::InvalidCall(InvalidCall::NotSetManually))
    ));
}

async fn the_outcome_of_an_earlier_generation_does_not_count(store: Arc<dyn Store>) {
    let idem = Idem::new(store);
    let seen = interrupted(&idem, "k").await.observation();
    let done = manually(&idem).complete(CHARGE, &seen, &7).await;
    assert_eq!(done.unwrap(), Resolved::Done);
    let seen = found(&idem, "k").await.observation();
    let erased = manually(&idem).erase(&seen).await;
    assert_eq!(erased.unwrap(), Resolved::Done);
    let open = interrupted(&idem, "k").await;
    // As a reconciliation does.
    let answer = Resolution::Complete(Outcome::Completed(payload("1")));
    let resolved = idem.store().resolve(&open.observation(), &answer).await;
    assert_eq!(resolved.unwrap(), Resolved::Done);
    let record = found(&idem, "k").await;
    assert!(record.was_resolved());
    assert_eq!(idem.records().set_manually(&record).await.unwrap(), None);
}

async fn one_of_two_corrections_wins(store: Arc<dyn Store>) {
    let idem = Idem::new(store);
    for round in 0..5 {
        let key = format!("k-{round}");
        let seen = interrupted(&idem, &key).await.observation();
        let done = manually(&idem).complete(CHARGE, &seen, &0).await;
        assert_eq!(done.unwrap(), Resolved::Done);
        let seen = found(&idem, &key).await.observation();
        let changes = manually(&idem);
        let (one, other) = tokio::join!(
            changes.correct(CHARGE, &seen, &1),
            changes.correct(CHARGE, &seen, &2)
        );
        let winner = match (one.unwrap(), other.unwrap()) {
            (Resolved::Done, Resolved::Stale) => 1,
            (Resolved::Stale, Resolved::Done) => 2,
            both => panic!("{both:?}"),
        };
        assert_eq!(replayed(&idem, &key).await.unwrap(), winner);
        let record = found(&idem, &key).await;
        let set_by = idem.records().set_manually(&record).await.unwrap().unwrap();
        let new_value = set_by.record().unwrap().new_value;
        assert_eq!(new_value, hash(&winner.to_string()));
    }
}

async fn a_value_of_another_form_is_found_out(store: Arc<dyn Store>) {
    let idem = Idem::new(store);
    let operation = claim("any").identity.operation;
    let none = idem
        .records()
        .stored_form(&operation, RecordState::Completed);
    let none = none.await.unwrap();
    assert_eq!(none.number(), 0);
    assert_eq!(none.difference(&payload("\"anything\"")), None);
    for (key, json) in [("a", r#"{"id":1}"#), ("b", r#"{"id":2,"note":"x"}"#)] {
        let owner = own(idem.store(), &claim(key)).await;
        let outcome = Outcome::Completed(payload(json));
        idem.store().complete(&owner, &outcome).await.unwrap();
    }
    let form = idem
        .records()
        .stored_form(&operation, RecordState::Completed);
    let form = form.await.unwrap();
    assert_eq!(form.number(), 2);
    assert_eq!(form.difference(&payload(r#"{"id":3}"#)), None);
    let difference = form.difference(&payload(r#"{"number":3}"#)).unwrap();
    assert!(difference.contains("`id`"), "{difference}");
    let failed = idem.records().stored_form(&operation, RecordState::Failed);
    assert_eq!(failed.await.unwrap().number(), 0);
}

async fn the_user_of_the_database_is_in_the_audit(store: Arc<dyn Store>) {
    let name = format!("{store:?}");
    let has_users = !["Sqlite", "Memory"].iter().any(|it| name.starts_with(it));
    let idem = Idem::new(store);
    let seen = interrupted(&idem, "k").await.observation();
    let released = manually(&idem).release(&seen).await;
    assert_eq!(released.unwrap(), Resolved::Done);
    let (all, page) = (AuditFilter::default(), PageRequest::default());
    let entries = idem.records().audit(&all, &page).await.unwrap().entries;
    let [entry] = &entries[..] else {
        panic!("{entries:?}");
    };
    assert_eq!(entry.change.actor(), "ann@tests");
    assert_eq!(entry.user.is_some(), has_users, "{entry:?}");
    assert!(entry.user.as_deref().is_none_or(|it| !it.is_empty()));
}
