//! Lists of records: what they select, their order, the ways through their pages, and the files of them.

use std::time::Duration;

use http::{StatusCode, header};
use idem_runtime::key::{Identity, Operation, RecordId};
use idem_runtime::operator::OptionalIndex;
use idem_runtime::record::{ClaimId, Digest, OwnerLabel};
use idem_runtime::store::{ClaimOutcome, ClaimRequest};
use idem_runtime::{Key, OnCrash, Scope, Store as _};
use idem_tests::on_stores;

use super::{ANN, HOSTILE, READER, Site};

on_stores! { [operators] Site::open:
    a_list_is_filtered_and_no_scope_is_in_its_url,
    records_are_listed_by_age_if_there_is_an_index,
    a_list_leads_back_page_by_page,
    every_number_of_the_overview_leads_to_its_records,
    a_file_has_what_the_list_shows,
}

async fn claim(site: &Site, scope: &str, operation: &str, key: &str, owner: &str) -> RecordId {
    let identity = Identity {
        scope: Scope::from_stored(scope),
        operation: Operation::new(operation.to_owned()).unwrap(),
        key: Key::new(key).unwrap(),
    };
    let claim = ClaimRequest {
        id: RecordId::of(&identity),
        identity,
        fingerprint: Digest::new(1, [0; 4], &[7; 32]),
        claim_id: ClaimId::random(),
        lease: Duration::from_secs(600),
        retention: Duration::from_secs(3600),
        on_crash: OnCrash::Refuse,
        owner_label: Some(OwnerLabel::new(owner).unwrap()),
        members: None,
    };
    let claimed = site.idem.store().claim(&claim).await.unwrap();
    assert!(matches!(claimed, ClaimOutcome::Granted(_)), "{claimed:?}");
    claim.id
}

/// Ids of the records in a table, in its order.
fn ids(page: &str) -> Vec<String> {
    let rows = page.split("<tr data-key=\"").skip(1);
    rows.filter_map(|it| it.get(..64).map(str::to_owned))
        .collect()
}

/// Path below the console of a link with this text.
fn link(page: &str, text: &str) -> String {
    let end = format!("\">{text}</a>");
    let (before, _) = page
        .split_once(&end)
        .unwrap_or_else(|| panic!("no {text:?} in {page}"));
    let (_, path) = before.rsplit_once("href=\"/idem").unwrap();
    path.replace("&amp;", "&")
}

/// Sends the form of a list, and reads the page to which it leads.
async fn selected(
    site: &Site,
    operator: &str,
    list: &str,
    form: &[(&str, &str)],
) -> (String, String) {
    let answer = site.post(operator, &format!("/{list}/select"), form).await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.body);
    let url = answer.headers[header::LOCATION]
        .to_str()
        .unwrap()
        .to_owned();
    let path = url.strip_prefix("/idem").unwrap().to_owned();
    let page = site.get(operator, &path).await;
    assert_eq!(page.status, StatusCode::OK, "{}", page.body);
    (path, page.body)
}

async fn a_list_is_filtered_and_no_scope_is_in_its_url(site: Site) {
    let mine = claim(&site, "tenant-3/ann", "letters.post", "1", "web-1/7").await;
    let inner = claim(&site, "tenant-3/ann/x", "letters.post", "2", "web-2/7").await;
    let other = claim(&site, "tenant-4", "bills.pay", "3", "web-1/7").await;
    let none = claim(&site, "", "bills.pay", "4", "web-1/7").await;
    let sorted = |ids: &[RecordId]| {
        let mut ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
        ids.sort_unstable();
        ids
    };
    for (form, expected) in [
        (vec![], sorted(&[mine, inner, other, none])),
        (vec![("scope_text", " tenant-3/ann ")], sorted(&[mine])),
        (
            vec![("scope_text", "tenant-3/ann"), ("within", "1")],
            sorted(&[mine, inner]),
        ),
        (vec![("scope_text", "tenant-3")], vec![]),
        (vec![("owner", "web-1/7")], sorted(&[mine, other, none])),
        (
            vec![("owner", "web-1/7"), ("operation", "bills.pay")],
            sorted(&[other, none]),
        ),
        (vec![("state", "interrupted")], vec![]),
        (vec![("older_than", "3600")], vec![]),
        (
            vec![("newer_than", "3600"), ("state", "running")],
            sorted(&[mine, inner, other, none]),
        ),
    ] {
        let (path, page) = selected(&site, READER, "records", &form).await;
        let mut found = ids(&page);
        found.sort_unstable();
        assert_eq!(found, expected, "{form:?}: {path}");
        assert!(!path.contains("tenant"), "{path}");
        // The form shows what was chosen.
        for (_, value) in form.iter().filter(|it| it.0 == "scope_text") {
            assert!(
                page.contains(&format!("value=\"{}\"", value.trim())),
                "{page}"
            );
        }
        let is_search = form
            .iter()
            .any(|it| ["scope_text", "owner"].contains(&it.0));
        assert_eq!(page.contains("No index serves"), is_search, "{page}");
    }
    // A scope in the table leads to its records. The link is for one operator.
    let page = site.get(READER, "/records").await.body;
    let path = link(&page, "tenant-3/ann");
    assert_eq!(ids(&site.get(READER, &path).await.body), sorted(&[mine]));
    assert_eq!(site.get(ANN, &path).await.status, StatusCode::BAD_REQUEST);
    // Nothing is told of a scope that the operator does not see.
    let bob = "bob scope=tenant-4";
    for form in [
        [("scope_text", "tenant-3/ann"), ("within", "1")],
        [("scope_text", "tenant"), ("within", "1")],
    ] {
        let (_, page) = selected(&site, bob, "records", &form).await;
        assert_eq!(ids(&page), Vec::<String>::new());
        assert!(page.contains("No record matches"), "{page}");
    }
    let (_, page) = selected(&site, bob, "records", &[("scope_text", "tenant-4")]).await;
    assert_eq!(ids(&page), sorted(&[other]));
    for path in [
        "/records?order=sideways",
        "/records?older_than=-1",
        "/records?older_than=x",
        "/records?operation=%00",
        "/records?scope=00",
    ] {
        let answer = site.get(READER, path).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}");
    }
    let long = "/records?older_than=18446744073709551615&newer_than=18446744073709551615";
    assert_eq!(site.get(READER, long).await.status, StatusCode::OK);
    let form = [("scope_text", "tenant-4")];
    let foreign = site.post_from("cross-site", READER, "/records/select", &form);
    assert_eq!(foreign.await.status, StatusCode::FORBIDDEN);
}

async fn records_are_listed_by_age_if_there_is_an_index(site: Site) {
    let mut claimed = Vec::new();
    for number in 0..60 {
        let id = claim(&site, "", "letters.post", &format!("k{number}"), "w").await;
        claimed.push(id.to_string());
    }
    let unordered = site.get(READER, "/records?order=newest").await.body;
    assert!(
        unordered.contains("The store has no index of ages"),
        "{unordered}"
    );
    assert!(
        unordered.contains("In the order of the store"),
        "{unordered}"
    );
    let store = site.idem.store();
    store.create_index(OptionalIndex::Age).await.unwrap();
    if store.index(OptionalIndex::Age).await.unwrap().is_none() {
        // A Redis store has no indexes.
        return;
    }
    for (order, caption) in [
        ("newest", "The newest first"),
        ("oldest", "The oldest first"),
    ] {
        let path = format!("/records?order={order}&operation=letters.post");
        let first = site.get(READER, &path).await.body;
        assert!(
            first.contains(caption) && !first.contains("no index"),
            "{first}"
        );
        let next = format!("{path}&after={}", super::field(&first, "after"));
        let second = site.get(READER, &next).await.body;
        let mut found = [ids(&first), ids(&second)].concat();
        let mut times = Vec::new();
        for id in &found {
            let id = id.parse::<RecordId>().unwrap();
            let record = site.idem.records().get(&id).await.unwrap().unwrap();
            times.push(record.first_claimed_at);
        }
        if order == "newest" {
            times.reverse();
        }
        assert!(times.is_sorted(), "{order}: {times:?}");
        found.sort_unstable();
        claimed.sort_unstable();
        assert_eq!(found, claimed);
        // The position is one of this order alone.
        let other = next.replace(order, "");
        let answer = site.get(READER, &other).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    }
}

async fn a_list_leads_back_page_by_page(site: Site) {
    for number in 0..160 {
        site.interrupted("a", &format!("k{number}")).await;
    }
    let mut pages = vec![site.get(READER, "/records?state=interrupted").await.body];
    assert!(!pages[0].contains("First page"));
    while pages.last().unwrap().contains("Next page") {
        let after = super::field(pages.last().unwrap(), "after");
        let path = format!("/records?state=interrupted&after={after}");
        pages.push(site.get(READER, &path).await.body);
    }
    assert!(pages.len() >= 4, "{}", pages.len());
    let all: Vec<_> = pages.iter().map(|page| ids(page)).collect();
    let mut page = pages.pop().unwrap();
    for before in all[1..all.len() - 1].iter().rev() {
        page = site.get(READER, &link(&page, "Previous page")).await.body;
        assert_eq!(ids(&page), *before);
    }
    assert!(!page.contains("Previous page"), "{page}");
    let path = link(&page, "First page");
    assert_eq!(path, "/records?state=interrupted");
}

async fn every_number_of_the_overview_leads_to_its_records(site: Site) {
    claim(&site, "", "bills.pay", "1", "w").await;
    let stuck = site.interrupted("", "2").await;
    let page = site.get(READER, "").await.body;
    let links: Vec<_> = page
        .split("href=\"/idem/")
        .skip(1)
        .map(|it| it.split('"').next().unwrap().replace("&amp;", "&"))
        .filter(|it| it.starts_with("records?") || it.starts_with("stuck?"))
        .collect();
    // Each operation, each state of it, the stuck ones, and all interrupted records.
    assert_eq!(links.len(), 6, "{links:?}");
    for path in links {
        let list = site.get(READER, &format!("/{path}")).await;
        assert_eq!(list.status, StatusCode::OK, "{path}");
        let found = ids(&list.body);
        assert_eq!(found.len(), 1, "{path}");
        if path.contains("interrupted") || path.starts_with("stuck") {
            assert_eq!(found, [stuck.to_string()]);
        }
    }
}

async fn a_file_has_what_the_list_shows(site: Site) {
    let formula = "=HYPERLINK(\"http://evil\")";
    let mine = claim(&site, "tenant-3", "letters.post", formula, "web-1").await;
    claim(&site, "tenant-4", "letters.post", "other", "web-1").await;
    for number in 0..700 {
        claim(&site, "tenant-3", "bills.pay", &format!("k{number}"), "w").await;
    }
    let csv = "/records/export?format=csv&operation=letters.post";
    for (operator, lines) in [(READER, 3), ("bob scope=tenant-3", 2)] {
        let file = site.get(operator, csv).await;
        assert_eq!(file.status, StatusCode::OK);
        assert_eq!(
            file.headers[header::CONTENT_TYPE],
            "text/csv; charset=utf-8"
        );
        let disposition = &file.headers[header::CONTENT_DISPOSITION];
        assert_eq!(disposition, "attachment; filename=\"records.csv\"");
        let body = &file.body;
        assert_eq!(body.matches("\r\n").count(), lines, "{body}");
        let cell = "\"'=HYPERLINK(\"\"http://evil\"\")\"";
        assert!(
            body.contains(cell) && body.contains(&mine.to_string()),
            "{body}"
        );
        assert_eq!(body.contains("tenant-4"), operator == READER, "{body}");
    }
    // Several pages of the store.
    let file = site.get(READER, "/records/export?format=json").await.body;
    let file: serde_json::Value = serde_json::from_str(&file).unwrap();
    let records = file["records"].as_array().unwrap();
    assert_eq!(records.len(), 702);
    assert_eq!(
        (&file["is_complete"], &file["unreadable"]),
        (&true.into(), &0.into())
    );
    let found = records.iter().find(|it| it["key"] == formula).unwrap();
    assert_eq!(found["id"], mine.to_string());
    let empty = site.get("bob", "/stuck/export?format=json").await.body;
    let empty: serde_json::Value = serde_json::from_str(&empty).unwrap();
    assert_eq!(empty["records"], serde_json::json!([]));
    let wrong = site.get(READER, "/records/export?format=exe").await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
    let anonymous = http::Request::get("/idem/records/export?format=csv");
    let anonymous = anonymous.body(axum::body::Body::empty()).unwrap();
    assert_eq!(site.send(anonymous).await.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_page_says_where_it_is_and_what_it_shows() {
    let site = Site::sqlite().await;
    let id = site.interrupted("tenant-3", "order-1").await;
    for (path, current, title) in [
        ("", "Overview", "Overview".to_owned()),
        ("/records", "Records", "Records".to_owned()),
        ("/stuck", "Stuck", "Stuck".to_owned()),
        ("/search", "Search", "Search".to_owned()),
        ("/audit", "Changes", "Changes".to_owned()),
        (
            &*format!("/records/{id}"),
            "Records",
            "interrupted letters.&lt;script&gt;".to_owned(),
        ),
    ] {
        let page = site.get(ANN, path).await.body;
        let marked = format!("aria-current=\"page\">{current}</a>");
        assert!(page.contains(&marked), "{path}: {page}");
        assert_eq!(page.matches("aria-current").count(), 1, "{path}");
        assert!(page.contains(&format!("<title>{title}")), "{path}: {page}");
        let (head, _) = page.split_once("</head>").unwrap();
        assert!(
            !head.contains("order-1") && !head.contains(HOSTILE),
            "{head}"
        );
    }
    let record = site.get(ANN, &format!("/records/{id}")).await.body;
    assert!(record.contains(&format!("{} · idem</title>", &id.to_string()[..8])));
    assert!(record.contains("<time datetime=\"20"), "{record}");
    // What nothing undoes looks like it, and asks.
    assert!(
        record.contains("<button class=\"danger\">erase</button>"),
        "{record}"
    );
    assert_eq!(
        record.matches("name=\"sure\" value=\"1\" required").count(),
        1
    );
}
