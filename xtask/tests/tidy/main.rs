//! What the compiler does not look at: which module may import which, manifests, and how files are kept. Every check
//! is a function from a text to what is wrong with it, run over the repository and over a text that it must refuse.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot read the repository fails"
)]

mod imports;
mod manifests;
mod pages;
mod texts;

use std::fs;
use std::path::Path;

/// A file of the repository.
struct File {
    /// From the root of the repository on, with `/`.
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

    /// Whether it is a test case for the compiler, which need not be as tidy.
    fn is_ui_case(&self) -> bool {
        self.path.starts_with("tests/ui/")
    }

    /// Whether a tool wrote it: the compiler, cargo, or a macro under test.
    fn is_output(&self) -> bool {
        self.path.ends_with(".stderr")
            || self.path.contains("/snapshots/")
            || self.path == "Cargo.lock"
    }
}

/// Every text file of the repository that is not made by a build.
fn repository() -> Vec<File> {
    // As it is now: a target directory may outlive a move of the repository.
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
            } else if let Ok(text) = fs::read_to_string(&path) {
                let path = path.strip_prefix(root).unwrap();
                files.push(File {
                    path: path.to_str().unwrap().replace('\\', "/"),
                    text,
                });
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(files.len() > 30, "the repository has only these: {}", {
        let paths: Vec<_> = files.iter().map(|it| it.path.as_str()).collect();
        paths.join(", ")
    });
    files
}

/// Whether a file or folder is somebody else's: cargo's, git's or an editor's.
fn is_foreign(path: &Path) -> bool {
    let name = path.file_name().unwrap().to_string_lossy();
    let hidden = name.starts_with('.') && ![".cargo", ".ci", ".gitignore"].contains(&&*name);
    hidden || name == "target" || path.join("CACHEDIR.TAG").exists()
}

/// Runs a check over files and fails with everything that is wrong.
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
    assert!(seen > 0, "no file was looked at");
    assert!(all.is_empty(), "\n{}\n", all.join("\n"));
}
