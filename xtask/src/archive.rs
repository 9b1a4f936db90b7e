//! `cargo xtask archive`: the command for operators as an archive for Linux.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde_json::Value as Json;
use xshell::{Shell, cmd};

use crate::run::Run;
use crate::{notices, sbom};

/// A target whose programs need no file of the system.
const TARGET: &str = "x86_64-unknown-linux-musl";
/// Shells, and the names under which they look for completions.
const COMPLETIONS: [(&str, &str); 5] = [
    ("bash", "idem.bash"),
    ("elvish", "idem.elv"),
    ("fish", "idem.fish"),
    ("powershell", "_idem.ps1"),
    ("zsh", "_idem"),
];

/// Builds the command, and writes the archive with it, and its bill of materials, into `archive` in the target directory.
pub(crate) fn archive(run: &mut Run) -> anyhow::Result<()> {
    let cargo = run.cargo();
    let version = version(&run.metadata()?)?;
    let name = format!("idem-{version}-{TARGET}");
    let root = run.root().to_owned();
    let target = run.target();
    let folder = target.join("archive");
    let staged = folder.join(&name);
    let flags = flags(&root);
    run.step("command", |sh| {
        Ok(cmd!(
            sh,
            "{cargo} build --locked --profile archive --target {TARGET} -p idem-cli"
        )
        .env("CARGO_ENCODED_RUSTFLAGS", flags)
        .run()?)
    })?;
    let built = target.join(TARGET).join("archive/idem");
    let metadata = run.metadata_with_dependencies()?;
    run.step("archive", |sh| {
        sh.remove_path(&folder)?;
        stage(sh, &built, &root, &staged)?;
        let linked = notices::linked(sh, &cargo, TARGET)?;
        sh.write_file(
            staged.join("THIRD-PARTY-LICENSES"),
            notices::text(&linked, &metadata)?,
        )?;
        sh.write_file(
            folder.join("idem.cdx.json"),
            sbom::bill(&version, &linked, &metadata, &root)?,
        )?;
        let file = folder.join(format!("{name}.tar.gz"));
        // Two archives of one commit are equal.
        let time = cmd!(sh, "git log -1 --format=@%ct").quiet().read()?;
        cmd!(
            sh,
            "tar --sort=name --owner=0 --group=0 --numeric-owner --mtime={time} -czf {file} -C {folder} {name}"
        )
        .run()?;
        cmd!(sh, "tar -tvzf {file}").quiet().run()?;
        println!("{} bytes: {}", std::fs::metadata(&file)?.len(), file.display());
        Ok(())
    })
}

/// Flags of the compiler. The program must need no library, and must not have paths of the machine that built it.
fn flags(root: &Path) -> String {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|it| it.join(".cargo")));
    let remap = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
    let mut flags = vec![
        "-Ctarget-feature=+crt-static".to_owned(),
        remap(root, "idem"),
    ];
    flags.extend(home.map(|it| remap(&it, "cargo")));
    flags.join("\x1f")
}

/// Writes the files of the archive, except for the notices.
fn stage(sh: &Shell, built: &Path, root: &Path, to: &Path) -> anyhow::Result<()> {
    sh.create_dir(to.join("completions"))?;
    sh.create_dir(to.join("man"))?;
    sh.copy_file(built, to)?;
    for file in ["LICENSE-APACHE", "LICENSE-MIT"] {
        sh.copy_file(root.join(file), to)?;
    }
    sh.copy_file(root.join("idem-cli/README.md"), to)?;
    let written = |arguments: &[&str]| -> anyhow::Result<String> {
        let text = cmd!(sh, "{built} {arguments...}").quiet().read()?;
        ensure!(!text.is_empty(), "`idem {}` printed nothing", arguments[0]);
        Ok(format!("{text}\n"))
    };
    for (shell, file) in COMPLETIONS {
        let script = written(&["completions", shell])?;
        sh.write_file(to.join("completions").join(file), script)?;
    }
    sh.write_file(to.join("man/idem.1"), written(&["man"])?)?;
    Ok(())
}

fn version(metadata: &str) -> anyhow::Result<String> {
    let metadata: Json = serde_json::from_str(metadata).context("invalid metadata from cargo")?;
    let packages = metadata["packages"].as_array();
    let command = packages
        .into_iter()
        .flatten()
        .find(|it| it["name"] == "idem-cli")
        .context("the workspace has no package idem-cli")?;
    Ok(command["version"].as_str().unwrap_or_default().to_owned())
}
