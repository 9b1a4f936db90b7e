//! `connect(url)` of each store: an error names what is wrong, and never the password of the URL.

use std::error::Error;
use std::time::Duration;

use idem_runtime::error::{StoreError, StoreErrorKind};
use idem_runtime::{MySqlStore, PostgresStore, RedisStore, SqliteStore};
use idem_servers::{Options, Server};
use sqlx::Database;
use sqlx::pool::PoolOptions;

const PASSWORD: &str = "geheim";

/// Everything that an operator or a log may see of an error.
pub(crate) fn shown(error: &StoreError) -> String {
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

/// The defaults that the documentation of `connect` names.
fn assert_defaults<DB: Database>(options: &PoolOptions<DB>, connections: u32) {
    assert_eq!(options.get_max_connections(), connections);
    assert_eq!(options.get_min_connections(), 0);
    assert_eq!(options.get_acquire_timeout(), Duration::from_secs(5));
    assert_eq!(options.get_idle_timeout(), Some(Duration::from_secs(180)));
    let lifetime = Some(Duration::from_secs(1800));
    assert_eq!(options.get_max_lifetime(), lifetime);
    assert!(!options.get_test_before_acquire());
}

#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_pool_of_postgres_has_the_documented_defaults() {
    let server = Server::postgres(&Options::fast()).unwrap();
    let store = PostgresStore::connect(&server.url()).await.unwrap();
    assert_defaults(store.pool().options(), 16);
}

#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn a_pool_of_mysql_has_the_documented_defaults() {
    let server = Server::maria_db(&Options::fast()).unwrap();
    let store = MySqlStore::connect(&server.url()).await.unwrap();
    assert_defaults(store.pool().options(), 10);
}

#[tokio::test]
async fn a_pool_of_sqlite_has_the_documented_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("records").display());
    let store = SqliteStore::connect(&url).await.unwrap();
    let options = store.pool().options();
    assert_eq!(options.get_max_connections(), 5);
    assert_eq!(options.get_acquire_timeout(), Duration::from_secs(5));
    assert_eq!(options.get_idle_timeout(), Some(Duration::from_secs(600)));
    assert_eq!(options.get_max_lifetime(), Some(Duration::from_secs(1800)));
}
