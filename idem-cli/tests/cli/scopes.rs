//! Commands that find a key, and that export and erase everything of a scope, on each store.

use std::time::Duration;

use idem_runtime::operator::OptionalIndex;
use idem_runtime::record::{OwnerLabel, Payload};
use idem_runtime::store::ClaimRequest;
use idem_tests::claims::{claim_of, identity, outcome, own};
use serde_json::Value;

use super::{Place, on_letter};

const REASON: [&str; 3] = ["--yes", "--reason", "request 17"];

async fn complete(place: &Place, scope: &str, operation: &str, key: &str) -> ClaimRequest {
    let claim = ClaimRequest {
        owner_label: Some(OwnerLabel::new("web-1").unwrap()),
        ..claim_of(identity(scope, operation, key))
    };
    let owner = own(&place.store, &claim).await;
    let steps = place.store.steps().unwrap();
    let payload = Payload {
        codec: "json/1".into(),
        bytes: b"\"stamped\""[..].into(),
    };
    steps.save_step(&owner, "stamp", &payload).await.unwrap();
    place
        .store
        .complete(&owner, &outcome(b"\"sent\""))
        .await
        .unwrap();
    let operations = place.store.operations().unwrap();
    operations
        .note_operation(&claim.identity.operation)
        .await
        .unwrap();
    claim
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(json).collect()
}

/// A key with its scope is found at once in all operations; a key alone after a question, or by its index.
pub(super) async fn a_key_is_found_with_and_without_its_scope(place: Place) {
    for (scope, operation, key) in [
        ("a/ann", "charges.create", "order-1"),
        ("a/ann", "letters.post", "order-1"),
        ("a/bob", "letters.post", "order-1"),
        ("ab/ann", "letters.post", "order-1"),
        ("", "letters.post", "order-2"),
    ] {
        complete(&place, scope, operation, key).await;
    }
    let of_ann = ["find", "order-1", "--scope", "a", "--scope", "ann"];
    let found = place.idem(&of_ann).expect(
        0,
        &["charges.create", "letters.post", "by id in 2 operations"],
    );
    assert!(!found.out.contains("a/bob"), "{found:?}");
    place
        .idem(&["find", "\"order-1\"", "--scope", "a", "--scope", "ann"])
        .expect(0, &["charges.create", "letters.post"]);
    let in_one = [&of_ann[..], &["--operation", "letters.post"]].concat();
    let found = place.idem(&in_one).expect(0, &["by id in 1 operations"]);
    assert!(!found.out.contains("charges.create"), "{found:?}");
    place
        .idem(&["find", "order-1", "--scope", "A", "--scope", "ann"])
        .expect(3, &["no record has this key"]);
    // A key without a scope is found by its id.
    place
        .idem(&["find", "order-2"])
        .expect(0, &["letters.post", "by id in 2 operations"]);
    // A key in an unknown scope is not.
    place
        .idem(&["find", "order-1"])
        .expect_error(1, "pass --scan");
    place
        .idem(&["find", "order-1", "--scan"])
        .expect(0, &["a/ann", "a/bob", "ab/ann", "searched: all records"]);
    let inside = ["find", "order-1", "--scope", "a", "--recursive", "--scan"];
    let found = place.idem(&inside).expect(0, &["a/ann", "a/bob"]);
    assert!(!found.out.contains("ab/ann"), "{found:?}");
    // The other commands take the form of the header as well.
    let shown = ["show", "letters.post", "\"order-2\""];
    place.idem(&shown).expect(0, &["order-2", "completed"]);
    place
        .idem(&["list", "--scope", "a"])
        .expect_error(1, "pass --scan");
    let listed = place
        .idem(&["list", "--scope", "a", "--recursive", "--scan"])
        .expect(0, &["a/ann", "a/bob"]);
    assert!(!listed.out.contains("ab/ann"), "{listed:?}");
    place
        .idem(&[
            "find",
            "--instance",
            "urn:uuid:1b4e28ba-2fa1-4d3b-a3f5-ef19b5a7633b",
        ])
        .expect(3, &["grep 1b4e28ba-2fa1-4d3b-a3f5-ef19b5a7633b"]);
    place
        .idem(&["find", "--instance", "17"])
        .expect_error(1, "no instance");
    if place
        .store
        .index(OptionalIndex::Key)
        .await
        .unwrap()
        .is_none()
    {
        return;
    }
    for index in ["key", "scope", "owner", "age"] {
        place
            .idem(&["migrate", "--index", index, "--apply"])
            .expect(0, &["created the index"]);
    }
    // A private server has other problems.
    let doctor = place.idem(&["doctor"]).out;
    assert!(
        doctor.contains("indexes by key, scope, owner, age"),
        "{doctor}"
    );
    place
        .idem(&["find", "order-1"])
        .expect(0, &["a/ann", "a/bob", "ab/ann", "by the index `key`"]);
    place
        .idem(&["list", "--owner", "web-1"])
        .expect(0, &["order-1", "order-2"]);
    for (order, is_descending) in [("--newest", true), ("--oldest", false)] {
        let listed = place.idem(&["list", order, "--json"]).expect(0, &[]);
        let listed = json(&listed.out);
        let records = listed["records"].as_array().unwrap();
        let times: Vec<_> = records
            .iter()
            .map(|it| it["first_claimed_at"].as_i64().unwrap())
            .collect();
        let mut sorted = times.clone();
        sorted.sort_unstable();
        if is_descending {
            sorted.reverse();
        }
        assert_eq!((times.len(), times), (5, sorted));
    }
}

/// Everything of a scope is exported, and then erased; what may be running is named and stays.
pub(super) async fn everything_of_a_scope_is_exported_and_erased(place: Place) {
    for scope in ["a", "a/ann", "ab"] {
        complete(&place, scope, "letters.post", "order-1").await;
    }
    let expired = ClaimRequest {
        retention: Duration::ZERO,
        ..claim_of(identity("a/ann", "letters.post", "expired"))
    };
    let owner = own(&place.store, &expired).await;
    place.store.complete(&owner, &outcome(b"1")).await.unwrap();
    let running = claim_of(identity("a/ann", "letters.post", "running"));
    let owner = own(&place.store, &running).await;
    // A manual change of the scope, whose entry names it.
    let interrupted = claim_of(identity("a", "letters.post", "lost"));
    let lost = own(&place.store, &interrupted).await;
    place.store.interrupt(&lost).await.unwrap();
    let release = ["release", "letters.post", "lost", "--scope", "a"];
    place
        .idem(&[&release[..], &REASON].concat())
        .expect(0, &["done"]);

    let inside = ["--scope", "a", "--recursive"];
    let exported = place
        .idem(&[&["export"], &inside[..]].concat())
        .expect(0, &[]);
    let exported = lines(&exported.out);
    let of_kind =
        |kind: &str| -> Vec<&Value> { exported.iter().filter(|it| it["kind"] == kind).collect() };
    assert_eq!(of_kind("record").len(), 5, "{exported:#?}");
    assert_eq!(of_kind("attempts").len(), 5);
    assert_eq!(of_kind("step").len(), 2);
    assert_eq!(of_kind("step")[0]["payload"]["text"], "\"stamped\"");
    assert_eq!(of_kind("audit").len(), 1);
    assert!(exported.iter().all(|it| it["scope"] != "ab"));
    let sent = of_kind("record").into_iter();
    assert_eq!(
        sent.filter(|it| it["payload"]["text"] == "\"sent\"")
            .count(),
        2
    );
    assert!(of_kind("record").iter().any(|it| it["expired"] == true));
    place.idem(&["export", "--scope", "nobody"]).expect(3, &[]);

    let erase = [&["erase"], &inside[..]].concat();
    place.idem(&erase).expect_error(1, "pass --yes");
    place
        .idem(&[&erase[..], &["--dry-run"]].concat())
        .expect(0, &["would delete 4 records, and leave 1"]);
    let erased = place.idem(&[&erase[..], &REASON].concat()).expect(
        5,
        &[
            "deleted        4 records",
            "1 entries",
            "Repeat the command in",
        ],
    );
    assert!(erased.out.contains(&running.id.to_string()), "{erased:?}");
    place.store.complete(&owner, &outcome(b"1")).await.unwrap();
    let as_json = [&erase[..], &REASON, &["--json"]].concat();
    let erased = json(&place.idem(&as_json).expect(0, &[]).out);
    assert_eq!(
        (&erased["erased"], &erased["running"]),
        (&1.into(), &0.into())
    );

    let audit = place
        .idem(&["audit"])
        .expect(0, &["erased a scope, 4 records"]);
    assert!(!audit.out.contains("lost"), "{audit:?}");
    place
        .idem(&["audit", "--scope", "a"])
        .expect(0, &["erased a scope, 1 records"]);
    let left = place.idem(&["list", "--json", "--expired"]).expect(0, &[]);
    let left = json(&left.out);
    assert_eq!(left["records"].as_array().unwrap().len(), 1);
    assert_eq!(left["records"][0]["scope"], "ab");
    // The two forms of the command are not confused.
    place
        .idem(&["erase", "--recursive"])
        .expect_error(2, "--scope");
    place
        .idem(&on_letter("erase", &["--recursive"]))
        .expect_error(2, "--recursive");
}
