//! A crate outside of the workspace, like that of a user. It has the dependencies that the README names and runs the
//! README's quick start: once unchanged, once with the runtime crate renamed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Output of the quick start: the work, once, and its result.
const FIRST_RUN: &str = "charging ann for 500 cents\nreceipt for 500 cents\n";
/// Output of the second run, on the file of the first: the result of the first run.
const SECOND_RUN: &str = "receipt for 500 cents\n";

#[test]
fn the_quick_start_runs_in_a_crate_of_its_own() {
    let outsider = Outsider::new("plain", &block("toml"), &block("rust,no_run"));
    assert_eq!(outsider.run(), FIRST_RUN);
    assert_eq!(outsider.run(), SECOND_RUN);
}

#[test]
fn the_quick_start_runs_where_the_runtime_has_another_name() {
    let main = replace(&block("rust,no_run"), "idem_runtime::", "once::");
    let main = replace(&main, "#[idempotent(", "#[idempotent(crate = once, ");
    let main = replace(&main, "struct ", "#[fingerprint(crate = once)] struct ");
    let dependencies = replace(
        &block("toml"),
        "idem-runtime = { ",
        "once = { package = \"idem-runtime\", ",
    );
    let outsider = Outsider::new("renamed", &dependencies, &main);
    assert_eq!(outsider.run(), FIRST_RUN);
    assert_eq!(outsider.run(), SECOND_RUN);
}

fn workspace() -> PathBuf {
    let tests = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    Path::new(&tests).parent().unwrap().to_owned()
}

/// First code block of the README in this language.
fn block(language: &str) -> String {
    let readme = fs::read_to_string(workspace().join("README.md")).unwrap();
    let block = readme
        .split_once(&format!("```{language}\n"))
        .and_then(|(_, rest)| rest.split_once("```"));
    let (block, _) = block.unwrap_or_else(|| panic!("the README has no block of {language}"));
    block.to_owned()
}

/// Replaces each occurrence. Panics if there is none.
fn replace(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "there is no `{from}` in\n{text}");
    text.replace(from, to)
}

/// A crate with its own manifest, lock file and source, outside of any workspace.
struct Outsider {
    folder: tempfile::TempDir,
}

impl Outsider {
    fn new(name: &str, dependencies: &str, main: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // An unpublished version is available only by its path.
        let path = workspace().join("idem-runtime");
        let runtime = format!("version = \"0.1\", path = {path:?}");
        let dependencies = replace(dependencies, "version = \"0.1\"", &runtime);
        let manifest = format!(
            "[package]\nname = \"idem-outsider-{name}\"\nedition = \"2024\"\n\n{dependencies}\n[workspace]\n"
        );
        fs::create_dir(folder.path().join("src")).unwrap();
        fs::write(folder.path().join("Cargo.toml"), manifest).unwrap();
        fs::write(folder.path().join("src/main.rs"), main).unwrap();
        // The versions of the workspace are already downloaded, so that the build needs no network.
        fs::copy(
            workspace().join("Cargo.lock"),
            folder.path().join("Cargo.lock"),
        )
        .unwrap();
        Self { folder }
    }

    /// Builds and runs the crate. Returns its output.
    fn run(&self) -> String {
        // The workspace's own target directory: shared dependencies are built once.
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let output = Command::new(env!("CARGO"))
            .args(["run", "--offline", "--quiet"])
            .env("CARGO_TARGET_DIR", target)
            .current_dir(self.folder.path())
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
}
