//! A small disk: an in-memory file system for one test.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail by panicking, too"
)]

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use idem_servers::Server;
use tempfile::TempDir;

/// Variable that says that nothing can be mounted here.
const WITHOUT: &str = "IDEM_TEST_WITHOUT_MOUNT";

/// A mounted file system, unmounted on drop.
#[derive(Debug)]
pub struct SmallDisk(TempDir);

impl SmallDisk {
    /// Mounts a disk of this size, such as `2m`. `None` if the environment says that nothing can be mounted.
    ///
    /// # Panics
    ///
    /// The disk cannot be mounted.
    pub fn of(size: &str) -> Option<Self> {
        Self::below(&std::env::temp_dir(), size)
    }

    /// Mounts a disk in the directory of a server, which can see it there, and gives it to the server's user. The disk must be
    /// dropped before the server.
    ///
    /// # Panics
    ///
    /// The disk cannot be mounted.
    pub fn under(server: &Server, size: &str) -> Option<Self> {
        let disk = Self::below(server.directory(), size)?;
        disk.give_to(server);
        Some(disk)
    }

    fn below(directory: &Path, size: &str) -> Option<Self> {
        if std::env::var_os(WITHOUT).is_some() {
            return None;
        }
        let directory = tempfile::Builder::new()
            .prefix("idem-disk-")
            .tempdir_in(directory)
            .unwrap();
        let options = format!("size={size},mode=0777");
        let mount = ["-t", "tmpfs", "-o", &options, "tmpfs"];
        let mounted = run(Command::new("mount").args(mount).arg(directory.path()));
        assert!(
            mounted,
            "no disk can be mounted here: run this as root where root may mount, or set {WITHOUT}=1"
        );
        Some(Self(directory))
    }

    /// Directory of the disk.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Gives the disk another size.
    ///
    /// # Panics
    ///
    /// The disk cannot be mounted again.
    pub fn make_room(&self, size: &str) {
        let options = format!("remount,size={size}");
        assert!(run(Command::new("mount")
            .args(["-o", &options])
            .arg(self.path())));
    }

    /// Makes the server's user the owner of the disk and of its files.
    ///
    /// # Panics
    ///
    /// This process is not root.
    pub fn give_to(&self, server: &Server) {
        let its = server.directory().metadata().unwrap();
        let owner = format!("{}:{}", its.uid(), its.gid());
        let mut command = Command::new("chown");
        assert!(run(command.args(["-R", &owner]).arg(self.path())));
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A lazy unmount: one of its files may still be open while a test panics.
        run(Command::new("umount").arg("-l").arg(self.path()));
    }
}

fn run(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}
