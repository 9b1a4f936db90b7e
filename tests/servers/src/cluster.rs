//! A Redis Cluster: six servers that form one cluster.

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::binaries;
use crate::certificates::Certificates;
use crate::options::Options;
use crate::server::Server;

/// Time limit for the nodes to agree.
const AGREEMENT_LIMIT: Duration = Duration::from_secs(60);

/// A Redis Cluster on 127.0.0.1, of three primaries with one replica each. It is stopped on drop.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Server>,
}

impl RedisCluster {
    /// Starts the nodes and waits until each node finds the cluster complete and each replica follows its primary.
    ///
    /// # Errors
    ///
    /// Redis is not installed, or the nodes did not start or did not agree.
    pub fn start(options: &Options) -> anyhow::Result<Self> {
        let options = options
            .clone()
            .set("cluster-enabled", "yes")
            .or_else("cluster-node-timeout", "2000");
        let nodes = (0..6)
            .map(|_| Server::redis(&options))
            .collect::<anyhow::Result<Vec<_>>>()?;

        let create = Command::new(binaries::REDIS_CLI.find()?)
            .args(["--cluster", "create"])
            .args(nodes.iter().map(|it| format!("127.0.0.1:{}", it.port())))
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .args(
                options
                    .certificates
                    .iter()
                    .flat_map(Certificates::of_redis_cli),
            )
            .stdin(Stdio::null())
            .output()
            .context("cannot run `redis-cli`")?;
        if !create.status.success() {
            let said = String::from_utf8_lossy(&create.stdout);
            let error = String::from_utf8_lossy(&create.stderr);
            bail!("cannot create the Redis Cluster: {said}{error}");
        }
        let cluster = Self { nodes };
        cluster.wait_until_complete()?;
        Ok(cluster)
    }

    /// URLs of the nodes.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Server::url).collect()
    }

    /// The six servers. The set of primaries may change; `INFO replication` reports it.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    fn wait_until_complete(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + AGREEMENT_LIMIT;
        for node in &self.nodes {
            loop {
                let cluster = node.query("CLUSTER INFO")?;
                let replication = node.query("INFO replication")?;
                let is_whole = cluster.contains("cluster_state:ok")
                    && cluster.contains("cluster_known_nodes:6")
                    && (replication.contains("master_link_status:up")
                        || replication.contains("connected_slaves:1"));
                if is_whole {
                    break;
                }
                if Instant::now() > deadline {
                    bail!(
                        "the nodes of the Redis Cluster did not agree in time:\n{cluster}\n{replication}"
                    );
                }
                sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }
}
