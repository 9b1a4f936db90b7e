//! Installs system packages that the tests need.

use std::path::Path;

use anyhow::bail;
use xshell::{Shell, cmd};

/// Installs packages without starting their services. Debian starts services unless the policy program, which it runs
/// first, returns 101, "forbidden" (`invoke-rc.d(8)`). An existing policy program belongs to the machine, and is left
/// unchanged.
///
/// All output goes to standard error, because `cargo xtask servers` prints only variables on standard output.
const INSTALL: &str = r#"
set -e
exec >&2
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 130' INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
fi
apt-get update
apt-get install --yes --no-install-recommends "$@"
"#;

/// Installs the packages that `missing` lists, on Debian as root.
///
/// # Errors
/// On other systems, or if packages are still missing afterwards: the error names them.
pub(crate) fn install(sh: &Shell, missing: impl Fn() -> Vec<&'static str>) -> anyhow::Result<()> {
    let wanted = missing();
    if wanted.is_empty() {
        return Ok(());
    }
    let is_debian = Path::new("/etc/debian_version").exists();
    let is_root = cmd!(sh, "id -u").quiet().read()? == "0";
    if is_debian && is_root {
        let install = cmd!(sh, "sh -c {INSTALL} install {wanted...}");
        install
            .env("DEBIAN_FRONTEND", "noninteractive")
            .quiet()
            .run()?;
    }
    let missing = missing();
    if !missing.is_empty() {
        bail!(
            "install these packages, or whatever they are called here: {}; or run `cargo xtask test --embedded`",
            missing.join(" ")
        );
    }
    Ok(())
}

/// Installs npm, and Node.js with it, if it is missing.
pub(crate) fn install_npm(sh: &Shell) -> anyhow::Result<()> {
    install(sh, || {
        match cmd!(sh, "npm --version").quiet().ignore_stdout().run() {
            Ok(()) => Vec::new(),
            Err(_) => vec!["npm"],
        }
    })
}
