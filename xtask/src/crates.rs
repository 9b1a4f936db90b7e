//! `cargo xtask package`: builds the published crates from what a registry would get.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value as Json;
use xshell::{Shell, cmd};

use crate::run::Run;

/// The registry refuses larger files.
const MAX_SIZE: u64 = 10 << 20;
/// Files that each package must have, and that are the same in all of them.
const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

/// A crate that is published.
#[derive(Debug, Clone, PartialEq)]
struct Published {
    name: String,
    version: String,
    /// Published crates that must be there before this one.
    needs: BTreeSet<String>,
}

impl Published {
    /// Name of the package's file, without its extension, and of its folder.
    fn stem(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }
}

/// Packages the published crates from a clean clone, and builds each from its package, with its default features and with
/// all. With `minimal`, also checks them with the oldest versions of their dependencies that their manifests allow.
pub(crate) fn package(run: &mut Run, minimal: bool) -> anyhow::Result<()> {
    let crates = in_order(published(&run.metadata()?)?)?;
    let cargo = run.cargo();
    let root = run.root().to_owned();
    let folder = run.target().join("package");
    let (clone, build) = (folder.join("clone"), folder.join("build"));
    let changes = cmd!(run.shell(), "git status --porcelain").quiet().read()?;
    if !changes.is_empty() {
        run.not_run("package: uncommitted changes are not in the packages");
    }
    run.step("clean clone", |sh| {
        sh.remove_path(&clone)?;
        let address = format!("file://{}", root.display());
        Ok(cmd!(sh, "git clone --quiet --depth 1 {address} {clone}").run()?)
    })?;
    let names: Vec<_> = crates.iter().flat_map(|it| ["-p", &it.name]).collect();
    let names = &names;
    for (title, features) in [
        ("default features", None),
        ("all features", Some("--all-features")),
    ] {
        // Cargo verifies in order. In place of crates that no registry has yet, it takes those that it has just packaged.
        run.step(&format!("packages with {title}"), |sh| {
            let _in_clone = sh.push_dir(&clone);
            let package = cmd!(sh, "{cargo} package --locked {names...} {features...}");
            Ok(quick(package, &build).run()?)
        })?;
    }
    run.step("contents of the packages", |_| {
        contents(&crates, &build.join("package"), &clone)
    })?;
    if minimal {
        let folder = folder.join("minimal");
        run.step("packages with minimal versions", |sh| {
            workspace(sh, &crates, &build.join("package"), &folder)?;
            let _in_folder = sh.push_dir(&folder);
            cmd!(
                sh,
                "rustup run nightly cargo update --quiet -Z direct-minimal-versions"
            )
            .run()?;
            let check = cmd!(sh, "{cargo} check --locked --workspace --all-features");
            Ok(quick(check, &build).run()?)
        })?;
    }
    let order: Vec<_> = crates.iter().map(Published::stem).collect();
    println!("order of publication: {}", order.join(", "));
    Ok(())
}

/// The command with a target directory that all packages share, and without what only helps somebody who debugs.
fn quick<'a>(command: xshell::Cmd<'a>, target: &Path) -> xshell::Cmd<'a> {
    command
        .env("CARGO_TARGET_DIR", target)
        .env("CARGO_INCREMENTAL", "0")
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
}

/// Reads the published crates from cargo's description of the workspace.
fn published(metadata: &str) -> anyhow::Result<Vec<Published>> {
    let metadata: Json = serde_json::from_str(metadata).context("invalid metadata from cargo")?;
    let packages: Vec<_> = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|it| !it["publish"].as_array().is_some_and(Vec::is_empty))
        .collect();
    let name_of = |it: &Json| it["name"].as_str().unwrap_or_default().to_owned();
    let names: BTreeSet<_> = packages.iter().map(|it| name_of(it)).collect();
    let crates = packages.iter().map(|package| Published {
        name: name_of(package),
        version: package["version"].as_str().unwrap_or_default().to_owned(),
        needs: package["dependencies"]
            .as_array()
            .into_iter()
            .flatten()
            // Cargo leaves out a dependency of tests that has a path and no version.
            .filter(|it| it["kind"] != "dev" || it["req"] != "*")
            .map(name_of)
            .filter(|name| names.contains(name))
            .collect(),
    });
    Ok(crates.collect())
}

/// Sorts the crates so that each comes after those that it needs.
fn in_order(mut crates: Vec<Published>) -> anyhow::Result<Vec<Published>> {
    let mut order: Vec<Published> = Vec::new();
    while !crates.is_empty() {
        let is_there = |name: &String| order.iter().any(|it| it.name == *name);
        let next = crates.iter().position(|it| it.needs.iter().all(is_there));
        let Some(next) = next else {
            let names: Vec<_> = crates.iter().map(|it| it.name.as_str()).collect();
            bail!(
                "published crates depend on each other: {}",
                names.join(", ")
            );
        };
        order.push(crates.remove(next));
    }
    Ok(order)
}

/// Checks the files of the packages, and prints their sizes.
fn contents(crates: &[Published], packages: &Path, root: &Path) -> anyhow::Result<()> {
    for package in crates {
        let stem = package.stem();
        let folder = packages.join(&stem);
        for licence in LICENCES {
            let of_package = fs::read(folder.join(licence));
            let of_package = of_package.with_context(|| format!("{stem} lacks {licence}"))?;
            ensure!(
                of_package == fs::read(root.join(licence))?,
                "{stem} has another {licence}"
            );
        }
        ensure!(folder.join("README.md").is_file(), "{stem} lacks README.md");
        // They use packages of the workspace that are not published.
        ensure!(!folder.join("tests").exists(), "{stem} has tests");
        let size = fs::metadata(packages.join(format!("{stem}.crate")))?.len();
        ensure!(size <= MAX_SIZE, "{stem} has {size} bytes");
        println!("{:>6} KiB  {stem}", size.div_ceil(1024));
    }
    Ok(())
}

/// Writes a workspace that has the unpacked packages as its members.
fn workspace(
    sh: &Shell,
    crates: &[Published],
    packages: &Path,
    folder: &Path,
) -> anyhow::Result<()> {
    sh.remove_path(folder)?;
    sh.create_dir(folder)?;
    for package in crates {
        let file = packages.join(format!("{}.crate", package.stem()));
        cmd!(sh, "tar -xzf {file} -C {folder}").quiet().run()?;
    }
    Ok(sh.write_file(folder.join("Cargo.toml"), manifest(crates))?)
}

/// Manifest of a workspace in which the packages depend on each other instead of on those of a registry.
fn manifest(crates: &[Published]) -> String {
    let members: Vec<_> = crates.iter().map(|it| format!("{:?}", it.stem())).collect();
    let members = members.join(", ");
    let patches = crates
        .iter()
        .map(|it| format!("{} = {{ path = {:?} }}\n", it.name, it.stem()));
    let patches: String = patches.collect();
    format!("[workspace]\nresolver = \"3\"\nmembers = [{members}]\n\n[patch.crates-io]\n{patches}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published_of(packages: &str) -> Vec<Published> {
        published(&format!(r#"{{"packages":[{packages}]}}"#)).expect("valid metadata")
    }

    #[test]
    fn a_crate_is_published_after_those_that_it_needs() {
        let packages = r#"
            {"name":"a","version":"1.0.0","publish":null,"dependencies":[
                {"name":"b","kind":null,"req":"^1"},
                {"name":"x","kind":null,"req":"^1"},
                {"name":"c","kind":"dev","req":"*"}]},
            {"name":"c","version":"1.1.0","publish":null,"dependencies":[
                {"name":"a","kind":"dev","req":"^1"}]},
            {"name":"b","version":"1.2.0","publish":null,"dependencies":[]},
            {"name":"p","version":"1.0.0","publish":[],"dependencies":[]}"#;
        let crates = in_order(published_of(packages)).expect("there is an order");
        let stems: Vec<_> = crates.iter().map(Published::stem).collect();
        assert_eq!(stems, ["b-1.2.0", "a-1.0.0", "c-1.1.0"]);
        assert_eq!(
            manifest(&crates[..1]),
            "[workspace]\nresolver = \"3\"\nmembers = [\"b-1.2.0\"]\n\n\
             [patch.crates-io]\nb = { path = \"b-1.2.0\" }\n"
        );
    }

    #[test]
    fn crates_that_need_each_other_are_an_error() {
        let packages = r#"
            {"name":"a","version":"1.0.0","publish":null,"dependencies":[{"name":"b","kind":null,"req":"^1"}]},
            {"name":"b","version":"1.0.0","publish":null,"dependencies":[{"name":"a","kind":"build","req":"^1"}]}"#;
        let error = in_order(published_of(packages)).expect_err("there is no order");
        assert!(error.to_string().ends_with("a, b"), "{error}");
    }
}
