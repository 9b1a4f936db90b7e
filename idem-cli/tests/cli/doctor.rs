//! Checks of stores. Each finding is made true on a real database or server.

use std::process::Command;
use std::sync::Arc;

use idem_runtime::operator::OperatorStore;
use idem_runtime::store::postgres::PostgresForm;
use idem_runtime::{MySqlStore, PostgresStore, SqliteStore};
use idem_servers::{Options, Server};
use idem_tests::places;
use serde_json::Value;
use sqlx::{AssertSqlSafe, Executor as _};

use super::{Place, Ran, unique};

/// Findings of a run.
struct Findings(Value);

impl Findings {
    /// Runs the checks, and expects this exit code.
    fn of(place: &Place, code: i32) -> Self {
        Self::read(place.idem(&["doctor", "--json"]), code)
    }

    fn read(ran: Ran, code: i32) -> Self {
        let ran = ran.expect(code, &[]);
        Self(serde_json::from_str(&ran.out).unwrap())
    }

    /// Expects a finding of this check and severity, with these parts in its text and remedy.
    #[track_caller]
    fn expect(&self, check: &str, severity: &str, parts: &[&str]) -> &Self {
        let findings = self.0["findings"].as_array().unwrap();
        let found: Vec<_> = findings.iter().filter(|it| it["check"] == check).collect();
        assert_eq!(found.len(), 1, "{check}: {:#}", self.0);
        assert_eq!(found[0]["severity"], severity, "{:#}", found[0]);
        let text = found[0].to_string();
        for part in parts {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
        assert_eq!(found[0]["remedy"].is_null(), severity == "ok", "{text}");
        self
    }
}

pub(super) async fn a_healthy_store_has_no_problem(place: Place) {
    let ran = place.idem(&["doctor", "--json"]);
    // PostgreSQL of the tests does not flush its log, which is a problem.
    let flushes_late = ran.out.contains("`fsync` is off");
    let findings = Findings::read(ran, if flushes_late { 4 } else { 0 });
    findings
        .expect("rights", "ok", &[])
        .expect("clock", "ok", &["give or take"]);
    let shown = place.idem(&["doctor"]);
    for check in ["rights", "clock", "loss of the server"] {
        assert!(shown.out.contains(check), "{shown:?}");
    }
    let problems = shown.out.matches("problem  ").count();
    assert_eq!(problems, usize::from(flushes_late), "{shown:?}");
    if place.store.expires_by_itself() {
        findings.expect("expiry", "ok", &["deletes expired records itself"]);
    }
    if place.store.migration_plan().await.unwrap().is_some() {
        findings
            .expect("schema", "ok", &["the newest of this build"])
            .expect("indexes", "ok", &[]);
    }
}

#[tokio::test]
#[ignore = "IDEM_TEST_POSTGRES_URL and libfaketime"]
async fn a_store_clock_that_is_ahead_is_a_problem_and_stops_a_purge() {
    let place = Place::open(places::postgres()).await;
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_idem"));
        command
            .env("IDEM_STORE_URL", &place.url)
            .args(&place.options)
            .args(arguments)
            // The dynamic loader replaces `$LIB` with this system's library directory.
            .env("LD_PRELOAD", "/usr/$LIB/faketime/libfaketime.so.1")
            .env("FAKETIME", "-5h")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        Ran::new(command.output().unwrap())
    };
    let ran = run(&["doctor", "--json"]);
    let ahead = ["s ahead of this machine's", "synchronise"];
    let code = ran.code.unwrap();
    Findings::read(ran, code).expect("clock", "problem", &ahead);

    run(&["purge", "--yes"]).expect_error(1, "nothing was deleted: the store's clock is");
    let audit = place.idem(&["audit", "--json"]);
    assert!(!audit.out.contains("purge"), "{audit:?}");
}

#[tokio::test]
async fn sqlite() {
    let place = Place::sqlite().await;
    // No service has opened this file yet, so it has no write-ahead log.
    let url = format!("{}.other", place.url);
    let store = SqliteStore::connect_as_is(&format!("{url}?mode=rwc")).await;
    let store = store.unwrap();
    store.apply_migrations().await.unwrap();
    let pool = store.pool();
    pool.execute("DROP INDEX idem_records_purge").await.unwrap();
    let place = Place { url, ..place };
    Findings::of(&place, 4)
        .expect("indexes", "problem", &["idem_records_purge"])
        .expect("journal", "warning", &["`delete`"])
        .expect("schema", "ok", &[]);
    let read_only = Place {
        url: format!("{}?mode=ro", place.url),
        ..place
    };
    Findings::of(&read_only, 4).expect("rights", "problem", &["cannot be written"]);
    pool.execute("DELETE FROM idem_records_migrations")
        .await
        .unwrap();
    Findings::of(&read_only, 4).expect("schema", "problem", &["idem migrate --plan"]);
}

/// Place of the same tables for another user.
fn as_user(place: &Place, store: Arc<dyn OperatorStore>, url: String) -> Place {
    Place {
        store,
        url,
        options: place.options.clone(),
        files: place.files.clone(),
    }
}

/// URL with another user, who needs no password or has his name as password.
fn with_user(url: &str, user: &str, password: Option<&str>) -> String {
    let mut url = url::Url::parse(url).unwrap();
    url.set_username(user).unwrap();
    url.set_password(password).unwrap();
    url.to_string()
}

#[tokio::test]
#[ignore = "needs PostgreSQL and PgBouncer"]
async fn postgres() {
    let server = Server::postgres(&Options::durable()).unwrap();
    let store = PostgresStore::connect(&server.url()).await.unwrap();
    let (table, user) = ("letters", unique());
    let store = store.with_table(table).unwrap();
    store.migrate().await.unwrap();
    let records = Arc::new(store.clone());
    let place = Place::server(records, server.url(), "--table", table.into());
    Findings::of(&place, 0)
        .expect("form of the tables", "ok", &["standard form"])
        .expect("durability", "ok", &["`synchronous_commit` is on"])
        .expect("loss of the server", "warning", &["no standby"]);
    through_a_pooler(&server, &place);
    in_the_portable_form(&server).await;
    let run = async |statements: String| {
        let ran = sqlx::raw_sql(AssertSqlSafe(statements))
            .execute(store.pool())
            .await;
        ran.unwrap();
    };
    run(format!(
        "CREATE ROLE {user} LOGIN PASSWORD '{user}';
         GRANT SELECT, INSERT, UPDATE ON {table}, {table}_steps, {table}_recovery, {table}_fencing_floor TO {user};
         GRANT SELECT ON {table}_migrations TO {user};
         REVOKE EXECUTE ON FUNCTION {table}_begin, {table}_reserve FROM PUBLIC;
         ALTER ROLE {user} SET synchronous_commit TO off;
         ALTER ROLE {user} SET default_transaction_isolation TO serializable;
         ALTER TABLE {table} DISABLE TRIGGER {table}_deleted;
         DROP INDEX {table}_purge"
    ))
    .await;
    let url = with_user(&server.url(), &user, Some(&user));
    let other = PostgresStore::connect(&url).await.unwrap();
    let theirs = as_user(&place, Arc::new(other), url);
    Findings::of(&theirs, 4)
        .expect(
            "rights",
            "problem",
            &["DELETE on", "EXECUTE on", "_begin", "_reserve"],
        )
        .expect(
            "manual changes",
            "warning",
            &["SELECT on", "INSERT on", "_audit"],
        )
        .expect("indexes", "problem", &[&format!("{table}_purge")])
        .expect("trigger", "problem", &["disabled"])
        .expect("isolation", "warning", &["serializable"])
        .expect("durability", "warning", &["`synchronous_commit` is off"])
        .expect("pooling", "ok", &[])
        .expect("writable", "ok", &[])
        .expect("schema", "ok", &[]);
    run(format!(
        "ALTER ROLE {user} SET default_transaction_read_only TO on"
    ))
    .await;
    Findings::of(&theirs, 4).expect("writable", "problem", &["read-only"]);
    run(format!("REVOKE ALL ON {table}_migrations FROM {user}")).await;
    Findings::of(&theirs, 4).expect("schema", "problem", &["the check failed"]);
    run(format!("DROP OWNED BY {user}; DROP ROLE {user}")).await;
}

/// The tables need no trigger and no function.
async fn in_the_portable_form(server: &Server) {
    let store = PostgresStore::connect(&server.url()).await.unwrap();
    let store = store.with_table("parcels").unwrap();
    let store = store.with_form(PostgresForm::Portable);
    store.migrate().await.unwrap();
    let place = Place::server(Arc::new(store), server.url(), "--table", "parcels".into());
    let findings = Findings::of(&place, 0);
    findings
        .expect("form of the tables", "ok", &["portable form"])
        .expect("rights", "ok", &[])
        .expect("indexes", "ok", &[])
        .expect("schema", "ok", &[]);
    assert!(
        !findings.0.to_string().contains("trigger"),
        "{}",
        findings.0
    );
}

/// A pooler is seen if it shares connections between transactions.
fn through_a_pooler(server: &Server, place: &Place) {
    for (mode, severity, part) in [
        ("session", "ok", "to itself"),
        (
            "transaction",
            "warning",
            "shares connections between transactions",
        ),
        ("statement", "problem", "no transaction can be opened"),
    ] {
        let options = Options::fast().set("pool_mode", mode);
        let pooler = Server::pg_bouncer(server.port(), &options).unwrap();
        let mut url = url::Url::parse(&place.url).unwrap();
        url.set_port(Some(pooler.port())).unwrap();
        let mut arguments = vec!["--url", url.as_str(), "doctor", "--json"];
        arguments.extend(place.options.iter().map(String::as_str));
        let ran = place.idem(&arguments);
        let code = ran.code.unwrap();
        Findings::read(ran, code).expect("pooling", severity, &[part]);
    }
}

#[tokio::test]
#[ignore = "IDEM_TEST_MARIADB_URL"]
async fn mariadb() {
    on_my_sql(Place::open(places::mariadb()).await).await;
}

mod mysql {
    use super::*;

    #[tokio::test]
    #[ignore = "IDEM_TEST_MYSQL_URL"]
    async fn newest() {
        on_my_sql(Place::open(places::mysql()).await).await;
    }
}

/// On MariaDB or MySQL.
async fn on_my_sql(place: Place) {
    let table = place.options[1].clone();
    let user = unique()[..20].to_owned();
    let store = MySqlStore::connect(&place.url).await.unwrap();
    let run = async |statements: String| {
        let ran = sqlx::raw_sql(AssertSqlSafe(statements))
            .execute(store.pool())
            .await;
        ran.unwrap();
    };
    run(format!(
        "CREATE USER {user}@'%' IDENTIFIED BY '{user}';
         GRANT SELECT ON {table} TO {user}@'%';
         GRANT SELECT ON {table}_migrations TO {user}@'%';
         GRANT SELECT, INSERT, UPDATE, DELETE ON {table}_steps TO {user}@'%';
         GRANT SELECT, INSERT, UPDATE, DELETE ON {table}_recovery TO {user}@'%';
         GRANT SELECT, INSERT, UPDATE, DELETE ON {table}_fencing_floor TO {user}@'%';
         ALTER TABLE {table} DROP KEY purge_queue"
    ))
    .await;
    let url = with_user(&place.url, &user, Some(&user));
    let other = MySqlStore::connect(&url).await.unwrap();
    let theirs = as_user(&place, Arc::new(other), url);
    let missing = format!("INSERT on `{table}`, UPDATE on `{table}`, DELETE on `{table}`\"");
    Findings::of(&theirs, 4)
        .expect("rights", "problem", &[&missing])
        .expect(
            "manual changes",
            "warning",
            &["SELECT on", "INSERT on", "_audit"],
        )
        .expect("indexes", "problem", &["purge_queue"])
        .expect("engine", "ok", &["InnoDB"])
        .expect("autocommit", "ok", &[])
        .expect("isolation", "ok", &[])
        .expect("writable", "ok", &[])
        .expect("schema", "ok", &[]);
    run(format!("DROP USER {user}@'%'")).await;
}

#[tokio::test]
#[ignore = "needs MariaDB"]
async fn a_mariadb_server_that_commits_nothing_and_flushes_late() {
    let options = Options::fast()
        .set("autocommit", "0")
        .set("innodb_flush_log_at_trx_commit", "2");
    let server = Server::maria_db(&options).unwrap();
    let store = MySqlStore::connect(&server.url()).await.unwrap();
    let place = Place::server(Arc::new(store), server.url(), "--table", "letters".into());
    Findings::of(&place, 4)
        .expect("autocommit", "problem", &["would ever be committed"])
        .expect(
            "durability",
            "warning",
            &["`innodb_flush_log_at_trx_commit` is 2"],
        )
        .expect("schema", "problem", &["version 0"])
        .expect("engine", "problem", &["does not exist"]);
}

#[tokio::test]
#[ignore = "needs Redis"]
async fn redis() {
    let place = async |options: &Options| {
        let server = Server::redis(options).unwrap();
        let store = idem_runtime::RedisStore::connect(&server.url())
            .await
            .unwrap();
        let place = Place::server(Arc::new(store), server.url(), "--prefix", "idem:".into());
        (server, place)
    };
    let (_server, evicting) = place(&Options::fast().set("maxmemory-policy", "allkeys-lru")).await;
    Findings::of(&evicting, 4)
        .expect("eviction", "problem", &["allkeys-lru", "noeviction"])
        .expect("durability", "warning", &["`appendonly` is off"])
        .expect("loss of the server", "warning", &["no replicas"]);

    let (server, durable) = place(&Options::durable()).await;
    Findings::of(&durable, 0)
        .expect("eviction", "ok", &[])
        .expect("durability", "ok", &["always"])
        .expect("version", "ok", &[])
        .expect("rights", "ok", &[]);
    server.query("CONFIG SET appendfsync everysec").unwrap();
    Findings::of(&durable, 0).expect("durability", "warning", &["not always"]);

    let reader = "ACL SETUSER reader on >pass ~idem:* resetchannels +@read +@connection +evalsha +eval +time +info +acl";
    server.query(reader).unwrap();
    let url = with_user(&server.url(), "reader", Some("pass"));
    let reader = Place::server(durable.store, url, "--prefix", "idem:".into());
    Findings::of(&reader, 4)
        .expect("rights", "problem", &["SETRANGE", "PEXPIREAT"])
        .expect("durability", "warning", &["may not run CONFIG GET"]);
}
