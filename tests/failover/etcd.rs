//! etcd: three nodes, of which a majority goes on without the third.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use idem_etcd::Etcd as Nodes;
use idem_runtime::Idem;
use idem_servers::{EtcdCluster, Options};
use idem_store::cas::CasStore;

use crate::engine::{Client, Engine, blocking};

/// Longest time until the nodes have elected another leader.
const FAILOVER: Duration = Duration::from_secs(60);

/// The nodes, and the one that a fault has removed.
pub(crate) struct Etcd {
    cluster: EtcdCluster,
    fault: Option<(Fault, usize)>,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Kill,
    Pause,
}

impl Etcd {
    pub(crate) fn start() -> anyhow::Result<Self> {
        Ok(Self {
            cluster: blocking(|| EtcdCluster::start(&Options::durable()))?,
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

    /// Every second time the leader is paused. It then does not know that it was replaced, until it hears of the next one.
    async fn fail(&mut self, round: u32) -> anyhow::Result<String> {
        let leader = blocking(|| self.cluster.leader()).context("there is no leader")?;
        let fault = match round % 2 {
            1 => Fault::Kill,
            _ => Fault::Pause,
        };
        let server = &self.cluster.nodes()[leader];
        blocking(|| match fault {
            Fault::Kill => server.kill(),
            Fault::Pause => server.pause(),
        })?;
        self.fault = Some((fault, leader));
        let deadline = Instant::now() + FAILOVER;
        while blocking(|| self.cluster.leader()).is_none_or(|it| it == leader) {
            if Instant::now() > deadline {
                bail!("the nodes have not elected another leader");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(match fault {
            Fault::Kill => "leader killed and replaced".to_owned(),
            Fault::Pause => "leader paused and replaced".to_owned(),
        })
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
            }?;
            self.cluster.wait_until_complete()
        })?;
        Ok(())
    }
}
