//! The servers that the tests of the stores need: private ones, or those that the caller names.

use idem_servers::{Options, RedisCluster, Server};
use xshell::Shell;

use crate::packages;
use crate::parts::Need;

type Start = fn() -> anyhow::Result<Server>;

/// Running servers, and the variables by which the tests find them. Dropping this stops them.
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

    /// Starts those that are needed and whose variable the caller has not set.
    pub(crate) fn start(sh: &Shell, needs: &[Need]) -> anyhow::Result<Self> {
        let is_wanted = |need: Need, name: &str| match std::env::var_os(name) {
            _ if !needs.contains(&need) => false,
            Some(_) => {
                eprintln!("{name} is set: nothing is started for it");
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
            (Need::MySql, "IDEM_TEST_MYSQL_URL", || {
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
            missing.retain(|it| is_asked_for(it, needs));
            missing
        })?;

        // They take longer to start than to ask for, so all start at once.
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

/// Whether a Debian package is among what is needed, or has programs that any test may use.
fn is_asked_for(package: &str, needs: &[Need]) -> bool {
    const COMMON: [&str; 3] = ["procps", "faketime", "curl"];
    let is_of = |need: &Need| need.packages().is_none_or(|them| them.contains(&package));
    COMMON.contains(&package) || needs.iter().any(is_of)
}
