//! Where the console is mounted, under which hosts it answers, and what it says to odd input and to rows that were edited.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use http::{Request, StatusCode, header};
use idem_console::Console;
use idem_runtime::operator::OperatorStore;
use idem_runtime::{Idem, SqliteStore};

use super::{ANN, Answer, READER, Site, field, guard};

/// A console under `/ops/idem`, for some hosts, on its own or below another router.
async fn for_hosts(hosts: &[&str], is_nested: bool) -> Site {
    let idem = Idem::new(Site::in_memory().await);
    let console = Console::new(&idem, guard).allowed_hosts(hosts.iter().copied());
    let app = match is_nested {
        true => Router::new().nest("/ops", console.at("/idem/")),
        false => Router::new().merge(console.at("/ops/idem")),
    };
    Site { idem, app }
}

async fn get(site: &Site, host: &str, path: &str) -> Answer {
    let request = Request::get(path).header(header::HOST, host);
    let request = request.header("operator", READER).body(Body::empty());
    site.send(request.unwrap()).await
}

#[tokio::test]
async fn only_the_allowed_hosts_lead_to_the_console() {
    for is_nested in [false, true] {
        let site = for_hosts(&["localhost", "ops.example:8443"], is_nested).await;
        for host in ["localhost", "localhost:3000", "ops.example:8443"] {
            assert_eq!(
                get(&site, host, "/ops/idem").await.status,
                StatusCode::OK,
                "{host}"
            );
        }
        for path in ["/ops/idem", "/ops/idem/records", "/ops/idem/search"] {
            let answer = get(&site, "evil.example", path).await;
            assert_eq!(answer.status, StatusCode::MISDIRECTED_REQUEST, "{path}");
            assert!(answer.body.contains("allowed hosts"), "{}", answer.body);
        }
        // A slash at the end leads to the same page, and to no other host.
        let slash = get(&site, "localhost", "/ops/idem/").await;
        assert_eq!(slash.headers[header::LOCATION], "/ops/idem");
        assert_eq!(
            get(&site, "localhost", "//evil.example/ops/idem/")
                .await
                .status,
            404
        );
    }
}

#[tokio::test]
async fn a_form_over_http_2_is_known_by_the_host_of_its_uri() {
    let site = Site::sqlite().await;
    let id = site.interrupted("", "k").await;
    let page = site.get(ANN, &format!("/records/{id}")).await;
    let change = async |origin: &str| {
        let fields = ["token", "observed"].map(|name| (name, field(&page.body, name)));
        let form = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(&fields)
            .extend_pairs([("action", "release"), ("reason", "asked")])
            .finish();
        let request = Request::post(format!("https://ops.example/idem/records/{id}/change"))
            .header("operator", ANN)
            .header(header::ORIGIN, origin)
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        site.send(request.body(Body::from(form)).unwrap())
            .await
            .status
    };
    assert_eq!(change("https://evil.example").await, StatusCode::FORBIDDEN);
    assert_eq!(change("https://ops.example").await, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn a_key_that_was_copied_with_blanks_is_found_and_blanks_of_a_key_are_seen() {
    let site = Site::sqlite().await;
    let operation = format!("letters.{}", super::HOSTILE);
    let plain = site.interrupted("", "order-1").await;
    let blank = site.interrupted("", " ").await;
    let padded = site.interrupted("", "order-2 ").await;
    for (key, id) in [
        ("order-1", plain),
        (" order-1\t", plain),
        (" ", blank),
        ("order-2 ", padded),
    ] {
        let form = [("operation", operation.as_str()), ("key", key)];
        let found = site.post(READER, "/search", &form).await;
        let location = &found.headers[header::LOCATION];
        assert_eq!(location, &format!("/idem/records/{id}"), "{key:?}");
    }
    let page = site.get(READER, "/records").await.body;
    for key in [">order-1<", ">&quot; &quot;<", ">&quot;order-2 &quot;<"] {
        assert!(page.contains(key), "no {key} in {page}");
    }
}

#[tokio::test]
async fn a_selection_that_does_not_exist_is_refused_by_a_page() {
    let site = Site::sqlite().await;
    for path in ["/records?state=bogus", "/audit?hours=-1", "/audit?hours=x"] {
        let refused = site.get(READER, path).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{path}");
        assert!(refused.body.contains("</html>"), "{path}: {}", refused.body);
    }
    for path in [
        "/records?state=",
        "/records?state=running",
        "/audit?hours=1",
    ] {
        assert_eq!(
            site.get(READER, path).await.status,
            StatusCode::OK,
            "{path}"
        );
    }
}

/// An operator of single scopes does not hear of it, because the scope of such a record is uncertain.
#[tokio::test]
async fn a_row_that_was_edited_fails_no_page_and_is_named() {
    let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1);
    let pool = pool.connect("sqlite::memory:").await.unwrap();
    let store = SqliteStore::new(pool.clone());
    store.migrate().await.unwrap();
    let site = Site::on(Arc::new(store) as Arc<dyn OperatorStore>, None);
    let id = site.interrupted("a", "edited").await;
    site.interrupted("a", "good").await;
    let edit = "UPDATE idem_records SET operation = 'renamed' WHERE idempotency_key = 'edited'";
    sqlx::query(edit).execute(&pool).await.unwrap();
    for path in ["/records", "/stuck"] {
        let page = site.get(READER, path).await;
        assert_eq!(page.status, StatusCode::OK, "{path}");
        for part in ["good", "1 records cannot be read", &id.to_string()] {
            assert!(page.body.contains(part), "no {part} in {}", page.body);
        }
        let page = site.get("eve scope=a", path).await.body;
        assert!(
            page.contains("good") && !page.contains(&id.to_string()),
            "{page}"
        );
    }
}
