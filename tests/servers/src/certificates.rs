//! Certificates of servers that accept encrypted connections only.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use tempfile::TempDir;

use crate::binaries::{self, User};

/// Certificates of a test, made by `openssl`: of an authority, of servers at `localhost` and 127.0.0.1, and of a client
/// `app`; and those of another authority, which no server trusts. They are valid for two days. Clones share the files,
/// which are removed with the last one.
#[derive(Debug, Clone)]
pub struct Certificates(Arc<TempDir>);

/// Files in the directory of a server: the certificate of the authority.
pub(crate) const AUTHORITY: &str = "ca.pem";
/// The certificate of the server, and its key.
pub(crate) const SERVER: [&str; 2] = ["server.pem", "server.key"];

impl Certificates {
    /// Makes new certificates.
    ///
    /// # Errors
    ///
    /// `openssl` is not installed, or failed.
    pub fn make() -> anyhow::Result<Self> {
        let certificates = Self(Arc::new(tempfile::tempdir()?));
        // The configuration of the machine could add extensions.
        let configuration = "[req]\ndistinguished_name = name\n[name]\n";
        std::fs::write(certificates.path("openssl.cnf"), configuration)?;
        let at_this_machine = "subjectAltName=DNS:localhost,IP:127.0.0.1";
        for [authority, server, client] in [["ca", "server", "client"], ["other", "fake", "guest"]]
        {
            certificates.create(authority, "authority", None, &[])?;
            certificates.create(server, "localhost", Some(authority), &[at_this_machine])?;
            certificates.create(client, "app", Some(authority), &[])?;
        }
        Ok(certificates)
    }

    /// File with the certificate of the authority that signed those of the servers and of the client.
    pub fn authority(&self) -> PathBuf {
        self.path(AUTHORITY)
    }

    /// File with the certificate of the other authority.
    pub fn other_authority(&self) -> PathBuf {
        self.path("other.pem")
    }

    /// Files with the certificate of the client, and its key.
    pub fn client(&self) -> [PathBuf; 2] {
        ["client.pem", "client.key"].map(|it| self.path(it))
    }

    /// Files with a certificate for the same client by the other authority, and its key.
    pub fn other_client(&self) -> [PathBuf; 2] {
        ["guest.pem", "guest.key"].map(|it| self.path(it))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Creates a certificate and its key. Without an issuer it is that of an authority.
    fn create(
        &self,
        name: &str,
        subject: &str,
        issuer: Option<&str>,
        extensions: &[&str],
    ) -> anyhow::Result<()> {
        let is_authority = if issuer.is_some() { "FALSE" } else { "TRUE" };
        let constraints = format!("basicConstraints=critical,CA:{is_authority}");
        let mut command = Command::new(binaries::OPENSSL.find()?);
        command.current_dir(self.0.path()).stdin(Stdio::null());
        command.args(["req", "-config", "openssl.cnf", "-x509", "-newkey", "ec"]);
        command.args(["-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
        command.args(["-days", "2", "-subj", &format!("/CN={subject}")]);
        command.args(["-out", &format!("{name}.pem")]);
        command.args(["-keyout", &format!("{name}.key")]);
        if let Some(issuer) = issuer {
            command.args(["-CA", &format!("{issuer}.pem")]);
            command.args(["-CAkey", &format!("{issuer}.key")]);
        }
        for extension in extensions.iter().copied().chain([&*constraints]) {
            command.args(["-addext", extension]);
        }
        let output = command.output().context("cannot run `openssl`")?;
        if !output.status.success() {
            bail!("openssl: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    /// Copies what a server needs into its directory, readable for its user alone, as PostgreSQL requires.
    pub(crate) fn copy_to(&self, directory: &Path, user: Option<User>) -> anyhow::Result<()> {
        for name in [AUTHORITY, SERVER[0], SERVER[1]] {
            let copy = directory.join(name);
            std::fs::copy(self.path(name), &copy)?;
            std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o600))?;
            if let Some(User { uid, gid }) = user {
                chown(&copy, Some(uid), Some(gid))?;
            }
        }
        Ok(())
    }

    /// Options with which `redis-cli` connects to a server of this directory.
    pub(crate) fn of_redis_cli(&self) -> [String; 7] {
        let path = |name: &str| self.path(name).display().to_string();
        [
            "--tls".to_owned(),
            "--cacert".to_owned(),
            path(AUTHORITY),
            "--cert".to_owned(),
            path("client.pem"),
            "--key".to_owned(),
            path("client.key"),
        ]
    }
}
