//! Changes of all records that meet a condition.

use std::time::Duration;

use idem_runtime::record::Outcome;
use idem_runtime::store::FencedWrite;

use super::{Asked, Place};

/// A condition selects records, a dry run changes none, and the report counts what became of them.
pub(super) async fn records_that_meet_a_condition_are_changed_together(place: Place) {
    for key in ["order-1", "order-2", "order-3"] {
        place.interrupted(key).await;
    }
    place.claim("order-4", Duration::from_secs(600)).await;
    let all = "operation=letters.post scope=tenant-3";
    place
        .idem(&["release", "--where", all, "--dry-run"])
        .expect(0, &["order-2", "selected        3", "not applicable  1"]);
    place
        .idem(&["stuck", "--json"])
        .expect(3, &["order-1", "order-2", "order-3"]);
    place
        .idem(&["release", "--where", all])
        .expect_error(1, "pass --yes");
    place
        .idem(&[
            "release",
            "--where",
            all,
            "--yes",
            "--reason",
            "asked the post",
            "--limit",
            "2",
        ])
        .expect(0, &["--limit was reached", "done       2", "changed    0"]);
    let rest = ["complete", "--where", "state=interrupted", "--value", "7"];
    let completed = place
        .idem(
            &[
                &rest[..],
                &["--json", "--yes", "--reason", "asked the post"],
            ]
            .concat(),
        )
        .expect(0, &[]);
    let completed: serde_json::Value = serde_json::from_str(&completed.out).unwrap();
    assert_eq!(completed["done"], 1, "{completed}");
    assert_eq!(completed["selected"].as_array().unwrap().len(), 1);
    place
        .idem(&[
            "fail",
            "--where",
            "stuck age>1s",
            "--error",
            "1",
            "--yes",
            "--reason",
            "asked the post",
        ])
        .expect(3, &["selected        0"]);
    place
        .idem(&[
            "erase",
            "--where",
            "state=completed key=order-9",
            "--yes",
            "--reason",
            "asked the post",
        ])
        .expect(3, &[]);
    place
        .idem(&[
            "erase",
            "--where",
            "state!=running",
            "--yes",
            "--reason",
            "asked the post",
        ])
        .expect(0, &["done       3"]);
    place.idem(&["list"]).expect(0, &["order-4", "running"]);
}

#[tokio::test]
async fn a_record_that_changed_since_it_was_selected_is_left_as_it_is() {
    let place = Place::sqlite().await;
    let slow = place.interrupted("order-1").await;
    place.interrupted("order-2").await;
    let asked = Asked::new(&place, "release --where state=interrupted --reason asked");
    // Meanwhile one owner was only slow, and completes.
    let completed = place.store.complete(&slow, &Outcome::Unrecorded).await;
    assert_eq!(completed.unwrap(), FencedWrite::Applied);
    let (code, rest) = asked.answer(b"y\n");
    assert_eq!(code, Some(4), "{rest}");
    for part in ["done       1", "changed    1", "failed     0"] {
        assert!(rest.contains(part), "{rest}");
    }
    place.idem(&["list"]).expect(0, &["unrecorded", "released"]);
    place.interrupted("order-3").await;
    let (code, rest) = Asked::new(&place, "erase --where stuck --reason asked").answer(b"n\n");
    assert_eq!(code, Some(1), "{rest}");
    place.idem(&["stuck"]).expect(3, &["order-3"]);
}

#[tokio::test]
async fn a_wrong_condition_is_refused_with_what_to_write() {
    let place = Place::sqlite().await;
    for (condition, message) in [
        ("state=asleep", "running, released"),
        ("colour=red", "is no field"),
        ("", "is empty"),
    ] {
        place
            .idem(&[
                "release",
                "--where",
                condition,
                "--yes",
                "--reason",
                "asked the post",
            ])
            .expect_error(2, message);
    }
    place
        .idem(&["release", "letters.post", "order-1", "--where", "stuck"])
        .expect_error(2, "cannot be used with");
    place
        .idem(&["release", "letters.post", "order-1", "--dry-run"])
        .expect_error(2, "cannot be used with");
    place
        .idem(&["release", "--dry-run"])
        .expect_error(2, "required");
    place
        .idem(&["release", "--where", "stuck", "--json"])
        .expect_error(1, "pass --yes");
}
