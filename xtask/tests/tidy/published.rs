//! Rules for what is published: the packages of the crates, and the workflows that publish them.

use toml::{Table, Value};

use crate::{File, check, repository};

/// Last line of the README of each published crate. On the page of a registry, it is all that names the licences.
const LICENCE_LINE: &str = "Licensed under either of Apache License 2.0 or MIT, at your option.";

#[test]
fn each_published_crate_has_a_readme_and_licences_that_work_alone() {
    let files = repository();
    let manifests: Vec<_> = files.iter().filter(|it| is_published(it)).collect();
    assert_eq!(manifests.len(), 9, "some published crates were not found");
    check(manifests, |manifest| incomplete(manifest, &files));

    let manifest = File::new("a/Cargo.toml", "[package]\nname = 'a'\n");
    assert!(is_published(&manifest));
    let private = File::new("a/Cargo.toml", "[package]\nname = 'a'\npublish = false\n");
    assert!(!is_published(&private));
    let package = |readme: &str, licence: &str| {
        let mut files = Vec::new();
        for folder in ["", "a/"] {
            for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
                files.push(File::new(&format!("{folder}{name}"), name));
            }
        }
        files.last_mut().unwrap().text = licence.to_owned();
        files.push(File::new("a/README.md", readme));
        incomplete(&manifest, &files)
    };
    let good = format!("[a](https://a.example) [b](#b)\n\n{LICENCE_LINE}\n");
    assert_eq!(package(&good, "LICENSE-MIT"), [""; 0]);
    assert_eq!(package(&good, "another").len(), 1);
    assert_eq!(package("none\n", "LICENSE-MIT").len(), 1);
    let relative = format!("[a](../a.md) ![b](b.png)\n\n{LICENCE_LINE}\n");
    assert_eq!(package(&relative, "LICENSE-MIT").len(), 2);
}

/// True for the manifest of a member that is published. The manifests of all other packages say that they are not.
fn is_published(file: &File) -> bool {
    let folder = file.path.strip_suffix("/Cargo.toml");
    if folder.is_none_or(|it| it.contains('/')) {
        return false;
    }
    let manifest: Table = file.text.parse().unwrap();
    let publish = manifest["package"].get("publish").and_then(Value::as_bool);
    publish != Some(false)
}

fn incomplete(manifest: &File, files: &[File]) -> Vec<String> {
    let folder = manifest.path.trim_end_matches("Cargo.toml");
    let text = |path: &str| {
        let file = files.iter().find(|it| it.path == path);
        file.map(|it| it.text.as_str())
    };
    let mut wrong = Vec::new();
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        if text(&format!("{folder}{licence}")) != text(licence) {
            wrong.push(format!("the folder lacks a link to ../{licence}"));
        }
    }
    let readme = text(&format!("{folder}README.md")).unwrap_or_default();
    if readme.lines().last() != Some(LICENCE_LINE) {
        wrong.push(format!("README.md does not end with `{LICENCE_LINE}`"));
    }
    let links = readme.split("](").skip(1);
    let links = links.map(|it| it.split(')').next().unwrap_or_default());
    let relative = links.filter(|it| !it.starts_with("https://") && !it.starts_with('#'));
    wrong.extend(
        relative.map(|it| format!("README.md: `{it}` leads nowhere on the page of a registry")),
    );
    wrong
}

#[test]
fn each_published_crate_has_a_version_as_its_release_needs() {
    let files = repository();
    let releases = files.iter().find(|it| it.path == "release-plz.toml");
    let releases: Table = releases.unwrap().text.parse().unwrap();
    let published = files.iter().filter(|it| is_published(it));
    check(published, |manifest| other_version(manifest, &releases));

    let releases = "[[package]]\nname = 'a'\n[[package]]\nname = 'b'\nversion_group = 'x'\n";
    let releases: Table = releases.parse().unwrap();
    let other = |name: &str, version: &str| {
        let text = format!("[package]\nname = '{name}'\n{version}\n");
        other_version(&File::new("a/Cargo.toml", &text), &releases).len()
    };
    assert_eq!(other("a", "version = '1.0.0'"), 0);
    assert_eq!(other("a", "version.workspace = true"), 1);
    assert_eq!(other("b", "version.workspace = true"), 0);
    assert_eq!(other("b", "version = '1.0.0'"), 1);
    assert_eq!(other("c", "version = '1.0.0'"), 1);
}

/// A crate of a group has the version of the workspace, and each other crate has its own.
fn other_version(manifest: &File, releases: &Table) -> Vec<String> {
    let manifest: Table = manifest.text.parse().unwrap();
    let package = &manifest["package"];
    let entries = releases["package"].as_array().unwrap();
    let Some(entry) = entries.iter().find(|it| it["name"] == package["name"]) else {
        return vec!["is not in release-plz.toml".to_owned()];
    };
    let is_in_group = entry.get("version_group").is_some();
    match package["version"].is_table() == is_in_group {
        true => vec![],
        false if is_in_group => vec!["has its own version, but is in a version group".to_owned()],
        false => vec!["has the version of the workspace, but is in no version group".to_owned()],
    }
}

#[test]
fn workflows_name_actions_by_their_hash() {
    let files = repository();
    let workflows = files
        .iter()
        .filter(|it| it.path.starts_with(".github/workflows/"));
    check(workflows, unpinned);

    let hash = "0123456789abcdef0123456789abcdef01234567";
    let uses = |what: &str| unpinned(&File::new("a.yml", &format!("  - uses: {what}\n"))).len();
    assert_eq!(uses(&format!("a/b@{hash} # v1.2.3")), 0);
    assert_eq!(uses(&format!("a/b@{hash}")), 1);
    assert_eq!(uses("a/b@v1"), 1);
    assert_eq!(uses(&format!("a/b@{} # v1", &hash[1..])), 1);
}

/// Actions by a tag, which its owner can move to other code. The comment says which version the hash is.
fn unpinned(file: &File) -> Vec<String> {
    let is_hash = |it: &str| it.len() == 40 && it.bytes().all(|it| it.is_ascii_hexdigit());
    let uses = file.text.lines().filter_map(|it| it.split_once("uses: "));
    let unpinned = uses.filter(|(_, action)| {
        let pinned = action
            .split_once('@')
            .and_then(|it| it.1.split_once(" # v"));
        !pinned.is_some_and(|(hash, _)| is_hash(hash))
    });
    unpinned
        .map(|(_, action)| format!("name `{action}` by its hash, with `# vVERSION` after it"))
        .collect()
}
