//! Servers start, restart with their data, and leave nothing behind however the test ends.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use idem_servers::{Options, Programs, RedisCluster, Release, Server};

/// Set for the process that a test starts in order to kill it.
const VICTIM: &str = "IDEM_SERVERS_VICTIM";

fn databases(options: &Options) -> [Server; 3] {
    [
        Server::postgres(options).unwrap(),
        Server::maria_db(options).unwrap(),
        Server::redis(options).unwrap(),
    ]
}

fn brokers(options: &Options) -> [Server; 2] {
    [
        Server::rabbit_mq(options).unwrap(),
        Server::nats(options).unwrap(),
    ]
}

fn all(options: &Options) -> Vec<Server> {
    databases(options)
        .into_iter()
        .chain(brokers(options))
        .collect()
}

/// Processes that have a directory, or a path in it, in their arguments or variables.
fn users_of(directory: &Path) -> Vec<String> {
    let ps = Command::new("ps")
        .args(["axeww", "-o", "pid,args"])
        .output();
    let directory = directory.to_str().unwrap();
    String::from_utf8_lossy(&ps.unwrap().stdout)
        .lines()
        .filter(|line| line.contains(directory))
        .map(str::to_owned)
        .collect()
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        sleep(Duration::from_millis(20));
    }
}

fn is_alive(pid: &str) -> bool {
    let ps = Command::new("ps").args(["-o", "stat=", "-p", pid]).output();
    let state = String::from_utf8(ps.unwrap().stdout).unwrap();
    !state.is_empty() && !state.starts_with('Z')
}

#[test]
#[ignore = "needs the database servers: cargo xtask test runs it"]
fn a_drop_leaves_nothing_behind() {
    for server in all(&Options::fast()) {
        let pid = server.pid().unwrap().to_string();
        let directory = server.directory().to_owned();
        assert!(is_alive(&pid) && directory.is_dir() && !users_of(&directory).is_empty());
        drop(server);
        assert!(!is_alive(&pid) && !directory.exists());
        eventually("its helpers end", || users_of(&directory).is_empty());
    }
}

#[test]
#[ignore = "needs Chromium: cargo xtask test runs it"]
fn a_browser_ends_with_its_driver() {
    let server = Server::chrome_driver(&Options::fast()).unwrap();
    let directory = server.directory().to_owned();
    let wanted = r#"{"capabilities":{"alwaysMatch":{"goog:chromeOptions":{"args":
        ["--headless=new","--no-sandbox","--disable-dev-shm-usage","--remote-debugging-pipe"]}}}}"#;
    let length = wanted.len();
    let mut driver = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    write!(
        driver,
        "POST /session HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{wanted}"
    )
    .unwrap();
    // The driver keeps the connection open.
    driver
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut answer = Vec::new();
    while !String::from_utf8_lossy(&answer).contains("sessionId") {
        let mut buffer = [0; 4096];
        let read = driver.read(&mut buffer).unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&buffer[..read]);
    }
    // The driver itself, and the processes of the browser.
    assert!(users_of(&directory).len() > 2);

    drop(server);
    eventually("the browser ends", || users_of(&directory).is_empty());
    eventually("its files are removed", || !directory.exists());
}

#[test]
#[ignore = "needs the database servers: cargo xtask test runs it"]
fn a_killed_parent_leaves_nothing_behind() {
    if std::env::var_os(VICTIM).is_some() {
        be_killed();
    }
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--include-ignored", "--exact", "--nocapture"])
        .arg("a_killed_parent_leaves_nothing_behind")
        .env(VICTIM, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut servers: Vec<(String, PathBuf)> = Vec::new();
    for line in BufReader::new(victim.stdout.take().unwrap()).lines() {
        if let Some((pid, directory)) = line.unwrap().split_once(" serves ") {
            servers.push((pid.to_owned(), directory.into()));
        }
        if servers.len() == 5 {
            break;
        }
    }
    assert_eq!(servers.len(), 5);
    assert!(servers.iter().all(|(pid, _)| is_alive(pid)));

    victim.kill().unwrap();
    victim.wait().unwrap();
    for (pid, directory) in servers {
        eventually("the server ends", || !is_alive(&pid));
        eventually("its helpers end", || users_of(&directory).is_empty());
        eventually("its directory is removed", || !Path::exists(&directory));
    }
}

/// Starts a PostgreSQL with these programs, one of which writes its id into a file, and then kills the process that
/// started it.
fn parent_killed_while(initdb: &str, postgres: &str) {
    // Accessible to every user: the server must read the programs, and write its directory.
    let place = tempfile::tempdir().unwrap();
    let path = place.path();
    let (programs, servers) = (path.join("programs"), path.join("servers"));
    for directory in [&programs, &servers] {
        std::fs::create_dir(directory).unwrap();
    }
    for (name, script) in [("initdb", initdb), ("postgres", postgres)] {
        std::fs::write(programs.join(name), format!("#!/bin/sh\n{script}\n")).unwrap();
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(programs.join(name), executable).unwrap();
    }
    for (directory, mode) in [(path, 0o755), (&programs, 0o755), (&servers, 0o777)] {
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let search = std::env::var_os("PATH").unwrap_or_default();
    let search = [programs].into_iter().chain(std::env::split_paths(&search));
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--include-ignored", "--exact", "--nocapture"])
        .arg("a_parent_killed_during_start_up_leaves_nothing_behind")
        .env(VICTIM, "1")
        .env("PATH", std::env::join_paths(search).unwrap())
        .env("TMPDIR", &servers)
        // The program in the place of the server's is on `PATH`.
        .env_remove(idem_servers::NEWEST)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let server = || servers.read_dir().unwrap().next();
    let file = |name: &str| server().unwrap().unwrap().path().join(name);
    eventually("the server starts", || {
        server().is_some() && file("pid").exists()
    });
    let pid = std::fs::read_to_string(file("pid")).unwrap();
    let pid = pid.trim();
    assert!(is_alive(pid));

    victim.kill().unwrap();
    victim.wait().unwrap();
    std::fs::write(path.join("programs/go"), "").unwrap();
    eventually("the program ends", || !is_alive(pid));
    eventually("the directory is removed", || server().is_none());
}

#[test]
#[ignore = "needs the database servers: cargo xtask test runs it"]
fn a_parent_killed_during_start_up_leaves_nothing_behind() {
    if std::env::var_os(VICTIM).is_some() {
        let server = Server::postgres(&Options::fast());
        panic!("the server must not become ready: {server:?}");
    }
    let report = "echo $$ >pid.new; mv pid.new pid";
    // While the data directory is created, which no signal interrupts, and while the server starts and ignores
    // `SIGQUIT`.
    let wait = format!("{report}; while ! [ -e ../../programs/go ]; do sleep 0.02; done");
    parent_killed_while(&wait, "exit 1");
    parent_killed_while("exit 0", &format!("{report}; exec sleep 1000"));
}

#[test]
#[ignore = "needs the database servers: cargo xtask test runs it"]
fn a_restart_gives_up_at_a_permanent_error() {
    let server = Server::postgres(&Options::durable()).unwrap();
    server.kill().unwrap();
    let configuration = server.directory().join("data/postgresql.conf");
    let before = std::fs::read_to_string(&configuration).unwrap();
    std::fs::write(&configuration, format!("{before}\nno_such_setting = 1\n")).unwrap();
    let error = server.restart().unwrap_err();
    assert!(
        format!("{error:#}").contains("no_such_setting"),
        "{error:#}"
    );
    let log = std::fs::read_to_string(server.directory().join("log")).unwrap();
    assert_eq!(log.matches("no_such_setting").count(), 1, "{log}");

    std::fs::write(&configuration, before).unwrap();
    server.restart().unwrap();
    assert_eq!(server.query("SELECT 7").unwrap(), "7");
}

/// Starts servers, pauses one of them, reports that, and waits for `SIGKILL`.
fn be_killed() -> ! {
    let servers = all(&Options::fast());
    servers[0].pause().unwrap();
    for server in &servers {
        let directory = server.directory().display();
        println!("\n{} serves {directory}", server.pid().unwrap());
    }
    std::io::stdout().flush().unwrap();
    // Also ends if the other test dies first: then its end of this pipe is closed.
    let _ = std::io::stdin().read_line(&mut String::new());
    std::process::exit(1)
}

#[test]
#[ignore = "needs the database servers: cargo xtask test runs it"]
fn a_killed_server_restarts_with_its_data() {
    let [postgres, maria_db, redis] = databases(&Options::durable());
    let write = "CREATE SCHEMA t; CREATE TABLE t.t (n INT); INSERT INTO t.t VALUES (7)";
    let read = "SELECT n FROM t.t";
    for (server, write, read) in [
        (&postgres, write, read),
        (&maria_db, write, read),
        (&redis, "SET t 7", "GET t"),
    ] {
        server.query(write).unwrap();
        let (url, first) = (server.url(), server.pid());
        server.kill().unwrap();
        assert_eq!(server.pid(), None);
        assert!(server.query(read).is_err());
        server.restart().unwrap();
        assert_eq!(server.query(read).unwrap(), "7");
        assert_eq!(server.url(), url);
        assert_ne!(server.pid(), first);
    }
}

#[test]
#[ignore = "needs the database servers: cargo xtask test runs it"]
fn a_paused_server_answers_when_it_is_resumed() {
    for server in databases(&Options::fast()) {
        server.pause().unwrap();
        std::thread::scope(|scope| {
            let query = match server.url().starts_with("redis") {
                true => "PING",
                false => "SELECT 'PONG'",
            };
            let answer = scope.spawn(|| server.query(query));
            let pid = server.pid().unwrap().to_string();
            let ps = Command::new("ps")
                .args(["-o", "stat=", "-p", &pid])
                .output();
            assert!(ps.unwrap().stdout.starts_with(b"T"));
            server.resume().unwrap();
            assert_eq!(answer.join().unwrap().unwrap(), "PONG");
        });
    }
}

#[test]
#[ignore = "needs the database servers: cargo xtask test runs it"]
fn a_paused_server_can_be_killed_and_restarted() {
    for server in all(&Options::fast()) {
        server.pause().unwrap();
        server.kill().unwrap();
        server.restart().unwrap();
        let pid = server.pid().unwrap().to_string();
        assert!(is_alive(&pid));
    }
}

#[test]
#[ignore = "needs the database servers: cargo xtask test runs it"]
fn settings_reach_the_server() {
    let library = ("shared_preload_libraries", "pg_stat_statements");
    let postgres = Server::postgres(&Options::fast().set(library.0, library.1)).unwrap();
    let shown = postgres.query("SHOW shared_preload_libraries").unwrap();
    assert_eq!(shown, library.1);

    let maria_db = Server::maria_db(&Options::fast().set("max-connections", "33")).unwrap();
    assert_eq!(maria_db.query("SELECT @@max_connections").unwrap(), "33");

    let redis = Server::redis(&Options::fast().set("maxmemory-policy", "allkeys-lru")).unwrap();
    let policy = redis.query("CONFIG GET maxmemory-policy").unwrap();
    assert!(policy.ends_with("allkeys-lru"), "{policy}");
}

#[test]
#[ignore = "needs the database servers: cargo xtask test runs it"]
fn an_error_at_start_up_contains_the_log() {
    let error = Server::postgres(&Options::fast().set("no_such_setting", "1")).unwrap_err();
    assert!(
        format!("{error:#}").contains("no_such_setting"),
        "{error:#}"
    );
}

#[test]
#[ignore = "needs the database servers: cargo xtask test runs it"]
fn a_cluster_has_three_primaries_with_a_replica_each() {
    let cluster = RedisCluster::start(&Options::fast()).unwrap();
    assert_eq!(cluster.urls().len(), 6);
    let roles: Vec<_> = cluster
        .nodes()
        .iter()
        .map(|node| node.query("INFO replication").unwrap())
        .collect();
    let primaries = roles.iter().filter(|it| it.contains("role:master"));
    assert_eq!(primaries.count(), 3);
    let replicas = roles.iter().filter(|it| it.contains("role:slave"));
    assert_eq!(replicas.count(), 3);
}

/// Servers that run in a root of their own. They need the set `newest`.
mod newest {
    use super::*;

    const WRITE: &str = "CREATE SCHEMA t; CREATE TABLE t.t (n INT); INSERT INTO t.t VALUES (7)";
    const READ: &str = "SELECT n FROM t.t";

    /// Options of a server of this release.
    fn of(release: Release) -> Options {
        Options::durable().with(release.programs().unwrap())
    }

    /// Paths of the processes' programs and directories start at the root, so the directory's last part identifies them.
    fn inside(directory: &Path) -> &Path {
        Path::new(directory.file_name().unwrap())
    }

    #[test]
    #[ignore = "needs the newest servers: cargo xtask test runs it"]
    fn a_server_restarts_with_its_data_and_leaves_nothing_behind() {
        let redis = ["SET t 7", "GET t"];
        for (server, [write, read]) in [
            (Server::my_sql(&of(Release::MY_SQL)), [WRITE, READ]),
            (Server::postgres(&of(Release::POSTGRES)), [WRITE, READ]),
            (Server::maria_db(&of(Release::MARIA_DB)), [WRITE, READ]),
            (Server::redis(&of(Release::REDIS)), redis),
            (Server::redis(&of(Release::VALKEY)), redis),
        ] {
            let server = server.unwrap();
            let directory = server.directory().to_owned();
            server.query(write).unwrap();
            server.pause().unwrap();
            server.kill().unwrap();
            assert!(server.query(read).is_err());
            server.restart().unwrap();
            assert_eq!(server.query(read).unwrap(), "7");
            let pid = server.pid().unwrap().to_string();
            assert!(is_alive(&pid) && !users_of(inside(&directory)).is_empty());
            drop(server);
            assert!(!is_alive(&pid) && !directory.exists());
            eventually("its helpers end", || {
                users_of(inside(&directory)).is_empty()
            });
        }
    }

    #[test]
    #[ignore = "needs the newest servers: cargo xtask test runs it"]
    fn the_server_has_the_version_of_its_release() {
        let server = Server::postgres(&of(Release::POSTGRES)).unwrap();
        let pooler = Server::pg_bouncer(server.port(), &of(Release::PG_BOUNCER)).unwrap();
        let through = Command::new("psql")
            .arg(pooler.url())
            .args([
                "--tuples-only",
                "--no-align",
                "--command",
                "SHOW server_version",
            ])
            .output()
            .unwrap();
        let shown = String::from_utf8_lossy(&through.stdout);
        let version = Release::POSTGRES.version().unwrap();
        assert_eq!(
            shown.split_whitespace().next(),
            Some(&*version),
            "{through:?}"
        );
        assert!(matches!(
            Release::PG_BOUNCER.programs(),
            Ok(Programs::Root(_))
        ));
    }

    #[test]
    #[ignore = "needs the newest servers: cargo xtask test runs it"]
    fn my_sql_has_its_default_authentication_and_tls() {
        let server = Server::my_sql(&Options::fast()).unwrap();
        let asked = |query: &str| server.query(query).unwrap();
        assert_eq!(
            asked("SELECT plugin FROM mysql.user WHERE user = 'idem'"),
            "caching_sha2_password"
        );
        let tls = "SELECT value FROM performance_schema.tls_channel_status
                   WHERE channel = 'mysql_main' AND property = 'Enabled'";
        assert_eq!(asked(&tls.replace('\n', " ")), "Yes");
        assert!(server.url().contains("idem:"), "{}", server.url());
    }
}
