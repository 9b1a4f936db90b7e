//! etcd: three nodes, of which a majority goes on without the third.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use idem_etcd::Etcd as Nodes;
use idem_runtime::Idem;
use idem_servers::{EtcdCluster, Options};
use idem_store::cas::CasStore;

use crate::engine::{Client, Engine, blocking};
use crate::network::{Cut, Network};

/// Longest time until the nodes have elected another leader.
const FAILOVER: Duration = Duration::from_secs(60);

/// The nodes, and the one that a fault has removed.
pub(crate) struct Etcd {
    cluster: EtcdCluster,
    network: Network,
    fault: Option<(Fault, usize)>,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Kill,
    Pause,
    /// A partition of the network: the node and the others do not reach each other, and clients reach all of them.
    CutOff,
}

impl Etcd {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let mut network = Network::new();
        let front = |port| network.relay(port);
        Ok(Self {
            cluster: blocking(|| EtcdCluster::start_behind(&Options::durable(), front))?,
            network,
            fault: None,
        })
    }
}

impl Engine for Etcd {
    /// A write is acknowledged once a majority has it on disk.
    fn keeps_acknowledged(&self) -> bool {
        true
    }

    async fn client(&self, number: usize) -> anyhow::Result<Client> {
        let mut nodes = self.cluster.urls();
        // Each client begins with another node.
        let count = nodes.len();
        nodes.rotate_left(number % count);
        let store = CasStore::new(Nodes::new(nodes, "failover/")?);
        Ok(Client::leased(Idem::new(store).erased()))
    }

    /// The leader is killed, paused and cut off in turn. A leader that is paused or cut off does not know that it was
    /// replaced, until it hears of the next one.
    async fn fail(&mut self, round: u32) -> anyhow::Result<String> {
        let leader = blocking(|| self.cluster.leader()).context("there is no leader")?;
        let fault = match round % 3 {
            1 => Fault::Kill,
            2 => Fault::Pause,
            _ => Fault::CutOff,
        };
        let server = &self.cluster.nodes()[leader];
        self.fault = Some((fault, leader));
        blocking(|| match fault {
            Fault::Kill => server.kill(),
            Fault::Pause => server.pause(),
            Fault::CutOff => {
                let member = self.cluster.member(leader);
                let member = member.context("the leader does not tell its id")?;
                let node = leader;
                self.network.cut(Some(Cut { node, member }));
                Ok(())
            }
        })?;
        let deadline = Instant::now() + FAILOVER;
        while blocking(|| self.cluster.leader()).is_none_or(|it| it == leader) {
            if Instant::now() > deadline {
                bail!("the nodes have not elected another leader");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let words = match fault {
            Fault::Kill => "leader killed and replaced",
            Fault::Pause => "leader paused and replaced",
            Fault::CutOff => {
                let is_apart = !blocking(|| self.cluster.has_majority(leader));
                ensure!(is_apart, "the node that is cut off reaches the others");
                "leader cut off from the other nodes and replaced"
            }
        };
        Ok(words.to_owned())
    }

    async fn heal(&mut self) -> anyhow::Result<()> {
        let Some((fault, node)) = self.fault.take() else {
            return Ok(());
        };
        let server = &self.cluster.nodes()[node];
        blocking(|| {
            match fault {
                Fault::Kill => server.restart(),
                Fault::Pause => server.resume(),
                Fault::CutOff => {
                    self.network.cut(None);
                    Ok(())
                }
            }?;
            self.cluster.wait_until_complete()
        })?;
        Ok(())
    }
}
