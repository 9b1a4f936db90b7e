//! Rules that every manifest must follow.

use toml::{Table, Value};

use crate::{File, check, repository};

#[test]
fn members_inherit_the_lints_and_every_dependency() {
    let files = repository();
    let manifests = files
        .iter()
        .filter(|it| it.path.ends_with("/Cargo.toml") && !OUTSIDE.contains(&&*it.path))
        .collect::<Vec<_>>();
    assert!(manifests.len() >= 5, "some manifests were not found");
    check(manifests, violations);
}

#[test]
fn a_manifest_that_does_not_inherit_is_found() {
    let good = "[package]\nname = 'a'\nedition.workspace = true\nrust-version.workspace = true\n\
                license.workspace = true\n[lints]\nworkspace = true\n";
    let wrong = |more: &str| violations(&File::new("a/Cargo.toml", &format!("{good}{more}")));
    assert_eq!(wrong(""), [""; 0]);
    assert_eq!(
        wrong("[dependencies]\nb = { workspace = true, features = ['c'] }"),
        [""; 0]
    );
    assert_eq!(wrong("[dependencies]\nb.workspace = true"), [""; 0]);

    assert_eq!(wrong("[dependencies]\nb = '1'").len(), 1);
    assert_eq!(wrong("[dev-dependencies]\nb = { path = '../b' }").len(), 1);
    assert_eq!(
        wrong("[build-dependencies]\nb = { version = '1', optional = true }").len(),
        1
    );
    assert_eq!(wrong("[target.'cfg(unix)'.dependencies]\nb = '1'").len(), 1);
    assert_eq!(
        violations(&File::new("a/Cargo.toml", "[package]\nname = 'a'")).len(),
        4
    );
    let newer = good.replace("rust-version.workspace = true", "rust-version = '1.94'");
    let wrong = |path: &str| violations(&File::new(path, &newer)).len();
    assert_eq!(wrong("idem-cli/Cargo.toml"), 0);
    assert_eq!(wrong("a/Cargo.toml"), 2);
    let private = "[package]\nname = 'a'\npublish = false";
    assert_eq!(violations(&File::new("a/Cargo.toml", private)).len(), 3);
    assert_eq!(violations(&File::new("a/Cargo.toml", "[package")).len(), 1);
}

/// Manifest of the compiler's test cases, which represent code of users and have other lints.
const UI: &str = "tests/ui/Cargo.toml";

/// Published packages that need a newer Rust than the others, with that version. RELEASING.md says why.
const NEWER: [(&str, &str); 2] = [
    ("idem-cli/Cargo.toml", "1.94"),
    ("idem-dynamodb/Cargo.toml", "1.94.1"),
];

/// Crates outside of the workspace, which can inherit nothing: one with a feature that the workspace is built without, one
/// like that of an author of a store, and the benchmark of other libraries.
const OUTSIDE: [&str; 3] = [
    "tests/arbitrary_precision/Cargo.toml",
    "tests/outside_store/Cargo.toml",
    "tests/peers/Cargo.toml",
];

fn violations(file: &File) -> Vec<String> {
    let manifest: Table = match file.text.parse() {
        Ok(manifest) => manifest,
        Err(error) => return vec![error.to_string()],
    };
    let mut wrong = Vec::new();
    if file.path != UI && !manifest.get("lints").is_some_and(inherited) {
        wrong.push("does not inherit the lints of the workspace".to_owned());
    }
    let package = &manifest["package"];
    let is_published = package.get("publish").and_then(Value::as_bool) != Some(false);
    // The oldest Rust is a promise to users. Packages that are not published follow the newest Rust.
    let newer = NEWER.iter().find(|(path, _)| *path == file.path);
    let newer = newer.map(|(_, version)| *version);
    if package.get("rust-version").and_then(Value::as_str) != newer {
        wrong.push(format!("`rust-version` is not {newer:?}"));
    }
    let promised = (is_published && newer.is_none()).then_some("rust-version");
    for field in ["edition", "license"].into_iter().chain(promised) {
        if !package.get(field).is_some_and(inherited) {
            wrong.push(format!("does not inherit `{field}`"));
        }
    }
    own_versions(&manifest, &mut wrong);
    wrong
}

fn own_versions(table: &Table, wrong: &mut Vec<String>) {
    for (name, value) in table {
        let Value::Table(value) = value else { continue };
        if name.ends_with("dependencies") {
            for (dependency, how) in value {
                if !inherited(how) {
                    wrong.push(format!(
                        "`{dependency}` has a separate version: move it to `[workspace.dependencies]`"
                    ));
                }
            }
        } else {
            own_versions(value, wrong);
        }
    }
}

fn inherited(value: &Value) -> bool {
    value.get("workspace").and_then(Value::as_bool) == Some(true)
}

#[test]
fn each_dependency_of_the_workspace_is_used() {
    let files = repository();
    let root = files.iter().find(|it| it.path == "Cargo.toml").unwrap();
    let members = files
        .iter()
        .filter(|it| it.path.ends_with("/Cargo.toml") && !OUTSIDE.contains(&&*it.path));
    let members: Vec<_> = members.collect();
    assert_eq!(unused(root, &members), [""; 0]);

    let root = File::new("Cargo.toml", "[workspace.dependencies]\na = '1'\nb = '1'\n");
    let member = File::new("m/Cargo.toml", "[dev-dependencies]\na.workspace = true\n");
    assert_eq!(unused(&root, &[&member]), ["b"]);
}

fn unused(root: &File, members: &[&File]) -> Vec<String> {
    let root: Table = root.text.parse().unwrap();
    let mut used = Vec::new();
    for member in members {
        used_by(&member.text.parse().unwrap(), &mut used);
    }
    let offered = root["workspace"]["dependencies"].as_table().unwrap();
    offered
        .keys()
        .filter(|name| !used.contains(name))
        .cloned()
        .collect()
}

fn used_by(table: &Table, used: &mut Vec<String>) {
    for (name, value) in table {
        let Value::Table(value) = value else { continue };
        if name.ends_with("dependencies") {
            used.extend(value.keys().cloned());
        } else {
            used_by(value, used);
        }
    }
}
