//! Servers that accept encrypted connections only, with certificates of a private authority: calls run over connections that
//! are verified, and each mistake is refused with the right kind and remedy, and without the password.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use idem_runtime::error::{StoreError, StoreErrorKind};
use idem_runtime::store::redis::RedisConnection;
use idem_runtime::{Call, Error, Idem, MySqlStore, PostgresStore, RedisStore, Store};
use idem_servers::{Certificates, Options, RedisCluster, RedisSentinels, Server};
use idem_tests::until;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, spawn_blocking};
use url::Url;

use crate::connect::shown;

const PASSWORD: &str = "geheim";
const TTL: Duration = Duration::from_secs(600);

/// Makes a call, and repeats it.
async fn run_and_replay<S: Store>(store: S) {
    let (idem, effects) = (Idem::new(store), AtomicU32::new(0));
    for _ in 0..2 {
        let call = Call::new("tls.call", "key", "request", TTL);
        let body = async || Ok::<_, Error>(effects.fetch_add(1, Ordering::SeqCst));
        assert_eq!(idem.run(call, body).await.unwrap(), 0);
    }
    assert_eq!(effects.into_inner(), 1);
}

/// Names of the parameters for authority, certificate and key in the URLs of a store.
type Names = [&'static str; 3];

/// A URL, of which a test changes a part.
struct Login {
    url: Url,
    names: Names,
    certificates: Certificates,
}

impl Login {
    /// URL of the user `app` with his certificate, and with `more` parameters.
    fn new(url: &str, names: Names, more: &[(&str, &str)], certificates: &Certificates) -> Self {
        let mut url = Url::parse(url).unwrap();
        url.set_username("app").unwrap();
        url.set_password(Some(PASSWORD)).unwrap();
        url.query_pairs_mut().extend_pairs(more);
        let login = Self {
            url,
            names,
            certificates: certificates.clone(),
        };
        let [certificate, key] = certificates.client();
        let paths = [&certificates.authority(), &certificate, &key];
        let url = (0..3).fold(login.url.to_string(), |url, it| {
            with(&url, names[it], Some(paths[it]))
        });
        let url = Url::parse(&url).unwrap();
        Self { url, ..login }
    }

    fn right(&self) -> String {
        self.url.to_string()
    }

    /// Mistakes that are the same with every store: name of the mistake, URL, kind and remedy of the error.
    fn mistakes(&self, elsewhere: SocketAddr) -> Vec<Mistake> {
        use StoreErrorKind::{Denied, Other};
        let (right, [authority, certificate, key]) = (self.right(), self.names);
        let other = self.certificates.other_authority();
        let [other_certificate, other_key] = self.certificates.other_client();
        let mut at_another_name = self.url.clone();
        at_another_name.set_ip_host(elsewhere.ip()).unwrap();
        at_another_name.set_port(Some(elsewhere.port())).unwrap();
        let mut wrong_password = self.url.clone();
        wrong_password.set_password(Some("wrong")).unwrap();
        let without_identity = with(&with(&right, certificate, None), key, None);
        let foreign = with(&right, certificate, Some(&other_certificate));
        vec![
            (
                "a server of another authority",
                with(&right, authority, Some(&other)),
                Other,
                authority,
            ),
            (
                "an authority that the system does not know",
                with(&right, authority, None),
                Other,
                authority,
            ),
            (
                "a server of another name",
                at_another_name.to_string(),
                Other,
                "subjectAltName",
            ),
            (
                "no certificate of the client",
                without_identity,
                Denied,
                certificate,
            ),
            (
                "a certificate of the client that the server does not trust",
                with(&foreign, key, Some(&other_key)),
                Denied,
                certificate,
            ),
            (
                "a certificate and the key of another",
                with(&right, key, Some(&other_key)),
                Other,
                certificate,
            ),
            (
                "a wrong password",
                wrong_password.to_string(),
                Denied,
                "password",
            ),
        ]
    }
}

type Mistake = (&'static str, String, StoreErrorKind, &'static str);

/// Sets or removes a parameter of a URL.
fn with(url: &str, name: &str, value: Option<&Path>) -> String {
    let mut url = Url::parse(url).unwrap();
    let mut pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
    pairs.retain(|it| it.0 != name);
    pairs.extend(value.map(|it| (name.to_owned(), it.to_str().unwrap().to_owned())));
    url.query_pairs_mut().clear().extend_pairs(pairs);
    url.to_string()
}

/// Connects, and again if the machine was too busy to do it in time.
async fn in_time<S>(connect: impl AsyncFn() -> Result<S, StoreError>) -> Result<S, StoreError> {
    for _ in 0..20 {
        match connect().await {
            Err(error) if error.to_string().contains("in time") => {}
            answer => return answer,
        }
    }
    connect().await
}

async fn assert_refused<S: Debug>(
    connect: impl AsyncFn(&str) -> Result<S, StoreError>,
    mistakes: Vec<Mistake>,
) {
    for (mistake, url, kind, says) in mistakes {
        // Which of two messages a client reads first may be chance.
        for _ in 0..5 {
            let answer = in_time(async || connect(&url).await).await;
            let error = answer.expect_err(mistake);
            assert_eq!(error.kind(), kind, "{mistake}: {error:?}");
            assert!(error.to_string().contains(says), "{mistake}: {error}");
            let is_transient = kind == StoreErrorKind::Unavailable;
            assert_eq!(error.is_retryable(), is_transient, "{mistake}: {error:?}");
            let shown = shown(&error);
            assert!(!shown.contains(PASSWORD), "{mistake}: {shown}");
        }
    }
}

/// Address of this machine for which no server has a certificate. Connections to it lead to the server on this port.
struct Elsewhere {
    address: SocketAddr,
    forwarding: JoinHandle<()>,
}

impl Elsewhere {
    async fn of(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.2:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let forwarding = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        Self {
            address,
            forwarding,
        }
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.forwarding.abort();
    }
}

const POSTGRES: Names = ["sslrootcert", "sslcert", "sslkey"];
const OTHERS: Names = ["ssl-ca", "ssl-cert", "ssl-key"];

#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn postgres_is_verified_and_each_mistake_is_named() {
    let certificates = Certificates::make().unwrap();
    let server = Server::postgres(&Options::fast().encrypted_with(&certificates)).unwrap();
    server
        .query(&format!(
            "CREATE ROLE app LOGIN PASSWORD '{PASSWORD}'; GRANT ALL ON SCHEMA public TO app"
        ))
        .unwrap();
    let verified = [("sslmode", "verify-full")];
    let login = Login::new(&server.url(), POSTGRES, &verified, &certificates);
    let store = PostgresStore::connect(&login.right()).await.unwrap();
    store.migrate().await.unwrap();
    run_and_replay(store).await;

    let elsewhere = Elsewhere::of(server.port()).await;
    let mut mistakes = login.mistakes(elsewhere.address);
    let plain = with(&login.right(), "sslmode", Some(Path::new("disable")));
    mistakes.push(("plain text", plain, StoreErrorKind::Denied, "`sslmode="));
    assert_refused(PostgresStore::connect, mistakes).await;
}

async fn mysql_is_verified(server: &Server, certificates: &Certificates) {
    for statement in [
        "CREATE DATABASE app",
        &format!("CREATE USER app IDENTIFIED BY '{PASSWORD}' REQUIRE X509"),
        "GRANT ALL ON app.* TO app",
    ] {
        server.query(statement).unwrap();
    }
    let verified = [("ssl-mode", "VERIFY_IDENTITY")];
    let mut url = Url::parse(&server.url()).unwrap();
    url.set_path("app");
    let login = Login::new(url.as_str(), OTHERS, &verified, certificates);
    let store = MySqlStore::connect(&login.right()).await.unwrap();
    store.migrate().await.unwrap();
    run_and_replay(store).await;

    let elsewhere = Elsewhere::of(server.port()).await;
    let mut mistakes = login.mistakes(elsewhere.address);
    let plain = with(&login.right(), "ssl-mode", Some(Path::new("DISABLED")));
    // MariaDB says no more than that it refused the user.
    let remedy = "`ssl-mode";
    mistakes.push(("plain text", plain, StoreErrorKind::Denied, remedy));
    assert_refused(MySqlStore::connect, mistakes).await;
}

#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn mariadb_is_verified_and_each_mistake_is_named() {
    let certificates = Certificates::make().unwrap();
    let server = Server::maria_db(&Options::fast().encrypted_with(&certificates)).unwrap();
    mysql_is_verified(&server, &certificates).await;
}

#[tokio::test]
#[ignore = "needs MySQL: cargo xtask test runs it"]
async fn mysql_is_verified_and_each_mistake_is_named() {
    let certificates = Certificates::make().unwrap();
    let options = Options::fast().encrypted_with(&certificates);
    if let Some(server) = Server::installed_my_sql(&options).unwrap() {
        mysql_is_verified(&server, &certificates).await;
    }
}

/// Creates a Redis user with all rights.
fn create_user(server: &Server) {
    let user = format!("ACL SETUSER app on >{PASSWORD} ~* &* +@all");
    server.query(&user).unwrap();
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn redis_is_verified_and_each_mistake_is_named() {
    let certificates = Certificates::make().unwrap();
    let server = Server::redis(&Options::fast().encrypted_with(&certificates)).unwrap();
    create_user(&server);
    let login = Login::new(&server.url(), OTHERS, &[], &certificates);
    let store = in_time(async || RedisStore::connect(&login.right()).await);
    run_and_replay(store.await.unwrap()).await;
    // Of a cache, the same.
    let connection = in_time(async || RedisConnection::connect(&login.right()).await);
    connection.await.unwrap();

    let elsewhere = Elsewhere::of(server.port()).await;
    let mut mistakes = login.mistakes(elsewhere.address);
    let mut plain = Url::parse(&server.url().replace("rediss", "redis")).unwrap();
    plain.set_username("app").unwrap();
    plain.set_password(Some(PASSWORD)).unwrap();
    let unavailable = StoreErrorKind::Unavailable;
    let plain = plain.to_string();
    mistakes.push(("plain text", plain, unavailable, "`rediss://`"));
    let unverified = format!("{}#insecure", login.right());
    let remedy = "name the authority";
    mistakes.push(("no verification", unverified, StoreErrorKind::Other, remedy));
    assert_refused(RedisStore::connect, mistakes).await;

    // The other way round: the server speaks no TLS.
    let server = Server::redis(&Options::fast()).unwrap();
    let mut encrypted = login.url.clone();
    encrypted.set_port(Some(server.port())).unwrap();
    let error = RedisStore::connect(encrypted.as_str()).await.unwrap_err();
    assert!(!shown(&error).contains(PASSWORD), "{error:?}");
}

/// URLs of several servers, of which the first one names the certificates.
fn urls_of(urls: &[String], certificates: &Certificates) -> Vec<String> {
    let first = Login::new(&urls[0], OTHERS, &[], certificates).right();
    let others = urls[1..].iter().map(|url| {
        let mut url = Url::parse(url).unwrap();
        url.set_username("app").unwrap();
        url.set_password(Some(PASSWORD)).unwrap();
        url.to_string()
    });
    std::iter::once(first).chain(others).collect()
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn redis_cluster_is_verified() {
    let certificates = Certificates::make().unwrap();
    let options = Options::fast().encrypted_with(&certificates);
    let cluster = spawn_blocking(move || RedisCluster::start(&options));
    let cluster = cluster.await.unwrap().unwrap();
    cluster.nodes().iter().for_each(create_user);
    let urls = urls_of(&cluster.urls(), &certificates);
    let store =
        in_time(async || RedisStore::connect_cluster(urls.iter().map(String::as_str)).await);
    run_and_replay(store.await.unwrap()).await;

    let connect = async |first: &str| {
        let others = urls[1..].iter().map(String::as_str);
        RedisStore::connect_cluster(std::iter::once(first).chain(others)).await
    };
    let other = certificates.other_authority();
    let untrusted = with(&urls[0], "ssl-ca", Some(&other));
    let error = connect(&untrusted).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Other, "{error:?}");
    assert!(error.to_string().contains("`ssl-ca`"), "{error}");

    let wrong: Vec<_> = urls
        .iter()
        .map(|it| it.replace(PASSWORD, "wrong"))
        .collect();
    let error = RedisStore::connect_cluster(wrong.iter().map(String::as_str)).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Denied, "{error:?}");
    assert!(!error.is_retryable(), "{error:?}");
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn redis_sentinels_are_verified_and_so_is_the_next_primary() {
    let certificates = Certificates::make().unwrap();
    let options = Options::fast().encrypted_with(&certificates);
    let sentinels = spawn_blocking(move || RedisSentinels::start(&options));
    let sentinels = sentinels.await.unwrap().unwrap();
    sentinels.servers().iter().for_each(create_user);
    // The sentinels have no users.
    let urls = sentinels.urls();
    let primary = format!("rediss://{}/", RedisSentinels::NAME);
    let primary = Login::new(&primary, OTHERS, &[], &certificates).right();
    let connect = async |primary: &str| {
        RedisStore::connect_sentinel(urls.iter().map(String::as_str), primary).await
    };
    let store = connect(&primary).await.unwrap();
    run_and_replay(store.clone()).await;

    let first = sentinels.primary().unwrap();
    let failover = format!("SENTINEL FAILOVER {}", RedisSentinels::NAME);
    sentinels.sentinels()[0].query(&failover).unwrap();
    until(async || sentinels.primary().is_some_and(|it| it != first)).await;
    let idem = Idem::new(store);
    until(async || {
        let call = Call::new("tls.call", "next", "request", TTL);
        idem.run(call, async || Ok::<_, Error>(())).await.is_ok()
    })
    .await;

    let other = certificates.other_authority();
    let untrusted = with(&primary, "ssl-ca", Some(&other));
    let without_identity = with(&with(&primary, "ssl-cert", None), "ssl-key", None);
    let wrong_password = primary.replace(PASSWORD, "wrong");
    let (others, denied) = (StoreErrorKind::Other, StoreErrorKind::Denied);
    assert_refused(
        connect,
        vec![
            ("another authority", untrusted, others, "`ssl-ca`"),
            ("no certificate", without_identity, denied, "`ssl-cert`"),
            ("a wrong password", wrong_password, denied, "password"),
        ],
    )
    .await;
}
