//! A package with a few modules of the integration tests, written into a copy of the repository.
//!
//! The integration tests are one binary for all stores, brokers and protocols. A mutant would compile all of it, with
//! all features. The harness compiles the modules that an area needs, with the features that these need.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};
use serde::Deserialize;
use toml::{Table, Value};

/// Arguments of cargo that select its tests.
pub(super) const ARGUMENTS: [&str; 2] = ["--package=idem-harness", "--test=harness"];

/// Content of the harness.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Harness {
    /// Modules of `tests/it`.
    pub(super) modules: Vec<String>,
    /// Modules of the library `idem-tests` that they use.
    #[serde(default)]
    helpers: Vec<String>,
    /// Dependencies of `idem-tests` that they use, beside `idem-runtime`.
    dependencies: Vec<String>,
    /// Features of `idem-runtime`.
    features: Vec<String>,
}

/// Files of the harness, by their path from the root of the repository.
const MANIFEST: &str = "tests/harness/Cargo.toml";
const MAIN: &str = "tests/it/harness.rs";
const LIBRARY: &str = "tests/harness.rs";

/// The manifest, without dependencies.
const HEAD: &str = r#"
[package]
name = "idem-harness"
version = "0.0.0"
edition = "2024"
publish = false

[lib]
name = "idem_tests"
path = "../harness.rs"
test = false

[[test]]
name = "harness"
path = "../it/harness.rs"
"#;

impl Harness {
    /// Writes the package, and makes it a member of the workspace.
    pub(super) fn write(&self, root: &Path) -> anyhow::Result<()> {
        let of_tests = fs::read_to_string(root.join("tests/Cargo.toml"))?;
        let manifest = self.manifest(&of_tests)?;
        fs::create_dir_all(root.join("tests/harness"))?;
        fs::write(root.join(MANIFEST), manifest)?;
        let main = fs::read_to_string(root.join("tests/it/main.rs"))?;
        fs::write(root.join(MAIN), self.main(&main)?)?;
        let mut library = String::from("//! Helpers of the integration tests.\n\n");
        for helper in &self.helpers {
            writeln!(library, "pub mod {helper};")?;
        }
        fs::write(root.join(LIBRARY), library)?;
        let workspace = fs::read_to_string(root.join("Cargo.toml"))?;
        let begin = "\nmembers = [";
        ensure!(workspace.contains(begin), "the workspace has no members");
        if !workspace.contains("\"tests/harness\"") {
            let joined = workspace.replacen(begin, &format!("{begin}\"tests/harness\", "), 1);
            fs::write(root.join("Cargo.toml"), joined)?;
        }
        Ok(())
    }

    /// Manifest with the dependencies that the modules need.
    fn manifest(&self, of_tests: &str) -> anyhow::Result<String> {
        let mut of_tests: Table = of_tests.parse()?;
        let mut dependencies = Table::new();
        for section in ["dependencies", "dev-dependencies"] {
            let section = of_tests.get_mut(section).and_then(Value::as_table_mut);
            for (name, dependency) in std::mem::take(section.context("no dependencies")?) {
                if name != "idem-runtime" && !self.dependencies.contains(&name) {
                    continue;
                }
                match dependencies.get_mut(&name) {
                    Some(known) => join(known, &dependency),
                    None => {
                        dependencies.insert(name, dependency);
                    }
                }
            }
        }
        let runtime = dependencies.get_mut("idem-runtime");
        let runtime = runtime.and_then(Value::as_table_mut);
        let runtime = runtime.context("the tests do not depend on idem-runtime")?;
        runtime.insert("features".to_owned(), self.features.clone().into());
        let mut manifest: Table = HEAD.parse()?;
        manifest.insert("dependencies".to_owned(), dependencies.into());
        Ok(toml::to_string(&manifest)?)
    }

    /// Root of the integration tests, without all other modules.
    fn main(&self, main: &str) -> anyhow::Result<String> {
        let module = |line: &str| {
            let name = line.strip_prefix("mod ")?.strip_suffix(';')?;
            Some(name.to_owned())
        };
        for name in &self.modules {
            let is_known = main.lines().any(|line| module(line).as_ref() == Some(name));
            ensure!(is_known, "tests/it has no module `{name}`");
        }
        let kept = |line: &&str| module(line).is_none_or(|name| self.modules.contains(&name));
        let lines: Vec<_> = main.lines().filter(kept).collect();
        Ok(lines.join("\n") + "\n")
    }
}

/// Adds the features of a dependency that is listed twice.
fn join(known: &mut Value, again: &Value) {
    let features = again.get("features").and_then(Value::as_array);
    let features = features.cloned().unwrap_or_default();
    let Some(known) = known.as_table_mut() else {
        return;
    };
    let all = known
        .entry("features")
        .or_insert(Vec::<Value>::new().into());
    if let Value::Array(all) = all {
        all.extend(features);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn harness() -> Harness {
        Harness {
            modules: vec!["engine".to_owned(), "memory".to_owned()],
            helpers: vec!["proxy".to_owned()],
            dependencies: vec!["http".to_owned(), "tokio".to_owned()],
            features: vec!["cbor".to_owned()],
        }
    }

    #[test]
    fn the_root_names_only_the_chosen_modules() {
        let main = "//! Root.\n\nmod client;\nmod engine;\nmod memory;\n";
        let kept = harness().main(main).expect("the modules are known");
        assert_eq!(kept, "//! Root.\n\nmod engine;\nmod memory;\n");
        let error = harness().main("mod engine;\n").expect_err("one is unknown");
        assert!(error.to_string().contains("`memory`"), "{error}");
    }

    #[test]
    fn the_manifest_has_the_dependencies_of_the_tests() {
        let of_tests = r#"
            [dependencies]
            idem-runtime = { workspace = true, features = ["mysql"] }
            rdkafka = { workspace = true, optional = true }
            tokio = { workspace = true, features = ["net"] }
            [dev-dependencies]
            http = { workspace = true }
            tokio = { workspace = true, features = ["test-util"] }
        "#;
        let manifest = harness().manifest(of_tests).expect("it is valid");
        let manifest: Table = manifest.parse().expect("it is a manifest");
        let dependencies = manifest["dependencies"].as_table().expect("a table");
        let names: Vec<_> = dependencies.keys().map(String::as_str).collect();
        assert_eq!(names, ["http", "idem-runtime", "tokio"]);
        let features = |name: &str| dependencies[name]["features"].to_string();
        assert_eq!(features("idem-runtime"), r#"["cbor"]"#);
        assert_eq!(features("tokio"), r#"["net", "test-util"]"#);
    }
}
