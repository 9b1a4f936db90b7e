//! The servers start, lose nothing that they should keep, and leave nothing behind, however the test ends.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use idem_servers::{Options, RedisCluster, Server};

/// Set for the process that a test starts in order to kill it.
const VICTIM: &str = "IDEM_SERVERS_VICTIM";

fn all(options: &Options) -> [Server; 3] {
    [
        Server::postgres(options).unwrap(),
        Server::maria_db(options).unwrap(),
        Server::redis(options).unwrap(),
    ]
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
        assert!(is_alive(&pid) && directory.is_dir());
        drop(server);
        assert!(!is_alive(&pid) && !directory.exists());
    }
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
        if servers.len() == 3 {
            break;
        }
    }
    assert_eq!(servers.len(), 3);
    assert!(servers.iter().all(|(pid, _)| is_alive(pid)));

    victim.kill().unwrap();
    victim.wait().unwrap();
    for (pid, directory) in servers {
        eventually("the server ends", || !is_alive(&pid));
        eventually("its directory goes", || !Path::exists(&directory));
    }
}

/// Starts servers, one of them paused, says so, and waits for `SIGKILL`.
fn be_killed() -> ! {
    let servers = all(&Options::fast());
    servers[0].pause().unwrap();
    for server in &servers {
        let directory = server.directory().display();
        println!("\n{} serves {directory}", server.pid().unwrap());
    }
    std::io::stdout().flush().unwrap();
    // Ends also if the other test dies first: then its end of this pipe is closed.
    let _ = std::io::stdin().read_line(&mut String::new());
    std::process::exit(1)
}

#[test]
#[ignore = "needs the database servers: cargo xtask test runs it"]
fn a_killed_server_comes_back_with_its_data() {
    let [postgres, maria_db, redis] = all(&Options::durable());
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
    for server in all(&Options::fast()) {
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
fn a_paused_server_can_be_killed_and_comes_back() {
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
fn a_server_that_refuses_its_settings_says_why() {
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
