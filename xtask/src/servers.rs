//! The servers that the tests of the stores need: private ones, or the ones that the caller names.

use idem_servers::{Options, RedisCluster, Server};
use xshell::Shell;

use crate::packages;

type Start = fn() -> anyhow::Result<Server>;

/// Running servers, and the variables by which the tests find them. Dropping this stops the servers.
pub(crate) struct Servers {
    variables: Vec<(&'static str, String)>,
    _servers: Vec<Server>,
    _cluster: Option<RedisCluster>,
}

impl Servers {
    /// Starts the servers whose variable the caller has not set.
    pub(crate) fn start(sh: &Shell) -> anyhow::Result<Self> {
        let is_wanted = |name: &str| match std::env::var_os(name) {
            Some(_) => {
                eprintln!("{name} is set: nothing is started for it");
                false
            }
            None => true,
        };
        let all: [(&str, Start); 5] = [
            ("IDEM_TEST_POSTGRES_URL", || {
                // For tests that count statements.
                let options = Options::fast().set("shared_preload_libraries", "pg_stat_statements");
                Server::postgres(&options)
            }),
            ("IDEM_TEST_MYSQL_URL", || Server::maria_db(&Options::fast())),
            ("IDEM_TEST_REDIS_URL", || Server::redis(&Options::fast())),
            ("IDEM_TEST_AMQP_URL", || Server::rabbit_mq(&Options::fast())),
            ("IDEM_TEST_NATS_URL", || Server::nats(&Options::fast())),
        ];
        let wanted: Vec<_> = all
            .into_iter()
            .filter(|(name, _)| is_wanted(name))
            .collect();
        let cluster = is_wanted("IDEM_TEST_REDIS_CLUSTER_URLS");
        // The tests of the servers themselves need all packages.
        packages::install(sh, idem_servers::missing_packages)?;

        // Starting takes long, so all servers start concurrently.
        let (servers, cluster) = std::thread::scope(|scope| {
            let servers: Vec<_> = wanted
                .into_iter()
                .map(|(variable, start)| (variable, scope.spawn(start)))
                .collect();
            let cluster = cluster.then(|| RedisCluster::start(&Options::fast()));
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

    /// The variables of the servers started here.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.variables
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
    }
}
