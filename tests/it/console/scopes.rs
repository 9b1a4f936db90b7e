//! Operators who see single scopes, and lists in pages.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use http::StatusCode;
use idem_runtime::Store as _;
use idem_runtime::record::RecordState;
use idem_tests::on_stores;

use super::{ANN, BOB, Site, borrowed, field, form};

on_stores! { [operators] Site::open:
    an_operator_sees_only_the_scopes_of_the_guard,
    an_operator_of_single_scopes_learns_no_number_of_others,
    a_list_continues_where_its_page_ended,
    a_key_is_searched_in_all_operations,
}

async fn an_operator_sees_only_the_scopes_of_the_guard(site: Site) {
    let mine = site.interrupted("tenant-3/ann", "mine").await;
    let other = site.interrupted("tenant-33", "other-key").await;
    let seen = site.get(BOB, &format!("/records/{other}")).await;
    let form = [
        ("token", field(&seen.body, "token")),
        ("observed", field(&seen.body, "observed")),
        ("action", "release".to_owned()),
        ("reason", "checked".to_owned()),
    ];
    let form = form.each_ref().map(|(name, value)| (*name, value.as_str()));
    let bob = "bob change scope=tenant-3";
    assert_eq!(
        site.get(bob, &format!("/records/{mine}")).await.status,
        StatusCode::OK
    );
    assert_eq!(
        site.get(bob, &format!("/records/{other}")).await.status,
        StatusCode::NOT_FOUND
    );
    let denied = site
        .post(bob, &format!("/records/{other}/change"), &form)
        .await;
    assert_eq!(denied.status, StatusCode::NOT_FOUND);
    assert_eq!(site.state(&other).await, Some(RecordState::Interrupted));
    // A record of another scope and no record are answered after the same time.
    let nothing = "0".repeat(64);
    for id in [other.to_string(), nothing, "no-id".to_owned()] {
        let began = Instant::now();
        let missing = site.get(bob, &format!("/records/{id}")).await;
        assert_eq!(missing.status, StatusCode::NOT_FOUND);
        assert!(began.elapsed() >= Duration::from_millis(25), "{id}");
    }
    for path in ["/records", "/stuck"] {
        let list = site.get(bob, path).await.body;
        assert!(
            list.contains(">mine<") && !list.contains("other-key"),
            "{list}"
        );
        assert!(!site.get("bob", path).await.body.contains(">mine<"));
    }
    assert!(!site.get(bob, "").await.body.contains("Over time"));
    let made = site
        .post(BOB, &format!("/records/{other}/change"), &form)
        .await;
    assert_eq!(made.status, StatusCode::SEE_OTHER);
    let audit = site.get(bob, "/audit").await.body;
    assert!(
        !audit.contains("other-key") && !audit.contains("checked"),
        "{audit}"
    );
}

/// A search without an operation finds the key of a scope, also in the form of the header, and nothing of other scopes.
async fn a_key_is_searched_in_all_operations(site: Site) {
    let id = site.interrupted("tenant-3/ann", "order 1").await;
    site.interrupted("tenant-33", "order 1").await;
    let record = site.idem.records().get(&id).await.unwrap().unwrap();
    let operations = site.idem.store().operations().unwrap();
    operations
        .note_operation(&record.identity.operation)
        .await
        .unwrap();
    for (operator, scope, key, is_found) in [
        (BOB, "tenant-3\r\nann", "order 1", true),
        (BOB, "tenant-3\r\nann", "\"order 1\"", true),
        (BOB, "tenant-3", "order 1", false),
        ("bob scope=tenant-3", "tenant-3\r\nann", "order 1", true),
        ("bob scope=tenant-33", "tenant-3\r\nann", "order 1", false),
        (BOB, "", "order 1", false),
    ] {
        let form = [("key", key), ("scope", scope)];
        let found = site.post(operator, "/search", &form).await;
        assert_eq!(found.status, StatusCode::OK);
        let is_listed = found.body.contains(&id.to_string());
        assert_eq!(is_listed, is_found, "{operator} {scope:?} {key}");
    }
}

/// Every page is the same, whatever there is in other scopes.
async fn an_operator_of_single_scopes_learns_no_number_of_others(site: Site) {
    let bob = "bob scope=tenant-3";
    site.interrupted("tenant-3/ann", "mine").await;
    let paths = ["", "/records", "/stuck", "/audit", "/search", "/outbox"];
    let mut before = Vec::new();
    for path in paths {
        before.push(without_times(&site.get(bob, path).await.body));
    }
    for number in 0..70 {
        let id = site
            .interrupted("tenant-4", &format!("other {number}"))
            .await;
        let page = format!("/records/{id}");
        if number < 60 {
            let released = form(&site.get(ANN, &page).await.body, "release", "checked");
            let made = site
                .post(ANN, &format!("{page}/change"), &borrowed(&released))
                .await;
            assert_eq!(made.status, StatusCode::SEE_OTHER);
        }
    }
    // An operator of all scopes lets the records be counted.
    assert!(site.get(ANN, "").await.body.contains("Over time"));
    for (path, before) in paths.into_iter().zip(before) {
        let now = without_times(&site.get(bob, path).await.body);
        assert_eq!(now, before, "{path}");
    }
}

/// The page without the ages in it.
fn without_times(page: &str) -> String {
    let mut parts = page.split("data-label=\"Age\">");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        kept.push_str(part.split_once('<').map_or("", |(_, rest)| rest));
    }
    kept
}

async fn a_list_continues_where_its_page_ended(site: Site) {
    let mut wanted = BTreeSet::new();
    for number in 0..120 {
        wanted.insert(
            site.interrupted("a", &format!("k{number}"))
                .await
                .to_string(),
        );
    }
    let (mut seen, mut path) = (BTreeSet::new(), "/records?state=interrupted".to_owned());
    let mut pages = 0;
    let first = site.get(ANN, &path).await.body;
    let after = field(&first, "after");
    loop {
        let page = site.get(ANN, &path).await;
        assert_eq!(page.status, StatusCode::OK, "{}", page.body);
        for id in page.body.split("<tr data-key=\"").skip(1) {
            assert!(seen.insert(id[..64].to_owned()), "{id} is on two pages");
        }
        pages += 1;
        if !page.body.contains("Next page") {
            break;
        }
        // The position is no id: that of another operator's record may be in it.
        let next = field(&page.body, "after");
        assert!(
            !wanted.iter().any(|id| next.contains(id.as_str())),
            "{next}"
        );
        path = format!("/records?state=interrupted&after={next}");
    }
    assert_eq!(seen, wanted);
    assert!(pages >= 3, "{pages}");
    for (operator, path) in [
        (BOB, format!("/records?after={after}")),
        (ANN, format!("/audit?after={after}")),
        (ANN, "/records?after=17".to_owned()),
        (
            ANN,
            format!("/records?after={}0", &after[..after.len() - 1]),
        ),
    ] {
        let answer = site.get(operator, &path).await;
        // The last digit may have been a zero.
        assert!(
            answer.status == StatusCode::BAD_REQUEST || after.ends_with('0') && path.ends_with('0'),
            "{path}"
        );
    }
}
