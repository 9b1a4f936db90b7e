//! A Galera cluster: three MariaDB servers that replicate to each other.

use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::binaries;
use crate::galera_node::{FIRST, PROBE};
use crate::options::Options;
use crate::port::free_port;
use crate::server::Server;

/// Time limit for the nodes to agree on their number.
const AGREEMENT_LIMIT: Duration = Duration::from_secs(120);

/// A Galera cluster of three nodes on 127.0.0.1, stopped on drop. A majority of two nodes goes on without the third.
#[derive(Debug)]
pub struct GaleraCluster {
    nodes: Vec<Server>,
}

impl GaleraCluster {
    /// Starts the nodes, and waits until each of them has the data and knows the others.
    ///
    /// A node that does not answer is expelled after five seconds, the default.
    ///
    /// # Errors
    ///
    /// MariaDB, Galera or `rsync` is not installed, or the nodes did not start or did not agree.
    pub fn start(options: &Options) -> anyhow::Result<Self> {
        let provider = binaries::GALERA.find()?.display().to_string();
        // The port 10,000 above the first one is for the transfer of single writes.
        let ports = (0..3)
            .map(|_| Ok((free_port()?, free_port()?)))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let addresses: Vec<_> = ports
            .iter()
            .map(|(port, _)| format!("127.0.0.1:{port}"))
            .collect();
        let options = |node: usize| {
            let (port, sst) = ports[node];
            let provider_options = format!(
                "gmcast.listen_addr=tcp://127.0.0.1:{port};ist.recv_addr=127.0.0.1:{};gcache.size=32M;\
                 pc.recovery=false",
                port + 10_000
            );
            let all = options
                .clone()
                .or_else("innodb-buffer-pool-size", "24M")
                .or_else("innodb-log-file-size", "16M")
                .set("binlog-format", "ROW")
                .set("innodb-autoinc-lock-mode", "2")
                .set("wsrep-on", "ON")
                .set("wsrep-provider", &provider)
                .set("wsrep-cluster-name", "idem")
                .set(
                    "wsrep-cluster-address",
                    &format!("gcomm://{}", addresses.join(",")),
                )
                .set("wsrep-node-address", &addresses[node])
                .set("wsrep-node-name", &format!("node{node}"))
                .set("wsrep-sst-method", "rsync")
                .set("wsrep-sst-receive-address", &format!("127.0.0.1:{sst}"))
                .set("wsrep-provider-options", &provider_options);
            match node {
                0 => all.set(FIRST, "ON"),
                _ => all,
            }
        };
        let first = Server::galera_node(&options(0))?;
        let [second, third] = [options(1), options(2)]
            .map(|options| thread::spawn(move || Server::galera_node(&options)))
            .map(|node| {
                node.join()
                    .map_err(|_| anyhow::anyhow!("a start panicked"))?
            });
        let cluster = Self {
            nodes: vec![first, second?, third?],
        };
        cluster.wait_until_complete()?;
        Ok(cluster)
    }

    /// The three servers.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// Cuts the node with this index off from the others, and waits until it knows that it has no majority. Clients
    /// still reach it.
    ///
    /// # Errors
    ///
    /// The node does not run, or did not notice.
    pub fn isolate(&self, node: usize) -> anyhow::Result<()> {
        const STATUS: &str = "SHOW STATUS LIKE 'wsrep_cluster_status'";
        let node = &self.nodes[node];
        node.query("SET GLOBAL wsrep_provider_options = 'gmcast.isolate=1'")?;
        let deadline = Instant::now() + AGREEMENT_LIMIT;
        loop {
            let status = node.query(STATUS)?;
            if status.ends_with("non-Primary") {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("a node of Galera did not notice that it is alone: {status}");
            }
            sleep(Duration::from_millis(50));
        }
    }

    /// Connects a node again that was cut off.
    ///
    /// # Errors
    ///
    /// The node does not run.
    pub fn reconnect(&self, node: usize) -> anyhow::Result<()> {
        self.nodes[node].query("SET GLOBAL wsrep_provider_options = 'gmcast.isolate=0'")?;
        Ok(())
    }

    /// Waits until all three nodes are one cluster, and each of them has its data.
    ///
    /// # Errors
    ///
    /// They did not agree within two minutes.
    pub fn wait_until_complete(&self) -> anyhow::Result<()> {
        const SIZE: &str = "SHOW STATUS LIKE 'wsrep_cluster_size'";
        let deadline = Instant::now() + AGREEMENT_LIMIT;
        for (index, node) in self.nodes.iter().enumerate() {
            loop {
                let state = node.query(PROBE);
                let size = node.query(SIZE);
                if state.as_ref().is_ok_and(|it| it == "Synced")
                    && size.as_ref().is_ok_and(|it| it.ends_with('3'))
                {
                    break;
                }
                if Instant::now() > deadline {
                    let size = size.context("the node does not answer")?;
                    bail!("node {index} of Galera did not join in time: {state:?}, {size}");
                }
                sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }
}
