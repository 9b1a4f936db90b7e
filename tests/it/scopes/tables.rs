//! What belongs to a record is erased with it, and searches by an optional index find what a scan finds.

use std::collections::BTreeSet;
use std::time::Duration;

use idem_runtime::Idem;
use idem_runtime::operator::{AgeOrder, OptionalIndex};
use idem_runtime::record::{OwnerLabel, Payload};
use idem_runtime::store::{ClaimRequest, Filter, PageRequest, ScopeFilter};
use idem_runtime::{Scope, Store};
use idem_tests::claims::{claim_of, identity};
use idem_tests::on_stores;

use super::{SCOPES, within};
use crate::records::{manual_change, outcome, own};
use crate::steps::Tables;

on_stores! { [transactions] Tables::open:
    steps_and_recovery_inputs_are_erased_with_their_record,
    a_search_by_an_index_finds_what_a_scan_finds,
    records_are_listed_by_age,
    everything_kept_with_a_record_is_read,
}

async fn with_everything(tables: &Tables, scope: &str) -> ClaimRequest {
    let store = &tables.store;
    let claim = ClaimRequest {
        owner_label: Some(OwnerLabel::new("web-1").unwrap()),
        ..claim_of(identity(scope, "tests", "k"))
    };
    let owner = own(store, &claim).await;
    let payload = |text: &str| Payload {
        codec: "json/1".into(),
        bytes: text.as_bytes().into(),
    };
    let steps = store.steps().unwrap();
    steps
        .save_step(&owner, "reserve", &payload("1"))
        .await
        .unwrap();
    let recovery = store.recovery().unwrap();
    recovery
        .save_input(&owner, &payload("2"), Duration::from_secs(1))
        .await
        .unwrap();
    store.complete(&owner, &outcome(b"3")).await.unwrap();
    claim
}

async fn number(tables: &Tables, table: &str) -> i64 {
    let count = format!("SELECT count(*) FROM idem_records{table}");
    tables.pool.number(&count).await.unwrap()
}

async fn steps_and_recovery_inputs_are_erased_with_their_record(tables: Tables) {
    for scope in ["a", "a/b", "ab"] {
        with_everything(&tables, scope).await;
    }
    let idem = Idem::new(tables.store.clone());
    let change = manual_change();
    let mut erasure = idem.records().by(&change).erase_scope(within("a")).unwrap();
    while erasure.next_batch(100).await.unwrap() {}
    assert_eq!(erasure.progress().erased, 2);
    for table in ["", "_steps", "_recovery"] {
        assert_eq!(number(&tables, table).await, 1, "{table}");
    }
    assert_eq!(number(&tables, "_audit").await, 1);
}

/// Ids and keys of all pages, which have one record each.
async fn listed(tables: &Tables, filter: &Filter, limit: u32) -> Vec<String> {
    let mut found = Vec::new();
    let mut request = PageRequest { limit, after: None };
    loop {
        let page = tables.store.list(filter, &request).await.unwrap();
        assert_eq!(page.unreadable, []);
        found.extend(page.records.iter().map(|it| it.record.id.to_string()));
        request.after = page.next;
        if request.after.is_none() {
            return found;
        }
    }
}

async fn a_search_by_an_index_finds_what_a_scan_finds(tables: Tables) {
    let long = format!("a/{}/{}", "x".repeat(255), "y".repeat(255));
    for scope in SCOPES.into_iter().chain([&*long]) {
        for key in ["k", "k ", "K", "other"] {
            let claim = ClaimRequest {
                owner_label: (key == "k").then(|| OwnerLabel::new("web-1").unwrap()),
                ..claim_of(identity(scope, "tests", key))
            };
            own(&tables.store, &claim).await;
        }
    }
    let mut filters = vec![
        Filter {
            key: Some("k".to_owned()),
            ..Filter::default()
        },
        Filter {
            owner: Some("web-1".to_owned()),
            ..Filter::default()
        },
        Filter {
            key: Some("k".to_owned()),
            scope: Some(within("a")),
            ..Filter::default()
        },
    ];
    for scope in SCOPES.into_iter().chain([&*long]) {
        for scope in [
            ScopeFilter::Exactly(Scope::from_stored(scope)),
            within(scope),
        ] {
            filters.push(Filter {
                scope: Some(scope),
                ..Filter::default()
            });
        }
    }
    let mut expected = Vec::new();
    for filter in &filters {
        let found = listed(&tables, filter, 100).await;
        assert!(!found.is_empty(), "{filter:?}");
        expected.push(found.into_iter().collect::<BTreeSet<_>>());
    }
    for index in [
        OptionalIndex::Scope,
        OptionalIndex::Owner,
        OptionalIndex::Key,
    ] {
        tables.store.create_index(index).await.unwrap();
        assert!(tables.store.index(index).await.unwrap().unwrap().exists);
        for (filter, expected) in filters.iter().zip(&expected) {
            for limit in [1, 3, 100] {
                let found = listed(&tables, filter, limit).await;
                let once: BTreeSet<_> = found.iter().cloned().collect();
                assert_eq!(found.len(), once.len(), "{filter:?} in pages of {limit}");
                assert_eq!(
                    once, *expected,
                    "{filter:?} in pages of {limit} by {index:?}"
                );
            }
        }
    }
    // An erasure by the index of scopes.
    let idem = Idem::new(tables.store.clone());
    let change = manual_change();
    tables
        .execute("UPDATE idem_records SET lease_until = 0")
        .await;
    let mut erasure = idem.records().by(&change).erase_scope(within("a")).unwrap();
    while erasure.next_batch(3).await.unwrap() {}
    assert_eq!(erasure.progress().erased, 16);
    assert_eq!(
        number(&tables, "").await,
        4 * (SCOPES.len() as i64 + 1) - 16
    );
}

async fn records_are_listed_by_age(tables: Tables) {
    let store = &tables.store;
    let filter = Filter::default();
    let first = PageRequest::default();
    let error = store
        .list_by_age(&filter, AgeOrder::NewestFirst, &first)
        .await;
    assert!(error.unwrap_err().to_string().contains("--index age"));
    store.create_index(OptionalIndex::Age).await.unwrap();
    for number in 0..10 {
        own(
            store,
            &claim_of(identity("", "tests", &format!("k{number}"))),
        )
        .await;
        // Two of each age.
        let age = format!(
            "UPDATE idem_records SET first_claimed_at = first_claimed_at - {} WHERE idempotency_key = 'k{number}'",
            (number / 2 + 1) * 100_000_000_i64
        );
        tables.execute(&age).await;
    }
    for (order, older_than, newer_than, expected) in [
        (AgeOrder::NewestFirst, None, None, 0..5),
        (AgeOrder::OldestFirst, None, None, 0..5),
        (AgeOrder::NewestFirst, Some(150), None, 1..5),
        (AgeOrder::OldestFirst, Some(150), Some(350), 1..3),
        (AgeOrder::NewestFirst, None, Some(350), 0..3),
    ] {
        let filter = Filter {
            older_than: older_than.map(Duration::from_secs),
            newer_than: newer_than.map(Duration::from_secs),
            ..Filter::default()
        };
        for limit in [1, 3, 100] {
            let mut request = PageRequest { limit, after: None };
            let (mut ages, mut ids) = (Vec::new(), BTreeSet::new());
            loop {
                let page = store.list_by_age(&filter, order, &request).await.unwrap();
                for listed in page.records {
                    let record = listed.record;
                    ages.push(record.read_at.since(record.first_claimed_at).as_secs() / 100 - 1);
                    assert!(ids.insert(record.id), "twice");
                }
                request.after = page.next;
                if request.after.is_none() {
                    break;
                }
            }
            let mut wanted: Vec<_> = expected.clone().flat_map(|it| [it, it]).collect();
            if order == AgeOrder::OldestFirst {
                wanted.reverse();
            }
            assert_eq!(ages, wanted, "{order:?} in pages of {limit}");
        }
    }
}

async fn everything_kept_with_a_record_is_read(tables: Tables) {
    let claim = with_everything(&tables, "a").await;
    for expired in [false, true] {
        if expired {
            tables.expire("k").await;
            assert_eq!(tables.store.get(&claim.id).await.unwrap(), None);
        }
        let kept = tables.store.kept(&claim.id).await.unwrap().unwrap();
        let record = &kept.attempts.record;
        assert_eq!((record.id, record.is_expired()), (claim.id, expired));
        assert_eq!(&*record.payload.as_ref().unwrap().bytes, b"3");
        assert_eq!(kept.attempts.owner(), claim.owner_label.as_ref());
        assert_eq!(kept.steps.list[0].payload.as_deref(), Some(&b"1"[..]));
        let (input, recoveries) = kept.recovery_input.unwrap();
        assert_eq!((&*input.bytes, recoveries), (&b"2"[..], 0));
    }
    let absent = claim_of(identity("a", "tests", "absent")).id;
    assert_eq!(tables.store.kept(&absent).await.unwrap(), None);
}
