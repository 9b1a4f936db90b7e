//! `cargo xtask prove --formats`: processes of an earlier build beside those of the current one.

use std::fs;
use std::path::Path;

use xshell::{Shell, cmd};

use crate::run::Run;

/// Commit of the earlier build, whose stored formats are those of this release.
const EARLIER: &str = "31f6a01959c9670d691b0181e72be61528337628";

/// Builds the crash program of the earlier commit, and runs its workers beside those of the current one on each store.
pub(crate) fn beside(run: &mut Run) -> anyhow::Result<()> {
    let commit = format!("{EARLIER}^{{commit}}");
    let is_known = run.step("the earlier commit", |sh| {
        let lookup = cmd!(sh, "git cat-file -e {commit}").quiet();
        Ok(lookup.ignore_stderr().run().is_ok())
    })?;
    if !is_known {
        run.not_run(&format!(
            "an earlier build beside the current one: this clone has no commit {EARLIER}; fetch the whole history"
        ));
        return Ok(());
    }
    let (cargo, folder) = (run.cargo(), run.target().join("earlier").join(EARLIER));
    let sources = folder.join("sources");
    run.step("the earlier build", |sh| {
        unpack(sh, &sources)?;
        let manifest = sources.join("Cargo.toml");
        let build = cmd!(
            sh,
            "{cargo} build -q --locked -p idem-tests --bin crash --manifest-path {manifest}"
        );
        Ok(build.env("CARGO_TARGET_DIR", folder.join("target")).run()?)
    })?;
    let earlier = folder.join("target/debug/crash");
    for (mode, stores) in [
        ("leased", &["sqlite", "postgres", "mariadb", "redis"][..]),
        ("tx", &["sqlite", "postgres", "mariadb"]),
    ] {
        let stores = stores.iter().flat_map(|it| ["--store", it]);
        run.step(&format!("both builds, {mode}"), |sh| {
            let crash = cmd!(
                sh,
                "{cargo} run -q -p idem-tests --bin crash -- --mode {mode} --kills 400 --beside {earlier} {stores...}"
            );
            Ok(crash.run()?)
        })?;
    }
    Ok(())
}

/// Unpacks the sources of the earlier commit. They never change, so that cargo compiles them once.
fn unpack(sh: &Shell, sources: &Path) -> anyhow::Result<()> {
    if sources.join("Cargo.toml").exists() {
        return Ok(());
    }
    // A name of its own until it is whole.
    let part = sources.with_extension("part");
    fs::create_dir_all(&part)?;
    let archive = sources.with_extension("tar");
    cmd!(sh, "git archive --format=tar --output {archive} {EARLIER}").run()?;
    cmd!(sh, "tar --extract --file {archive} --directory {part}").run()?;
    fs::rename(part, sources)?;
    Ok(())
}
