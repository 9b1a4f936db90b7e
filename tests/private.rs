//! Stores on private servers, which a test may kill, stop, or cut off from its clients.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use anyhow::bail;
use idem_servers::{
    EtcdCluster, GroupReplication, Options, Primaries, RedisCluster, Release, Server,
};

/// Store, and what its records are kept on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `MemoryStore`.
    Memory,
    /// `SqliteStore`, on a file.
    Sqlite,
    /// `PostgresStore`.
    Postgres,
    /// `PostgresStore`, behind PgBouncer in transaction mode.
    PgBouncer,
    /// `MySqlStore`, on MariaDB.
    MariaDb,
    /// `MySqlStore`, on MySQL.
    MySql,
    /// `MySqlStore`, on a group of three MySQL servers, all of which accept writes.
    Group,
    /// `RedisStore`, on one server.
    Redis,
    /// `RedisStore`, on a cluster.
    RedisCluster,
    /// The store of the examples, on three nodes of etcd. [`cas::etcd_at`](crate::cas::etcd_at) opens it.
    Etcd,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 10] = [
        Self::Memory,
        Self::Sqlite,
        Self::Postgres,
        Self::PgBouncer,
        Self::MariaDb,
        Self::MySql,
        Self::Group,
        Self::Redis,
        Self::RedisCluster,
        Self::Etcd,
    ];

    /// Returns true if the records are kept on a server.
    pub fn has_server(self) -> bool {
        !matches!(self, Self::Memory | Self::Sqlite)
    }

    /// Returns true if this machine has its server. Debian 12 has no MySQL.
    pub fn is_installed(self) -> bool {
        ![Self::MySql, Self::Group].contains(&self) || Release::MY_SQL.programs().is_ok()
    }

    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::PgBouncer => "pgbouncer",
            Self::MariaDb => "mariadb",
            Self::MySql => "mysql",
            Self::Group => "mysql-group",
            Self::Redis => "redis",
            Self::RedisCluster => "redis-cluster",
            Self::Etcd => "etcd",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Kind {
    type Err = anyhow::Error;

    fn from_str(word: &str) -> anyhow::Result<Self> {
        match Self::ALL.into_iter().find(|it| it.name() == word) {
            Some(kind) => Ok(kind),
            None => bail!(
                "unknown store {word:?}: use {}",
                Self::ALL.map(Self::name).join(", ")
            ),
        }
    }
}

/// What a server has done with a change before it acknowledges the change. Killing the server loses nothing in either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// The change is written to the operating system.
    Written,
    /// The change is flushed to the disk.
    Flushed,
}

/// Address of the records, and the servers that keep them. The servers stop on drop.
#[derive(Debug)]
pub struct Private {
    /// [Address](crate::backends::open) of the records; `memory://` for the memory store.
    pub address: String,
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
    Group(GroupReplication),
    Cluster(RedisCluster),
    Etcd(EtcdCluster),
}

impl Private {
    /// Starts the servers of a store, and the file of SQLite is in this directory.
    ///
    /// # Errors
    /// A server is not installed or did not start.
    pub fn start(kind: Kind, writes: Writes, directory: &Path) -> anyhow::Result<Self> {
        let options = match writes {
            Writes::Written => Options::fast(),
            Writes::Flushed => Options::durable(),
        };
        let server = match kind {
            Kind::Memory => return Ok(Self::without_server("memory://".to_owned())),
            Kind::Sqlite => {
                let file = directory.join("records.sqlite");
                return Ok(Self::without_server(format!("sqlite://{}", file.display())));
            }
            Kind::Postgres => postgres(&options)?,
            Kind::PgBouncer => {
                let server = postgres(&options)?;
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
            Kind::MariaDb => Server::maria_db(&logged(options, writes).set("log-bin", "binlog"))?,
            Kind::MySql => Server::my_sql(&logged(options, writes))?,
            // A member that was killed gets what the others have committed since its last commit, so the kill must not
            // have lost an earlier one.
            Kind::Group => {
                let group = GroupReplication::start(Primaries::All, &Options::durable())?;
                let [first, ..] = group.members() else {
                    bail!("a group has members");
                };
                first.query("CREATE DATABASE idem")?;
                return Ok(Self {
                    address: first.url().replace("/mysql", "/idem"),
                    servers: Servers::Group(group),
                });
            }
            Kind::Redis => Server::redis(&Options::durable())?,
            // A failover loses writes that the replica had not received. A node that is stopped or killed is therefore
            // back before the others declare it failed.
            Kind::RedisCluster => {
                let options = Options::durable().set("cluster-node-timeout", "60000");
                let cluster = RedisCluster::start(&options)?;
                return Ok(Self {
                    address: cluster.urls().join(","),
                    servers: Servers::Cluster(cluster),
                });
            }
            Kind::Etcd => {
                let cluster = EtcdCluster::start(&options)?;
                return Ok(Self {
                    address: cluster.urls().join(","),
                    servers: Servers::Etcd(cluster),
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

    /// Kills this one of the [`servers`](Self::servers), and starts it again. A member of a group is back when it has
    /// joined its group again, which takes the group half a minute.
    ///
    /// # Errors
    /// The server cannot be killed, or does not come back.
    pub fn kill_and_restart(&self, index: usize) -> anyhow::Result<()> {
        let Some(server) = self.servers().get(index) else {
            bail!("there is no server {index}");
        };
        server.kill()?;
        server.restart()?;
        match &self.servers {
            Servers::Group(group) => group.rejoin(index),
            _ => Ok(()),
        }
    }

    /// Servers that keep records: all nodes of a cluster, of which the first three are the primaries. Empty for a store
    /// without servers.
    pub fn servers(&self) -> &[Server] {
        match &self.servers {
            Servers::None => &[],
            Servers::One(server) | Servers::Pooled { server, .. } => std::slice::from_ref(server),
            Servers::Group(group) => group.members(),
            Servers::Cluster(cluster) => cluster.nodes(),
            Servers::Etcd(cluster) => cluster.nodes(),
        }
    }
}

fn postgres(options: &Options) -> anyhow::Result<Server> {
    Server::postgres(&options.clone().set("synchronous_commit", "on"))
}

/// Makes InnoDB and the binary log write, or flush, each transaction.
fn logged(options: Options, writes: Writes) -> Options {
    let (redo_log, binary_log) = match writes {
        Writes::Written => ("2", "0"),
        Writes::Flushed => ("1", "1"),
    };
    options
        .set("innodb-flush-log-at-trx-commit", redo_log)
        .set("sync-binlog", binary_log)
}
