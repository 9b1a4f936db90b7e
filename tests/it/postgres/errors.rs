//! Failures that require a dedicated PostgreSQL: a required password, an encoding without checks, errors that the server
//! reports rarely, and a different service on the port.

use idem_runtime::error::StoreErrorKind;
use idem_runtime::store::ClaimOutcome;
use idem_runtime::{PostgresStore, Store};
use idem_servers::{Options, Server};
use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;

use super::{Database, assert_error, execute};
use crate::imposter::Imposter;
use crate::records::{claim, outcome, own};

#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_wrong_password_is_denied() {
    // Durable, since it is killed and restarted.
    let server = Server::postgres(&Options::durable()).unwrap();
    let make = "CREATE ROLE app LOGIN PASSWORD 'right'; GRANT ALL ON SCHEMA public TO app";
    server.query(make).unwrap();
    // The socket stays open for the tests' own client.
    let rules = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
    std::fs::write(server.directory().join("data/pg_hba.conf"), rules).unwrap();
    server.restart().unwrap();

    let url = |login: &str| server.url().replace("postgres@", &format!("{login}@"));
    for login in ["app:wrong", "app", "nobody:right"] {
        let error = PostgresStore::connect(&url(login)).await.unwrap_err();
        assert_error(&error, StoreErrorKind::Denied, "password");
        assert!(!error.is_retryable(), "{login}");
    }
    let store = PostgresStore::connect(&url("app:right")).await.unwrap();
    store.migrate().await.unwrap();
    own(&store, &claim("k")).await;
}

/// SQL_ASCII accepts any byte as text.
#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn text_that_is_not_utf8_is_corrupt() {
    let server = Server::postgres(&Options::fast()).unwrap();
    server
        .query("CREATE DATABASE bytes ENCODING 'SQL_ASCII' TEMPLATE template0")
        .unwrap();
    let options: PgConnectOptions = server.url().parse().unwrap();
    let pool = PgPool::connect_with(options.database("bytes"))
        .await
        .unwrap();
    let store = PostgresStore::new(pool.clone());
    store.migrate().await.unwrap();
    own(&store, &claim("k")).await;
    for column in ["scope", "operation", "idempotency_key", "state", "on_crash"] {
        let claim = claim(column);
        let owner = own(&store, &claim).await;
        store.complete(&owner, &outcome(b"1")).await.unwrap();
        let garble = format!(
            "SET client_encoding = 'SQL_ASCII'; UPDATE idem_records SET {column} = E'\\xff\\xfe' \
             WHERE idempotency_key = '{column}'; RESET client_encoding"
        );
        execute(&pool, &garble).await;
        for error in [
            store.get(&claim.id).await.unwrap_err(),
            store.claim(&claim).await.unwrap_err(),
        ] {
            assert_error(&error, StoreErrorKind::Corrupt, "repair it from a backup");
            assert!(!error.is_retryable());
        }
    }
    let answer = store.claim(&claim("k")).await.unwrap();
    assert!(
        matches!(answer, ClaimOutcome::Existing(_)),
        "others are left alone"
    );
}

/// Errors that the server reports rarely, raised by a trigger under the key of the record.
#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_full_table_of_locks_and_an_idle_session_are_named() {
    let database = Database::new().await;
    let store = database.store().await;
    let raise = "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS \
                 $$BEGIN RAISE EXCEPTION 'x' USING ERRCODE = NEW.idempotency_key; END$$; \
                 CREATE TRIGGER fail BEFORE INSERT ON idem_records FOR EACH ROW \
                 WHEN (NEW.idempotency_key IN ('53200', '57P05')) EXECUTE FUNCTION fail()";
    execute(store.pool(), raise).await;
    for (code, kind, says) in [
        ("53200", StoreErrorKind::Full, "table of locks"),
        ("57P05", StoreErrorKind::Unavailable, "idle_session_timeout"),
    ] {
        let error = store.claim(&claim(code)).await.unwrap_err();
        assert_error(&error, kind, says);
    }
    own(&store, &claim("k")).await;
    drop(store);
    database.drop().await;
}

#[tokio::test]
async fn a_service_other_than_postgres_is_reported() {
    // Requests an authentication method that does not exist.
    let url = |imposter: &Imposter| {
        let port = imposter.port();
        format!("postgres://app:right@127.0.0.1:{port}/app")
    };
    let imposter = Imposter::saying(b"R\x00\x00\x00\x08\x00\x00\x00\x63").await;
    let error = PostgresStore::connect(&url(&imposter)).await.unwrap_err();
    assert_error(&error, StoreErrorKind::Corrupt, "unreadable");
    // Begins with the letter by which a server agrees to TLS.
    let imposter = Imposter::saying(b"SSH-2.0-OpenSSH_9.2p1\r\n").await;
    let error = PostgresStore::connect(&url(&imposter)).await.unwrap_err();
    assert_error(&error, StoreErrorKind::Other, "correct the port");
}
