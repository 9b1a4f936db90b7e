//! Failures that require a dedicated server or user: a read-only server, invalid text, logins with and without TLS, a missing
//! database, and a different service on the port.

use std::net::SocketAddr;

use idem_runtime::error::StoreErrorKind;
use idem_runtime::store::{ClaimOutcome, FencedWrite, TransactionalStore as _};
use idem_runtime::{MySqlStore, Store};
use idem_servers::{Options, Server};
use idem_tests::proxy::Proxy;
use sqlx::MySqlPool;
use sqlx::mysql::MySqlPoolOptions;

use super::{Database, assert_error, execute};
use crate::imposter::Imposter;
use crate::records::{claim, full_text, outcome, own};

#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn a_read_only_server_replays_and_claims_nothing() {
    let server = Server::maria_db(&Options::fast()).unwrap();
    let make =
        "CREATE DATABASE app; CREATE USER app IDENTIFIED BY 'right'; GRANT ALL ON app.* TO app";
    server.query(make).unwrap();
    let url = server
        .url()
        .replace("root@", "app:right@")
        .replace("/mysql", "/app");
    let store = MySqlStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    let owner = own(&store, &claim("done")).await;
    store.complete(&owner, &outcome(b"1")).await.unwrap();
    let running = own(&store, &claim("running")).await;
    let released = own(&store, &claim("released")).await;
    store.release(&released).await.unwrap();

    server.query("SET GLOBAL read_only = 1").unwrap();
    store.migrate().await.unwrap();
    for key in ["done", "running"] {
        let answer = store.claim(&claim(key)).await.unwrap();
        assert!(
            matches!(answer, ClaimOutcome::Existing(_)),
            "{key}: {answer:?}"
        );
    }
    for key in ["new", "released"] {
        let error = store.claim(&claim(key)).await.unwrap_err();
        assert_error(&error, StoreErrorKind::ReadOnly, "connect to the primary");
        assert!(error.is_retryable(), "{error:?}");
    }
    let error = store.complete(&running, &outcome(b"1")).await.unwrap_err();
    assert_error(&error, StoreErrorKind::ReadOnly, "connect to the primary");

    server.query("SET GLOBAL read_only = 0").unwrap();
    let done = store.complete(&running, &outcome(b"1")).await.unwrap();
    assert_eq!(done, FencedWrite::Applied);
    own(&store, &claim("new")).await;
    own(&store, &claim("released")).await;
}

/// The connections to a demoted primary stay open when the address leads to the new one. A pool of one connection shows the
/// fate of each: the refused statement is the last one on it.
#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn a_connection_to_a_server_without_writes_is_not_used_again() {
    let make = "CREATE DATABASE app; CREATE USER app; GRANT ALL ON app.* TO app";
    let servers = [(); 2].map(|()| Server::maria_db(&Options::fast()).unwrap());
    let address = |it: &Server| SocketAddr::from(([127, 0, 0, 1], it.port()));
    let addresses = servers.each_ref().map(address);
    let proxy = Proxy::start(addresses[0]).await.unwrap();
    let url = format!("mysql://app@127.0.0.1:{}/app", proxy.address().port());
    let connect = || async {
        let pool = MySqlPoolOptions::new()
            .max_connections(1)
            .test_before_acquire(false);
        MySqlStore::new(pool.connect(&url).await.unwrap())
    };
    for (server, address) in servers.iter().zip(addresses) {
        server.query(make).unwrap();
        proxy.lead_to(address);
        connect().await.migrate().await.unwrap();
    }
    servers[1].query("SET GLOBAL read_only = 1").unwrap();

    // Leased.
    let store = connect().await;
    proxy.lead_to(addresses[0]);
    let refused = store.claim(&claim("leased")).await.unwrap_err();
    assert_error(&refused, StoreErrorKind::ReadOnly, "connect to the primary");
    own(&store, &claim("leased")).await;

    // In a transaction.
    proxy.lead_to(addresses[1]);
    let store = connect().await;
    proxy.lead_to(addresses[0]);
    let mut transaction = store.begin().await.unwrap();
    let refused = store.claim_in(&mut transaction, None, &claim("tx")).await;
    assert_error(
        &refused.unwrap_err(),
        StoreErrorKind::ReadOnly,
        "connect to the primary",
    );
    drop(transaction);
    let mut transaction = store.begin().await.unwrap();
    let answer = store.claim_in(&mut transaction, None, &claim("tx")).await;
    answer.unwrap();
    store.rollback(transaction).await.unwrap();
}

/// A text column rejects such bytes; here the column was changed to a binary one.
#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn text_that_is_not_utf8_is_corrupt() {
    for database in Database::each().await {
        let store = database.store().await;
        let pool: MySqlPool = database.pool(1).await;
        let owner = own(&store, &claim("k")).await;
        store.complete(&owner, &outcome(b"1")).await.unwrap();
        for column in ["state", "on_crash", "operation"] {
            execute(
                &pool,
                &format!(
                    "CREATE TABLE kept LIKE idem_records; INSERT INTO kept SELECT * FROM idem_records; \
                     ALTER TABLE idem_records MODIFY {column} VARBINARY(255) NOT NULL; \
                     UPDATE idem_records SET {column} = x'fffe'"
                ),
            )
            .await;
            for error in [
                store.get(&owner.id).await.unwrap_err(),
                store.claim(&claim("k")).await.unwrap_err(),
            ] {
                assert_error(&error, StoreErrorKind::Corrupt, "repair it from a backup");
                assert!(!error.is_retryable());
            }
            execute(
                &pool,
                "SET foreign_key_checks = 0; DROP TABLE idem_records; RENAME TABLE kept TO idem_records; SET foreign_key_checks = 1",
            )
            .await;
            let answer = store.claim(&claim("k")).await.unwrap();
            assert!(
                matches!(answer, ClaimOutcome::Existing(_)),
                "{column}: {answer:?}"
            );
        }
        database.drop().await;
    }
}

/// MySQL checks the password of a user with its default authentication over an encrypted connection only, unless it has
/// cached the password from an earlier login.
#[tokio::test]
#[ignore = "needs MySQL: cargo xtask test runs it"]
async fn a_first_login_without_tls_names_the_remedy() {
    for database in Database::each().await {
        if !database.is_mariadb().await {
            let name = &database.name;
            let user = format!(
                "CREATE USER {name}_u IDENTIFIED BY 'pass'; GRANT ALL ON {name}.* TO {name}_u"
            );
            execute(&database.admin, &user).await;
            let mut url = url::Url::parse(&database.url).unwrap();
            url.set_username(&format!("{name}_u")).unwrap();
            url.set_password(Some("pass")).unwrap();
            let encrypted = url.clone();
            url.set_query(Some("ssl-mode=DISABLED"));

            let error = MySqlStore::connect(url.as_str()).await.unwrap_err();
            // The tests have the feature, so the text does not name it.
            assert_error(&error, StoreErrorKind::Denied, "`ssl-mode=DISABLED`");
            assert!(!error.is_retryable());
            assert!(!full_text(&error).contains("mysql-rsa"), "{error:?}");
            MySqlStore::connect(encrypted.as_str()).await.unwrap();
            MySqlStore::connect(url.as_str()).await.unwrap();
            execute(&database.admin, &format!("DROP USER {name}_u")).await;
        }
        database.drop().await;
    }
}

/// MySQL creates its certificate and the authority of it by itself. The certificate has no subjectAltName.
#[tokio::test]
#[ignore = "needs MySQL: cargo xtask test runs it"]
async fn a_certificate_that_is_not_accepted_is_named_and_not_tried_again() {
    let Some(server) = Server::installed_my_sql(&Options::fast()).unwrap() else {
        return;
    };
    let authority = server.directory().join("data/ca.pem");
    let authority = authority.to_str().unwrap();
    let connect = |mode: &str, authority: Option<&str>| {
        let mut url = url::Url::parse(&server.url()).unwrap();
        url.query_pairs_mut().append_pair("ssl-mode", mode);
        if let Some(path) = authority {
            url.query_pairs_mut().append_pair("ssl-ca", path);
        }
        async move { MySqlStore::connect(url.as_str()).await }
    };
    connect("VERIFY_CA", Some(authority)).await.unwrap();
    for (mode, authority, says) in [
        ("VERIFY_CA", None, "is not trusted"),
        ("VERIFY_IDENTITY", None, "is not trusted"),
        ("VERIFY_IDENTITY", Some(authority), "subjectAltName"),
        ("VERIFY_CA", Some("/nowhere/ca.pem"), "`ssl-ca`"),
    ] {
        let error = connect(mode, authority).await.unwrap_err();
        assert_error(&error, StoreErrorKind::Other, says);
        assert!(!error.is_retryable(), "{mode}: {error:?}");
    }
}

/// The server does not say whether a database exists to a user without privileges on it.
#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn a_database_that_is_missing_or_not_named_is_reported() {
    for database in Database::each().await {
        let user = format!("{}_n", database.name);
        let make = format!("CREATE USER {user} IDENTIFIED BY 'pass'");
        execute(&database.admin, &make).await;
        let mut url = url::Url::parse(&database.url).unwrap();
        url.set_username(&user).unwrap();
        url.set_password(Some("pass")).unwrap();
        url.set_path("idem_it_nowhere");
        let error = MySqlStore::connect(url.as_str()).await.unwrap_err();
        assert_error(&error, StoreErrorKind::Denied, "check the name in the URL");

        url.set_path("");
        let store = MySqlStore::connect(url.as_str()).await.unwrap();
        let error = store.migrate().await.unwrap_err();
        assert_error(&error, StoreErrorKind::Schema, "no database is named");
        execute(&database.admin, &format!("DROP USER {user}")).await;
        database.drop().await;
    }
}

#[tokio::test]
async fn a_service_other_than_mysql_is_reported() {
    // Looks like the start of a greeting that never ends.
    let imposter = Imposter::saying(b"SSH-2.0-OpenSSH_9.2p1\r\n").await;
    let url = format!("mysql://app:right@127.0.0.1:{}/app", imposter.port());
    let error = MySqlStore::connect(&url).await.unwrap_err();
    assert_error(
        &error,
        StoreErrorKind::Unavailable,
        "check the host and port",
    );
    assert!(error.is_retryable());
}
