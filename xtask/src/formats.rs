//! `cargo xtask formats`: data of each store as the current code writes it, for `tests/formats`.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use xshell::cmd;

use crate::parts::Need;
use crate::run::Run;
use crate::servers::Set;
use crate::test::Fixtures;

/// What to write.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Formats {
    /// Name of the folder, if it is not that of the current version.
    pub(crate) name: Option<String>,
    /// True to replace a folder that exists.
    pub(crate) force: bool,
    /// True to compare with the folder, and write nothing.
    pub(crate) checks: bool,
}

impl Formats {
    /// Sets the name of the folder.
    pub(crate) fn add(&mut self, name: String) -> anyhow::Result<()> {
        let is_plain = |it: char| it.is_ascii_alphanumeric() || it == '.';
        ensure!(
            name.starts_with(char::is_alphanumeric) && name.chars().all(is_plain),
            "{name:?} is no name of a folder; use a version, or `next`"
        );
        self.name = Some(name);
        Ok(())
    }
}

/// Folder with the data of all releases.
const FOLDER: &str = "tests/formats";
/// Variable with the folder that the tests write to.
const WRITES_TO: &str = "IDEM_WRITE_FORMATS";
/// Files of a release.
const FILES: [&str; 7] = [
    "expected.json",
    "mariadb.sql",
    "mysql.sql",
    "postgres.sql",
    "postgres_portable.sql",
    "redis.txt",
    "sqlite.sql",
];
/// Stores that the data is written from.
const NEEDS: [Need; 5] = [
    Need::Postgres,
    Need::MariaDb,
    Need::MySql,
    Need::Redis,
    Need::RedisCluster,
];

/// Writes the data of each store, or compares it with what is there.
pub(crate) fn formats(run: &mut Run, what: &Formats) -> anyhow::Result<()> {
    let name = match &what.name {
        Some(name) => name.clone(),
        None => name_of(&version(&run.root().join("Cargo.toml"))?).to_owned(),
    };
    let folder = run.root().join(FOLDER).join(&name);
    if folder.exists() && !what.force && !what.checks {
        bail!(
            "{FOLDER}/{name} exists already, and the data of a published release never changes; name another folder, or \
             replace it with `--force` before its release"
        );
    }
    let _servers = Fixtures::of(run, &NEEDS, Set::default())?;
    let written = run.target().join("formats");
    if written.exists() {
        fs::remove_dir_all(&written)?;
    }
    fs::create_dir_all(&written)?;
    let cargo = run.cargo();
    run.step("formats", |sh| {
        let tests = cmd!(
            sh,
            "{cargo} test -q --workspace --all-features --test it -- formats::writing --include-ignored"
        );
        Ok(tests.env(WRITES_TO, &written).run()?)
    })?;
    for file in FILES {
        let text = fs::read_to_string(written.join(file)).with_context(|| {
            format!("{file} was not written; the servers of all stores must run")
        })?;
        if what.checks {
            let kept = fs::read_to_string(folder.join(file))
                .with_context(|| format!("{FOLDER}/{name}/{file}"))?;
            ensure!(
                kept == text,
                "{FOLDER}/{name}/{file} is not what the current code writes, which is in {}; give the current code a \
                 folder of its own",
                written.join(file).display()
            );
        } else {
            fs::create_dir_all(&folder)?;
            fs::write(folder.join(file), text)?;
        }
    }
    Ok(())
}

/// Version of the workspace.
fn version(manifest: &Path) -> anyhow::Result<String> {
    let manifest: toml::Table = fs::read_to_string(manifest)?.parse()?;
    let package = manifest.get("workspace").and_then(|it| it.get("package"));
    let version = package.and_then(|it| it.get("version")?.as_str());
    Ok(version.context("the workspace has no version")?.to_owned())
}

/// Name of a version's folder: `0.1` for 0.1.0.
fn name_of(version: &str) -> &str {
    version.strip_suffix(".0").unwrap_or(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_has_a_folder_of_its_version() {
        assert_eq!(name_of("0.1.0"), "0.1");
        assert_eq!(name_of("0.1.1"), "0.1.1");
        assert_eq!(name_of("1.10.0"), "1.10");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let version = version(&root.join("Cargo.toml")).expect("it has a version");
        assert_eq!(version.split('.').count(), 3, "{version}");
    }
}
