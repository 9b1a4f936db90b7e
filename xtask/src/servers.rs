//! Starts the private servers that tests need, unless a variable names one.

use idem_servers::{Options, RedisCluster, Server};
use xshell::Shell;

use crate::packages;
use crate::parts::Need;

type Start = fn() -> anyhow::Result<Server>;

/// Running servers, and the variables with their addresses. Dropping this value stops the servers.
pub(crate) struct Servers {
    variables: Vec<(&'static str, String)>,
    _servers: Vec<Server>,
    _cluster: Option<RedisCluster>,
}

impl Servers {
    /// No servers.
    pub(crate) fn none() -> Self {
        Self {
            variables: Vec::new(),
            _servers: Vec::new(),
            _cluster: None,
        }
    }

    /// Starts the needed servers, except those whose variable is already set.
    pub(crate) fn start(sh: &Shell, needs: &[Need]) -> anyhow::Result<Self> {
        let is_wanted = |need: Need, name: &str| match std::env::var_os(name) {
            _ if !needs.contains(&need) => false,
            Some(_) => {
                eprintln!("{name} is set: its server is not started");
                false
            }
            None => true,
        };
        let all: [(Need, &str, Start); 5] = [
            (Need::Postgres, "IDEM_TEST_POSTGRES_URL", || {
                // For tests that count statements.
                let options = Options::fast().set("shared_preload_libraries", "pg_stat_statements");
                Server::postgres(&options)
            }),
            (Need::MySql, "IDEM_TEST_MARIADB_URL", || {
                Server::maria_db(&Options::fast())
            }),
            (Need::Redis, "IDEM_TEST_REDIS_URL", || {
                Server::redis(&Options::fast())
            }),
            (Need::RabbitMq, "IDEM_TEST_AMQP_URL", || {
                Server::rabbit_mq(&Options::fast())
            }),
            (Need::Nats, "IDEM_TEST_NATS_URL", || {
                Server::nats(&Options::fast())
            }),
        ];
        let wanted: Vec<_> = all
            .into_iter()
            .filter(|(need, name, _)| is_wanted(*need, name))
            .map(|(_, name, start)| (name, start))
            .collect();
        let cluster = is_wanted(Need::RedisCluster, "IDEM_TEST_REDIS_CLUSTER_URLS");
        packages::install(sh, || {
            let mut missing = idem_servers::missing_packages();
            missing.retain(|it| is_needed(it, needs));
            missing
        })?;

        // The servers start concurrently, because each takes seconds.
        let (servers, cluster) = std::thread::scope(|scope| {
            let servers: Vec<_> = wanted
                .into_iter()
                .map(|(variable, start)| (variable, scope.spawn(start)))
                .collect();
            // A node that a loaded machine keeps waiting for seconds must not be replaced under a test.
            let options = Options::fast().set("cluster-node-timeout", "60000");
            let cluster = cluster.then(|| RedisCluster::start(&options));
            let servers = servers
                .into_iter()
                .map(|(variable, starting)| match starting.join() {
                    Ok(server) => Ok((variable, server?)),
                    Err(panic) => std::panic::resume_unwind(panic),
                })
                .collect::<anyhow::Result<Vec<_>>>();
            anyhow::Ok((servers?, cluster.transpose()?))
        })?;
        let mut variables: Vec<_> = servers
            .iter()
            .map(|(variable, server)| (*variable, server.url()))
            .collect();
        if let Some(cluster) = &cluster {
            variables.push(("IDEM_TEST_REDIS_CLUSTER_URLS", cluster.urls().join(",")));
        }
        for (name, value) in &variables {
            eprintln!("{name}={value}");
        }
        Ok(Self {
            variables,
            _servers: servers.into_iter().map(|(_, server)| server).collect(),
            _cluster: cluster,
        })
    }

    /// Variables with the addresses of the started servers.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.variables
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
    }
}

/// Returns true if a Debian package is needed for `needs`, or has programs that any test may use.
fn is_needed(package: &str, needs: &[Need]) -> bool {
    const COMMON: [&str; 3] = ["procps", "faketime", "curl"];
    let is_of = |need: &Need| need.packages().is_none_or(|them| them.contains(&package));
    COMMON.contains(&package) || needs.iter().any(is_of)
}
