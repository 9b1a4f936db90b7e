//! Programs of the machine that the tests need.

use std::path::Path;

use anyhow::bail;
use xshell::{Shell, cmd};

/// Installs packages without starting the services in them, which Debian does otherwise: the policy program is asked
/// first and answers 101, "forbidden" (`invoke-rc.d(8)`). One that is there already is the machine's own.
///
/// Its output goes to the standard error: `cargo xtask servers` prints nothing but variables on the standard output.
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

/// Installs the packages that `missing` lists: on Debian as root.
///
/// # Errors
/// Elsewhere, or where it still lists some: the error names them.
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
