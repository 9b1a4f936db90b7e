//! What operators read of a large table: the database counts the rows that each look examines.
//!
//! The tables have 100,000 records in the shape that the store writes, or as many as the variable `IDEM_TEST_RECORDS`
//! says.

use std::time::Duration;

use idem_runtime::key::RecordId;
use idem_runtime::operator::{AgeOrder, Count, Counting, OperatorStore, OptionalIndex};
use idem_runtime::record::{OwnerLabel, RecordState};
use idem_runtime::store::{ClaimRequest, Filter, PageRequest, ScopeFilter};
use idem_runtime::{OnCrash, Scope, Store};
use idem_tests::claims::{claim_of, identity};
use serde_json::json;

use crate::records::{HOUR, outcome, own};

mod my_sql;
mod postgres;
mod redis;
mod sqlite;

/// Largest number of rows that a page of a listing or a sample examines.
const WINDOW: u64 = 10_000;
/// Numbers of stuck and of due records.
const LAPSED: u64 = 7;
const INTERRUPTED: u64 = 9;
const DUE: u64 = 300;
/// Numbers of records of one scope, of one inside of it, and of one owner.
const SCOPED: u64 = 120;
const INNER: u64 = 30;
const OWNED: u64 = 40;
/// Number of records in one statement that inserts them.
const BATCH: usize = 5_000;

fn records() -> u64 {
    match std::env::var("IDEM_TEST_RECORDS") {
        Ok(records) => records.parse().unwrap(),
        Err(_) => 100_000,
    }
}

/// A record that the store itself has written, to be copied.
struct Template {
    claim: ClaimRequest,
    copies: u64,
}

/// Writes a record of each kind, with the number of copies that the table gets of it.
async fn templates(store: &impl Store) -> Vec<Template> {
    let brief = Duration::from_millis(1);
    let mut templates = Vec::new();
    let mut rest = records();
    for (kind, lease, retention, copies) in [
        ("running", HOUR, HOUR, 500),
        ("lapsed", brief, HOUR, LAPSED),
        ("interrupted", HOUR, HOUR, INTERRUPTED),
        ("due", brief, brief, DUE),
        ("rare", HOUR, HOUR, 20),
        ("scoped", HOUR, HOUR, SCOPED),
        ("inner", HOUR, HOUR, INNER),
        ("owned", HOUR, HOUR, OWNED),
        ("released", HOUR, HOUR, 2_000),
        ("completed", HOUR, HOUR, u64::MAX),
    ] {
        let copies = copies.min(rest);
        rest -= copies;
        let operation = if kind == "rare" { "rare" } else { "mail" };
        let scope = match kind {
            "scoped" => "tenant",
            "inner" => "tenant/ann",
            _ => "",
        };
        let claim = ClaimRequest {
            lease,
            retention,
            on_crash: match kind {
                // Its owner may complete it however late.
                "interrupted" | "due" => OnCrash::Refuse,
                _ => OnCrash::Rerun,
            },
            owner_label: (kind == "owned").then(|| OwnerLabel::new("web-1").unwrap()),
            ..claim_of(identity(scope, operation, kind))
        };
        let owner = own(store, &claim).await;
        match kind {
            "running" | "lapsed" => {}
            "interrupted" => drop(store.interrupt(&owner).await.unwrap()),
            "released" => drop(store.release(&owner).await.unwrap()),
            _ => {
                let result = outcome(&[b'x'; 200]);
                store.complete(&owner, &result).await.unwrap();
            }
        }
        // The template is one of them.
        templates.push(Template {
            claim,
            copies: copies - 1,
        });
    }
    templates
}

/// Copies as JSON arrays of arrays: id of the copy, its key, id of the template. The ids are those that the store
/// computes.
fn batches(templates: &[Template]) -> impl Iterator<Item = String> {
    let mut copies = templates.iter().flat_map(|template| {
        (0..template.copies).map(|number| {
            let claim = &template.claim;
            let key = format!("{}-{number}", claim.identity.key.as_str());
            let of = &claim.identity;
            let copy = identity(of.scope.as_str(), of.operation.as_str(), &key);
            json!([RecordId::of(&copy).to_string(), key, claim.id.to_string()])
        })
    });
    std::iter::from_fn(move || {
        let batch: Vec<_> = copies.by_ref().take(BATCH).collect();
        (!batch.is_empty()).then(|| serde_json::Value::from(batch).to_string())
    })
}

/// Columns that a copy takes from its template.
const COPIED: &str = "scope, operation, fingerprint, state, claim_id, fencing_token, attempt, lease_until, retention, \
     on_crash, codec, payload, first_claimed_at, ended_at, purge_after, owner";

/// Checks an estimate. With 10,000 records in the sample, its standard error is 1 %.
fn assert_about(estimate: Count, expected: u64) {
    let distance = estimate.number().abs_diff(expected);
    assert!(distance < expected / 10, "{estimate:?} of {expected}");
}

/// Looks at the table as the command and the console do. `rows` returns the number of rows that the database examined for
/// a look.
async fn look<S: OperatorStore>(store: &S, rows: impl AsyncFn(&str, u64)) {
    // Reading the bounds takes as many rows as reading what is between them.
    let page = 2 * WINDOW + 200;

    let first = PageRequest {
        limit: 50,
        after: None,
    };
    let found = store.list(&Filter::default(), &first).await.unwrap();
    assert!(found.records.len() > 40 && found.next.is_some());
    // A server may keep the page in a temporary table, whose rows it counts as well.
    rows("first page of all records", 5 * 50).await;

    let rare = Filter {
        operation: Some("rare".to_owned()),
        ..Filter::default()
    };
    let found = store.list(&rare, &first).await.unwrap();
    assert!(found.records.len() <= 20 && found.next.is_some());
    rows("page of a rare operation", page).await;

    let stats = store.stats(Counting::default()).await.unwrap();
    assert_eq!(stats.sample, Some(WINDOW));
    assert_about(stats.records(), records());
    assert_eq!(stats.purge_due, Count::Exactly(DUE));
    assert!(stats.purge_lag > Duration::ZERO);
    // A start near to the end of the table is tried in vain. A server may look up the group of each row.
    rows("statistics", 4 * WINDOW + 2 * DUE).await;

    let stats = store.stats(Counting::Exactly).await.unwrap();
    assert_eq!(stats.sample, None);
    assert_eq!(stats.records(), Count::Exactly(records()));
    assert_eq!(stats.interrupted, Count::Exactly(INTERRUPTED));
    assert_eq!(stats.lapsed, Count::Exactly(LAPSED));
    assert_eq!(stats.purge_due, Count::Exactly(DUE));
    let rare = stats.groups.iter().find(|it| it.operation == "rare");
    assert_eq!(
        rare.map(|it| (it.state, it.count)),
        Some((RecordState::Completed, Count::Exactly(20)))
    );
    // Not a bound: what an exact count costs.
    rows("exact statistics", u64::MAX).await;
}

/// Looks for stuck records without the optional index, and with it.
async fn look_for_stuck<S: OperatorStore>(store: &S, rows: impl AsyncFn(&str, u64)) {
    assert!(
        !store
            .index(OptionalIndex::Stuck)
            .await
            .unwrap()
            .unwrap()
            .exists
    );
    let pages = all_stuck(store).await;
    assert!(pages >= records() / (WINDOW + 1), "{pages} pages");
    rows(
        "all stuck records without an index",
        pages * (2 * WINDOW + 200),
    )
    .await;

    for _ in 0..2 {
        store.create_index(OptionalIndex::Stuck).await.unwrap();
        assert!(
            store
                .index(OptionalIndex::Stuck)
                .await
                .unwrap()
                .unwrap()
                .exists
        );
    }
    rows("creation of the index", u64::MAX).await;
    let pages = all_stuck(store).await;
    assert_eq!(pages, 4);
    // Each page may read all records of the index, which are those that are running, too.
    rows("all stuck records by the index", pages * 600).await;
}

/// Searches by key, scope, owner and age with their optional indexes, and by id without one.
async fn search<S: OperatorStore>(store: &S, rows: impl AsyncFn(&str, u64)) {
    let tenant = Scope::from_stored("tenant");
    let key = Filter {
        key: Some("completed-7".to_owned()),
        ..Filter::default()
    };
    let id = Filter {
        id: Some(RecordId::of(&identity("", "mail", "completed-7"))),
        ..Filter::default()
    };
    let exactly = Filter {
        scope: Some(ScopeFilter::Exactly(tenant.clone())),
        ..Filter::default()
    };
    let within = Filter {
        scope: Some(ScopeFilter::Within(tenant)),
        ..Filter::default()
    };
    let owner = Filter {
        owner: Some("web-1".to_owned()),
        ..Filter::default()
    };
    assert_eq!(found(store, &id, 50).await, (1, 1));
    rows("one record by its id", 10).await;
    for index in OptionalIndex::ALL {
        store.create_index(index).await.unwrap();
    }
    rows("creation of the indexes", u64::MAX).await;
    for (what, filter, records) in [
        ("key", &key, 1),
        ("exact scope", &exactly, SCOPED),
        ("scope and those inside", &within, SCOPED + INNER),
        ("owner", &owner, OWNED),
    ] {
        let (count, pages) = found(store, filter, 50).await;
        assert_eq!(count, records, "{what}");
        // Each page may read one record more than it shows, and a server may count what it keeps in a temporary table.
        rows(
            &format!("all records of one {what}"),
            6 * records + 60 * pages,
        )
        .await;
    }
    for order in [AgeOrder::NewestFirst, AgeOrder::OldestFirst] {
        let first = PageRequest {
            limit: 50,
            after: None,
        };
        let page = store
            .list_by_age(&Filter::default(), order, &first)
            .await
            .unwrap();
        assert_eq!(page.records.len(), 50);
        // The copies have the time of their template, and those that have expired are passed over.
        rows(&format!("a page by age, {order:?}"), 6 * 50 + DUE).await;
    }
}

/// Numbers of matching records, and of pages with this limit.
async fn found<S: Store>(store: &S, filter: &Filter, limit: u32) -> (u64, u64) {
    let mut request = PageRequest { limit, after: None };
    let mut records = 0;
    for pages in 1.. {
        let page = store.list(filter, &request).await.unwrap();
        records += page.records.len() as u64;
        request.after = page.next;
        if request.after.is_none() {
            return (records, pages);
        }
    }
    unreachable!()
}

/// Reads all pages, and checks that each stuck record is on exactly one.
async fn all_stuck<S: Store>(store: &S) -> u64 {
    let stuck = Filter {
        stuck: true,
        ..Filter::default()
    };
    let mut request = PageRequest {
        limit: 5,
        after: None,
    };
    let mut ids = Vec::new();
    for pages in 1.. {
        let page = store.list(&stuck, &request).await.unwrap();
        for listed in page.records {
            assert!(listed.record.is_stuck());
            ids.push(listed.record.id);
        }
        request.after = page.next;
        if request.after.is_none() {
            let found = ids.len() as u64;
            ids.sort_unstable();
            ids.dedup();
            assert_eq!((ids.len() as u64, found), (found, LAPSED + INTERRUPTED));
            return pages;
        }
    }
    unreachable!()
}
