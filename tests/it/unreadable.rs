//! Rows and keys that somebody changed by hand: listings pass over them and name them, on each store.

use std::collections::BTreeSet;
use std::time::Duration;

use idem_runtime::operator::{Counting, OperatorStore, OptionalIndex};
use idem_runtime::record::{OwnerLabel, Payload, RecordState, Timestamp};
use idem_runtime::store::{
    AuditFilter, ClaimRequest, Cursor, Filter, PageRequest, Resolution, Unreadable,
};
use idem_runtime::{OnCrash, Store};
use idem_tests::{backends, on_stores};

use crate::records::{claim, manual_change, outcome, own};
use crate::steps::Tables;

on_stores! { [transactions] Tables::open:
    listings_name_what_they_pass_over,
    stuck_records_are_listed_beside_an_edited_one,
    what_is_beside_records_is_passed_over,
}

/// Changes that leave no record that a store writes.
const EDITS: [&str; 8] = [
    "operation = 'renamed'",
    "scope = 'another'",
    "state = 'asleep'",
    "on_crash = 'perhaps'",
    "attempt = 0",
    "codec = NULL",
    "ended_at = NULL",
    "claim_id = NULL, state = 'running', ended_at = NULL, codec = NULL, payload = NULL",
];

/// What a listing found: ids of records, and names of those that cannot be read.
type Found = (BTreeSet<String>, BTreeSet<String>);

fn names(unreadable: &[Unreadable]) -> impl Iterator<Item = String> {
    unreadable.iter().map(|it| {
        assert!(!it.problem.contains("delete it"), "{it:?}");
        it.name.clone()
    })
}

/// Lists all records twice: with and without their results. Every record is on one page.
async fn listed(store: &impl Store, filter: &Filter, limit: u32) -> Found {
    let mut all: Vec<Found> = Vec::new();
    for payloads in [true, false] {
        let filter = Filter {
            payloads,
            ..filter.clone()
        };
        let (mut good, mut bad) = Found::default();
        let mut after: Option<Cursor> = None;
        for _ in 0..1000 {
            let page = PageRequest { limit, after };
            let page = store.list(&filter, &page).await.unwrap();
            for id in page.records.iter().map(|it| it.record.id) {
                assert!(good.insert(id.to_string()), "{id} is on two pages");
            }
            for name in names(&page.unreadable) {
                assert!(bad.insert(name.clone()), "{name} is named twice");
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert!(after.is_none(), "the listing does not end");
        all.push((good, bad));
    }
    assert_eq!(all[0], all[1]);
    all.remove(0)
}

fn ids<'a>(claims: impl IntoIterator<Item = &'a ClaimRequest>) -> BTreeSet<String> {
    claims.into_iter().map(|it| it.id.to_string()).collect()
}

/// A page names the records that cannot be read, and lists the others.
async fn listings_name_what_they_pass_over(tables: Tables) {
    let store = &tables.store;
    let good: Vec<_> = (0..5)
        .map(|number| claim(&format!("good-{number}")))
        .collect();
    let bad: Vec<_> = (0..EDITS.len())
        .map(|number| claim(&format!("bad-{number}")))
        .collect();
    for claim in good.iter().chain(&bad) {
        let owner = own(store, claim).await;
        store.complete(&owner, &outcome(b"1")).await.unwrap();
    }
    for (number, edit) in EDITS.iter().enumerate() {
        let edit = format!("UPDATE idem_records SET {edit} WHERE idempotency_key = 'bad-{number}'");
        tables.execute(&edit).await;
    }
    // Somebody who wants to keep a record for ever leaves a good one.
    let forever =
        "UPDATE idem_records SET retention = 9223372036854775807 WHERE idempotency_key = 'good-0'";
    tables.execute(forever).await;
    for limit in [1, 2, 3, 100] {
        let found = listed(store, &Filter::default(), limit).await;
        assert_eq!(found, (ids(&good), ids(&bad)), "limit {limit}");
    }
    let completed = Filter {
        state: Some(RecordState::Completed),
        ..Filter::default()
    };
    let (found, _) = listed(store, &completed, 2).await;
    assert_eq!(found, ids(&good));
    let stats = store.stats(Counting::Exactly).await.unwrap();
    assert_eq!(
        stats.unreadable.number(),
        1,
        "the state that does not exist: {stats:?}"
    );
    assert_eq!(
        stats.records().number() as usize,
        good.len() + bad.len() - 1
    );
    // A purge of the others is not stopped.
    store.purge(100, Timestamp::MAX).await.unwrap();
}

/// Records that are stuck are listed beside one that was changed by hand, with and without their index.
async fn stuck_records_are_listed_beside_an_edited_one(tables: Tables) {
    let store = &tables.store;
    let claims: Vec<_> = (0..4).map(|number| claim(&format!("k{number}"))).collect();
    for claim in &claims {
        let owner = own(store, claim).await;
        store.interrupt(&owner).await.unwrap();
    }
    tables
        .execute("UPDATE idem_records SET operation = 'renamed' WHERE idempotency_key = 'k2'")
        .await;
    let stuck = Filter {
        stuck: true,
        ..Filter::default()
    };
    let expected = (ids([&claims[0], &claims[1], &claims[3]]), ids([&claims[2]]));
    assert_eq!(listed(store, &stuck, 1).await, expected);
    assert_eq!(listed(store, &stuck, 100).await, expected);
    store.create_index(OptionalIndex::Stuck).await.unwrap();
    assert_eq!(listed(store, &stuck, 1).await, expected);
    assert_eq!(listed(store, &stuck, 100).await, expected);
}

/// An entry of the audit, the label of an owner, and a recovery input, each changed by hand, stop no other.
async fn what_is_beside_records_is_passed_over(tables: Tables) {
    let store = &tables.store;
    let audit = store.audit().unwrap();
    let mut claims = Vec::new();
    for number in 0..3 {
        let claim = ClaimRequest {
            owner_label: Some(OwnerLabel::new("web-1").unwrap()),
            ..claim(&format!("k{number}"))
        };
        let owner = own(store, &claim).await;
        let input = Payload {
            codec: "json/1".into(),
            bytes: b"1"[..].into(),
        };
        let recovery = store.recovery().unwrap();
        recovery
            .save_input(&owner, &input, Duration::ZERO)
            .await
            .unwrap();
        store.interrupt(&owner).await.unwrap();
        let record = store.get(&claim.id).await.unwrap().unwrap();
        if number > 0 {
            let observed = record.observation();
            audit
                .resolve_manually(&observed, &Resolution::Release, &manual_change())
                .await
                .unwrap();
        }
        claims.push(claim);
    }
    tables
        .execute("UPDATE idem_records_audit SET action = 'forgot' WHERE idempotency_key = 'k1'")
        .await;
    tables
        .execute("UPDATE idem_records SET owner = 'a\nb' WHERE idempotency_key = 'k0'")
        .await;
    tables.execute("UPDATE idem_records_recovery SET recoveries = -1 WHERE id IN (SELECT id FROM idem_records WHERE idempotency_key = 'k0')").await;

    let mut seen = (0, 0);
    let mut page = PageRequest {
        limit: 1,
        after: None,
    };
    loop {
        let found = audit.audit(&AuditFilter::default(), &page).await.unwrap();
        seen = (
            seen.0 + found.entries.len(),
            seen.1 + names(&found.unreadable).count(),
        );
        page.after = found.next;
        if page.after.is_none() {
            break;
        }
    }
    assert_eq!(seen, (1, 1));

    let attempts = store.attempts().unwrap();
    let attempts = attempts.attempts(&claims[0].id).await.unwrap().unwrap();
    assert_eq!(names(&attempts.unreadable).collect::<Vec<_>>(), ["owner"]);
    assert_eq!((attempts.owner(), attempts.list.len()), (None, 1));
    let (found, bad) = listed(store, &Filter::default(), 100).await;
    assert_eq!((found, bad.len()), (ids(&claims), 0));

    let due = store
        .recovery()
        .unwrap()
        .due(&claims[0].identity.operation, 10)
        .await
        .unwrap();
    let due: BTreeSet<_> = due.iter().map(|it| it.id.to_string()).collect();
    assert_eq!(due, ids([&claims[1], &claims[2]]));
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn keys_of_redis_that_hold_something_else_are_passed_over() {
    let keys = backends::redis().await.unwrap();
    let url = backends::variable(backends::REDIS).unwrap();
    let store = idem_runtime::RedisStore::connect(&url).await.unwrap();
    let store = store.with_prefix(&keys.prefix).unwrap();
    let mut connection = keys
        .client
        .get_multiplexed_async_connection()
        .await
        .unwrap();
    let mut run = async |command: &[&str]| {
        let mut redis = ::redis::cmd(command[0]);
        let ran: ::redis::RedisResult<::redis::Value> =
            redis.arg(&command[1..]).query_async(&mut connection).await;
        ran.unwrap()
    };
    let good: Vec<_> = (0..5)
        .map(|number| claim(&format!("good-{number}")))
        .collect();
    let bad: Vec<_> = (0..5)
        .map(|number| claim(&format!("bad-{number}")))
        .collect();
    let key = |claim: &ClaimRequest| format!("{}{}", keys.prefix, claim.id);
    for claim in good.iter().chain(&bad) {
        let claim = ClaimRequest {
            on_crash: OnCrash::Refuse,
            ..claim.clone()
        };
        let owner = own(&store, &claim).await;
        store.interrupt(&owner).await.unwrap();
    }
    run(&["SET", &key(&bad[0]), "something else"]).await;
    // The layout, the tag of the request, and its length.
    run(&["SETRANGE", &key(&bad[1]), "1", "odd"]).await;
    run(&["SETRANGE", &key(&bad[2]), "57", "odd"]).await;
    run(&["SETRANGE", &key(&bad[3]), "58", "odd"]).await;
    run(&["DEL", &key(&bad[4])]).await;
    run(&["HSET", &key(&bad[4]), "status", "odd"]).await;
    run(&["APPEND", &key(&good[0]), "o\0\0\0\x03a\nb"]).await;
    let stuck = Filter {
        stuck: true,
        ..Filter::default()
    };
    for filter in [Filter::default(), stuck] {
        for limit in [1, 2, 100] {
            let found = listed(&store, &filter, limit).await;
            assert_eq!(found, (ids(&good), ids(&bad)), "limit {limit}");
        }
    }
    let stats = store.stats(Counting::Exactly).await.unwrap();
    assert_eq!(stats.unreadable.number() as usize, bad.len());
    assert_eq!(stats.records().number() as usize, good.len());
    store.purge(100, Timestamp::MAX).await.unwrap();

    // Parts of a record, its steps, and its audit.
    let attempts = store.attempts().unwrap();
    let attempts = attempts.attempts(&good[0].id).await.unwrap().unwrap();
    assert_eq!(names(&attempts.unreadable).collect::<Vec<_>>(), ["owner"]);
    let step = |name: &str, payload: &str| {
        let length = u8::try_from(4 + name.len() + payload.len()).unwrap();
        let of_name = u8::try_from(name.len()).unwrap();
        let length = char::from(length);
        format!(
            "s\0\0\0{length}\0\0\0{}{name}{payload}",
            char::from(of_name)
        )
    };
    for (name, payload) in [("good", "6:json/11"), ("bad", "odd"), ("good", "6:json/12")] {
        run(&["APPEND", &key(&good[1]), &step(name, payload)]).await;
    }
    let steps = store.steps_of(&good[1].id, true).await.unwrap();
    assert_eq!(steps.list.len(), 1, "{steps:?}");
    // What was saved first counts.
    assert_eq!(steps.list[0].payload.as_deref(), Some(&b"1"[..]));
    assert_eq!(names(&steps.unreadable).collect::<Vec<_>>(), ["step:bad"]);
    let audit = store.audit().unwrap();
    for claim in &good[2..4] {
        let record = store.get(&claim.id).await.unwrap().unwrap();
        let (observed, change) = (record.observation(), manual_change());
        let resolved = audit.resolve_manually(&observed, &Resolution::Release, &change);
        resolved.await.unwrap();
    }
    let entries = format!("{}audit:{{{}}}", keys.prefix, key(&good[2]));
    run(&["LSET", &entries, "0", "odd"]).await;
    let page = audit
        .audit(&AuditFilter::default(), &PageRequest::default())
        .await
        .unwrap();
    assert_eq!(page.entries.len(), 1, "{page:?}");
    assert_eq!(
        names(&page.unreadable).collect::<BTreeSet<_>>(),
        ids([&good[2]])
    );
}
