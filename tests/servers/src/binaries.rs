//! Where the servers' programs are, and the user each may run as.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

/// A program of a server, and the Debian package that has it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Binary {
    name: &'static str,
    package: &'static str,
}

pub(crate) const POSTGRES: Binary = Binary::new("postgres", "postgresql");
pub(crate) const INITDB: Binary = Binary::new("initdb", "postgresql");
pub(crate) const PSQL: Binary = Binary::new("psql", "postgresql");
pub(crate) const MARIADBD: Binary = Binary::new("mariadbd", "mariadb-server");
pub(crate) const MARIADB_INSTALL_DB: Binary = Binary::new("mariadb-install-db", "mariadb-server");
pub(crate) const MARIADB: Binary = Binary::new("mariadb", "mariadb-server");
pub(crate) const REDIS_SERVER: Binary = Binary::new("redis-server", "redis-server");
pub(crate) const REDIS_CLI: Binary = Binary::new("redis-cli", "redis-server");
/// Which the [guardian](crate::guardian) asks about a server's processes.
pub(crate) const PS: Binary = Binary::new("ps", "procps");

const ALL: [Binary; 9] = [
    POSTGRES,
    INITDB,
    PSQL,
    MARIADBD,
    MARIADB_INSTALL_DB,
    MARIADB,
    REDIS_SERVER,
    REDIS_CLI,
    PS,
];

/// The Debian packages, without repetition, of the programs that are not installed.
pub fn missing_packages() -> Vec<&'static str> {
    let mut missing: Vec<_> = ALL
        .iter()
        .filter(|it| it.find().is_err())
        .map(|it| it.package)
        .collect();
    missing.dedup();
    missing
}

impl Binary {
    const fn new(name: &'static str, package: &'static str) -> Self {
        Self { name, package }
    }

    /// Its path: on `PATH`, or where Debian puts servers that an ordinary user does not start.
    pub(crate) fn find(self) -> anyhow::Result<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .chain(["/usr/sbin".into(), "/usr/local/sbin".into()])
            .chain(postgres_directories())
            .map(|directory| directory.join(self.name))
            .find(|it| it.is_file())
            .with_context(|| {
                let Self { name, package } = self;
                format!("`{name}` is not installed; Debian has it in the package {package}")
            })
    }
}

/// Debian installs the versions of PostgreSQL side by side; the newest comes first.
fn postgres_directories() -> Vec<PathBuf> {
    let mut versions: Vec<_> = Path::new("/usr/lib/postgresql")
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

/// The numbers of a user and of its group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl User {
    /// Whom a server runs as that refuses to be root: `name` if this process is root, else nobody but itself.
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
        .context("`id` cannot be run")?;
    let number = String::from_utf8_lossy(&output.stdout);
    number.trim().parse().with_context(|| {
        let error = String::from_utf8_lossy(&output.stderr);
        format!("`id {}`: {}", arguments.join(" "), error.trim())
    })
}
