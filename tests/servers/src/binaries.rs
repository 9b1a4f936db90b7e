//! Paths of the servers' programs, and the user that each may run as.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

/// A program of a server, and its Debian package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Binary {
    name: &'static str,
    /// Alternative program if the first is missing.
    instead: Option<&'static str>,
    package: &'static str,
}

pub(crate) const POSTGRES: Binary = Binary::new("postgres", "postgresql");
pub(crate) const INITDB: Binary = Binary::new("initdb", "postgresql");
pub(crate) const PSQL: Binary = Binary::new("psql", "postgresql");
/// Copies a running server, to make a standby.
pub(crate) const PG_BASEBACKUP: Binary = Binary::new("pg_basebackup", "postgresql");
pub(crate) const MARIADBD: Binary = Binary::new("mariadbd", "mariadb-server");
pub(crate) const MARIADB_INSTALL_DB: Binary = Binary::new("mariadb-install-db", "mariadb-server");
pub(crate) const MARIADB: Binary = Binary::new("mariadb", "mariadb-server");
/// Only in a [release](crate::Release): in a Debian of the machine, MariaDB has programs of these names.
pub(crate) const MYSQLD: Binary = Binary::new("mysqld", "mysql-server-core");
pub(crate) const MYSQL: Binary = Binary::new("mysql", "mysql-client-core");
/// Provider of Galera, a library that MariaDB loads.
pub(crate) const GALERA: Binary = Binary::new("libgalera_smm.so", "galera-4");
/// Program with which a node of Galera copies its data to one that joins.
pub(crate) const RSYNC: Binary = Binary::new("rsync", "rsync");
pub(crate) const REDIS_SERVER: Binary =
    Binary::new("redis-server", "redis-server").or("valkey-server");
pub(crate) const VALKEY_SERVER: Binary = Binary::new("valkey-server", "valkey-server");
pub(crate) const REDIS_CLI: Binary = Binary::new("redis-cli", "redis-server").or("valkey-cli");
pub(crate) const RABBITMQ_SERVER: Binary = Binary::new("rabbitmq-server", "rabbitmq-server");
/// Port mapper of Erlang nodes.
pub(crate) const EPMD: Binary = Binary::new("epmd", "rabbitmq-server");
pub(crate) const NATS_SERVER: Binary = Binary::new("nats-server", "nats-server");
pub(crate) const ETCD: Binary = Binary::new("etcd", "etcd-server");
pub(crate) const PATRONI: Binary = Binary::new("patroni", "patroni");
/// Driver of the browser.
pub(crate) const CHROMEDRIVER: Binary = Binary::new("chromedriver", "chromium-driver");
pub(crate) const CHROMIUM: Binary = Binary::new("chromium", "chromium");
pub(crate) const PROMETHEUS: Binary = Binary::new("prometheus", "prometheus");
/// Checks and tests alert rules.
pub(crate) const PROMTOOL: Binary = Binary::new("promtool", "prometheus");
pub(crate) const NGHTTPX: Binary = Binary::new("nghttpx", "nghttp2-proxy");
pub(crate) const HAPROXY: Binary = Binary::new("haproxy", "haproxy");
/// Program with which the [guardian](crate::guardian) inspects a server's processes.
pub(crate) const PS: Binary = Binary::new("ps", "procps");
/// Program with which a test shifts the clock of a process.
const FAKETIME: Binary = Binary::new("faketime", "faketime");
/// Pooler between clients and PostgreSQL.
pub(crate) const PGBOUNCER: Binary = Binary::new("pgbouncer", "pgbouncer");
/// Program that makes [certificates](crate::Certificates).
pub(crate) const OPENSSL: Binary = Binary::new("openssl", "openssl");
/// Third-party HTTP client of the tests.
const CURL: Binary = Binary::new("curl", "curl");

const ALL: [Binary; 27] = [
    POSTGRES,
    INITDB,
    PSQL,
    PG_BASEBACKUP,
    MARIADBD,
    MARIADB_INSTALL_DB,
    MARIADB,
    GALERA,
    RSYNC,
    REDIS_SERVER,
    REDIS_CLI,
    RABBITMQ_SERVER,
    EPMD,
    NATS_SERVER,
    ETCD,
    PATRONI,
    CHROMEDRIVER,
    CHROMIUM,
    PROMETHEUS,
    PROMTOOL,
    NGHTTPX,
    HAPROXY,
    PS,
    FAKETIME,
    PGBOUNCER,
    OPENSSL,
    CURL,
];

/// Path of Prometheus' program for checks and tests of alert rules.
///
/// # Errors
///
/// It is not installed.
pub fn promtool() -> anyhow::Result<PathBuf> {
    PROMTOOL.find()
}

/// Debian packages, without repetition, of the programs that are not installed.
pub fn missing_packages() -> Vec<&'static str> {
    let mut missing: Vec<_> = ALL
        .iter()
        .filter(|it| it.find().is_err())
        .map(|it| it.package)
        .collect();
    missing.dedup();
    missing
}

/// Versions of the database servers that are installed, by name.
pub fn versions() -> BTreeMap<String, String> {
    let servers = [
        ("PostgreSQL", POSTGRES),
        ("MariaDB", MARIADBD),
        ("Redis", REDIS_SERVER),
        ("PgBouncer", PGBOUNCER),
    ];
    let installed = servers.into_iter().filter_map(|(name, binary)| {
        let program = binary.find().ok()?;
        let output = Command::new(program).arg("--version").output().ok()?;
        let version = version(&String::from_utf8_lossy(&output.stdout))?;
        Some((name.to_owned(), version))
    });
    installed.collect()
}

/// The version in the answer of a server's program to `--version`: the first word of digits and dots.
pub(crate) fn version(answer: &str) -> Option<String> {
    let words = answer.split_whitespace();
    let numbers = words.map(|word| word.trim_start_matches("v="));
    numbers
        .filter(|word| word.starts_with(|it: char| it.is_ascii_digit()))
        .map(str::to_owned)
        .next()
}

impl Binary {
    const fn new(name: &'static str, package: &'static str) -> Self {
        Self {
            name,
            instead: None,
            package,
        }
    }

    const fn or(self, name: &'static str) -> Self {
        Self {
            instead: Some(name),
            ..self
        }
    }

    /// Path of the program: on `PATH`, or in the directories in which Debian installs server programs.
    pub(crate) fn find(self) -> anyhow::Result<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        // Debian's RabbitMQ programs on `PATH` are wrappers that start RabbitMQ as the machine's service.
        let directories: Vec<_> = std::iter::once("/usr/lib/rabbitmq/bin".into())
            .chain(std::env::split_paths(&path))
            .chain(["/usr/sbin", "/usr/local/sbin", "/usr/lib/galera"].map(Into::into))
            .chain(postgres_directories(Path::new("/")))
            .collect();
        self.find_in(&directories).with_context(|| {
            let Self { name, package, .. } = self;
            format!("`{name}` is not installed; Debian has it in the package {package}")
        })
    }

    /// Path of the program in a tree of directories that is laid out like Debian.
    pub(crate) fn find_below(self, root: &Path) -> anyhow::Result<PathBuf> {
        let directories: Vec<_> = ["usr/sbin", "usr/bin"]
            .map(|it| root.join(it))
            .into_iter()
            .chain(postgres_directories(root))
            .collect();
        self.find_in(&directories)
            .with_context(|| format!("{} has no `{}`", root.display(), self.name))
    }

    pub(crate) fn find_in(self, directories: &[PathBuf]) -> Option<PathBuf> {
        let in_any = |name| {
            let mut paths = directories.iter().map(|directory| directory.join(name));
            paths.find(|it| it.is_file())
        };
        in_any(self.name).or_else(|| in_any(self.instead?))
    }
}

/// Directories of PostgreSQL's programs. Debian installs several versions; the newest comes first.
fn postgres_directories(root: &Path) -> Vec<PathBuf> {
    let mut versions: Vec<_> = root
        .join("usr/lib/postgresql")
        .read_dir()
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let version: u32 = path.file_name()?.to_str()?.parse().ok()?;
            Some((version, path.join("bin")))
        })
        .collect();
    versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    versions.into_iter().map(|(_, path)| path).collect()
}

/// Ids of a user and of its group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl User {
    /// User of a server that refuses to run as root: `name` if this process is root, otherwise `None`.
    pub(crate) fn instead_of_root(name: &str) -> anyhow::Result<Option<Self>> {
        if id(&["-u"])? != 0 {
            return Ok(None);
        }
        let uid = id(&["-u", name])?;
        let gid = id(&["-g", name])?;
        Ok(Some(Self { uid, gid }))
    }
}

fn id(arguments: &[&str]) -> anyhow::Result<u32> {
    let output = Command::new("id")
        .args(arguments)
        .output()
        .context("cannot run `id`")?;
    let number = String::from_utf8_lossy(&output.stdout);
    number.trim().parse().with_context(|| {
        let error = String::from_utf8_lossy(&output.stderr);
        format!("`id {}`: {}", arguments.join(" "), error.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valkey_serves_where_redis_is_missing() {
        let (redis, valkey) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(redis.path().join("redis-server"), "").unwrap();
        std::fs::write(valkey.path().join("valkey-server"), "").unwrap();
        let both = [valkey.path().to_owned(), redis.path().to_owned()];
        let found = |directories| REDIS_SERVER.find_in(directories).unwrap();
        assert_eq!(found(&both), redis.path().join("redis-server"));
        assert_eq!(found(&both[..1]), valkey.path().join("valkey-server"));
        assert_eq!(REDIS_SERVER.find_in(&[]), None);
    }

    #[test]
    fn versions_are_found_in_the_answers_of_programs() {
        for (answer, expected) in [
            ("postgres (PostgreSQL) 15.14 (Debian 15.14-0)", "15.14"),
            (
                "mariadbd  Ver 10.11.14-MariaDB for linux",
                "10.11.14-MariaDB",
            ),
            ("Redis server v=7.0.15 sha=00000000:0 bits=64", "7.0.15"),
        ] {
            assert_eq!(version(answer).as_deref(), Some(expected));
        }
        assert_eq!(version("no such option"), None);
    }
}
