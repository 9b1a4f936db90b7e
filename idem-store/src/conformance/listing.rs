//! Cases on listings.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::kit::*;
use crate::key::{Identity, RecordId, Scope};
use crate::record::{ClaimId, OnCrash, Outcome, OwnerLabel, Record, RecordState};
use crate::store::{ClaimRequest, Filter, ListedRecord, PageRequest, ScopeFilter};

fn claim_of(name: &str) -> ClaimRequest {
    about(Identity {
        scope: Scope::none(),
        operation: operation(name),
        key: key(&unique()),
    })
}

fn by_operation(name: &str) -> Filter {
    Filter {
        operation: Some(name.to_owned()),
        payloads: true,
        ..Filter::default()
    }
}

/// Reads all pages of this size, one after the other.
async fn all(store: &Subject, filter: &Filter, limit: u32) -> Result<Vec<Record>, String> {
    let mut records = Vec::new();
    let mut page = PageRequest { limit, after: None };
    loop {
        let found = store.list(filter, &page).await?;
        ensure!(
            found.records.len() <= limit as usize,
            "a page of {limit} holds {} records",
            found.records.len()
        );
        records.extend(found.records.into_iter().map(|it| it.record));
        match found.next {
            None => return Ok(records),
            Some(next) => {
                ensure!(
                    page.after.as_ref() != Some(&next),
                    "the listing does not move on from {next:?}"
                );
                page.after = Some(next);
            }
        }
    }
}

fn ids(records: &[Record]) -> BTreeSet<RecordId> {
    records.iter().map(|record| record.id).collect()
}

pub(super) async fn list_by_operation(store: Subject) -> CaseResult {
    let name = format!("op-{}", unique());
    let longer = format!("{name}x");
    let upper = name.to_uppercase();
    let mut expected = BTreeMap::new();
    for name in [&name, &longer, &upper] {
        for _ in 0..3 {
            let claim = claim_of(name);
            store.own(&claim).await?;
            expected
                .entry(name)
                .or_insert_with(BTreeSet::new)
                .insert(claim.id);
        }
    }
    for (name, expected) in expected {
        let found = all(&store, &by_operation(name), 100).await?;
        ensure!(
            ids(&found) == expected,
            "3 records of {name}, listed {found:?}"
        );
        for listed in found {
            store.unchanged(&listed).await?;
        }
    }
    let found = all(&store, &by_operation(&unique()), 100).await?;
    ensure!(found.is_empty(), "no record, listed {found:?}");
    Ok(())
}

pub(super) async fn list_by_state(store: Subject) -> CaseResult {
    let name = format!("op-{}", unique());
    let mut expected = BTreeMap::new();
    for state in [
        RecordState::Running,
        RecordState::Released,
        RecordState::Completed,
        RecordState::Failed,
        RecordState::Unrecorded,
        RecordState::Interrupted,
    ] {
        let claim = claim_of(&name);
        let owner = store.own(&claim).await?;
        match state {
            RecordState::Running => {}
            RecordState::Released => drop(store.release(&owner).await?),
            RecordState::Completed => drop(store.complete(&owner, &outcome()).await?),
            RecordState::Failed => {
                let outcome = Outcome::Failed(payload(b"{}"));
                store.complete(&owner, &outcome).await?;
            }
            RecordState::Unrecorded => drop(store.complete(&owner, &Outcome::Unrecorded).await?),
            RecordState::Interrupted => drop(store.interrupt(&owner).await?),
        }
        expected.insert(claim.id, state);
    }
    for (id, state) in expected {
        let filter = Filter {
            state: Some(state),
            ..by_operation(&name)
        };
        let found = all(&store, &filter, 100).await?;
        ensure!(
            ids(&found) == BTreeSet::from([id]),
            "1 record is {state}, listed {found:?}"
        );
    }
    Ok(())
}

pub(super) async fn list_lapsed(store: Subject) -> CaseResult {
    let name = format!("op-{}", unique());
    let short = || ClaimRequest {
        lease: SHORT,
        ..claim_of(&name)
    };
    let lapsed = short();
    store.own(&lapsed).await?;
    let ended = short();
    let owner = store.own(&ended).await?;
    store.complete(&owner, &outcome()).await?;
    let live = claim_of(&name);
    store.own(&live).await?;
    store.lapsed(&lapsed.id).await?;
    let filter = Filter {
        lapsed: true,
        ..by_operation(&name)
    };
    let found = all(&store, &filter, 100).await?;
    ensure!(
        ids(&found) == BTreeSet::from([lapsed.id]),
        "1 record is lapsed, listed {found:?}"
    );
    Ok(())
}

pub(super) async fn list_stuck(store: Subject) -> CaseResult {
    let name = format!("op-{}", unique());
    let short = || ClaimRequest {
        lease: SHORT,
        ..claim_of(&name)
    };
    let lapsed = short();
    store.own(&lapsed).await?;
    let (ended, released) = (short(), short());
    let owner = store.own(&ended).await?;
    store.complete(&owner, &outcome()).await?;
    let owner = store.own(&released).await?;
    store.release(&owner).await?;
    let (live, interrupted) = (claim_of(&name), claim_of(&name));
    store.own(&live).await?;
    let owner = store.own(&interrupted).await?;
    store.interrupt(&owner).await?;
    store.lapsed(&lapsed.id).await?;
    let stuck = Filter {
        stuck: true,
        ..by_operation(&name)
    };
    let expected = BTreeSet::from([lapsed.id, interrupted.id]);
    for limit in [1, 100] {
        let found = all(&store, &stuck, limit).await?;
        ensure!(
            ids(&found) == expected,
            "2 records are stuck, listed {found:?} in pages of {limit}"
        );
    }
    for (state, expected) in [
        (RecordState::Interrupted, Some(interrupted.id)),
        (RecordState::Running, Some(lapsed.id)),
        (RecordState::Completed, None),
    ] {
        let filter = Filter {
            state: Some(state),
            ..stuck.clone()
        };
        let found = all(&store, &filter, 100).await?;
        ensure!(
            ids(&found) == expected.into_iter().collect(),
            "listed as stuck and {state}: {found:?}"
        );
    }
    let nobody = Filter {
        operation: Some(unique()),
        ..stuck
    };
    let found = all(&store, &nobody, 100).await?;
    ensure!(
        found.is_empty(),
        "no record of the operation, listed {found:?}"
    );
    Ok(())
}

async fn older(store: &Subject, name: &str, age: Duration) -> Result<Option<Record>, String> {
    let filter = Filter {
        older_than: Some(age),
        ..by_operation(name)
    };
    Ok(all(store, &filter, 100).await?.pop())
}

pub(super) async fn list_by_age(store: Subject) -> CaseResult {
    let name = format!("op-{}", unique());
    let claim = claim_of(&name);
    store.own(&claim).await?;
    for age in [LONG, Duration::MAX] {
        let found = older(&store, &name, age).await?;
        ensure!(found.is_none(), "listed as older than {age:?}: {found:?}");
    }
    let mut patience = Patience::new("it never became older than its age");
    while older(&store, &name, SHORT).await?.is_none() {
        patience.wait().await?;
    }
    let found = older(&store, &name, Duration::ZERO).await?;
    ensure!(found.is_some(), "it is not listed as older than nothing");
    for (age, is_listed) in [(LONG, true), (Duration::MAX, true), (Duration::ZERO, false)] {
        let filter = Filter {
            newer_than: Some(age),
            ..by_operation(&name)
        };
        let found = all(&store, &filter, 100).await?;
        ensure!(
            found.is_empty() != is_listed,
            "listed as newer than {age:?}: {found:?}"
        );
    }
    Ok(())
}

/// Parts of scopes that are prefixes of each other as text, and not as scopes.
const SCOPES: [&[&str]; 9] = [
    &["a"],
    &["a", "b"],
    &["a", "b", "c"],
    &["ab"],
    &["a "],
    &["a", "b "],
    &["a/b"],
    &["a-1"],
    &["A", "b"],
];

/// Scope with a first part of its own, and these parts.
fn scope_of(own: &Scope, parts: &[&str]) -> Result<Scope, String> {
    parts.iter().try_fold(own.clone(), |scope, part| {
        let part = Scope::new(part).map_err(|error| error.to_string())?;
        Ok(scope.join(&part))
    })
}

pub(super) async fn list_by_scope(store: Subject) -> CaseResult {
    let own = Scope::new(unique()).map_err(|error| error.to_string())?;
    let mut expected = BTreeMap::new();
    for parts in SCOPES.into_iter().chain([&[][..]]) {
        let scope = scope_of(&own, parts)?;
        let claim = about(Identity {
            scope: scope.clone(),
            operation: operation("scoped"),
            key: key(&unique()),
        });
        store.own(&claim).await?;
        expected.insert(claim.id, scope);
    }
    for parts in SCOPES.into_iter().chain([&[][..]]) {
        let scope = scope_of(&own, parts)?;
        for scope in [
            ScopeFilter::Exactly(scope.clone()),
            ScopeFilter::Within(scope),
        ] {
            let wanted = expected.iter().filter(|(_, of)| scope.matches(of));
            let wanted: BTreeSet<_> = wanted.map(|(id, _)| *id).collect();
            let filter = Filter {
                scope: Some(scope),
                ..Filter::default()
            };
            let limit = if parts.is_empty() { 1 } else { 100 };
            let found = all(&store, &filter, limit).await?;
            ensure!(
                found.len() == wanted.len() && ids(&found) == wanted,
                "{} records are of {parts:?} with {filter:?}, listed {found:?} in pages of {limit}",
                wanted.len()
            );
        }
    }
    Ok(())
}

pub(super) async fn list_by_key_and_id(store: Subject) -> CaseResult {
    // With a letter, whose other case makes another key.
    let text = format!("k{}", unique());
    let mut expected = BTreeSet::new();
    for (key_text, is_wanted) in [
        (text.clone(), true),
        (format!("{text}x"), false),
        (format!("{text} "), false),
        (text.to_uppercase(), false),
    ] {
        for scope in ["", "a"] {
            let claim = about(Identity {
                scope: match scope {
                    "" => Scope::none(),
                    part => Scope::new(part).map_err(|error| error.to_string())?,
                },
                operation: operation("keyed"),
                key: key(&key_text),
            });
            store.own(&claim).await?;
            if is_wanted {
                expected.insert(claim.id);
            }
        }
    }
    let by_key = Filter {
        key: Some(text),
        ..Filter::default()
    };
    for limit in [1, 100] {
        let found = all(&store, &by_key, limit).await?;
        ensure!(
            found.len() == expected.len() && ids(&found) == expected,
            "2 records have the key, listed {found:?} in pages of {limit}"
        );
    }
    for id in expected {
        let by_id = Filter {
            id: Some(id),
            ..by_key.clone()
        };
        let found = all(&store, &by_id, 1).await?;
        ensure!(
            found.len() == 1 && ids(&found) == BTreeSet::from([id]),
            "1 record has the id, listed {found:?}"
        );
        let by_another_key = Filter {
            key: Some(unique()),
            ..by_id
        };
        let found = all(&store, &by_another_key, 1).await?;
        ensure!(found.is_empty(), "listed by another key: {found:?}");
    }
    let by_unknown_id = Filter {
        id: Some(claim_of("unknown").id),
        ..Filter::default()
    };
    let found = all(&store, &by_unknown_id, 1).await?;
    ensure!(found.is_empty(), "no record has the id, listed {found:?}");
    Ok(())
}

pub(super) async fn list_by_owner(store: Subject) -> CaseResult {
    let name = format!("op-{}", unique());
    let host = unique();
    let mut expected = BTreeSet::new();
    for label in [Some(host.clone()), Some(format!("{host}1")), None] {
        let claim = ClaimRequest {
            owner_label: label.as_deref().map(OwnerLabel::lossy),
            ..claim_of(&name)
        };
        store.own(&claim).await?;
        if label.as_ref() == Some(&host) {
            expected.insert(claim.id);
        }
    }
    let filter = Filter {
        owner: Some(host),
        ..Filter::default()
    };
    let found = all(&store, &filter, 100).await?;
    ensure!(
        ids(&found) == expected,
        "1 record has this owner, listed {found:?}"
    );
    Ok(())
}

pub(super) async fn list_in_pages(store: Subject) -> CaseResult {
    let name = format!("op-{}", unique());
    let mut stay = BTreeSet::new();
    for _ in 0..23 {
        let claim = claim_of(&name);
        store.own(&claim).await?;
        stay.insert(claim.id);
    }
    let filter = by_operation(&name);
    for limit in [1, 2, 7, 23, 24, u32::MAX] {
        let found = all(&store, &filter, limit).await?;
        ensure!(
            found.len() == stay.len() && ids(&found) == stay,
            "{} records in pages of {limit}, listed {} times {} of them",
            stay.len(),
            found.len(),
            ids(&found).len()
        );
    }

    let mut seen: BTreeMap<RecordId, u32> = BTreeMap::new();
    let mut page = PageRequest {
        limit: 3,
        after: None,
    };
    for number in 0.. {
        ensure!(number < 1000, "the listing does not come to an end");
        let found = store.list(&filter, &page).await?;
        for listed in found.records {
            *seen.entry(listed.record.id).or_default() += 1;
        }
        // Records that are created during the listing may be listed or not.
        for _ in 0..if number < 15 { 3 } else { 0 } {
            let claim = claim_of(&name);
            let owner = store.own(&claim).await?;
            store.release(&owner).await?;
        }
        match found.next {
            Some(next) => page.after = Some(next),
            None => break,
        }
    }
    ensure!(
        stay.iter().all(|id| seen.get(id) == Some(&1)),
        "records that stayed were listed {:?} times",
        stay.iter().map(|id| seen.get(id)).collect::<Vec<_>>()
    );
    Ok(())
}

pub(super) async fn list_hides_what_expired(store: Subject) -> CaseResult {
    let name = format!("op-{}", unique());
    let brief = |on_crash| ClaimRequest {
        lease: SHORT,
        retention: SHORT,
        on_crash,
        ..claim_of(&name)
    };
    let completed = brief(OnCrash::Refuse);
    let owner = store.own(&completed).await?;
    store.complete(&owner, &outcome()).await?;
    let abandoned = brief(OnCrash::Rerun);
    store.own(&abandoned).await?;
    let unknown = brief(OnCrash::Refuse);
    store.own(&unknown).await?;
    for claim in [&completed, &abandoned] {
        store.absent(&claim.id).await?;
    }
    let found = all(&store, &by_operation(&name), 100).await?;
    ensure!(
        ids(&found) == BTreeSet::from([unknown.id]),
        "listed {found:?}"
    );
    Ok(())
}

pub(super) async fn listed_records_are_the_same(store: Subject) -> CaseResult {
    let name = format!("op-{}", unique());
    let large = payload(&[b'x'; 70_000]);
    let mut expected = BTreeMap::new();
    for (label, outcome) in [
        (Some("first host"), Outcome::Completed(large)),
        (Some("ä;\n"), Outcome::Failed(payload(b""))),
        (None, Outcome::Unrecorded),
    ] {
        let claim = ClaimRequest {
            owner_label: label.map(OwnerLabel::lossy),
            ..claim_of(&name)
        };
        let owner = store.own(&claim).await?;
        store.complete(&owner, &outcome).await?;
        expected.insert(claim.id, claim.owner_label);
    }
    // The label is the one of the last attempt.
    let claim = claim_of(&name);
    for label in ["the one before", "the last one"] {
        let claim = ClaimRequest {
            owner_label: Some(OwnerLabel::lossy(label)),
            claim_id: ClaimId::random(),
            ..claim.clone()
        };
        let owner = store.own(&claim).await?;
        store.release(&owner).await?;
        expected.insert(claim.id, claim.owner_label);
    }
    let keeps_labels = store.store().attempts().is_some();
    for payloads in [false, true] {
        let filter = Filter {
            payloads,
            ..by_operation(&name)
        };
        let mut page = PageRequest {
            limit: 2,
            after: None,
        };
        let mut seen = BTreeSet::new();
        loop {
            let found = store.list(&filter, &page).await?;
            for listed in found.records {
                let mut record = store.record(&listed.record.id).await?;
                record.read_at = listed.record.read_at;
                let whole = ListedRecord {
                    owner: expected[&record.id].clone().filter(|_| keeps_labels),
                    ..ListedRecord::new(record, &filter)
                };
                ensure!(listed == whole, "{whole:?} is listed as {listed:?}");
                ensure!(seen.insert(listed.record.id), "{listed:?} is listed twice");
            }
            page.after = found.next;
            if page.after.is_none() {
                break;
            }
        }
        ensure!(
            seen.len() == expected.len(),
            "{} of {} records are listed",
            seen.len(),
            expected.len()
        );
    }
    Ok(())
}
