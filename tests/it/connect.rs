//! `connect(url)` of each store: an error names what is wrong, and never the password of the URL.

use std::error::Error;

use idem_runtime::error::{StoreError, StoreErrorKind};
use idem_runtime::{MySqlStore, PostgresStore, RedisStore, SqliteStore};

const PASSWORD: &str = "geheim";

/// Everything that an operator or a log may see of an error.
fn shown(error: &StoreError) -> String {
    let mut shown = format!("{error} {error:?} {error:#?}");
    let mut source = error.source();
    while let Some(cause) = source {
        shown.push_str(&format!(" {cause} {cause:?}"));
        source = cause.source();
    }
    shown
}

fn assert_secret<S: std::fmt::Debug>(connected: Result<S, StoreError>, url: &str) {
    let error = connected.expect_err(url);
    let shown = shown(&error);
    assert!(!shown.contains(PASSWORD), "{url} is shown as {shown}");
    assert!(error.to_string().len() > 20, "{url}: {error}");
}

/// URLs with a mistake, and one on whose port nothing listens.
fn urls(scheme: &str) -> Vec<String> {
    [
        "127.0.0.1:1/shop",
        "127.0.0.1:port/shop",
        "127.0.0.1:99999/shop",
        "[::1/shop",
        "127.0.0.1:1/shop?sslmode=loose&ssl-mode=loose&protocol=loose",
        "127.0.0.1:1/%ff",
    ]
    .iter()
    .map(|rest| format!("{scheme}://ann:{PASSWORD}@{rest}"))
    .chain([format!("ann:{PASSWORD}@db")])
    .collect()
}

#[tokio::test]
async fn an_error_of_connecting_never_shows_the_password() {
    for url in urls("postgres") {
        assert_secret(PostgresStore::connect(&url).await, &url);
    }
    for url in urls("mysql") {
        assert_secret(MySqlStore::connect(&url).await, &url);
    }
    for url in urls("redis") {
        assert_secret(RedisStore::connect(&url).await, &url);
    }
    for url in urls("redis") {
        assert_secret(RedisStore::connect_cluster([url.as_str()]).await, &url);
    }
    for url in urls("postgres") {
        assert_secret(SqliteStore::connect(&url).await, &url);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_accepts_and_stays_silent_is_reported() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let postgres = PostgresStore::connect(&format!("postgres://ann@{address}/shop")).await;
    let mysql = MySqlStore::connect(&format!("mysql://ann@{address}/shop")).await;
    for error in [postgres.unwrap_err(), mysql.unwrap_err()] {
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("did not answer in time"));
    }
}
