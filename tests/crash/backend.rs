//! The store under test, by its address, and the private servers that it needs.

use std::fmt;
use std::path::Path;

use anyhow::bail;
use idem_runtime::store::{Filter, Page, PageRequest};
use idem_runtime::{Idem, Record, Store};
use idem_servers::{Options, RedisCluster, Release, Server};

use crate::Mode;

/// Store under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    Sqlite,
    Postgres,
    /// PostgreSQL behind PgBouncer in transaction mode.
    PgBouncer,
    MariaDb,
    MySql,
    Redis,
    RedisCluster,
    Memory,
}

impl Name {
    const ALL: [Self; 8] = [
        Self::Sqlite,
        Self::Postgres,
        Self::PgBouncer,
        Self::MariaDb,
        Self::MySql,
        Self::Redis,
        Self::RedisCluster,
        Self::Memory,
    ];

    fn has(self, mode: Mode) -> bool {
        match self {
            Self::Sqlite | Self::Postgres | Self::MariaDb | Self::MySql => true,
            Self::PgBouncer => mode != Mode::Mixed,
            Self::Redis => mode != Mode::Transactional,
            Self::RedisCluster | Self::Memory => mode == Mode::Mixed,
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::PgBouncer => "pgbouncer",
            Self::MariaDb => "mariadb",
            Self::MySql => "mysql",
            Self::Redis => "redis",
            Self::RedisCluster => "redis-cluster",
            Self::Memory => "memory",
        })
    }
}

/// Parses the stores that a command-line word names.
pub(crate) fn named(word: &str, mode: Mode) -> anyhow::Result<Vec<Name>> {
    if word == "all" {
        // Debian 12 has no MySQL.
        let is_there = |it: &Name| *it != Name::MySql || Release::MY_SQL.programs().is_ok();
        let all = Name::ALL.into_iter().filter(|it| it.has(mode));
        return Ok(all.filter(is_there).collect());
    }
    let found = Name::ALL.into_iter().find(|it| it.to_string() == word);
    match found {
        Some(name) if name.has(mode) => Ok(vec![name]),
        Some(name) => bail!(
            "{name} has no mode `{}`: choose another mode or store",
            mode.as_str()
        ),
        None => {
            let names: Vec<_> = Name::ALL.iter().map(Name::to_string).collect();
            bail!("unknown store {word:?}: use {} or all", names.join(", "))
        }
    }
}

/// Address of the records, and the servers that store them; the servers stop on drop.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) address: String,
    servers: Servers,
}

#[derive(Debug)]
enum Servers {
    None,
    One(Server),
    /// A server, and the pooler in front of it.
    Pooled {
        server: Server,
        _pooler: Box<Server>,
    },
    Cluster(RedisCluster),
}

impl Place {
    /// Starts private servers that flush each write before they acknowledge it, so that a kill loses nothing.
    pub(crate) fn start(name: Name, dir: &Path) -> anyhow::Result<Self> {
        let options = Options::durable();
        let server = match name {
            Name::Memory => return Ok(Self::without_server("memory://".to_owned())),
            Name::Sqlite => {
                let file = dir.join("records.sqlite");
                return Ok(Self::without_server(format!("sqlite://{}", file.display())));
            }
            Name::Postgres => Server::postgres(&options)?,
            Name::PgBouncer => {
                let server = Server::postgres(&options)?;
                let pooler = Server::pg_bouncer(server.port(), &Options::fast())?;
                return Ok(Self {
                    address: pooler.url().replace("postgres://", "pgbouncer://"),
                    servers: Servers::Pooled {
                        server,
                        _pooler: Box::new(pooler),
                    },
                });
            }
            // Without the binary log, InnoDB shows a commit to other sessions before the commit is in its redo log. A
            // kill at that moment would revoke what they have read.
            Name::MariaDb => {
                Server::maria_db(&options.set("log-bin", "binlog").set("sync-binlog", "1"))?
            }
            Name::MySql => Server::my_sql(&options)?,
            Name::Redis => Server::redis(&options)?,
            // A failover loses writes that the replica had not received. A node that is stopped or killed is therefore
            // back before the others declare it failed.
            Name::RedisCluster => {
                let cluster = RedisCluster::start(&options.set("cluster-node-timeout", "60000"))?;
                return Ok(Self {
                    address: cluster.urls().join(","),
                    servers: Servers::Cluster(cluster),
                });
            }
        };
        Ok(Self {
            address: server.url(),
            servers: Servers::One(server),
        })
    }

    fn without_server(address: String) -> Self {
        Self {
            address,
            servers: Servers::None,
        }
    }

    /// Servers of the store; empty for a store without servers.
    pub(crate) fn servers(&self) -> &[Server] {
        match &self.servers {
            Servers::None => &[],
            Servers::One(server) | Servers::Pooled { server, .. } => std::slice::from_ref(server),
            Servers::Cluster(cluster) => cluster.nodes(),
        }
    }
}

/// All records of a store.
pub(crate) async fn records<S: Store + ?Sized>(idem: &Idem<S>) -> anyhow::Result<Vec<Record>> {
    let read = async |page: &PageRequest| Ok(idem.store().list(&Filter::default(), page).await?);
    all_pages(read).await
}

/// Reads page after page with `read`, and returns all records.
pub(crate) async fn all_pages(
    read: impl AsyncFn(&PageRequest) -> anyhow::Result<Page>,
) -> anyhow::Result<Vec<Record>> {
    let mut records = Vec::new();
    let mut page = PageRequest {
        limit: 1000,
        after: None,
    };
    loop {
        let found = read(&page).await?;
        records.extend(found.records);
        page.after = found.next;
        if page.after.is_none() {
            return Ok(records);
        }
    }
}
