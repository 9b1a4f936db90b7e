//! One change of many records.

use http::StatusCode;
use idem_runtime::record::RecordState;
use idem_tests::on_stores;

use super::{ANN, BOB, READER, Site, borrowed, field, form};

on_stores! { [operators] Site::open:
    many_records_are_changed_as_they_were_shown,
    a_forged_change_of_many_changes_nothing,
}

/// Form of the page before a change of many records.
fn many(page: &str, reason: &str) -> Vec<(&'static str, String)> {
    vec![
        ("token", field(page, "token")),
        ("action", field(page, "action")),
        ("observed", field(page, "observed")),
        ("reason", reason.to_owned()),
    ]
}

async fn many_records_are_changed_as_they_were_shown(site: Site) {
    let mut ids = Vec::new();
    for number in 0..30 {
        ids.push(site.interrupted("tenant-3", &format!("k{number}")).await);
    }
    let other = site.interrupted("tenant-4", "other").await;
    // Its lease is valid.
    let running = site.claim("tenant-3", "running").await;
    let bob = "bob change scope=tenant-3";
    let asked = [("list", "records"), ("action", "release")];
    let before = site.post(bob, "/bulk/preview", &asked).await;
    assert_eq!(before.status, StatusCode::OK);
    for part in [
        "30 records",
        "1 records, because",
        "and 20 more",
        "release 30 records",
    ] {
        assert!(before.body.contains(part), "no {part:?} in {}", before.body);
    }
    assert!(site.entries().await.is_empty(), "a preview changes nothing");
    // One of them is changed meanwhile.
    let page = site.get(ANN, &format!("/records/{}", ids[7])).await.body;
    let single = form(&page, "complete", "it was posted");
    let path = format!("/records/{}/change", ids[7]);
    let made = site.post(ANN, &path, &borrowed(&single)).await;
    assert_eq!(made.status, StatusCode::SEE_OTHER);

    let changed = many(&before.body, "the office was closed");
    let wrong = many(&before.body, " ");
    let refused = site.post(bob, "/bulk/apply", &borrowed(&wrong)).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    let after = site.post(bob, "/bulk/apply", &borrowed(&changed)).await;
    assert_eq!(after.status, StatusCode::OK);
    for part in ["29 of 30 records", "1 records, which have changed"] {
        assert!(after.body.contains(part), "no {part:?} in {}", after.body);
    }
    for (number, id) in ids.iter().enumerate() {
        let expected = match number {
            7 => RecordState::Unrecorded,
            _ => RecordState::Released,
        };
        assert_eq!(site.state(id).await, Some(expected));
    }
    assert_eq!(site.state(&other).await, Some(RecordState::Interrupted));
    assert_eq!(site.state(&running.id).await, Some(RecordState::Running));
    let entries = site.entries().await;
    let made = entries
        .iter()
        .filter(|it| *it == "bob released: the office was closed");
    assert_eq!(made.count(), 29, "{entries:?}");
    // Sent again, the form changes nothing.
    let again = site.post(bob, "/bulk/apply", &borrowed(&changed)).await;
    assert!(again.body.contains("0 of 30 records"), "{}", again.body);
    assert_eq!(site.entries().await.len(), entries.len());
}

async fn a_forged_change_of_many_changes_nothing(site: Site) {
    let id = site.interrupted("tenant-3", "k").await;
    let other = site.interrupted("tenant-4", "k").await;
    let asked = [("list", "stuck"), ("action", "erase")];
    let refused = site.post(READER, "/bulk/preview", &asked).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    let unknown = [("list", "stuck"), ("action", "explode")];
    let refused = site.post(BOB, "/bulk/preview", &unknown).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    let few = "bob change scope=tenant-3";
    let before = site.post(few, "/bulk/preview", &asked).await.body;
    assert!(before.contains(&id.to_string()) && !before.contains(&other.to_string()));
    let good = many(&before, "checked");
    let with = |name: &str, value: String| {
        let mut form = good.clone();
        let fields = form.iter_mut().filter(|it| it.0 == name);
        fields.for_each(|it| it.1.clone_from(&value));
        form
    };
    let foreign = site.idem.records().get(&other).await.unwrap().unwrap();
    let foreign = foreign.observation().to_string();
    let cases = [
        ("cross-site", few, good.clone(), StatusCode::FORBIDDEN),
        ("same-origin", READER, good.clone(), StatusCode::FORBIDDEN),
        ("same-origin", ANN, good.clone(), StatusCode::FORBIDDEN),
        (
            "same-origin",
            few,
            with("token", String::new()),
            StatusCode::FORBIDDEN,
        ),
        (
            "same-origin",
            few,
            with("observed", foreign),
            StatusCode::FORBIDDEN,
        ),
        (
            "same-origin",
            few,
            with("action", "release".into()),
            StatusCode::FORBIDDEN,
        ),
        (
            "same-origin",
            few,
            good[..2].to_vec(),
            StatusCode::UNPROCESSABLE_ENTITY,
        ),
    ];
    for (from, operator, form, status) in cases {
        let sent = borrowed(&form);
        let answer = site.post_from(from, operator, "/bulk/apply", &sent);
        assert_eq!(answer.await.status, status, "{from} {operator} {form:?}");
    }
    assert!(site.entries().await.is_empty());
    assert_eq!(site.state(&id).await, Some(RecordState::Interrupted));
}
