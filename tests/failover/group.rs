//! MySQL Group Replication: three members, of which one or all accept writes. Each client has an address of its own. It leads
//! to the primary, or among primaries to one that is not gone.

use std::net::SocketAddr;
use std::time::Duration;

use idem_runtime::MySqlStore;
use idem_servers::{GroupReplication, Options, Primaries, Server};
use idem_tests::ledger::Database as _;
use idem_tests::proxy::Proxy;
use sqlx::MySqlPool;
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};

use crate::engine::{Client, Engine, blocking};

/// Three members, and an address for each client.
pub(crate) struct Group {
    group: GroupReplication,
    primaries: Primaries,
    addresses: Vec<Proxy>,
    /// Member that is the primary, if there is one.
    primary: usize,
    /// Member that was killed in this round.
    killed: Option<usize>,
}

impl Group {
    pub(crate) async fn start(primaries: Primaries) -> anyhow::Result<Self> {
        // A member that was killed gets what its group has committed since its own last transaction. It must not have lost
        // one before it.
        let group = blocking(|| GroupReplication::start(primaries, &Options::durable()))?;
        let first = &group.members()[0];
        blocking(|| first.query("CREATE DATABASE idem"))?;
        let pool = MySqlPool::connect_with(options(address(first))).await?;
        MySqlStore::new(pool.clone()).make_ledger(&pool).await?;
        pool.close().await;
        let mut addresses = Vec::new();
        for member in group.members() {
            addresses.push(Proxy::start(address(member)).await?);
        }
        let group = Self {
            group,
            primaries,
            addresses,
            primary: 0,
            killed: None,
        };
        if primaries == Primaries::One {
            group.lead_all_to(0);
        }
        Ok(group)
    }

    fn lead_all_to(&self, member: usize) {
        for proxy in &self.addresses {
            proxy.lead_to(address(&self.group.members()[member]));
        }
    }
}

impl Engine for Group {
    fn keeps_acknowledged(&self) -> bool {
        true
    }

    /// The store learns from `migrate` how many members accept writes.
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
        let ledger = pool().test_before_acquire(true);
        let ledger = ledger.connect_lazy_with(options(address));
        Ok(Client::with_transactions(|| store.clone(), ledger))
    }

    async fn fail(&mut self, round: u32) -> anyhow::Result<String> {
        let killed = match self.primaries {
            Primaries::One => self.primary,
            Primaries::All => round as usize % self.addresses.len(),
        };
        blocking(|| self.group.members()[killed].kill())?;
        self.killed = Some(killed);
        match self.primaries {
            Primaries::One => {
                self.primary = blocking(|| self.group.other_primary(killed))?;
                self.lead_all_to(self.primary);
            }
            Primaries::All => {
                let next = &self.group.members()[(killed + 1) % self.addresses.len()];
                self.addresses[killed].lead_to(address(next));
            }
        }
        Ok(format!("primary {killed} killed"))
    }

    async fn heal(&mut self) -> anyhow::Result<()> {
        let Some(killed) = self.killed.take() else {
            return Ok(());
        };
        let server = &self.group.members()[killed];
        blocking(|| {
            server.restart()?;
            self.group.rejoin(killed)
        })?;
        if self.primaries == Primaries::All {
            self.addresses[killed].lead_to(address(server));
        }
        Ok(())
    }
}

fn options(address: SocketAddr) -> MySqlConnectOptions {
    MySqlConnectOptions::new()
        .host("127.0.0.1")
        .port(address.port())
        .username("idem")
        .password("secret")
        .database("idem")
}

fn address(server: &Server) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], server.port()))
}
