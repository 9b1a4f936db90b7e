//! Patroni: two PostgreSQL servers, of which it makes one the primary, and the etcd that keeps its decisions.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::options::Options;
use crate::port::free_port;
use crate::server::Server;

/// Time limit for a primary and its standby to agree.
const AGREEMENT_LIMIT: Duration = Duration::from_secs(120);
/// Time limit for an answer of Patroni's API. A switchover is answered when it is over.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);

/// Two PostgreSQL servers under Patroni on 127.0.0.1, and etcd. They are stopped on drop. The primary acknowledges a commit
/// after its standby has it on disk.
#[derive(Debug)]
pub struct Patroni {
    nodes: Vec<Node>,
    _etcd: Server,
}

/// A Patroni and its PostgreSQL.
#[derive(Debug)]
struct Node {
    /// Patroni's process. Its port is that of PostgreSQL.
    server: Server,
    name: &'static str,
    /// Port of Patroni's API.
    api: u16,
}

impl Patroni {
    /// Starts etcd and the nodes, and waits until the standby follows the primary synchronously.
    ///
    /// A primary that is gone is replaced after ten seconds.
    ///
    /// # Errors
    ///
    /// Patroni, etcd or PostgreSQL is not installed, or the nodes did not start or did not agree.
    pub fn start() -> anyhow::Result<Self> {
        let peers = format!("http://127.0.0.1:{}", free_port()?);
        let etcd = Options::fast()
            .set("listen-peer-urls", &peers)
            .set("initial-advertise-peer-urls", &peers)
            .set("initial-cluster", &format!("default={peers}"));
        let etcd = Server::etcd(&etcd)?;
        let mut nodes = Vec::new();
        for name in ["node1", "node2"] {
            let api = free_port()?;
            let options = Options::durable()
                .set("name", name)
                .set("api", &api.to_string())
                .set("etcd", &etcd.port().to_string());
            let server = Server::patroni_node(&options)?;
            nodes.push(Node { server, name, api });
        }
        let patroni = Self { nodes, _etcd: etcd };
        patroni.wait_until_complete()?;
        Ok(patroni)
    }

    /// The servers. Their ports are those of PostgreSQL.
    pub fn servers(&self) -> impl Iterator<Item = &Server> {
        self.nodes.iter().map(|it| &it.server)
    }

    /// Waits until a node is the primary, and returns its index.
    ///
    /// # Errors
    ///
    /// None became the primary in time.
    pub fn primary(&self) -> anyhow::Result<usize> {
        let deadline = Instant::now() + AGREEMENT_LIMIT;
        loop {
            let is_primary = |node: &Node| node.ask("GET", "/primary", "").is_ok();
            if let Some(primary) = self.nodes.iter().position(is_primary) {
                return Ok(primary);
            }
            ensure!(Instant::now() < deadline, "no node became the primary");
            sleep(POLL);
        }
    }

    /// Waits until there is a primary with a synchronous standby, and returns the index of the primary.
    ///
    /// # Errors
    ///
    /// That took longer than two minutes.
    pub fn wait_until_complete(&self) -> anyhow::Result<usize> {
        let deadline = Instant::now() + AGREEMENT_LIMIT;
        loop {
            let primary = self.primary()?;
            // PostgreSQL knows earlier that its standby is synchronous. Patroni promotes it only once Patroni knows, too.
            let is_synchronous = |node: &Node| node.ask("GET", "/synchronous", "").is_ok();
            if self.nodes.iter().any(is_synchronous) {
                return Ok(primary);
            }
            ensure!(Instant::now() < deadline, "the standby does not follow");
            sleep(POLL);
        }
    }

    /// Asks Patroni to make the other node the primary, and waits until it has.
    ///
    /// # Errors
    ///
    /// Patroni refused.
    pub fn switch_over(&self) -> anyhow::Result<()> {
        let primary = &self.nodes[self.wait_until_complete()?];
        let leader = format!("{{\"leader\": \"{}\"}}", primary.name);
        primary.ask("POST", "/switchover", &leader)
    }

    /// Kills a node: its Patroni and its PostgreSQL. [`restart`](Self::restart) starts it again.
    ///
    /// # Errors
    ///
    /// It cannot be killed.
    pub fn kill(&self, node: usize) -> anyhow::Result<()> {
        let node = &self.nodes[node];
        node.server.kill()?;
        node.kill_postgres();
        Ok(())
    }

    /// Starts a node that was killed, and waits until it follows the primary.
    ///
    /// # Errors
    ///
    /// It did not start or did not follow in time.
    pub fn restart(&self, node: usize) -> anyhow::Result<()> {
        self.nodes[node].server.restart()?;
        self.wait_until_complete().map(drop)
    }
}

impl Drop for Patroni {
    /// A Patroni that is killed leaves its PostgreSQL running.
    fn drop(&mut self) {
        for node in &self.nodes {
            let _ = node.server.kill();
            node.kill_postgres();
        }
    }
}

impl Node {
    /// Sends a request to the API. An answer other than 200 is an error.
    fn ask(&self, method: &str, path: &str, body: &str) -> anyhow::Result<()> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.api))?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let first = answer.lines().next().unwrap_or_default();
        ensure!(first.contains(" 200 "), "{method} {path}: {answer}");
        Ok(())
    }

    /// Kills PostgreSQL, which is no child of Patroni's process.
    fn kill_postgres(&self) {
        let data = self.server.directory().join("data");
        let file = std::fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
        let Some(pid) = file.lines().next() else {
            return;
        };
        // The file of a PostgreSQL that ended long ago may name another process.
        let mut ps = Command::new("ps");
        let arguments = ps.args(["-o", "args=", "-p", pid]).output();
        let arguments = arguments.map(|it| it.stdout).unwrap_or_default();
        if String::from_utf8_lossy(&arguments).contains(&*data.to_string_lossy()) {
            let _ = Command::new("kill").args(["-KILL", pid]).status();
        }
    }
}
