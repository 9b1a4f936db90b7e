//! The newest releases of the servers, each installed into a directory tree of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::binaries::{self, Binary};
use crate::programs::{DATA, Programs};

/// Variable with the names of the servers of which the newest release is started, separated by commas.
pub const NEWEST: &str = "IDEM_TEST_NEWEST";

/// Distribution of Debian that has the newest releases.
const DISTRIBUTION: &str = "sid";

/// The newest release of a server, from Debian's unstable distribution.
///
/// The packages are unpacked without their scripts into a directory tree that has all of the server's libraries. So the
/// machine's own packages do not change, servers whose packages exclude each other can be installed together, and a
/// package that is broken today affects one server only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// Name of the server.
    pub server: &'static str,
    folder: &'static str,
    packages: &'static [&'static str],
    program: Binary,
}

impl Release {
    /// MySQL, with the plug-in for Group Replication.
    pub const MY_SQL: Self = Self {
        server: "MySQL",
        folder: "mysql",
        packages: &["mysql-server-core", "mysql-client-core"],
        program: binaries::MYSQLD,
    };
    /// PostgreSQL.
    pub const POSTGRES: Self = Self {
        server: "PostgreSQL",
        folder: "postgresql",
        packages: &["postgresql"],
        program: binaries::POSTGRES,
    };
    /// PgBouncer.
    pub const PG_BOUNCER: Self = Self {
        server: "PgBouncer",
        folder: "pgbouncer",
        packages: &["pgbouncer"],
        program: binaries::PGBOUNCER,
    };
    /// MariaDB.
    pub const MARIA_DB: Self = Self {
        server: "MariaDB",
        folder: "mariadb",
        // `mariadb-install-db` is a script that calls programs of the system.
        packages: &[
            "mariadb-server",
            "mariadb-client",
            "coreutils",
            "grep",
            "hostname",
            "sed",
        ],
        program: binaries::MARIADBD,
    };
    /// Valkey.
    pub const VALKEY: Self = Self {
        server: "Valkey",
        folder: "valkey",
        packages: &["valkey-server", "valkey-tools"],
        program: binaries::VALKEY_SERVER,
    };
    /// Redis.
    pub const REDIS: Self = Self {
        server: "Redis",
        folder: "redis",
        packages: &["redis-server", "redis-tools"],
        program: binaries::REDIS_SERVER,
    };
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::MY_SQL,
        Self::POSTGRES,
        Self::PG_BOUNCER,
        Self::MARIA_DB,
        Self::VALKEY,
        Self::REDIS,
    ];

    /// Programs of the release.
    ///
    /// # Errors
    ///
    /// The release is not installed.
    pub fn programs(self) -> anyhow::Result<Programs> {
        let root = self.root();
        if !root.join(STAMP).exists() {
            bail!(
                "the newest {} is not installed in {}; run `cargo xtask servers --servers newest` as root on Debian",
                self.server,
                root.display()
            );
        }
        Ok(Programs::Root(root))
    }

    /// Installs the release, unless this has been done, and returns its version.
    ///
    /// # Errors
    ///
    /// `mmdebstrap` is not installed, this process is not root, the mirror does not answer, or the packages cannot be
    /// installed today; the end of the installer's output is part of the error.
    pub fn install(self) -> anyhow::Result<String> {
        let root = self.root();
        let wanted = self.stamp();
        if fs::read_to_string(root.join(STAMP)).is_ok_and(|found| found == wanted) {
            return self.version();
        }
        let above = root.parent().context("the root has no parent")?;
        fs::create_dir_all(above)?;
        // Another process may install the same release; the later one replaces the earlier one as a whole.
        let temporary = tempfile::Builder::new()
            .prefix(&format!("{}.new-", self.folder))
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir_in(above)?;
        let new = temporary.path();
        let output = Command::new("mmdebstrap")
            .arg("--variant=extract")
            // A mirror that is a snapshot of the past has expired lists.
            .arg("--aptopt=Acquire::Check-Valid-Until \"false\"")
            .arg(format!("--include={}", self.included().join(",")))
            // Documentation is a large part of some packages.
            .args(
                ["/usr/share/doc/*", "/usr/share/man/*", "/usr/lib/debug/*"]
                    .map(|path| format!("--dpkgopt=path-exclude={path}")),
            )
            .arg(DISTRIBUTION)
            .arg(new)
            .output()
            .context("cannot run `mmdebstrap`; install it")?;
        if !output.status.success() {
            let log = String::from_utf8_lossy(&output.stderr).into_owned();
            let skipped = log.len().saturating_sub(2_000);
            let end = log.get(skipped..).unwrap_or(&log);
            bail!(
                "mmdebstrap cannot install {}:\n{end}",
                self.packages.join(" ")
            );
        }
        prepare(new)?;
        fs::write(new.join(STAMP), wanted)?;
        let _ = fs::remove_dir_all(&root);
        fs::rename(new, &root)?;
        let _ = temporary.keep();
        self.version()
    }

    /// Version that the installed server prints.
    ///
    /// # Errors
    ///
    /// The release is not installed, or does not run.
    pub fn version(self) -> anyhow::Result<String> {
        self.programs()?.version(self.program)
    }

    /// Returns true if the variable [`NEWEST`] names the server.
    pub(crate) fn is_chosen(self) -> bool {
        let names = std::env::var(NEWEST).unwrap_or_default();
        names.split(',').any(|it| it == self.server)
    }

    fn root(self) -> PathBuf {
        target().join("servers/newest").join(self.folder)
    }

    /// Packages of the server, and those without which no program runs: the links of a merged `/usr`, and a shell.
    fn included(self) -> Vec<&'static str> {
        let mut included = vec!["base-files", "dash"];
        included.extend(self.packages);
        included
    }

    /// Text that changes whenever a root must be made again.
    fn stamp(self) -> String {
        format!("1 {DISTRIBUTION} {}\n", self.included().join(" "))
    }
}

/// File in a root that is complete.
const STAMP: &str = "idem-stamp";

/// Does what the scripts of packages would do, as far as servers need it.
fn prepare(root: &Path) -> anyhow::Result<()> {
    fs::write(
        root.join("etc/passwd"),
        "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n",
    )?;
    fs::write(root.join("etc/group"), "root:x:0:\nnogroup:x:65534:\n")?;
    for shared in [DATA, "dev/shm", "tmp"] {
        let path = root.join(shared);
        fs::create_dir_all(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o1777))?;
    }
    Ok(())
}

/// Cargo's target directory.
fn target() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    match std::env::var_os("CARGO_TARGET_DIR") {
        // Relative to the directory in which cargo was called, which is the workspace.
        Some(directory) => workspace.join(directory),
        None => workspace.join("target"),
    }
}
