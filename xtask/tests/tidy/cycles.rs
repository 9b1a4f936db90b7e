//! No two files of a folder import each other, whether directly or through other files of the folder.
//!
//! A file counts together with the folder of its name: `engine/typed.rs` and `engine/typed/codecs.rs` are both
//! `engine/typed`. Imports between a folder's own file, `engine.rs`, and the files in it are not cycles.

use std::collections::{BTreeMap, BTreeSet};

use crate::paths::{Names, Path, test_modules};
use crate::{File, repository};

/// Longest chain of re-exports that is followed.
const MAX_REEXPORTS: usize = 16;

/// The files of a cycle, by their folder.
type Cycle = (String, BTreeSet<String>);

#[test]
fn no_files_of_a_folder_import_each_other() {
    let found = cycles(&repository());
    let shown = found
        .iter()
        .map(|((folder, _), arrows)| format!("{folder}: {}", arrows.join(", ")));
    assert!(
        found.is_empty(),
        "these files import each other; move the shared items into a separate file:\n{}",
        Vec::from_iter(shown).join("\n")
    );
}

#[test]
fn a_cycle_between_files_is_found() {
    let found = |files: &[(&str, &str)]| {
        let files: Vec<_> = [("x/src/lib.rs", "mod a; mod b; mod c;")]
            .iter()
            .chain(files)
            .map(|(path, text)| File::new(path, text))
            .collect();
        let cycles = cycles(&files).into_keys();
        cycles
            .map(|(folder, files)| format!("{folder}: {}", Vec::from_iter(files).join(" ")))
            .collect::<Vec<_>>()
    };
    let a_and_b = ["x/src: a b"];

    let direct = [
        ("x/src/a.rs", "use crate::b::B;"),
        ("x/src/b.rs", "fn f(_: super::a::A) {}"),
    ];
    assert_eq!(found(&direct), a_and_b);
    let in_a_group = [
        ("x/src/a.rs", "use crate::{b, c::C};"),
        ("x/src/b.rs", "fn f() { vec![crate::a::A] }"),
        ("x/src/c.rs", ""),
    ];
    assert_eq!(found(&in_a_group), a_and_b);
    let indirect = [
        ("x/src/a.rs", "use crate::b::B;"),
        ("x/src/b.rs", "use crate::c::C;"),
        ("x/src/c.rs", "use crate::a::A;"),
    ];
    assert_eq!(found(&indirect), ["x/src: a b c"]);
    let from_a_folder = [
        ("x/src/a.rs", "mod deep;"),
        ("x/src/a/deep.rs", "use crate::b::B;"),
        ("x/src/b.rs", "use crate::a::A;"),
    ];
    assert_eq!(found(&from_a_folder), a_and_b);
    let in_a_folder = [
        ("x/src/a.rs", "mod d; mod e;"),
        ("x/src/a/d.rs", "use super::e::E;"),
        ("x/src/a/e.rs", "use super::d::D;"),
    ];
    assert_eq!(found(&in_a_folder), ["x/src/a: d e"]);
    let by_reexports = [
        ("x/src/a.rs", "mod d; mod e; pub use self::d::{D as F, G};"),
        ("x/src/a/d.rs", "use super::e::E;"),
        ("x/src/a/e.rs", "use super::F;"),
    ];
    assert_eq!(found(&by_reexports), ["x/src/a: d e"]);
    let in_a_test_crate = [
        ("x/tests/it/main.rs", "mod d; mod e;"),
        ("x/tests/it/d.rs", "use crate::e::E;"),
        ("x/tests/it/e.rs", "use crate::d::D;"),
    ];
    assert_eq!(found(&in_a_test_crate), ["x/tests/it: d e"]);
}

#[test]
fn imports_in_one_direction_are_no_cycle() {
    let files = [
        ("x/src/lib.rs", "mod a; mod b; pub use a::A;"),
        (
            "x/src/a.rs",
            "mod d; mod e; mod tests; struct A; use self::d::D;",
        ),
        ("x/src/a/d.rs", "use super::{A, e::E}; use crate::A as B;"),
        (
            "x/src/a/e.rs",
            "// super::d::D\n#[cfg(test)] mod tests { use crate::a::d::D; use crate::b::B; }",
        ),
        ("x/src/b.rs", "use crate::A; #[cfg(test)] mod tests;"),
        ("x/src/b/tests.rs", "use crate::c::C;"),
        ("x/src/c.rs", "use crate::b::B; use outer::c::C;"),
    ];
    let files = files.map(|(path, text)| File::new(path, text));
    assert_eq!(cycles(&files), BTreeMap::new());
}

/// The cycles of all folders, each with its imports.
fn cycles(files: &[File]) -> BTreeMap<Cycle, Vec<String>> {
    let mut found = BTreeMap::new();
    for (root, files) in crates(files) {
        for (folder, imports) in imports(&files) {
            let folder = [vec![root.clone()], folder].concat().join("/");
            for group in strongly_connected(&imports) {
                let inside =
                    |(from, to): &&(String, String)| group.contains(from) && group.contains(to);
                let arrows = imports.iter().filter(inside);
                let arrows = arrows.map(|(from, to)| format!("{from} -> {to}")).collect();
                found.insert((folder.clone(), group), arrows);
            }
        }
    }
    found
}

/// The Rust files of each crate, by the folder of its `lib.rs` or `main.rs`, with their modules.
fn crates(files: &[File]) -> BTreeMap<String, Vec<(Path, &File)>> {
    let folder_of = |path: &str| path.rsplit_once('/').map(|(folder, _)| folder.to_owned());
    let is_root = |file: &&File| {
        ["lib.rs", "main.rs"].contains(&file.path.rsplit('/').next().unwrap_or_default())
    };
    let roots: BTreeSet<String> = files
        .iter()
        .filter(is_root)
        .filter_map(|it| folder_of(&it.path))
        .collect();
    let mut crates: BTreeMap<String, Vec<_>> = BTreeMap::new();
    let checked = |it: &&File| it.is_rust() && !it.is_ui_case() && !it.is_output();
    for file in files.iter().filter(checked) {
        let mut root = folder_of(&file.path);
        while root.as_ref().is_some_and(|it| !roots.contains(it)) {
            root = root.and_then(|it| folder_of(&it));
        }
        if let Some(root) = root {
            let module = file.path[root.len() + 1..].trim_end_matches(".rs");
            let module = match module {
                "lib" | "main" => vec![],
                module => module.split('/').map(str::to_owned).collect(),
            };
            crates.entry(root).or_default().push((module, file));
        }
    }
    crates
}

/// Imports between the files of each folder of a crate.
fn imports(files: &[(Path, &File)]) -> BTreeMap<Path, BTreeSet<(String, String)>> {
    let is_for_tests = test_modules(files.iter().cloned());
    let names: BTreeMap<&Path, Names> = files
        .iter()
        .filter(|(module, _)| !is_for_tests(module))
        .map(|(module, file)| (module, Names::of(module, file)))
        .collect();
    let mut imports: BTreeMap<Path, BTreeSet<_>> = BTreeMap::new();
    for (module, written) in &names {
        for path in &written.own {
            let target = file_of(path, &names);
            let shared = module.iter().zip(&target).take_while(|(a, b)| a == b);
            let shared = shared.count();
            if let (Some(from), Some(to)) = (module.get(shared), target.get(shared)) {
                imports
                    .entry(module[..shared].to_vec())
                    .or_default()
                    .insert((from.clone(), to.clone()));
            }
        }
    }
    imports
}

/// The module of the file in which a path ends, re-exports followed.
fn file_of(path: &Path, names: &BTreeMap<&Path, Names>) -> Path {
    let mut path = path.clone();
    for _ in 0..MAX_REEXPORTS {
        let depth = (0..=path.len())
            .take_while(|depth| names.contains_key(&path[..*depth].to_vec()))
            .last()
            .unwrap_or(0);
        let module = path[..depth].to_vec();
        let aliased = path.get(depth).and_then(|item| {
            let aliases = &names.get(&module)?.aliases;
            let (_, meant) = aliases.iter().find(|(alias, _)| alias == item)?;
            Some([&meant[..], &path[depth + 1..]].concat())
        });
        match aliased {
            Some(meant) if meant != path => path = meant,
            _ => return module,
        }
    }
    path
}

/// Strongly connected files: the largest groups in which each file imports each other, directly or indirectly.
fn strongly_connected(imports: &BTreeSet<(String, String)>) -> BTreeSet<BTreeSet<String>> {
    let reached = |start: &String| {
        let mut reached = BTreeSet::new();
        let mut open = vec![start];
        while let Some(file) = open.pop() {
            for (_, to) in imports.iter().filter(|(from, _)| from == file) {
                if reached.insert(to) {
                    open.push(to);
                }
            }
        }
        reached
    };
    let reached: BTreeMap<_, _> = imports
        .iter()
        .map(|(from, _)| (from, reached(from)))
        .collect();
    let is_mutual = |one: &String, other: &String| {
        reached[one].contains(other) && reached.get(other).is_some_and(|it| it.contains(one))
    };
    reached
        .keys()
        .filter(|file| is_mutual(file, file))
        .map(|file| {
            let others = reached[file].iter().filter(|it| is_mutual(file, it));
            others.map(|it| (*it).clone()).collect()
        })
        .collect()
}
