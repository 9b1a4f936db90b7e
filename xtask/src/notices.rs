//! Licences of the crates that a program consists of. Most of them demand that a copy accompanies the program.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use serde_json::Value as Json;
use xshell::{Shell, cmd};

/// Name and version of a crate.
pub(crate) type Crate = (String, String);

/// Lists the crates of which the command consists, without those that only run while it is compiled.
pub(crate) fn linked(sh: &Shell, cargo: &OsStr, target: &str) -> anyhow::Result<BTreeSet<Crate>> {
    let format = "{p}";
    let tree = cmd!(
        sh,
        "{cargo} tree --locked -p idem-cli --target {target} -e normal,no-proc-macro --prefix none --format {format}"
    );
    Ok(crates(&tree.quiet().read()?))
}

/// Reads lines such as `serde v1.0.0 (...)`.
fn crates(tree: &str) -> BTreeSet<Crate> {
    let pairs = tree.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (name, version) = (words.next()?, words.next()?);
        Some((name.to_owned(), version.strip_prefix('v')?.to_owned()))
    });
    pairs.collect()
}

/// Text with the licences of these crates. A text that several crates have is in it once.
pub(crate) fn text(linked: &BTreeSet<Crate>, metadata: &str) -> anyhow::Result<String> {
    let metadata: Json = serde_json::from_str(metadata).context("invalid metadata from cargo")?;
    let mut text = String::from("Crates that this program consists of, and their licences.\n\n");
    // Texts, with the crates that have them.
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let field = |name: &str| package[name].as_str().unwrap_or_default().to_owned();
        let (name, version) = (field("name"), field("version"));
        // A crate of the workspace has the licences beside this file.
        if package["source"].is_null() || !linked.contains(&(name.clone(), version.clone())) {
            continue;
        }
        let title = format!("{name} {version}");
        writeln!(
            text,
            "{title}: {}, {}",
            field("license"),
            field("repository")
        )?;
        let manifest = field("manifest_path");
        let folder = Path::new(&manifest)
            .parent()
            .context("a manifest has no folder")?;
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if is_licence(&entry.file_name().to_string_lossy()) && entry.path().is_file() {
                let bytes = fs::read(entry.path())?;
                let licence = String::from_utf8_lossy(&bytes).replace('\r', "");
                let of_text = texts.entry(licence.trim().to_owned()).or_default();
                of_text.insert(title.clone());
            }
        }
    }
    let mut texts: Vec<_> = texts.into_iter().collect();
    texts.sort_by(|(_, a), (_, b)| a.cmp(b));
    for (licence, crates) in texts {
        let crates: Vec<_> = crates.into_iter().collect();
        let rule = "=".repeat(80);
        write!(
            text,
            "\n{rule}\n{}\n{rule}\n\n{licence}\n",
            crates.join(", ")
        )?;
    }
    Ok(text)
}

fn is_licence(file: &str) -> bool {
    let file = file.to_ascii_lowercase();
    let words = [
        "license",
        "licence",
        "copying",
        "copyright",
        "notice",
        "unlicense",
    ];
    words.iter().any(|word| file.starts_with(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_are_read_from_the_tree() {
        let tree = "a v1.0.0\nb v0.2.0+c.1 (/x/b)\nb v0.2.0+c.1 (/x/b) (*)\n\n";
        let pair = |name: &str, version: &str| (name.to_owned(), version.to_owned());
        assert_eq!(
            crates(tree),
            [pair("a", "1.0.0"), pair("b", "0.2.0+c.1")].into()
        );
    }

    #[test]
    fn a_shared_licence_is_written_once() {
        let folder = std::env::temp_dir().join(format!("idem-notices-{}", std::process::id()));
        let mut packages = Vec::new();
        for name in ["a", "b", "c"] {
            fs::create_dir_all(folder.join(name)).expect("a folder");
            fs::write(folder.join(name).join("LICENSE-MIT"), "Permission\r\n").expect("a file");
            packages.push(serde_json::json!({
                "name": name, "version": "1.0.0", "source": "registry", "license": "MIT",
                "manifest_path": folder.join(name).join("Cargo.toml"),
            }));
        }
        let metadata = serde_json::json!({ "packages": packages }).to_string();
        let linked = crates("a v1.0.0\nb v1.0.0\n");
        let text = text(&linked, &metadata).expect("a text");
        assert_eq!(text.matches("Permission").count(), 1, "{text}");
        assert!(text.contains("\na 1.0.0, b 1.0.0\n"), "{text}");
        assert!(!text.contains("c 1.0.0"), "{text}");
        let _ = fs::remove_dir_all(folder);
    }

    #[test]
    fn licences_are_known_by_their_names() {
        for file in [
            "LICENSE",
            "LICENSE-MIT",
            "license.txt",
            "COPYING",
            "UNLICENSE",
        ] {
            assert!(is_licence(file), "{file}");
        }
        assert!(!is_licence("README.md"));
    }
}
