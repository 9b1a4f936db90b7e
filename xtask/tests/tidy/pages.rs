//! Checks of documentation pages: links have targets, the files, names and tests that a page mentions exist, and the first
//! pages are short.

use std::collections::HashSet;

use crate::{File, check, repository};

/// Unit tests and test targets that a page may name, as `target: path::of::test`, with their folders.
const TEST_FOLDERS: [(&str, &str); 4] = [
    ("it", "tests/it"),
    ("events", "tests/events"),
    ("lib", "idem-runtime/src"),
    ("tidy", "xtask/tests/tidy"),
];

/// Address of the published book. Its pages are built from [`BOOK`].
pub(crate) const SITE: &str = "https://idem-rs.github.io/idem/";
const BOOK: &str = "docs/book/src/";
/// Address of the repository's files.
const REPOSITORY: &str = "https://github.com/idem-rs/idem/blob/main/";

/// Page that names the options of another project.
const OF_ANOTHER: &str = "docs/book/src/powertools.md";

/// Pages that are read from beginning to end, each with the most words that it may have, code and tables included.
const MOST_WORDS: [(&str, usize); 3] = [
    ("ARCHITECTURE.md", 1_200),
    ("README.md", 1_300),
    ("docs/proof.md", 3_000),
];

#[test]
fn first_pages_are_short() {
    let files = repository();
    for (path, most) in MOST_WORDS {
        let page: Vec<_> = pages(&files).filter(|it| it.path == path).collect();
        assert_eq!(page.len(), 1, "there is no {path}");
        check(page, |page| too_many_words(page, most));
    }

    let page = File::new("README.md", "# One\n\ntwo  three\n");
    assert_eq!(too_many_words(&page, 4).len(), 0);
    assert_eq!(too_many_words(&page, 3).len(), 1);
}

/// Counts words as `wc -w` does.
fn too_many_words(page: &File, most: usize) -> Vec<String> {
    let words = page.text.split_whitespace().count();
    if words > most {
        return vec![format!(
            "{words} words, more than {most}: move what few readers need to a page of its own"
        )];
    }
    vec![]
}

#[test]
fn links_lead_to_files_and_headings() {
    let files = repository();
    let wrong = |page: &File| broken_links(page, &files);
    check(pages(&files), wrong);

    let files = [
        File::new("docs/a.md", "# One `b`: two, three\n"),
        File::new("src/b.rs", ""),
    ];
    let broken = |text: &str| broken_links(&File::new("docs/c.md", text), &files).len();
    assert_eq!(broken("[a](b.md)"), 1);
    assert_eq!(broken("[a](a.md) [b](../src/b.rs) [c](../src)"), 0);
    assert_eq!(broken("[a](a.md#one-b-two-three)"), 0);
    assert_eq!(broken("[a](a.md#two)"), 1);
    assert_eq!(
        broken("# Two\n[a](#two) [b](#one) [c](https://a.example)"),
        1
    );
    assert_eq!(broken("```\n[a](b.md)\n```"), 0);
    assert_eq!(broken(&format!("[a]({REPOSITORY}docs/a.md#two)")), 1);
    assert_eq!(broken(&format!("[a]({REPOSITORY}docs/a.md)")), 0);
    assert_eq!(broken(&format!("[a]({SITE}b.html)")), 1);
}

#[test]
fn names_and_tests_of_the_design_exist() {
    let files = repository();
    let known = Known::of(&files);
    let design = |page: &&File| {
        page.path.starts_with("docs/") && page.path != OF_ANOTHER
            || ["ARCHITECTURE.md", "tests/README.md"].contains(&&*page.path)
    };
    check(pages(&files).filter(design), |page| known.missing(page));

    let files = [
        File::new("tests/it/a.rs", "async fn it_holds<P>() {}"),
        File::new("tests/drops/main.rs", "case(\"drop\")"),
        File::new("x/src/conformance.rs", "claims: \"a rule\","),
        File::new("x/src/engine/b.rs", "struct Name;"),
    ];
    let known = Known::of(&files);
    let missing = |text: &str| known.missing(&File::new("docs/c.md", text)).len();
    assert_eq!(
        missing("`Name`, `b.rs`, `engine/b.rs`, `src/engine`, `http/1`"),
        0
    );
    assert_eq!(missing("`Nome`, `c.rs`, `engine/c.rs`, `Name::other`"), 4);
    assert_eq!(missing("`it: a::it_holds`, `it: a::sqlite::it_holds`"), 0);
    assert_eq!(missing("`it: a::it_breaks`, `it: b::it_holds`"), 2);
    assert_eq!(missing("`conformance: claims`, `drops: drop`"), 0);
    assert_eq!(missing("`conformance: rules`, `drops: dropped`"), 2);
    assert_eq!(
        missing("`SELECT 1`, `cargo xtask test`, `NAME.rs`, `{a,b}`"),
        0
    );
    assert_eq!(missing("```\n`Nome`\n```"), 0);
}

fn pages(files: &[File]) -> impl Iterator<Item = &File> {
    files.iter().filter(|file| file.path.ends_with(".md"))
}

/// Lines of a page outside of its code blocks.
fn prose(page: &File) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    page.text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

fn broken_links(page: &File, files: &[File]) -> Vec<String> {
    let folder = page.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut broken = Vec::new();
    for link in prose(page).flat_map(|line| line.split("](").skip(1)) {
        let target = link.split(')').next().unwrap_or_default();
        let Some((path, heading)) = inside_repository(target) else {
            continue;
        };
        let path = match (&*path, target.contains(':')) {
            ("", false) => page.path.clone(),
            (path, false) => resolved(folder, path),
            (path, true) => path.to_owned(),
        };
        let inside = format!("{path}/");
        if path == page.path {
            if !has_heading(page, heading) {
                broken.push(format!("`{target}` is no heading of this page"));
            }
        } else if let Some(file) = files.iter().find(|file| file.path == path) {
            if !has_heading(file, heading) {
                broken.push(format!("`{target}` is no heading of that page"));
            }
        } else if !files.iter().any(|file| file.path.starts_with(&inside)) {
            broken.push(format!("`{target}` leads nowhere"));
        }
    }
    broken
}

/// Path and heading that a link leads to; `None` if it leads out of the repository. The path of a link with a scheme is
/// from the root of the repository.
fn inside_repository(target: &str) -> Option<(String, &str)> {
    let (address, heading) = target.split_once('#').unwrap_or((target, ""));
    let path = if let Some(page) = address.strip_prefix(SITE) {
        let page = if page.is_empty() {
            "introduction.html"
        } else {
            page
        };
        format!("{BOOK}{}.md", page.trim_end_matches(".html"))
    } else if let Some(path) = address.strip_prefix(REPOSITORY) {
        path.to_owned()
    } else if address.contains(':') {
        return None;
    } else {
        address.to_owned()
    };
    Some((path, heading))
}

/// Resolves a relative path in a folder to a path from the root of the repository.
pub(crate) fn resolved(folder: &str, path: &str) -> String {
    let mut parts: Vec<_> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn has_heading(page: &File, anchor: &str) -> bool {
    anchor.is_empty()
        || prose(page)
            .filter(|line| line.starts_with('#'))
            .any(|line| anchor_of(line.trim_start_matches('#').trim()) == anchor)
}

/// Derives an anchor from a heading, as code hosts do. A heading of the book may name its anchor: `A title {#anchor}`.
fn anchor_of(heading: &str) -> String {
    if let Some((_, named)) = heading.split_once("{#") {
        return named.trim_end_matches('}').to_owned();
    }
    heading
        .chars()
        .filter(|it| it.is_alphanumeric() || " -_".contains(*it))
        .map(|it| {
            if it == ' ' {
                '-'
            } else {
                it.to_ascii_lowercase()
            }
        })
        .collect()
}

/// Names that pages may mention.
struct Known<'a> {
    files: &'a [File],
    /// Words of all files that are not pages.
    words: HashSet<&'a str>,
}

impl<'a> Known<'a> {
    fn of(files: &'a [File]) -> Self {
        let sources = files.iter().filter(|file| !file.path.ends_with(".md"));
        let words = sources.flat_map(|file| file.text.split(|it: char| !is_word(it)));
        Self {
            files,
            words: words.collect(),
        }
    }

    /// Code spans of a page that name something that does not exist.
    fn missing(&self, page: &File) -> Vec<String> {
        prose(page)
            .flat_map(|line| line.split('`').skip(1).step_by(2))
            .filter(|span| !self.exists(span))
            .map(|span| format!("there is no `{span}`"))
            .collect()
    }

    /// True if a code span names something that exists, or something that cannot be looked up.
    fn exists(&self, span: &str) -> bool {
        if let Some((target, test)) = span.split_once(": ") {
            return self.has_test(target, test);
        }
        let name = span.strip_suffix("()").unwrap_or(span);
        let is_path = !name.contains("NAME")
            && name.chars().all(|it| is_word(it) || "./-".contains(it))
            && name.starts_with(|it: char| it.is_ascii_lowercase() || it == '.');
        if is_path && (name.contains('/') || name.ends_with(".rs")) {
            let is_tag = name.ends_with(|it: char| it.is_ascii_digit());
            return is_tag || self.has_path(name.trim_start_matches("../").trim_end_matches('/'));
        }
        let is_name = name.chars().all(|it| is_word(it) || it == ':');
        !is_name
            || name
                .split("::")
                .all(|part| part.is_empty() || self.words.contains(part))
    }

    fn has_path(&self, path: &str) -> bool {
        let (ending, inside) = (format!("/{path}"), format!("/{path}/"));
        self.files.iter().any(|file| {
            let whole = format!("/{}", file.path);
            whole.ends_with(&ending) || whole.contains(&inside)
        })
    }

    fn has_test(&self, target: &str, test: &str) -> bool {
        let below = |folder: &'a str| {
            self.files
                .iter()
                .filter(move |file| file.path.starts_with(folder))
        };
        match target {
            "conformance" if test.contains("::") => {
                below("tests/conformance/").any(|file| file.text.contains(&format!("\"{test}\"")))
            }
            "conformance" => self.files.iter().any(|file| {
                file.path.ends_with("src/conformance.rs")
                    && file.text.contains(&format!("{test}: \""))
            }),
            "drops" => below("tests/drops/").any(|file| file.text.contains(&format!("\"{test}\""))),
            "settings" => {
                below("tests/settings/").any(|file| file.text.contains(&format!("\"{test}\"")))
            }
            _ => {
                let folder = TEST_FOLDERS.iter().find(|(name, _)| *name == target);
                folder.is_none_or(|(_, folder)| self.has_function(folder, test))
            }
        }
    }

    /// True if the file of the module has the function. Modules that a macro generates have no file.
    fn has_function(&self, folder: &str, path: &str) -> bool {
        let (mut module, name) = path.rsplit_once("::").unwrap_or(("main", path));
        loop {
            let file = format!("{folder}/{}.rs", module.replace("::", "/"));
            if let Some(file) = self.files.iter().find(|it| it.path == file) {
                return file
                    .text
                    .match_indices(&format!("fn {name}"))
                    .any(|(at, found)| !file.text[at + found.len()..].starts_with(is_word));
            }
            match module.rsplit_once("::") {
                Some((outer, _)) => module = outer,
                None => return false,
            }
        }
    }
}

fn is_word(char: char) -> bool {
    char.is_alphanumeric() || char == '_'
}
