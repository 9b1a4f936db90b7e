//! Checks of the book: its pages are reachable, its code is compiled, each problem has a page, and a table that several
//! places show has one source.

use proc_macro2::{Literal, TokenStream, TokenTree};
use toml::Table;

use crate::paths::tokens;
use crate::{File, check, repository};

/// Folder of the book's pages.
const PAGES: &str = "docs/book/src/";
/// Tables that rustdoc, the book and the README share.
const SHARED: &str = "idem-runtime/src/doc/";

#[test]
fn each_page_is_in_the_summary() {
    let files = repository();
    let summary = find(&files, "docs/book/src/SUMMARY.md");
    let is_missing = |page: &File| not_in(summary, page);
    check(files.iter().filter(|it| is_page(it)), is_missing);

    let summary = File::new("docs/book/src/SUMMARY.md", "- [A](a/b.md)\n");
    assert_eq!(
        not_in(&summary, &File::new("docs/book/src/a/b.md", "")).len(),
        0
    );
    assert_eq!(
        not_in(&summary, &File::new("docs/book/src/b.md", "")).len(),
        1
    );
}

fn is_page(file: &File) -> bool {
    file.path.starts_with(PAGES) && file.path.ends_with(".md") && !file.path.ends_with("SUMMARY.md")
}

fn not_in(summary: &File, page: &File) -> Vec<String> {
    let link = format!("]({})", page.path.trim_start_matches(PAGES));
    if summary.text.contains(&link) {
        return vec![];
    }
    vec!["is not in SUMMARY.md, so no reader finds it".to_owned()]
}

#[test]
fn each_rust_block_is_compiled() {
    let files = repository();
    let tests: Vec<_> = ["docs/book/lib.rs", "tests/lib.rs"]
        .map(|path| find(&files, path).text.as_str())
        .into();
    let tests = tests.concat();
    let pages = files.iter().filter(|it| it.path.ends_with(".md"));
    // The pages about the design and the contract of stores show pieces of code.
    let pieces = ["docs/design/", "docs/writing-a-store.md"];
    let whole = pages.filter(|page| !pieces.iter().any(|it| page.path.starts_with(it)));
    let whole = whole.filter(|page| !is_tested_by_its_crate(&files, page));
    check(whole, |page| uncompiled(&tests, page));

    let readme = File::new("a/README.md", "```rust\n```\n");
    let lib = |text: &str| vec![File::new("a/src/lib.rs", text)];
    let included = lib("#[doc = include_str!(\"../README.md\")]");
    assert!(is_tested_by_its_crate(&included, &readme));
    assert!(!is_tested_by_its_crate(&lib("//! A"), &readme));

    let page = |text: &str| File::new("docs/book/src/a.md", text);
    assert_eq!(uncompiled("", &page("```rust,no_run\n```\n")).len(), 1);
    assert_eq!(uncompiled("", &page("```sh\n```\n")).len(), 0);
    assert_eq!(uncompiled("\"src/a.md\"", &page("```rust\n```\n")).len(), 0);
    assert_eq!(
        uncompiled("\"src/a.md\"", &page("```rust,ignore\n```\n")).len(),
        1
    );
}

/// True for the README of a crate that compiles it among its own doc tests, because only that crate has the dependencies.
fn is_tested_by_its_crate(files: &[File], page: &File) -> bool {
    let folder = page.path.strip_suffix("README.md").unwrap_or_default();
    let lib = format!("{folder}src/lib.rs");
    let mut files = files.iter();
    !folder.is_empty()
        && files.any(|it| it.path == lib && it.text.contains("include_str!(\"../README.md\")"))
}

/// Rust blocks of a page that no doc test compiles. `tests` has the names of the pages that doc tests include.
fn uncompiled(tests: &str, page: &File) -> Vec<String> {
    let mut wrong = Vec::new();
    if page.text.contains("```rust,ignore") {
        wrong.push("has a Rust block that is ignored".to_owned());
    }
    let path = page.path.as_str();
    // As the two libraries name it, and as rustdoc includes it.
    let is_included = path.starts_with("idem-runtime/src/")
        || [
            path.trim_start_matches("docs/book/").to_owned(),
            format!("../{}", path.trim_start_matches("docs/")),
            format!("../{path}"),
            format!("../../{path}"),
        ]
        .iter()
        .any(|it| tests.contains(&format!("\"{it}\"")));
    if page.text.contains("```rust") && !is_included {
        wrong.push(
            "has Rust blocks that no doc test compiles: add it to docs/book/lib.rs".to_owned(),
        );
    }
    wrong
}

/// Pages whose code needs no feature and no further crate.
const NEEDS_NOTHING: [&str; 3] = ["load", "operations", "ttl"];

#[test]
fn chapters_begin_with_what_to_add() {
    let files = repository();
    let needs = |it: &&File| {
        let is_exempt = |name| it.path == format!("{PAGES}{name}.md");
        is_page(it) && !NEEDS_NOTHING.into_iter().any(is_exempt)
    };
    check(files.iter().filter(needs), without_dependencies);

    let missing = |text: &str| without_dependencies(&File::new("a.md", text)).len();
    assert_eq!(missing("# A\n```rust\n```\n"), 1);
    assert_eq!(missing("```rust\n```\n```console\ncargo add a\n```\n"), 1);
    assert_eq!(missing("```console\ncargo add a\n```\n```rust\n```\n"), 0);
    assert_eq!(missing("# A\n"), 0);
}

/// Code that a reader cannot copy, because no `cargo add` is above it.
fn without_dependencies(page: &File) -> Vec<String> {
    match page.text.split_once("```rust") {
        Some((above, _)) if !above.contains("\ncargo add ") => {
            vec!["has code before any `cargo add`, so no reader can compile it".to_owned()]
        }
        _ => vec![],
    }
}

#[test]
fn included_files_exist() {
    let files = repository();
    check(files.iter().filter(|it| is_page(it)), |page| {
        missing_includes(page, &files)
    });

    let files = [File::new("docs/a.md", "")];
    let missing = |text: &str| missing_includes(&File::new("docs/book/src/b.md", text), &files);
    assert_eq!(missing("{{#include ../../a.md}}").len(), 0);
    assert_eq!(missing("{{#include a.md}}").len(), 1);
}

/// mdBook only logs an error if an included file is missing.
fn missing_includes(page: &File, files: &[File]) -> Vec<String> {
    let folder = page.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let included = page.text.split("{{#include ").skip(1);
    let included = included.map(|it| it.split("}}").next().unwrap_or_default().trim());
    included
        .filter(|path| {
            let path = crate::pages::resolved(folder, path);
            !files.iter().any(|file| file.path == path)
        })
        .map(|path| format!("includes `{path}`, which does not exist"))
        .collect()
}

/// Kind of problem, as `http/problem.rs` declares it.
#[derive(Debug, PartialEq)]
struct Kind {
    slug: String,
    title: String,
}

#[test]
fn each_problem_links_to_its_page() {
    let files = repository();
    let source = find(&files, "idem-runtime/src/http/problem.rs");
    let site = format!("\"{}errors\"", crate::pages::SITE);
    assert!(
        source.text.contains(&site),
        "problems link to pages below {site}"
    );
    let kinds = kinds(source);
    assert!(kinds.len() > 20, "{kinds:?}");
    check([source], |_| without_page(&kinds, &files));
    let index = find(&files, "docs/book/src/errors.md");
    for Kind { slug, .. } in &kinds {
        assert!(
            index.text.contains(&format!("(errors/{slug}.md)")),
            "{slug} is not in errors.md"
        );
    }

    let declared = "kinds! {\n/// A.\nOne = \"one\", CONFLICT, \"One thing\";\n}";
    let kinds = self::kinds(&File::new("a.rs", declared));
    let kind = |slug: &str, title: &str| Kind {
        slug: slug.to_owned(),
        title: title.to_owned(),
    };
    assert_eq!(kinds, [kind("one", "One thing")]);
    let page = |text: &str| [File::new("docs/book/src/errors/one.md", text)];
    let good = "# One thing {#one}\n\n| problem | `one` |\n";
    assert_eq!(without_page(&kinds, &page(good)).len(), 0);
    assert_eq!(without_page(&kinds, &page("# Another thing\n")).len(), 2);
    assert_eq!(without_page(&kinds, &[]).len(), 1);
}

fn without_page(kinds: &[Kind], files: &[File]) -> Vec<String> {
    let mut wrong = Vec::new();
    for Kind { slug, title } in kinds {
        let path = format!("{PAGES}errors/{slug}.md");
        let Some(page) = files.iter().find(|it| it.path == path) else {
            wrong.push(format!("`{slug}` has no page {path}"));
            continue;
        };
        // The fragment of the problem's `type` is the anchor of the title.
        let heading = format!("# {title} {{#{slug}}}");
        if page.text.lines().next() != Some(&heading) {
            wrong.push(format!("{path} does not begin with `{heading}`"));
        }
        if !page.text.contains(&format!("| problem | `{slug}` |")) {
            wrong.push(format!("{path} does not name `{slug}`"));
        }
    }
    wrong
}

/// Reads `Name = "slug", STATUS, safe, "title";` from the macro call `kinds! { ... }`.
fn kinds(source: &File) -> Vec<Kind> {
    let tokens: Vec<_> = tokens(source).into_iter().collect();
    let call = tokens.windows(3).find_map(|window| match window {
        [
            TokenTree::Ident(name),
            TokenTree::Punct(_),
            TokenTree::Group(body),
        ] if name == "kinds" => Some(body.stream()),
        _ => None,
    });
    let texts: Vec<_> = call
        .into_iter()
        .flat_map(TokenStream::into_iter)
        .filter_map(|token| match token {
            TokenTree::Literal(literal) => text(&literal),
            _ => None,
        })
        .collect();
    texts
        .chunks_exact(2)
        .map(|pair| Kind {
            slug: pair[0].clone(),
            title: pair[1].clone(),
        })
        .collect()
}

fn text(literal: &Literal) -> Option<String> {
    let literal = literal.to_string();
    Some(literal.strip_prefix('"')?.strip_suffix('"')?.to_owned())
}

#[test]
fn shared_tables_have_one_source() {
    let files = repository();
    let shared = |name: &str| find(&files, &format!("{SHARED}{name}.md"));
    let readme = find(&files, "README.md");
    assert!(
        readme.text.contains(&shared("guarantees").text),
        "README.md has another table of guarantees than {SHARED}guarantees.md: copy the table"
    );
    for name in ["guarantees", "always", "limits", "features"] {
        let row = shared(name).text.lines().last().unwrap();
        let copies = files.iter().filter(|it| it.text.contains(row));
        let copies: Vec<_> = copies.map(|it| it.path.as_str()).collect();
        let allowed = match name {
            "guarantees" => 2,
            _ => 1,
        };
        assert_eq!(
            copies.len(),
            allowed,
            "include {name}.md instead: {copies:?}"
        );
    }
}

#[test]
fn the_feature_table_has_every_feature() {
    let files = repository();
    let manifest = find(&files, "idem-runtime/Cargo.toml");
    let table = find(&files, "idem-runtime/src/doc/features.md");
    check([table], |table| other_features(table, manifest));

    let manifest = File::new(
        "Cargo.toml",
        "[features]\ndefault = ['a']\na = []\nb = []\n",
    );
    let other = |text: &str| other_features(&File::new("features.md", text), &manifest).len();
    assert_eq!(other("| `a` | x | yes |\n| `b` | x | |\n"), 0);
    assert_eq!(other("| `a`, `b` | x | |\n"), 1);
    assert_eq!(other("| `a` | x | yes |\n"), 1);
    assert_eq!(other("| `a` | x | yes |\n| `b`, `c` | x | |\n"), 1);
}

/// Features that the manifest and the table do not both have, or have with another default.
fn other_features(table: &File, manifest: &File) -> Vec<String> {
    let manifest: Table = manifest.text.parse().unwrap();
    let features = manifest["features"].as_table().unwrap();
    let is_default = |name: &str| {
        let defaults = features["default"].as_array().unwrap();
        defaults.iter().any(|it| it.as_str() == Some(name))
    };
    let mut rows = Vec::new();
    for line in table.text.lines() {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        if let [_, names, _, default, _] = cells[..] {
            let names = names.split('`').skip(1).step_by(2);
            rows.extend(names.map(|name| (name, default == "yes")));
        }
    }
    let undescribed = features
        .keys()
        .filter(|name| *name != "default" && !rows.iter().any(|(it, _)| it == name))
        .map(|name| format!("the feature `{name}` is missing"));
    let wrong = rows
        .iter()
        .filter(|(name, default)| !features.contains_key(*name) || is_default(name) != *default)
        .map(|(name, _)| format!("`{name}` is no feature, or its default is another one"));
    undescribed.chain(wrong).collect()
}

fn find<'a>(files: &'a [File], path: &str) -> &'a File {
    let file = files.iter().find(|it| it.path == path);
    file.unwrap_or_else(|| panic!("there is no {path}"))
}
