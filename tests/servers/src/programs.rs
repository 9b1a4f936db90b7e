//! Where the programs of a server come from, and how they are run.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::binaries::{self, Binary, User};

/// Place that has the programs of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Programs {
    /// The machine itself: the programs are on `PATH`.
    Machine,
    /// A tree of directories with the server and all its libraries, see [`Release`](crate::Release). Programs in it run
    /// by `chroot`, which needs root.
    Root(PathBuf),
    /// A directory with programs for this machine, such as a package of npm. The machine has what it lacks.
    Directory(PathBuf),
}

/// Directory, seen from inside of a root, that has the directories of its servers.
pub(crate) const DATA: &str = "data";

/// Ids of the user of every server in a root. The root knows it as `nobody`.
const NOBODY: User = User {
    uid: 65_534,
    gid: 65_534,
};

impl Programs {
    /// Path of a program, as the server's processes see it.
    pub(crate) fn find(&self, binary: Binary) -> anyhow::Result<PathBuf> {
        match self {
            Self::Machine => binary.find(),
            Self::Directory(directory) => match binary.find_in(std::slice::from_ref(directory)) {
                Some(path) => Ok(path),
                None => binary.find(),
            },
            Self::Root(root) => {
                let path = binary.find_below(root)?;
                let path = path.strip_prefix(root).context("a program is elsewhere")?;
                Ok(Path::new("/").join(path))
            }
        }
    }

    /// Version that a program prints.
    pub(crate) fn version(&self, binary: Binary) -> anyhow::Result<String> {
        let path = self.find(binary)?;
        let mut command = match self {
            Self::Root(root) => {
                let mut command = Command::new("chroot");
                command.arg(root).arg(&path);
                command
            }
            Self::Machine | Self::Directory(_) => Command::new(&path),
        };
        let output = command
            .arg("--version")
            .output()
            .with_context(|| format!("cannot run {}", path.display()))?;
        let printed = String::from_utf8_lossy(&output.stdout);
        binaries::version(&printed).with_context(|| {
            let error = String::from_utf8_lossy(&output.stderr);
            format!("{} printed no version: {printed}{error}", path.display())
        })
    }

    /// Version of PostgreSQL in this place.
    ///
    /// # Errors
    ///
    /// The place has no PostgreSQL, or it does not run.
    pub fn postgres_version(&self) -> anyhow::Result<String> {
        self.version(binaries::POSTGRES)
    }

    /// Words in front of the command of a program that runs as this user.
    pub(crate) fn launcher(&self, directory: &Path, user: Option<User>) -> Vec<OsString> {
        let Self::Root(root) = self else {
            return Vec::new();
        };
        let mut words: Vec<OsString> = vec![
            "env".into(),
            // A root has no other locale.
            "LC_ALL=C".into(),
            format!("TMPDIR={}", self.inside(directory).display()).into(),
            "chroot".into(),
        ];
        if let Some(User { uid, gid }) = user {
            words.push(format!("--userspec={uid}:{gid}").into());
        }
        words.push(root.into());
        words
    }

    /// User of a server that refuses to run as root: that of its package, or of a root; `None` if this process is not
    /// root.
    pub(crate) fn user(&self, of_package: &str) -> anyhow::Result<Option<User>> {
        match self {
            Self::Root(_) => Ok(Some(NOBODY)),
            Self::Machine | Self::Directory(_) => User::instead_of_root(of_package),
        }
    }

    /// Creates a directory for one server.
    pub(crate) fn directory(&self) -> anyhow::Result<tempfile::TempDir> {
        let mut builder = tempfile::Builder::new();
        let named = builder.prefix("idem-server-");
        Ok(match self {
            Self::Root(root) => named.tempdir_in(root.join(DATA))?,
            Self::Machine | Self::Directory(_) => named.tempdir()?,
        })
    }

    /// Path of a server's directory, as the server sees it.
    pub(crate) fn inside(&self, directory: &Path) -> PathBuf {
        match self {
            Self::Root(root) => match directory.strip_prefix(root) {
                Ok(path) => Path::new("/").join(path),
                Err(_) => directory.to_owned(),
            },
            Self::Machine | Self::Directory(_) => directory.to_owned(),
        }
    }
}
