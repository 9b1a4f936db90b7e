//! Passwords that change while calls run: calls are refused with errors that are retryable, and go on once the pool has the new
//! password.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use idem_runtime::error::StoreErrorKind;
use idem_runtime::http::Problem;
use idem_runtime::{Call, Error, Idem, MySqlStore, PostgresStore, RedisStore, Store};
use idem_servers::{Options, Server};
use idem_tests::until;

const TTL: Duration = Duration::from_secs(600);
/// Number of callers.
const CALLERS: usize = 8;

/// What became of the calls of all callers.
#[derive(Default)]
struct Seen {
    successes: AtomicU32,
    refusals: AtomicU32,
    effects: AtomicU32,
    is_over: AtomicBool,
}

/// Makes calls with keys of its own until the test is over, each of them until it succeeds.
async fn keep_calling<S: Store>(idem: &Idem<S>, caller: usize, seen: &Seen) {
    let mut number = 0;
    while !seen.is_over.load(Ordering::SeqCst) {
        let key = format!("{caller}-{number}");
        let call = || Call::new("rotation.call", &*key, "request", TTL);
        let body = async || {
            seen.effects.fetch_add(1, Ordering::SeqCst);
            Ok::<_, Error>(number)
        };
        let error = match idem.run(call(), body).await {
            Ok(value) => {
                assert_eq!(value, number);
                number += 1;
                seen.successes.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            Err(error) => error,
        };
        assert!(error.is_retryable(), "{error:?}");
        if let Error::Store(refused) = &error
            && refused.kind() == StoreErrorKind::Denied
        {
            seen.refusals.fetch_add(1, Ordering::SeqCst);
            let problem = Problem::from(error);
            assert_eq!(problem.kind().status().as_u16(), 503);
            assert!(problem.is_retryable());
            // The header `Retry-After` of the response.
            assert!(problem.retry_after().is_some());
        }
        tokio::task::yield_now().await;
    }
}

/// Changes the password of the server under load, and gives it to the pool once calls were refused. No call is lost, and
/// none has its effect twice.
async fn rotate<S: Store>(store: S, change_on_server: impl Fn(), refresh: impl Fn(&S)) {
    let (idem, seen) = (Idem::new(store), Seen::default());
    let callers = (0..CALLERS).map(|caller| keep_calling(&idem, caller, &seen));
    let rotation = async {
        let more_successes = async || {
            let enough = seen.successes.load(Ordering::SeqCst) + 5 * CALLERS as u32;
            until(async || seen.successes.load(Ordering::SeqCst) >= enough).await;
        };
        more_successes().await;
        change_on_server();
        until(async || seen.refusals.load(Ordering::SeqCst) > 0).await;
        refresh(idem.store());
        more_successes().await;
        seen.is_over.store(true, Ordering::SeqCst);
    };
    tokio::join!(rotation, join_all(callers));
    assert_eq!(seen.effects.into_inner(), seen.successes.into_inner());
}

/// A server that checks passwords, as it does not for the tests' own client on its socket.
#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn postgres_calls_go_on_with_the_new_password() {
    let server = Server::postgres(&Options::fast()).unwrap();
    for statement in [
        "SET password_encryption = 'scram-sha-256'; CREATE ROLE app LOGIN PASSWORD 'old'",
        "GRANT ALL ON SCHEMA public TO app",
    ] {
        server.query(statement).unwrap();
    }
    let rules = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
    std::fs::write(server.directory().join("data/pg_hba.conf"), rules).unwrap();
    server.query("SELECT pg_reload_conf()").unwrap();
    let url = server.url().replace("postgres@", "app:old@");
    // The server reads its rules a moment after it was told to.
    let unchecked = server.url().replace("postgres@", "app:wrong@");
    until(async || PostgresStore::connect(&unchecked).await.is_err()).await;

    let store = PostgresStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    let change = || {
        let change = "SET password_encryption = 'scram-sha-256'; ALTER ROLE app PASSWORD 'new'; \
                      SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'";
        server.query(change).unwrap();
    };
    let refresh = |store: &PostgresStore| {
        let options = store.pool().connect_options();
        let options = options.as_ref().clone().password("new");
        store.pool().set_connect_options(options);
    };
    rotate(store, change, refresh).await;

    let first = PostgresStore::connect(&url).await.unwrap_err();
    assert_eq!(first.kind(), StoreErrorKind::Denied);
    assert!(!first.is_retryable(), "nobody has accepted it before");
}

async fn mysql_calls_go_on(server: &Server) {
    for statement in [
        "CREATE DATABASE app",
        "CREATE USER app IDENTIFIED BY 'old'",
        "GRANT ALL ON app.* TO app",
    ] {
        server.query(statement).unwrap();
    }
    let url = format!("mysql://app:old@127.0.0.1:{}/app", server.port());
    let store = MySqlStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    let change = || {
        server.query("ALTER USER app IDENTIFIED BY 'new'").unwrap();
        let sessions = "SELECT id FROM information_schema.processlist WHERE user = 'app'";
        for session in server.query(sessions).unwrap().lines() {
            // It may have ended.
            let _ = server.query(&format!("KILL {session}"));
        }
    };
    let refresh = |store: &MySqlStore| {
        let options = store.pool().connect_options();
        let options = options.as_ref().clone().password("new");
        store.pool().set_connect_options(options);
    };
    rotate(store, change, refresh).await;

    let first = MySqlStore::connect(&url).await.unwrap_err();
    assert_eq!(first.kind(), StoreErrorKind::Denied);
    assert!(!first.is_retryable(), "nobody has accepted it before");
}

#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn mariadb_calls_go_on_with_the_new_password() {
    let server = Server::maria_db(&Options::fast()).unwrap();
    mysql_calls_go_on(&server).await;
}

#[tokio::test]
#[ignore = "needs MySQL: cargo xtask test runs it"]
async fn mysql_calls_go_on_with_the_new_password() {
    if let Some(server) = Server::installed_my_sql(&Options::fast()).unwrap() {
        mysql_calls_go_on(&server).await;
    }
}

/// A store on Redis has one password for its life. A Redis user may have several.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn redis_calls_go_on_when_the_old_password_is_valid_again() {
    let server = Server::redis(&Options::fast()).unwrap();
    let user = "ACL SETUSER app on >old ~* &* +@all";
    server.query(user).unwrap();
    let url = server.url().replace("redis://", "redis://app:old@");
    let store = RedisStore::connect(&url).await.unwrap();
    let (idem, seen) = (Idem::new(store), AtomicU32::new(0));
    let call = async || {
        let key = seen.fetch_add(1, Ordering::SeqCst).to_string();
        let call = Call::new("rotation.call", &*key, "request", TTL);
        idem.run(call, async || Ok::<_, Error>(())).await
    };
    call().await.unwrap();

    server.query("ACL SETUSER app resetpass >new").unwrap();
    // Without effect on connections that have logged in.
    call().await.unwrap();
    server.query("CLIENT KILL USER app").unwrap();
    let refused = call().await.unwrap_err();
    assert!(refused.is_retryable(), "{refused:?}");

    server.query("ACL SETUSER app >old").unwrap();
    until(async || call().await.is_ok()).await;
}
