//! Who may send which request, what a request costs, and what happens if its sender leaves.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use axum::body::Body;
use http::{Request, StatusCode, header};
use idem_runtime::SqliteStore;
use idem_runtime::outbox::Outbox;
use idem_runtime::record::RecordState;

use super::{ANN, BOB, HOSTILE, READER, Site, borrowed, form};

#[tokio::test]
async fn the_guard_decides_about_every_page() {
    let outbox = Outbox::new(&SqliteStore::in_memory().await.unwrap());
    let site = Site::with_outbox(&outbox).await;
    let id = site.interrupted("a", "k").await;
    let record = format!("/records/{id}");
    let paths = [
        "",
        "/records",
        "/stuck",
        "/audit",
        "/search",
        "/outbox",
        "/outbox/audit",
        &record,
        &format!("{record}/payload"),
    ];
    for path in paths {
        let request = Request::get(format!("/idem{path}"))
            .body(Body::empty())
            .unwrap();
        assert_eq!(
            site.send(request).await.status,
            StatusCode::UNAUTHORIZED,
            "{path}"
        );
    }
    for path in [&format!("{record}/change")[..], "/search", "/outbox/change"] {
        let request = Request::post(format!("/idem{path}"))
            .body(Body::empty())
            .unwrap();
        let status = site.send(request).await.status;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{path}");
    }
    let page = site.get(READER, &record).await;
    assert_eq!(page.status, StatusCode::OK);
    assert!(!page.body.contains("name=\"token\""), "{}", page.body);
}

#[tokio::test]
async fn the_search_redirects_to_an_id_and_puts_no_key_into_a_url() {
    let site = Site::sqlite().await;
    let id = site.interrupted("tenant-3/ann", "order 1").await;
    let operation = format!("letters.{HOSTILE}");
    let form = [
        ("operation", operation.as_str()),
        ("key", "order 1"),
        ("scope", "tenant-3\r\nann"),
    ];
    let found = site.post(READER, "/search", &form).await;
    assert_eq!(
        found.headers[header::LOCATION],
        format!("/idem/records/{id}")
    );
    let wrong = site
        .post(READER, "/search", &[("operation", "o"), ("key", "ä")])
        .await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
}

/// Polls a future this often, and drops it.
async fn polled<T>(polls: u32, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

#[tokio::test]
async fn a_browser_that_leaves_half_way_takes_nothing_with_it() {
    let site = Site::sqlite().await;
    let id = site.interrupted("", "k").await;
    let record = format!("/records/{id}");
    let payload = format!("{record}/payload");
    for path in ["", "/records", "/audit", &record, &payload] {
        // More often than reads may run at the same time: none of them keeps its place.
        let mut polls = 0;
        while polled(polls, site.get(ANN, path)).await.is_none() {
            polls += 1;
        }
        for _ in 0..10 {
            polled(0, site.get(ANN, path)).await;
        }
        assert_eq!(site.get(ANN, path).await.status, StatusCode::OK, "{path}");
    }
}

#[tokio::test]
async fn a_change_whose_sender_leaves_is_made_with_its_entry_or_not_at_all() {
    let site = Site::sqlite().await;
    for polls in 0.. {
        let id = site.interrupted("", &format!("k{polls}")).await;
        let record = format!("/records/{id}");
        let page = site.get(ANN, &record).await.body;
        let reason = format!("reason {polls}");
        let form = form(&page, "release", &reason);
        let (path, form) = (format!("{record}/change"), borrowed(&form));
        let answer = polled(polls, site.post(ANN, &path, &form)).await;
        // A change that was dropped may take effect a moment later.
        let begun = Instant::now();
        loop {
            let state = site.state(&id).await;
            let entry = format!("ann released: {reason}");
            let has_entry = site.entries().await.contains(&entry);
            if has_entry == (state == Some(RecordState::Released)) {
                break;
            }
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "{state:?} {has_entry}"
            );
            tokio::task::yield_now().await;
        }
        if let Some(answer) = answer {
            assert_eq!(answer.status, StatusCode::SEE_OTHER);
            assert!(polls > 0);
            break;
        }
    }
}

#[tokio::test]
async fn a_store_that_fails_is_a_503_and_its_answer_names_no_server() {
    let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1);
    let pool = pool.connect("sqlite::memory:").await.unwrap();
    let site = Site::on(Arc::new(SqliteStore::new(pool)), None);
    let id = "0".repeat(64);
    for path in ["/records", "/stuck", "/audit", &format!("/records/{id}")] {
        let answer = site.get(ANN, path).await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{path}");
        assert!(answer.body.contains("run `migrate()`"), "{}", answer.body);
        assert_eq!(answer.headers[header::CACHE_CONTROL], "no-store");
    }
    let counts = site.get(ANN, "").await;
    assert_eq!(counts.status, StatusCode::OK);
    assert!(
        counts.body.contains("could not be counted"),
        "{}",
        counts.body
    );
}

#[tokio::test]
async fn every_answer_has_the_headers() {
    let site = Site::sqlite().await;
    let wrong = format!(
        "/records/{}",
        HOSTILE.replace(['<', '>', '"', ' ', '/'], "x")
    );
    for (operator, path) in [
        (ANN, ""),
        (ANN, "/audit?hours=x"),
        (ANN, &wrong),
        ("", "/stuck"),
    ] {
        let answer = site.get(operator, path).await;
        for (name, value) in [
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("cross-origin-resource-policy", "same-origin"),
            ("cross-origin-opener-policy", "same-origin"),
            ("referrer-policy", "same-origin"),
        ] {
            assert_eq!(answer.headers[name], value, "{path}");
        }
    }
    // A selection that no record can match is an answer, and no error of the server.
    for path in [
        "/audit?hours=18446744073709551615",
        "/audit?hours=0",
        "/records?state=released",
    ] {
        assert_eq!(site.get(ANN, path).await.status, StatusCode::OK, "{path}");
    }
    for path in [
        "/audit?hours=-1",
        "/records?state=x",
        "/records?after=",
        "/records?after=%FF",
    ] {
        assert_eq!(
            site.get(ANN, path).await.status,
            StatusCode::BAD_REQUEST,
            "{path}"
        );
    }
    // A link that only says that a change was made is not believed.
    let id = site.interrupted("", "k").await;
    let page = site.get(ANN, &format!("/records/{id}?done=done")).await;
    assert!(!page.body.contains("The change was made"), "{}", page.body);
    let released = form(&page.body, "release", "checked");
    let path = format!("/records/{id}/change");
    site.post(ANN, &path, &borrowed(&released)).await;
    let done = format!("/records/{id}?done=done");
    assert!(
        site.get(ANN, &done)
            .await
            .body
            .contains("The change was made")
    );
    assert!(
        !site
            .get(BOB, &done)
            .await
            .body
            .contains("The change was made")
    );
}
