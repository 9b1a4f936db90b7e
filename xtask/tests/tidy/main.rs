//! Rules that the compiler does not check: imports between modules and files, manifests, and the form of files.
//!
//! Every check is a function that returns the violations in a file. Each test runs a check on the repository, and on
//! examples that it must accept or refuse.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot read the repository fails"
)]

mod book;
mod cycles;
mod defects;
mod imports;
mod items;
mod leases;
mod manifests;
mod pages;
mod paths;
mod published;
mod semver;
mod stores;
mod tables;
mod texts;

use std::fs;
use std::path::Path;

/// A file of the repository.
struct File {
    /// Path from the root of the repository, with `/`.
    path: String,
    text: String,
}

impl File {
    fn new(path: &str, text: &str) -> Self {
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// True for a test case for the compiler, which may break conventions.
    fn is_ui_case(&self) -> bool {
        self.path.starts_with("tests/ui/")
    }

    /// True if a tool wrote the file: the compiler, cargo, a macro under test, or the plots of benchmarks.
    fn is_output(&self) -> bool {
        self.path.ends_with(".stderr")
            || self.path.contains("/snapshots/")
            || self.path.ends_with("Cargo.lock")
            || (self.path.starts_with("docs/bench/") && self.path.ends_with(".svg"))
    }
}

/// All files of the repository that are not build output. A file that is no text, such as a picture, has an empty text.
fn repository() -> Vec<File> {
    // Read at run time: a target directory may outlive a move of the repository.
    let manifest_dir = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    let root = Path::new(&manifest_dir).parent().unwrap();
    let mut files = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if is_foreign(&path) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(bytes) = fs::read(&path) {
                let text = String::from_utf8(bytes).unwrap_or_default();
                let path = path.strip_prefix(root).unwrap();
                files.push(File {
                    path: path.to_str().unwrap().replace('\\', "/"),
                    text,
                });
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(files.len() > 30, "the repository has too few files: {}", {
        let paths: Vec<_> = files.iter().map(|it| it.path.as_str()).collect();
        paths.join(", ")
    });
    files
}

/// True if a file or folder belongs to cargo, git or an editor.
fn is_foreign(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_string_lossy();
    let ours = [
        ".cargo",
        ".ci",
        ".editorconfig",
        ".gitattributes",
        ".github",
        ".gitignore",
    ];
    let hidden = name.starts_with('.') && !ours.contains(&&*name);
    hidden || name == "target" || path.join("CACHEDIR.TAG").exists()
}

/// Runs a check on files, and fails with all violations.
#[track_caller]
fn check<'a>(files: impl IntoIterator<Item = &'a File>, wrong: impl Fn(&File) -> Vec<String>) {
    let mut seen = 0;
    let mut all = Vec::new();
    for file in files {
        seen += 1;
        all.extend(
            wrong(file)
                .into_iter()
                .map(|it| format!("{}: {it}", file.path)),
        );
    }
    assert!(seen > 0, "no file was checked");
    assert!(all.is_empty(), "\n{}\n", all.join("\n"));
}
