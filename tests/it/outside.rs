//! Crates outside of the workspace, like those of users. They have the dependencies that the pages add. They run the
//! README's quick start, unchanged and with the runtime crate renamed, and the test of the book's service. Another one is like that of an
//! author of a store, on `idem-store` alone. In another one, a dependency changes how serde_json represents numbers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use idem_runtime::conformance;

/// Page with the quick start.
const README: &str = "README.md";
/// Page with a service and its test.
const SERVICE: &str = "docs/book/src/service.md";
/// Output of the quick start: the work, once, and its result.
const FIRST_RUN: &str = "charging 500 cents\nreceipt for 500 cents\n";
/// Output of the second run, on the file of the first: the result of the first run.
const SECOND_RUN: &str = "receipt for 500 cents\n";

#[test]
fn the_quick_start_runs_in_a_crate_of_its_own() {
    let outsider = Outsider::new(
        "plain",
        &dependencies(README),
        &block(README, "rust,no_run"),
    );
    assert_eq!(outsider.cargo("run"), FIRST_RUN);
    assert_eq!(outsider.cargo("run"), SECOND_RUN);
}

#[test]
fn the_quick_start_runs_where_the_runtime_has_another_name() {
    let main = replace(&block(README, "rust,no_run"), "idem_runtime::", "once::");
    let derived = "#[derive(once::Fingerprint)]\n#[fingerprint(crate = once)]\npub struct Charge { pub cents: u64 }\n\
                   #[derive(once::Fingerprint)]\npub struct Refund { pub charge: Charge }\n\
                   #[once::idempotent(key = key, ttl = \"24h\", crate = once)]\n\
                   pub async fn refund(key: &str, refund: Refund) -> Result<u64, once::Error> {\n    \
                   Ok(refund.charge.cents + key.len() as u64)\n}";
    let dependencies = replace(
        &dependencies(README),
        "idem-runtime = { ",
        "once = { package = \"idem-runtime\", ",
    );
    let outsider = Outsider::new("renamed", &dependencies, &format!("{main}\n{derived}\n"));
    assert_eq!(outsider.cargo("run"), FIRST_RUN);
    assert_eq!(outsider.cargo("run"), SECOND_RUN);
}

#[test]
fn the_service_passes_its_own_test() {
    let outsider = Outsider::new(
        "service",
        &dependencies(SERVICE),
        &block(SERVICE, "rust,no_run"),
    );
    let output = outsider.cargo("test");
    assert!(
        output.contains("a_retry_gets_the_first_receipt ... ok"),
        "{output}"
    );
}

#[test]
fn a_store_on_idem_store_alone_passes_every_case() {
    let outsider = Outsider::copy("outside_store");
    let output = outsider.cargo("test --test contract -- --nocapture");
    let passed = format!("{} cases passed\n", conformance::cases().len());
    assert!(output.contains(&passed), "{output}");

    let crates = outsider.cargo("tree --prefix none --format {lib}");
    assert_has_only(&crates, "idem_store", &["idem_runtime", "reqwest"]);
}

#[test]
fn results_and_fingerprints_hold_where_another_crate_turns_on_arbitrary_precision() {
    let outsider = Outsider::copy("arbitrary_precision");
    let features = outsider.cargo("tree --edges features --invert serde_json");
    assert!(features.contains("arbitrary_precision"), "{features}");
    let output = outsider.cargo("test");
    assert!(output.contains("3 passed; 0 failed"), "{output}");
}

#[test]
fn a_program_that_only_sends_keys_compiles_no_engine() {
    let tree = "tree --package idem-client --edges normal --prefix none --format {lib}";
    assert_has_only(&cargo(&workspace(), tree), "idem_client", &["idem_runtime"]);
}

#[test]
fn a_service_without_the_page_compiles_no_html_and_the_page_no_database() {
    let tree = |of: &str| {
        let tree = format!("tree --package {of} --edges normal --prefix none --format {{lib}}");
        cargo(&workspace(), &tree)
    };
    let is_in = |crates: &str, name: &str| crates.lines().any(|line| line.trim() == name);
    let (runtime, console) = (tree("idem-runtime --all-features"), tree("idem-console"));
    assert!(is_in(&runtime, "sqlx") && is_in(&console, "maud"));
    assert!(!is_in(&runtime, "maud"), "{runtime}");
    assert!(
        !is_in(&console, "sqlx") && !is_in(&console, "redis"),
        "{console}"
    );
}

/// Asserts that a crate is in a list of crates, and neither these nor any database driver or server of HTTP.
#[track_caller]
fn assert_has_only(crates: &str, has: &str, not: &[&str]) {
    let is_in = |name: &str| crates.lines().any(|line| line.trim() == name);
    assert!(is_in(has), "{has} is not in\n{crates}");
    for name in ["axum", "redis", "sqlx", "sqlx_core"].iter().chain(not) {
        assert!(!is_in(name), "{name} is in\n{crates}");
    }
}

fn workspace() -> PathBuf {
    let tests = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    Path::new(&tests).parent().unwrap().to_owned()
}

/// The first code block of a page in this language.
fn block(page: &str, language: &str) -> String {
    let text = fs::read_to_string(workspace().join(page)).unwrap();
    let rest = text.split_once(&format!("```{language}\n"));
    let block = rest.and_then(|(_, rest)| rest.split_once("```"));
    let (block, _) = block.unwrap_or_else(|| panic!("{page} has no block of {language}"));
    block.to_owned()
}

/// The dependencies that the first `cargo add` commands of a page add, as in a manifest.
fn dependencies(page: &str) -> String {
    let mut dependencies = "[dependencies]\n".to_owned();
    for line in block(page, "console").lines() {
        let command = line.strip_prefix("cargo add ");
        let command = command.unwrap_or_else(|| panic!("this adds no dependency: {line}"));
        let (name, features) = command.split_once(" --features ").unwrap_or((command, ""));
        let features: Vec<_> = features.split(',').filter(|it| !it.is_empty()).collect();
        let source = match name {
            // An unpublished version is available only by its path.
            "idem-runtime" => format!("path = {:?}", workspace().join(name)),
            // The version in the lock file.
            _ => "version = \"*\"".to_owned(),
        };
        dependencies += &format!("{name} = {{ {source}, features = {features:?} }}\n");
    }
    dependencies
}

/// Replaces each occurrence. Panics if there is none.
fn replace(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "there is no `{from}` in\n{text}");
    text.replace(from, to)
}

/// Runs a command of cargo in a folder. Returns its output.
fn cargo(folder: &Path, command: &str) -> String {
    // The workspace's own target directory: shared dependencies are built once.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let output = Command::new(env!("CARGO"))
        .arg("--offline")
        .args(command.split(' '))
        .env("CARGO_TARGET_DIR", target)
        .env("IDEM_WORKSPACE", workspace())
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// A crate with its own manifest, lock file and source, outside of any workspace.
struct Outsider {
    folder: tempfile::TempDir,
}

impl Outsider {
    fn new(name: &str, dependencies: &str, main: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let manifest = format!(
            "[package]\nname = \"idem-outsider-{name}\"\nedition = \"2024\"\n\n{dependencies}\n[workspace]\n"
        );
        fs::create_dir(folder.path().join("src")).unwrap();
        fs::write(folder.path().join("src/main.rs"), main).unwrap();
        Self::with_manifest(folder, &manifest)
    }

    /// Copies a crate beside the tests, which depends on `idem-store` or `idem-runtime`.
    fn copy(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let source = workspace().join("tests").join(name);
        for part in ["src", "tests"] {
            let Ok(files) = fs::read_dir(source.join(part)) else {
                continue;
            };
            fs::create_dir(folder.path().join(part)).unwrap();
            for file in files {
                let file = file.unwrap();
                let copy = folder.path().join(part).join(file.file_name());
                fs::copy(file.path(), copy).unwrap();
            }
        }
        let mut manifest = fs::read_to_string(source.join("Cargo.toml")).unwrap();
        for name in ["idem-store", "idem-runtime"] {
            // An unpublished version is available only by its path.
            let path = format!("{name} = {{ path = {:?}, ", workspace().join(name));
            manifest = manifest.replace(&format!("{name} = {{ "), &path);
        }
        Self::with_manifest(folder, &manifest)
    }

    fn with_manifest(folder: tempfile::TempDir, manifest: &str) -> Self {
        fs::write(folder.path().join("Cargo.toml"), manifest).unwrap();
        // The versions of the workspace are already downloaded, so that the build needs no network.
        fs::copy(
            workspace().join("Cargo.lock"),
            folder.path().join("Cargo.lock"),
        )
        .unwrap();
        Self { folder }
    }

    /// Builds the crate, and runs it or its tests. Returns the output.
    fn cargo(&self, command: &str) -> String {
        cargo(self.folder.path(), command)
    }
}
