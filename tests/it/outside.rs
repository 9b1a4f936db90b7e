//! A crate outside of the workspace, as a user has it: it depends on the runtime by path, under its own name or
//! another one, and runs the quick start.

use std::fs;
use std::path::Path;
use std::process::Command;

const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// What the quick start prints: the work once, its result twice.
const ONCE: &str = "charging Ada for 1250\nreceipt for 1250\nreceipt for 1250\n";
/// What it prints when it is run again, on the file that is there: the result of the first run.
const AGAIN: &str = "receipt for 1250\nreceipt for 1250\n";

#[test]
fn the_quick_start_runs_in_a_crate_of_its_own() {
    let outsider = Outsider::new("plain", "idem-runtime", quick_start());
    assert_eq!(outsider.run(), ONCE);
    assert_eq!(outsider.run(), AGAIN);
}

#[test]
fn the_quick_start_runs_where_the_runtime_has_another_name() {
    let renamed = replace(&quick_start(), "idem_runtime::", "once::");
    let renamed = replace(&renamed, "#[idempotent(", "#[idempotent(crate = once, ");
    let renamed = replace(
        &renamed,
        "#[derive(Fingerprint)]",
        "#[derive(Fingerprint)]\n#[fingerprint(crate = once)]",
    );
    let outsider = Outsider::new("renamed", "once", renamed);
    assert_eq!(outsider.run(), ONCE);
    assert_eq!(outsider.run(), AGAIN);
}

/// The first Rust example of the README.
fn quick_start() -> String {
    let readme = fs::read_to_string(Path::new(WORKSPACE).join("README.md")).unwrap();
    let example = readme
        .split_once("```rust\n")
        .and_then(|(_, rest)| rest.split_once("```"));
    let (example, _) = example.expect("the README has a block that begins with ```rust");
    assert!(example.contains("fn main()"), "it is a whole program");
    example.to_owned()
}

/// Replaces each occurrence; that there is none is an error of the test.
fn replace(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "the quick start has no `{from}`");
    text.replace(from, to)
}

/// A crate with a lock file, manifest and source of its own. It shares the workspace's target directory, so that what
/// both need alike is built once.
struct Outsider {
    folder: tempfile::TempDir,
    name: String,
}

impl Outsider {
    fn new(name: &str, dependency: &str, main: String) -> Self {
        let name = format!("idem-outsider-{name}");
        let folder = tempfile::tempdir().unwrap();
        let runtime = fs::canonicalize(Path::new(WORKSPACE).join("idem-runtime")).unwrap();
        let manifest = format!(
            r#"
                [package]
                name = "{name}"
                edition = "2024"

                [dependencies]
                {dependency} = {{ package = "idem-runtime", path = {runtime:?}, features = ["sqlite"] }}
                tokio = {{ version = "1", features = ["macros", "rt-multi-thread"] }}

                [workspace]
            "#
        );
        fs::create_dir(folder.path().join("src")).unwrap();
        fs::write(folder.path().join("Cargo.toml"), manifest).unwrap();
        fs::write(folder.path().join("src/main.rs"), main).unwrap();
        // The versions that the workspace was built with are at hand, so nothing is fetched.
        fs::copy(
            Path::new(WORKSPACE).join("Cargo.lock"),
            folder.path().join("Cargo.lock"),
        )
        .unwrap();
        Self { folder, name }
    }

    /// Builds and runs it, and gives what it prints.
    fn run(&self) -> String {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let output = Command::new(env!("CARGO"))
            .args(["run", "--offline", "--quiet", "--package", &self.name])
            .env("CARGO_TARGET_DIR", target)
            .current_dir(self.folder.path())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}: {}\n{}",
            self.name,
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }
}
