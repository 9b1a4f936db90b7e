//! Commands that only read, on each store.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use idem_runtime::fingerprint::{Secret, digest, json};
use idem_runtime::record::{Digest, Outcome, OwnerLabel, Payload};
use idem_runtime::store::ClaimRequest;
use idem_runtime::{Call, Codec, Error, Idem};
use tempfile::NamedTempFile;

use idem_tests::claims::own;

use super::{Place, on_letter, request};

const LEASE: Duration = Duration::from_secs(600);

fn file(content: &[u8]) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(content).unwrap();
    file
}

fn payload(text: &str) -> Payload {
    Payload {
        codec: Codec::Json.tag().into(),
        bytes: text.as_bytes().into(),
    }
}

/// An operator learns whether a request is the one of a record, without seeing any value of either.
pub(super) async fn a_request_is_compared_with_the_record(place: Place) {
    let stored = digest(&json(br#"{"to": "ann", "cents": 1050}"#)).unwrap();
    place.claim_for("order-1", LEASE, stored).await;
    let compare = |request: &str| {
        let request = file(request.as_bytes());
        let path = request.path().to_str().unwrap().to_owned();
        place.idem(&on_letter("explain", &["--request", &path]))
    };
    compare(r#"{"cents": 1.050e3, "to": "ann"}"#).expect(0, &["fingerprints are equal"]);
    compare(r#"{"cents": 1050, "to": "ann", "note": null}"#)
        .expect(0, &["without its members that are null"]);
    let other = compare(r#"{"cents": 1051, "to": "ann"}"#).expect(0, &["fingerprints differ"]);
    assert!(!other.out.contains("1051"), "{other:?}");
    compare("{").expect_error(1, "not valid JSON");

    // A signed fingerprint of an HTTP request.
    let body = br#"{"cents": 5}"#;
    let kind = &b"application/json"[..];
    let plain = digest(&("POST", "/letters", Some("a=1"), kind, json(body))).unwrap();
    let secret = Secret::new([7; 32]).unwrap();
    place
        .claim_for("order-2", LEASE, secret.sign_digest(&plain))
        .await;
    let (body, right, wrong) = (file(body), file(&[7; 32]), file(&[8; 32]));
    let path = |file: &NamedTempFile| file.path().to_str().unwrap().to_owned();
    let compare = |more: &[&str]| {
        let body = path(&body);
        let http = ["explain", "letters.post", "order-2", "--scope", "tenant-3"];
        let request = ["--request", &body, "--http", "POST /letters?a=1", "--json"];
        place.idem(&[&http[..], &request, more].concat())
    };
    compare(&[]).expect_error(1, "pass --secret-file");
    compare(&["--secret-file", &path(&wrong)]).expect_error(1, "another secret");
    compare(&["--secret-file", &path(&right)]).expect(0, &["\"request\": \"equal\""]);
}

/// An operator learns by name which members of a request differ, and no value of them.
pub(super) async fn members_that_differ_are_named(place: Place) {
    let secret = Secret::new([7; 32]).unwrap();
    let idem = Idem::builder(Arc::clone(&place.store))
        .fingerprint_secret(secret)
        .build();
    let letter = |text: &'static str| {
        let request = json(text.as_bytes());
        Call::new("letters.post", "order-1", &request, LEASE)
            .scope("tenant-3")
            .member_digests(&request)
    };
    let posted = letter(r#"{"letter": {"to": "ann", "cents": 1050, "note": "x"}}"#);
    idem.run(posted, async || Ok::<_, Error>(1)).await.unwrap();
    let secret = file(&[7; 32]);
    let secret = secret.path().to_str().unwrap();
    let compare = |request: &str, more: &[&str]| {
        let request = file(request.as_bytes());
        let request = request.path().to_str().unwrap().to_owned();
        let arguments = ["--request", &request, "--secret-file", secret];
        place.idem(&on_letter("explain", &[&arguments[..], more].concat()))
    };
    let request = r#"{"letter": {"to": "bob", "cents": 1050, "copy\u202e": 1}}"#;
    let told = compare(request, &[]).expect(
        0,
        &[
            "Other values: `letter.to`.",
            "Only this request has: `letter.copy\\u{202e}`.",
            "Only the record's request has: one member",
        ],
    );
    assert!(!told.out.contains("bob"), "{told:?}");
    // A member more, and nothing else: a deploy may have added it.
    let added = r#"{"letter": {"to": "ann", "cents": 1050, "note": "x", "copy": 1}}"#;
    compare(added, &[]).expect(
        0,
        &[
            "Only this request has: `letter.copy`. If a new build has added it",
            "#[fingerprint(default)]",
        ],
    );
    assert!(!told.out.contains("fingerprint(default)"), "{told:?}");
    let told = compare(request, &["--json"]).expect(0, &[]);
    let told: serde_json::Value = serde_json::from_str(&told.out).unwrap();
    assert_eq!(told["request"], "different");
    assert_eq!(told["members"]["changed"][0], "letter.to");
    assert_eq!(told["members"]["removed"], 1);
    let null = r#"{"letter": {"to": "ann", "cents": 1051, "note": "x", "copy": null}}"#;
    let told = compare(null, &[]).expect(0, &["Other values: `letter.cents`."]);
    assert!(!told.out.contains("copy"), "{told:?}");
}

/// Steps are listed with their sizes, also after the end of the record, and their results only on request.
pub(super) async fn saved_steps_are_listed_and_their_results_hidden(place: Place) {
    place.claim("order-0", LEASE).await;
    place
        .idem(&on_letter("steps", &[]))
        .expect(3, &["No record has this key"]);
    let owner = place.claim("order-1", LEASE).await;
    place
        .idem(&on_letter("steps", &[]))
        .expect(0, &["no steps are saved"]);
    let steps = place.store.steps().unwrap();
    for (name, result) in [("stamp", "\"secret\""), ("seal\u{202e}", "12")] {
        let saved = steps.save_step(&owner, name, &payload(result)).await;
        saved.unwrap();
    }
    let listed = place
        .idem(&on_letter("steps", &[]))
        .expect(0, &["stamp", "seal\\u{202e}", "json/1", "8", "hidden"]);
    assert!(!listed.out.contains("secret"), "{listed:?}");
    let ended = Outcome::Completed(payload("7"));
    place.store.complete(&owner, &ended).await.unwrap();
    place
        .idem(&on_letter("steps", &["--payloads"]))
        .expect(0, &["\"secret\"", "12"]);
    let listed = place.idem(&on_letter("steps", &["--json"])).expect(0, &[]);
    let listed: serde_json::Value = serde_json::from_str(&listed.out).unwrap();
    assert_eq!(listed["steps"][0]["name"], "seal\u{202e}");
    assert_eq!(listed["steps"][0]["bytes"], 2);
    assert_eq!(listed["steps"][0]["payload"], serde_json::Value::Null);
    assert_eq!(listed["steps"][1]["name"], "stamp");
}

/// Statistics count each record once.
pub(super) async fn records_are_counted_by_operation_and_state(place: Place) {
    let empty = place.idem(&["stats"]);
    match place.store.expires_by_itself() {
        // A Redis, which has no tables that show that it is the right one.
        true => empty.expect_error(1, "nothing of idem's under the prefix"),
        false => drop(empty.expect(0, &["no records"])),
    }
    for key in ["order-1", "order-2"] {
        place.interrupted(key).await;
    }
    let owner = place.claim("order-3", LEASE).await;
    let ended = Outcome::Completed(payload("7"));
    place.store.complete(&owner, &ended).await.unwrap();
    place.idem(&["stats"]).expect(
        0,
        &[
            "letters.post",
            "interrupted",
            "completed",
            "records    3",
            "stuck      2 interrupted, 0 lapsed",
            match place.store.expires_by_itself() {
                true => "purge      the store deletes expired records itself",
                false => "purge      nothing is due",
            },
        ],
    );
    let read = |command: &[&str]| {
        let stats = place.idem(command).expect(0, &[]);
        serde_json::from_str::<serde_json::Value>(&stats.out).unwrap()
    };
    let stats = read(&["stats", "--json"]);
    // So few records are counted exactly.
    let exact = read(&["stats", "--exact", "--json"]);
    for stats in [&stats, &exact] {
        assert_eq!(
            [&stats["records"], &stats["stuck"], &stats["interrupted"]],
            [3, 2, 2]
        );
        assert_eq!([&stats["lapsed"], &stats["purge_due"]], [0, 0]);
        assert_eq!(stats["sample"], serde_json::Value::Null);
    }
    let group = |state: &str| {
        let groups = stats["groups"].as_array().unwrap();
        let found: Vec<_> = groups.iter().filter(|it| it["state"] == state).collect();
        assert_eq!(found.len(), 1, "{stats}");
        found[0].clone()
    };
    assert_eq!(group("interrupted")["count"], 2);
    assert_eq!(group("interrupted")["stuck"], 2);
    assert_eq!(group("completed")["count"], 1);
    assert_eq!(group("completed")["longest_retention"], 3_600_000_000_i64);
}

/// A listing selects by any field, and the stuck list also has records whose work was begun too often.
pub(super) async fn records_are_selected_by_condition_and_attempts(place: Place) {
    let digest = Digest::new(1, [0; 4], &[7; 32]);
    // Begun three times, and released each time.
    for _ in 0..3 {
        let owner = own(&place.store, &request("tried", LEASE, digest)).await;
        place.store.release(&owner).await.unwrap();
    }
    // Begun a fourth time, and running.
    for _ in 0..3 {
        let owner = own(&place.store, &request("running", LEASE, digest)).await;
        place.store.release(&owner).await.unwrap();
    }
    own(&place.store, &request("running", LEASE, digest)).await;
    let ended = own(&place.store, &request("ended", LEASE, digest)).await;
    let outcome = Outcome::Completed(payload("7"));
    place.store.complete(&ended, &outcome).await.unwrap();
    place.interrupted("interrupted").await;

    let keys = |arguments: &[&str], code| {
        let ran = place
            .idem(&[arguments, &["--json"]].concat())
            .expect(code, &[]);
        let listed: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        let records = listed["records"].as_array().unwrap();
        let mut keys: Vec<_> = records
            .iter()
            .map(|it| it["key"].as_str().unwrap().to_owned())
            .collect();
        keys.sort_unstable();
        keys
    };
    assert_eq!(keys(&["stuck"], 3), ["interrupted"]);
    let tried = keys(&["stuck", "--attempts", "3"], 3);
    assert_eq!(tried, ["interrupted", "running", "tried"]);
    let tried = keys(
        &["stuck", "--attempts", "4", "--operation", "letters.post"],
        3,
    );
    assert_eq!(tried, ["interrupted", "running"]);
    assert_eq!(
        keys(&["stuck", "--attempts", "3", "--limit", "1"], 3).len(),
        1
    );
    let none = keys(&["stuck", "--attempts", "3", "--operation", "other"], 0);
    assert!(none.is_empty(), "{none:?}");
    let listed = keys(&["list", "--where", "scope=tenant-3 attempt>=3"], 0);
    assert_eq!(listed, ["running", "tried"]);
    assert_eq!(keys(&["list", "--where", "key=ended"], 0), ["ended"]);
    let listed = keys(&["list", "--where", "attempt=1", "--limit", "1"], 0);
    assert_eq!(listed.len(), 1);
    let other = ["list", "--where", "stuck", "--state", "running"];
    place.idem(&other).expect_error(2, "cannot be used with");
}

/// A listing shows the owner of each record and the size of its result, and not the result.
pub(super) async fn a_listing_shows_owners_and_no_results(place: Place) {
    let digest = Digest::new(1, [0; 4], &[7; 32]);
    let by_host = |key| ClaimRequest {
        owner_label: Some(OwnerLabel::lossy("host-7:4711")),
        ..request(key, LEASE, digest)
    };
    let owner = own(&place.store, &by_host("order-1")).await;
    let ended = Outcome::Completed(payload("\"confidential\""));
    place.store.complete(&owner, &ended).await.unwrap();
    let owner = own(&place.store, &by_host("order-2")).await;
    place.store.interrupt(&owner).await.unwrap();
    let listed = place.idem(&["list"]);
    let listed = listed.expect(0, &["OWNER", "order-1", "order-2", "host-7:4711"]);
    assert!(!listed.out.contains("confidential"));
    let stuck = place.idem(&["stuck"]);
    let stuck = stuck.expect(3, &["OWNER", "order-2", "host-7:4711"]);
    assert!(!stuck.out.contains("order-1"));
    let listed = place.idem(&["list", "--state", "completed", "--json"]);
    let listed = listed.expect(0, &[]).out;
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let record = &listed["records"][0];
    assert_eq!(record["key"], "order-1");
    assert_eq!(record["owner"], "host-7:4711");
    assert_eq!(record["payload_codec"], Codec::Json.tag());
    assert_eq!(record["payload_bytes"], 14);
}
