//! An etcd of three nodes.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::options::Options;
use crate::port::free_port;
use crate::server::Server;

/// Time limit for the nodes to elect a leader.
const ELECTION_LIMIT: Duration = Duration::from_secs(60);
/// Time limit for an answer of a node.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// An etcd of three nodes on 127.0.0.1, stopped on drop. A majority of two nodes goes on without the third.
#[derive(Debug)]
pub struct EtcdCluster {
    nodes: Vec<Server>,
}

impl EtcdCluster {
    /// Starts the nodes, and waits until each of them answers with the agreement of a majority.
    ///
    /// # Errors
    ///
    /// etcd is not installed, or the nodes did not start or did not agree.
    pub fn start(options: &Options) -> anyhow::Result<Self> {
        Self::start_behind(options, Ok)
    }

    /// Like [`start`](Self::start), with something in front of each node, such as a proxy, that the other nodes connect to.
    /// `front` gets the port on which a node listens to the others, and returns the port that they connect to.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start), and those of `front`.
    pub fn start_behind(
        options: &Options,
        mut front: impl FnMut(u16) -> std::io::Result<u16>,
    ) -> anyhow::Result<Self> {
        let url = |port| format!("http://127.0.0.1:{port}");
        let mut peers = Vec::new();
        for _ in 0..3 {
            let port = free_port()?;
            peers.push((url(port), url(front(port)?)));
        }
        let named = peers.iter().enumerate();
        let cluster: Vec<_> = named
            .map(|(node, (_, peer))| format!("n{node}={peer}"))
            .collect();
        // A node is ready when there is a leader, so all of them start at once.
        let nodes: Vec<_> = peers
            .iter()
            .enumerate()
            .map(|(node, (listens, peer))| {
                let options = options
                    .clone()
                    .set("name", &format!("n{node}"))
                    .set("listen-peer-urls", listens)
                    .set("initial-advertise-peer-urls", peer)
                    .set("initial-cluster", &cluster.join(","))
                    // A node that a loaded machine keeps waiting must not be replaced under a test.
                    .or_else("heartbeat-interval", "300")
                    .or_else("election-timeout", "3000");
                thread::spawn(move || Server::etcd(&options))
            })
            .collect();
        let nodes = nodes.into_iter().map(|node| {
            node.join()
                .map_err(|_| anyhow::anyhow!("a start panicked"))?
        });
        let cluster = Self {
            nodes: nodes.collect::<anyhow::Result<_>>()?,
        };
        cluster.wait_until_complete()?;
        Ok(cluster)
    }

    /// URLs of the nodes.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Server::url).collect()
    }

    /// The three servers.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// Index of the node that the others say is the leader, and that answers itself. Returns `None` if there is none.
    pub fn leader(&self) -> Option<usize> {
        self.nodes.iter().position(|node| {
            // A node that is paused accepts connections, and does not answer.
            let status = ask(node.port(), "maintenance/status", "{}").unwrap_or_default();
            let (own, leader) = (field(&status, "member_id"), field(&status, "leader"));
            own.is_some() && own == leader
        })
    }

    /// Id of the member that runs on this node. Returns `None` if it does not answer.
    pub fn member(&self, node: usize) -> Option<u64> {
        let status = ask(self.nodes[node].port(), "maintenance/status", "{}").ok()?;
        field(&status, "member_id")?.parse().ok()
    }

    /// Returns true if this node answers a read that needs a majority.
    pub fn has_majority(&self, node: usize) -> bool {
        read(self.nodes[node].port()).is_ok()
    }

    /// Waits until each node answers a read that needs a majority.
    ///
    /// # Errors
    ///
    /// One of them did not within a minute.
    pub fn wait_until_complete(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + ELECTION_LIMIT;
        for node in &self.nodes {
            while let Err(error) = read(node.port()) {
                if Instant::now() > deadline {
                    return Err(error).context("a node of etcd did not find a majority in time");
                }
                sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }
}

/// Reads a key of this node, which asks its leader first.
fn read(port: u16) -> anyhow::Result<()> {
    ask(port, "kv/range", r#"{"key":"eA=="}"#).map(drop)
}

/// Sends a request to a node, and returns its answer.
fn ask(port: u16, path: &str, body: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    let length = body.len();
    write!(
        stream,
        "POST /v3/{path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.lines().next() {
        Some(first) if first.contains(" 200 ") => Ok(answer),
        _ => bail!("it answered {answer:?}"),
    }
}

/// The value of a field that is a text.
fn field<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = answer.split_once(&format!("\"{name}\":\""))?;
    Some(rest.split_once('"')?.0)
}
