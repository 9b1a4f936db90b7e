//! The command on servers that accept encrypted connections only, and with sentinels.

use std::path::Path;
use std::process::Command;

use idem_servers::{Certificates, Options, RedisSentinels, Server};

use super::Ran;

const PASSWORD: &str = "geheim";

/// Runs the command. The URLs come from the environment, because they have passwords.
fn idem(url: &str, sentinels: &str, arguments: &[&str]) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_idem"))
        .env("IDEM_STORE_URL", url)
        .env("IDEM_SENTINEL_URLS", sentinels)
        .args(arguments)
        .output()
        .unwrap();
    Ran::new(output)
}

/// URL of the user `app` with parameters for authority, certificate and key.
fn url_of(url: &str, names: [&str; 3], certificates: &Certificates, more: &str) -> String {
    let mut url = url::Url::parse(url).unwrap();
    url.set_username("app").unwrap();
    url.set_password(Some(PASSWORD)).unwrap();
    url.set_query(Some(more).filter(|it| !it.is_empty()));
    let [certificate, key] = certificates.client();
    let paths = [certificates.authority(), certificate, key];
    for (name, path) in names.iter().zip(paths) {
        url.query_pairs_mut()
            .append_pair(name, path.to_str().unwrap());
    }
    url.to_string()
}

/// Expects that the command reads the store, and refuses a server of another authority.
fn assert_verified(url: &str, sentinels: &str, certificates: &Certificates, name: &str) {
    let checked = idem(url, sentinels, &["doctor"]);
    assert!(checked.out.contains("rights"), "{checked:?}");
    assert!(!checked.out.contains("problem  connection"), "{checked:?}");
    let path = |it: &Path| it.file_name().unwrap().to_str().unwrap().to_owned();
    let other = certificates.other_authority();
    let untrusted = url.replace(&path(&certificates.authority()), &path(&other));
    assert_ne!(untrusted, url);
    let refused = idem(&untrusted, sentinels, &["list"]);
    assert!(!format!("{refused:?}").contains(PASSWORD), "{refused:?}");
    refused.expect_error(1, name);
}

#[test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
fn postgres_with_a_certificate_of_the_client() {
    let certificates = Certificates::make().unwrap();
    let server = Server::postgres(&Options::fast().encrypted_with(&certificates)).unwrap();
    let user = format!("CREATE ROLE app LOGIN SUPERUSER PASSWORD '{PASSWORD}'");
    server.query(&user).unwrap();
    let names = ["sslrootcert", "sslcert", "sslkey"];
    let url = url_of(&server.url(), names, &certificates, "sslmode=verify-full");
    idem(&url, "", &["migrate", "--apply"]).expect(0, &["applied"]);
    idem(&url, "", &["list"]).expect(0, &["no records"]);
    assert_verified(&url, "", &certificates, "`sslrootcert`");
}

const NAMES: [&str; 3] = ["ssl-ca", "ssl-cert", "ssl-key"];

#[test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
fn mariadb_with_a_certificate_of_the_client() {
    let certificates = Certificates::make().unwrap();
    let server = Server::maria_db(&Options::fast().encrypted_with(&certificates)).unwrap();
    server.query("CREATE DATABASE app").unwrap();
    let user = format!("CREATE USER app IDENTIFIED BY '{PASSWORD}' REQUIRE X509");
    server.query(&user).unwrap();
    server.query("GRANT ALL ON *.* TO app").unwrap();
    let url = server.url().replace("/mysql", "/app");
    let url = url_of(&url, NAMES, &certificates, "ssl-mode=VERIFY_IDENTITY");
    idem(&url, "", &["migrate", "--apply"]).expect(0, &["applied"]);
    idem(&url, "", &["list"]).expect(0, &["no records"]);
    assert_verified(&url, "", &certificates, "`ssl-ca`");
}

#[test]
#[ignore = "needs Redis: cargo xtask test runs it"]
fn redis_and_sentinels_with_a_certificate_of_the_client() {
    let certificates = Certificates::make().unwrap();
    let options = Options::fast().encrypted_with(&certificates);
    let sentinels = RedisSentinels::start(&options).unwrap();
    for server in sentinels.servers() {
        let user = format!("ACL SETUSER app on >{PASSWORD} ~* &* +@all");
        server.query(&user).unwrap();
    }
    let nothing = "nothing of idem's under the prefix";
    let server = &sentinels.servers()[sentinels.primary().unwrap()];
    let url = url_of(&server.url(), NAMES, &certificates, "");
    idem(&url, "", &["list"]).expect_error(1, nothing);
    assert_verified(&url, "", &certificates, "`ssl-ca`");

    let primary = format!("rediss://{}/", RedisSentinels::NAME);
    let url = url_of(&primary, NAMES, &certificates, "");
    let urls = sentinels.urls().join(", ");
    idem(&url, &urls, &["list"]).expect_error(1, nothing);
    assert_verified(&url, &urls, &certificates, "`ssl-ca`");
}
