//! MariaDB Galera: three nodes, all of which accept writes. Each client has an address of its own, which leads to another
//! node while its node is gone.

use std::net::SocketAddr;
use std::time::Duration;

use idem_runtime::MySqlStore;
use idem_servers::{GaleraCluster, Options, Server};
use idem_tests::ledger::Database as _;
use idem_tests::proxy::Proxy;
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::{Executor as _, MySqlPool};

use crate::engine::{Client, Engine, blocking};

/// Three nodes, and the address of each for clients.
pub(crate) struct Galera {
    cluster: GaleraCluster,
    addresses: Vec<Proxy>,
    /// Fault of this round, and its node.
    fault: Option<(Fault, usize)>,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Kill,
    Isolate,
}

const FAULTS: [Fault; 2] = [Fault::Isolate, Fault::Kill];

impl Galera {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let cluster = blocking(|| GaleraCluster::start(&Options::fast()))?;
        let first = &cluster.nodes()[0];
        blocking(|| first.query("CREATE DATABASE idem"))?;
        let pool = MySqlPool::connect_with(options(address(first))).await?;
        MySqlStore::new(pool.clone()).make_ledger(&pool).await?;
        pool.close().await;
        let mut addresses = Vec::new();
        for node in cluster.nodes() {
            addresses.push(Proxy::start(address(node)).await?);
        }
        Ok(Self {
            cluster,
            addresses,
            fault: None,
        })
    }
}

impl Engine for Galera {
    fn keeps_acknowledged(&self) -> bool {
        true
    }

    /// The store learns from `migrate` that its server is a node. The ledger is not the store's, so its pool waits for
    /// the writes of the other nodes by a setting.
    async fn client(&self, number: usize) -> anyhow::Result<Client> {
        let address = self.addresses[number % self.addresses.len()].address();
        let pool = || {
            MySqlPoolOptions::new()
                .max_connections(8)
                .acquire_timeout(Duration::from_secs(5))
                .test_before_acquire(false)
        };
        let store = MySqlStore::new(pool().connect_with(options(address)).await?);
        store.migrate().await?;
        let ledger = pool()
            .test_before_acquire(true)
            .after_connect(|connection, _| {
                Box::pin(async move {
                    connection.execute("SET wsrep_sync_wait = 1").await?;
                    Ok(())
                })
            })
            .connect_lazy_with(options(address));
        Ok(Client::with_transactions(|| store.clone(), ledger))
    }

    async fn fail(&mut self, round: u32) -> anyhow::Result<String> {
        let round = round as usize;
        let (fault, node) = (FAULTS[round % FAULTS.len()], round % self.addresses.len());
        let server = &self.cluster.nodes()[node];
        blocking(|| match fault {
            Fault::Kill => server.kill(),
            Fault::Isolate => self.cluster.isolate(node),
        })?;
        self.fault = Some((fault, node));
        let next = &self.cluster.nodes()[(node + 1) % self.addresses.len()];
        self.addresses[node].lead_to(address(next));
        Ok(match fault {
            Fault::Kill => format!("node {node} killed"),
            Fault::Isolate => format!("node {node} cut off"),
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
                Fault::Isolate => self.cluster.reconnect(node),
            }?;
            self.cluster.wait_until_complete()
        })?;
        self.addresses[node].lead_to(address(server));
        Ok(())
    }
}

fn options(address: SocketAddr) -> MySqlConnectOptions {
    MySqlConnectOptions::new()
        .host("127.0.0.1")
        .port(address.port())
        .username("root")
        .database("idem")
}

fn address(server: &Server) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], server.port()))
}
