//! The stores under test, each with a private server behind a proxy that loses replies.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use idem_runtime::MemoryStore;
use idem_servers::Server;
use idem_store::Store;
use idem_tests::backends;
use idem_tests::cas;
use idem_tests::private::{Kind, Private, Writes};
use idem_tests::proxy::Proxy;
use idem_tests::sql::AnyPool;

use crate::history::Clock;

/// The stores that are compared with the reference. A pooler changes nothing about them. In a group, a saved step also moves
/// the end of the lease by a microsecond, which the reference does not.
pub fn stores() -> impl Iterator<Item = Kind> {
    let all = Kind::ALL.into_iter();
    all.filter(|it| ![Kind::PgBouncer, Kind::Group].contains(it))
}

/// A store, and its server if it has one.
#[derive(Debug)]
pub struct Place {
    /// Stores on the same records, behind the proxy.
    pub stores: Vec<Arc<dyn Store>>,
    /// The pools of these stores, if the records are in an SQL database.
    pub pools: Vec<AnyPool>,
    /// A store on the same records that loses nothing, with connections of its own.
    pub direct: Arc<dyn Store>,
    /// The clock that the store reads.
    pub clock: Clock,
    /// The servers.
    pub servers: Arc<Private>,
    /// A proxy before each server. There is none before a Redis Cluster, whose clients connect to the addresses that its
    /// nodes tell them.
    pub proxies: Vec<Proxy>,
}

/// Number of primaries in a cluster.
const PRIMARIES: usize = 3;

/// Kills a server, and starts it again. Of a cluster, the primaries take turns.
///
/// # Errors
/// The server cannot be killed, or does not come back.
pub(crate) fn kill_and_restart(servers: &Private, turn: usize) -> anyhow::Result<()> {
    let servers = servers.servers();
    let Some(server) = servers.get(turn % servers.len().clamp(1, PRIMARIES)) else {
        return Ok(());
    };
    server.kill()?;
    server.restart()
}

impl Place {
    /// Opens the store. Its server writes what it acknowledges to the operating system first, so that killing the server
    /// loses nothing.
    ///
    /// # Errors
    /// The server is not installed or did not start, or the store cannot be opened.
    pub async fn open(kind: Kind, folder: &Path) -> anyhow::Result<Self> {
        let servers = Arc::new(Private::start(kind, Writes::Written, folder)?);
        if kind == Kind::Memory {
            let (store, clock) = memory();
            let store = Arc::new(store);
            return Ok(Self {
                stores: vec![store.clone()],
                pools: Vec::new(),
                direct: store,
                clock,
                servers,
                proxies: Vec::new(),
            });
        }
        if kind == Kind::Etcd {
            return Self::on_etcd(servers).await;
        }
        let address = &servers.address;
        let direct = connect(address).await?;
        let (proxies, proxied) = match servers.servers() {
            [server] => {
                let (proxy, url) = through_proxy(server).await?;
                (vec![proxy], url)
            }
            _ => (Vec::new(), address.clone()),
        };
        let (one, one_pool) = backends::open_pooled(&proxied, "").await?;
        let (other, other_pool) = backends::open_pooled(&proxied, "").await?;
        Ok(Self {
            stores: [one, other].map(|it| it as Arc<dyn Store>).into(),
            pools: one_pool.into_iter().chain(other_pool).collect(),
            direct,
            clock: Clock::wall(),
            servers,
            proxies,
        })
    }

    /// The toolkit's store on etcd. Each store knows all nodes, and begins with another one.
    async fn on_etcd(servers: Arc<Private>) -> anyhow::Result<Self> {
        let (mut proxies, mut proxied) = (Vec::new(), Vec::new());
        for server in servers.servers() {
            let (proxy, url) = through_proxy(server).await?;
            proxies.push(proxy);
            proxied.push(url);
        }
        let direct = Arc::new(cas::etcd_at(servers.address.split(','), "histories/").await?);
        let mut stores: Vec<Arc<dyn Store>> = Vec::new();
        for _ in 0..2 {
            let nodes = proxied.iter().map(String::as_str);
            stores.push(Arc::new(cas::etcd_at(nodes, "histories/").await?));
            proxied.rotate_left(1);
        }
        Ok(Self {
            stores,
            pools: Vec::new(),
            direct,
            clock: Clock::wall(),
            servers,
            proxies,
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

async fn connect(address: &str) -> anyhow::Result<Arc<dyn Store>> {
    Ok(backends::open_named(address, "").await?)
}
