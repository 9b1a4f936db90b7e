//! Redis Sentinel: a primary, its replicas, and the sentinels that replace the primary when it fails.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::bail;

use crate::options::Options;
use crate::server::Server;

/// Time limit for the servers and the sentinels to know each other.
const AGREEMENT_LIMIT: Duration = Duration::from_secs(120);

/// Three Redis servers, one of them the primary, and three sentinels on 127.0.0.1. They are stopped on drop.
#[derive(Debug)]
pub struct RedisSentinels {
    servers: Vec<Server>,
    sentinels: Vec<Server>,
}

impl RedisSentinels {
    /// Name of the primary in the sentinels' configuration.
    pub const NAME: &'static str = "idem";

    /// Starts the servers with these options and the sentinels, and waits until they know each other.
    ///
    /// A sentinel suspects the primary after a second without an answer; two sentinels decide.
    ///
    /// # Errors
    ///
    /// Redis is not installed, or the servers did not start or did not find each other.
    pub fn start(options: &Options) -> anyhow::Result<Self> {
        // A replica need not wait for another one before it copies the data.
        let options = options.clone().or_else("repl-diskless-sync-delay", "0");
        let servers = (0..3)
            .map(|_| Server::redis(&options))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let port = servers[0].port();
        for replica in &servers[1..] {
            replica.query(&format!("REPLICAOF 127.0.0.1 {port}"))?;
        }
        let name = Self::NAME;
        let mut of_sentinels = Options::fast();
        of_sentinels.certificates = options.certificates;
        let options = of_sentinels
            .set(
                &format!("sentinel monitor {name}"),
                &format!("127.0.0.1 {port} 2"),
            )
            .set(&format!("sentinel down-after-milliseconds {name}"), "1000")
            .set(&format!("sentinel failover-timeout {name}"), "5000")
            .set(&format!("sentinel parallel-syncs {name}"), "2");
        let sentinels = (0..3)
            .map(|_| Server::redis_sentinel(&options))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let sentinels = Self { servers, sentinels };
        sentinels.wait_until_complete()?;
        Ok(sentinels)
    }

    /// URLs of the sentinels.
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Server::url).collect()
    }

    /// The three servers. The first one is the primary at the start.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The three sentinels.
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// Index of the server that a majority of the sentinels names as the primary; `None` while they disagree.
    pub fn primary(&self) -> Option<usize> {
        let named = |sentinel: &Server| {
            let address =
                sentinel.query(&format!("SENTINEL GET-MASTER-ADDR-BY-NAME {}", Self::NAME));
            let port: u16 = address.ok()?.lines().last()?.trim().parse().ok()?;
            self.servers.iter().position(|it| it.port() == port)
        };
        let named: Vec<_> = self.sentinels.iter().map(named).collect();
        (0..self.servers.len()).find(|server| {
            let votes = named.iter().filter(|it| **it == Some(*server)).count();
            2 * votes > self.sentinels.len()
        })
    }

    /// Waits until all sentinels know each other, and a primary with two connected replicas. Returns the index of the
    /// primary.
    ///
    /// # Errors
    ///
    /// That took longer than two minutes.
    pub fn wait_until_complete(&self) -> anyhow::Result<usize> {
        let deadline = Instant::now() + AGREEMENT_LIMIT;
        loop {
            let mut state = String::new();
            let knows_all = |sentinel: &Server| {
                let answer = sentinel.query("INFO sentinel");
                answer
                    .is_ok_and(|it| it.contains("status=ok") && it.contains("slaves=2,sentinels=3"))
            };
            if let Some(primary) = self.primary() {
                state = self.servers[primary]
                    .query("INFO replication")
                    .unwrap_or_default();
                if state.contains("role:master")
                    && state.matches("state=online").count() == 2
                    && self.sentinels.iter().all(knows_all)
                {
                    return Ok(primary);
                }
            }
            if Instant::now() > deadline {
                bail!("the servers and sentinels did not agree in time: {state}");
            }
            sleep(Duration::from_millis(100));
        }
    }
}
