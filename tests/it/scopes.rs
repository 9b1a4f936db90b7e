//! Finding a key in all operations, and erasing everything of a scope, on each store.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use idem_runtime::error::StoreErrorKind;
use idem_runtime::key::{Operation, RecordId};
use idem_runtime::operator::{ErasedScope, ScopeErasure};
use idem_runtime::record::{Record, RecordState};
use idem_runtime::store::{
    AuditAction, AuditFilter, AuditSubject, ClaimRequest, Filter, PageRequest, ScopeFilter,
};
use idem_runtime::{Call, Error, Idem, OnCrash, Scope, Store};
use idem_tests::claims::{claim_of, identity};
use idem_tests::{on_stores, places};

use crate::records::{HOUR, manual_change, outcome, own};

mod tables;

on_stores! { [] places::shared:
    a_key_is_found_in_every_operation_of_the_service,
    everything_of_a_scope_is_erased_and_nothing_else,
    a_short_process_notes_its_operations_before_it_ends,
    an_exact_erasure_leaves_the_scopes_inside,
    a_record_with_a_valid_lease_stays,
    an_erasure_is_counted_in_one_entry_and_can_be_repeated,
    an_erased_record_is_claimed_with_a_higher_fencing_token,
    an_erasure_of_every_scope_is_refused,
}

/// Scopes as they are stored, of which some begin with others as text.
const SCOPES: [&str; 11] = [
    "", "a", "a/b", "a/b/c", "ab", "a ", "a /b", "a%2Fb", "a-1", "A", "b/a",
];

/// Scopes inside of `a`, with itself.
const INSIDE: [&str; 3] = ["a", "a/b", "a/b/c"];

type Handle = Idem<Arc<dyn Store>>;

fn within(scope: &str) -> ScopeFilter {
    ScopeFilter::Within(Scope::from_stored(scope))
}

/// Records that have not been deleted, expired or not, in the order of their scopes.
async fn all(idem: &Handle) -> Vec<Record> {
    let filter = Filter {
        expired: true,
        ..Filter::default()
    };
    let mut request = PageRequest::default();
    let mut records = Vec::new();
    loop {
        let page = idem.records().list(&filter, &request).await.unwrap();
        assert_eq!(page.unreadable, []);
        records.extend(page.records.into_iter().map(|it| it.record));
        request.after = page.next;
        if request.after.is_none() {
            return records;
        }
    }
}

fn scopes(records: &[Record]) -> BTreeSet<&str> {
    records
        .iter()
        .map(|it| it.identity.scope.as_str())
        .collect()
}

/// Runs an erasure in batches of this size.
async fn run(mut erasure: ScopeErasure<'_>, batch: u32) -> ErasedScope {
    while erasure.next_batch(batch).await.unwrap() {}
    erasure.progress().clone()
}

async fn erase(idem: &Handle, scope: ScopeFilter, batch: u32) -> ErasedScope {
    let change = manual_change();
    run(
        idem.records().by(&change).erase_scope(scope).unwrap(),
        batch,
    )
    .await
}

/// Creates a record in each of these states.
async fn in_all_states(store: &dyn Store, scope: &str) -> Vec<RecordId> {
    let mut ids = Vec::new();
    for state in ["completed", "released", "interrupted", "lapsed", "expired"] {
        let claim = ClaimRequest {
            on_crash: match state {
                "interrupted" => OnCrash::Refuse,
                _ => OnCrash::Rerun,
            },
            retention: match state {
                "expired" => Duration::ZERO,
                _ => HOUR,
            },
            ..claim_of(identity(scope, "tests", state))
        };
        let owner = own(store, &claim).await;
        match state {
            "completed" | "expired" => drop(store.complete(&owner, &outcome(b"7")).await.unwrap()),
            "released" => drop(store.release(&owner).await.unwrap()),
            "interrupted" => drop(store.interrupt(&owner).await.unwrap()),
            _ => drop(store.renew(&owner, Duration::ZERO).await.unwrap()),
        }
        ids.push(claim.id);
    }
    ids
}

async fn a_key_is_found_in_every_operation_of_the_service(store: Arc<dyn Store>) {
    let idem = Idem::new(store);
    let ttl = Duration::from_secs(600);
    for operation in ["charges.create", "refunds.create", "letters.post"] {
        for scope in ["a", "ab"] {
            let key = match operation {
                "letters.post" => "order-2",
                _ => "order-1",
            };
            let call = Call::new(operation, key, &(), ttl).scope(scope);
            let run = idem.run(call, async || Ok::<u8, Error>(1)).await;
            assert_eq!(run.unwrap(), 1);
        }
    }
    // The names are written in the background.
    let noted = async || idem.records().operations().await.unwrap();
    idem_tests::until(async || noted().await.len() == 3).await;
    let names: Vec<_> = noted().await;
    let names: Vec<_> = names.iter().map(Operation::as_str).collect();
    assert_eq!(names, ["charges.create", "letters.post", "refunds.create"]);

    let records = idem.records();
    let found = records
        .find_in_all_operations("order-1", "a")
        .await
        .unwrap();
    let mut operations: Vec<_> = found
        .iter()
        .map(|it| it.record.identity.operation.as_str())
        .collect();
    operations.sort_unstable();
    assert_eq!(operations, ["charges.create", "refunds.create"]);
    assert!(found.iter().all(|it| {
        it.record.identity.scope.as_str() == "a" && it.record.identity.key.as_str() == "order-1"
    }));
    let absent = records
        .find_in_all_operations("order-1", "A")
        .await
        .unwrap();
    assert_eq!(absent, []);
}

async fn a_short_process_notes_its_operations_before_it_ends(store: Arc<dyn Store>) {
    let idem = Idem::new(store);
    for operation in ["letters.post", "charges.create"] {
        let call = Call::new(operation, "order-1", &(), Duration::from_secs(600));
        let run = idem.run(call, async || Ok::<u8, Error>(1)).await;
        assert_eq!(run.unwrap(), 1);
    }
    idem.records().note_operations().await.unwrap();
    let names = idem.records().operations().await.unwrap();
    let names: Vec<_> = names.iter().map(Operation::as_str).collect();
    assert_eq!(names, ["charges.create", "letters.post"]);
}

async fn everything_of_a_scope_is_erased_and_nothing_else(store: Arc<dyn Store>) {
    let mut erased = BTreeSet::new();
    for scope in SCOPES {
        let ids = in_all_states(&store, scope).await;
        if INSIDE.contains(&scope) {
            erased.extend(ids);
        }
    }
    let idem = Idem::new(store);
    let before = all(&idem).await;
    let progress = erase(&idem, within("a"), 4).await;
    assert_eq!(progress.erased, erased.len() as u64);
    assert_eq!((progress.running_count, progress.unreadable), (0, vec![]));
    let after = all(&idem).await;
    let left = SCOPES.into_iter().filter(|it| !INSIDE.contains(it));
    assert_eq!(scopes(&after), left.collect());
    for record in before {
        let is_left = after.iter().any(|it| it.id == record.id);
        assert_eq!(is_left, !erased.contains(&record.id), "{record:?}");
    }
}

async fn an_exact_erasure_leaves_the_scopes_inside(store: Arc<dyn Store>) {
    for scope in SCOPES {
        in_all_states(&store, scope).await;
    }
    let idem = Idem::new(store);
    let progress = erase(&idem, ScopeFilter::Exactly(Scope::from_stored("a")), 1).await;
    assert_eq!(progress.erased, 5);
    let left = SCOPES.into_iter().filter(|it| *it != "a");
    assert_eq!(scopes(&all(&idem).await), left.collect());
    let none = erase(&idem, ScopeFilter::Exactly(Scope::none()), 100).await;
    assert_eq!(none.erased, 5);
    assert_eq!(all(&idem).await.len(), 5 * (SCOPES.len() - 2));
}

async fn a_record_with_a_valid_lease_stays(store: Arc<dyn Store>) {
    let running = claim_of(identity("a", "tests", "running"));
    let owner = own(&store, &running).await;
    in_all_states(&store, "a").await;
    let idem = Idem::new(Arc::clone(&store));
    let progress = erase(&idem, within("a"), 2).await;
    assert_eq!((progress.erased, progress.running_count), (5, 1));
    assert_eq!(progress.running, [running.id]);
    let left = all(&idem).await;
    assert_eq!((left.len(), left[0].state), (1, RecordState::Running));

    store.complete(&owner, &outcome(b"1")).await.unwrap();
    let progress = erase(&idem, within("a"), 2).await;
    assert_eq!((progress.erased, progress.running_count), (1, 0));
    assert_eq!(all(&idem).await, []);
}

async fn an_erasure_is_counted_in_one_entry_and_can_be_repeated(store: Arc<dyn Store>) {
    for scope in ["a", "a/b", "ab"] {
        in_all_states(&store, scope).await;
    }
    let idem = Idem::new(store);
    let change = manual_change();
    let changes = idem.records().by(&change);
    // Entries about records of the scope, and about one of another.
    for record in all(&idem).await {
        if record.state == RecordState::Interrupted {
            changes.release(&record.observation()).await.unwrap();
        }
    }
    let mut interrupted = changes.erase_scope(within("a")).unwrap();
    // An erasure that is cut off after a batch is begun again.
    assert!(interrupted.next_batch(3).await.unwrap());
    let first = interrupted.progress().erased;
    assert_eq!(first, 3);
    drop(interrupted);
    let rest = run(changes.erase_scope(within("a")).unwrap(), 3).await;
    assert_eq!((rest.erased, rest.audit_entries), (7, 2));
    let again = run(changes.erase_scope(within("a")).unwrap(), 3).await;
    assert_eq!((again.erased, again.audit_entries), (0, 0));

    let page = PageRequest::default();
    let records = idem.records();
    let audit = records.audit(&AuditFilter::default(), &page).await.unwrap();
    assert_eq!(audit.unreadable, []);
    let id = Scope::from_stored("a").audit_id();
    let mut counts = Vec::new();
    for entry in &audit.entries {
        match &entry.subject {
            AuditSubject::Record(record) => {
                assert_eq!(entry.action, AuditAction::Released);
                let scope = record.identity.as_ref().map(|it| it.scope.as_str());
                assert!(matches!(scope, None | Some("ab")), "{entry:?}");
            }
            AuditSubject::Scope { id: of, erased, .. } => {
                assert_eq!((entry.action, *of), (AuditAction::ErasedScope, id));
                assert_eq!(entry.change, change);
                counts.push(*erased);
            }
            other => panic!("{other:?}"),
        }
    }
    counts.sort_unstable();
    // An erasure that found nothing leaves no entry, or one without a number.
    counts.retain(|it| *it > 0);
    assert_eq!(counts, [3, 7]);
    let of_scope = AuditFilter {
        id: Some(id),
        ..AuditFilter::default()
    };
    let of_scope = records.audit(&of_scope, &page).await.unwrap();
    assert!(of_scope.entries.len() >= 2);
    assert!(of_scope.entries.iter().all(|it| it.id() == Some(id)));
}

async fn an_erased_record_is_claimed_with_a_higher_fencing_token(store: Arc<dyn Store>) {
    let claim = claim_of(identity("a", "tests", "k"));
    let owner = own(&store, &claim).await;
    store.complete(&owner, &outcome(b"1")).await.unwrap();
    let idem = Idem::new(Arc::clone(&store));
    erase(&idem, within("a"), 10).await;
    let next = own(
        &store,
        &ClaimRequest {
            claim_id: idem_runtime::record::ClaimId::random(),
            ..claim
        },
    )
    .await;
    assert!(next.fencing_token > owner.fencing_token);
}

async fn an_erasure_of_every_scope_is_refused(store: Arc<dyn Store>) {
    let idem = Idem::new(store);
    let change = manual_change();
    let error = idem.records().by(&change).erase_scope(within(""));
    let error = error.expect_err("it was begun");
    assert!(
        matches!(&error, Error::Store(it) if it.kind() == StoreErrorKind::Other),
        "{error:?}"
    );
}
