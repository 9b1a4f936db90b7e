//! The stores under test, each with a private server behind a proxy that loses replies.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use idem_runtime::{MemoryStore, MySqlStore, PostgresStore, RedisStore, SqliteStore};
use idem_servers::{Options, RedisCluster, Server};
use idem_store::Store;
use idem_tests::proxy::Proxy;

use crate::history::Clock;

/// Store under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// `MemoryStore`.
    Memory,
    /// `SqliteStore`, opened twice on one file.
    Sqlite,
    /// `PostgresStore`.
    Postgres,
    /// `MySqlStore`, on MariaDB.
    MariaDb,
    /// `RedisStore`, on one server.
    Redis,
    /// `RedisStore`, on a cluster.
    RedisCluster,
}

impl Name {
    /// All stores.
    pub const ALL: [Self; 6] = [
        Self::Memory,
        Self::Sqlite,
        Self::Postgres,
        Self::MariaDb,
        Self::Redis,
        Self::RedisCluster,
    ];

    /// The store with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.to_string() == name)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::MariaDb => "mariadb",
            Self::Redis => "redis",
            Self::RedisCluster => "redis-cluster",
        })
    }
}

/// A store, and its server if it has one.
#[derive(Debug)]
pub struct Place {
    /// Stores on the same records, behind the proxy.
    pub stores: Vec<Arc<dyn Store>>,
    /// A store on the same records that loses nothing.
    pub direct: Arc<dyn Store>,
    /// The clock that the store reads.
    pub clock: Clock,
    /// The servers.
    pub servers: Servers,
    /// The proxy before the server. Clients of a cluster connect to the addresses that its nodes tell them.
    pub proxy: Option<Proxy>,
}

/// Servers of a store.
#[derive(Debug, Clone)]
pub enum Servers {
    /// The store keeps its records in this process, or in a file.
    None,
    /// One server.
    One(Arc<Server>),
    /// The nodes of a cluster. The first three are the primaries.
    Cluster(Arc<RedisCluster>),
}

impl Servers {
    /// Number of primaries in a cluster.
    const PRIMARIES: usize = 3;

    /// Kills a server, and starts it again. Of a cluster, the primaries take turns.
    ///
    /// # Errors
    /// The server cannot be killed, or does not come back.
    pub fn kill_and_restart(&self, turn: usize) -> anyhow::Result<()> {
        let server = match self {
            Self::None => return Ok(()),
            Self::One(server) => server,
            Self::Cluster(cluster) => &cluster.nodes()[turn % Self::PRIMARIES],
        };
        server.kill()?;
        server.restart()
    }
}

impl Place {
    /// Opens the store. Its server writes what it acknowledges to the operating system first, so that killing the server
    /// loses nothing.
    ///
    /// # Errors
    /// The server is not installed or did not start, or the store cannot be opened.
    pub async fn open(name: Name, folder: &Path) -> anyhow::Result<Self> {
        let options = Options::fast();
        match name {
            Name::Memory => {
                let (store, clock) = memory();
                let store = Arc::new(store);
                Ok(Self {
                    stores: vec![store.clone()],
                    direct: store,
                    clock,
                    servers: Servers::None,
                    proxy: None,
                })
            }
            Name::Sqlite => {
                let file = folder.join("records.sqlite");
                let open = || SqliteStore::open(&file);
                Ok(Self {
                    stores: vec![Arc::new(open().await?), Arc::new(open().await?)],
                    direct: Arc::new(open().await?),
                    clock: Clock::wall(),
                    servers: Servers::None,
                    proxy: None,
                })
            }
            Name::Postgres => {
                let options = options.set("synchronous_commit", "on");
                Self::served(name, Server::postgres(&options)?).await
            }
            Name::MariaDb => {
                // Without the binary log, InnoDB shows a commit to other sessions before the commit is in its redo log.
                let options = options
                    .set("innodb-flush-log-at-trx-commit", "2")
                    .set("log-bin", "binlog");
                Self::served(name, Server::maria_db(&options)?).await
            }
            Name::Redis => Self::served(name, Server::redis(&Options::durable())?).await,
            Name::RedisCluster => {
                // A killed primary is back before its replica would take its place, which would lose transitions.
                let options = Options::durable().set("cluster-node-timeout", "60000");
                Self::clustered(RedisCluster::start(&options)?).await
            }
        }
    }

    async fn clustered(cluster: RedisCluster) -> anyhow::Result<Self> {
        let urls = cluster.urls();
        let mut stores: Vec<Arc<dyn Store>> = Vec::new();
        for _ in 0..3 {
            let nodes = urls.iter().map(String::as_str);
            stores.push(Arc::new(RedisStore::connect_cluster(nodes).await?));
        }
        let direct = stores.swap_remove(0);
        Ok(Self {
            stores,
            direct,
            clock: Clock::wall(),
            servers: Servers::Cluster(Arc::new(cluster)),
            proxy: None,
        })
    }

    async fn served(name: Name, server: Server) -> anyhow::Result<Self> {
        let (proxy, url) = through_proxy(&server).await?;
        let direct = connect(name, &server.url()).await?;
        let mut stores = Vec::new();
        for _ in 0..2 {
            stores.push(connect(name, &url).await?);
        }
        Ok(Self {
            stores,
            direct,
            clock: Clock::wall(),
            servers: Servers::One(Arc::new(server)),
            proxy: Some(proxy),
        })
    }
}

/// Creates a memory store, with the clock that it reads: the wall clock at its creation, and the steady one since then.
pub fn memory() -> (MemoryStore, Clock) {
    loop {
        let before = Clock::steady();
        let store = MemoryStore::new();
        // The thread may have been held up while the store read both clocks. Begin again.
        if before.is_fresh() {
            return (store, before);
        }
    }
}

/// Starts a proxy before a server, and returns the URL through it.
pub(crate) async fn through_proxy(server: &Server) -> anyhow::Result<(Proxy, String)> {
    let address = SocketAddr::from(([127, 0, 0, 1], server.port()));
    let proxy = Proxy::start(address).await?;
    let (from, to) = (address.port(), proxy.address().port());
    let url = server.url().replace(&format!(":{from}"), &format!(":{to}"));
    Ok((proxy, url))
}

async fn connect(name: Name, url: &str) -> anyhow::Result<Arc<dyn Store>> {
    Ok(match name {
        Name::Postgres => {
            let store = PostgresStore::connect(url).await?;
            store.migrate().await?;
            Arc::new(store)
        }
        Name::MariaDb => {
            let store = MySqlStore::connect(url).await?;
            store.migrate().await?;
            Arc::new(store)
        }
        Name::Redis => Arc::new(RedisStore::connect(url).await?),
        Name::Memory | Name::Sqlite | Name::RedisCluster => {
            None.context("the store has no server at one URL")?
        }
    })
}
