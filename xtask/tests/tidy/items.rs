//! Items of the API that texts name, such as `KeyReused` in an error: each must exist.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};

use crate::{File, check, repository};

/// Crates whose texts reach users, each with the crates whose items the texts may name.
const CRATES: [(&str, &[&str]); 9] = [
    ("idem-store/src/", &["idem-store/src/", "idem-runtime/src/"]),
    ("idem-runtime/src/", RUNTIME),
    ("idem-macros/src/", RUNTIME),
    ("idem-client/src/", &["idem-client/src/", "idem-store/src/"]),
    (
        "idem-console/src/",
        &["idem-console/src/", "idem-runtime/src/", "idem-store/src/"],
    ),
    (
        "idem-dynamodb/src/",
        &["idem-dynamodb/src/", "idem-runtime/src/", "idem-store/src/"],
    ),
    (
        "idem-lambda/src/",
        &["idem-lambda/src/", "idem-runtime/src/", "idem-store/src/"],
    ),
    (
        "idem-testing/src/",
        &["idem-testing/src/", "idem-runtime/src/", "idem-store/src/"],
    ),
    (
        "idem-cli/src/",
        &["idem-cli/src/", "idem-runtime/src/", "idem-store/src/"],
    ),
];
const RUNTIME: &[&str] = &["idem-runtime/src/", "idem-store/src/", "idem-macros/src/"];

#[test]
fn every_item_that_a_text_names_exists() {
    let files = repository();
    for (texts, items) in CRATES {
        let is_in = |folder: &str, file: &&File| file.is_rust() && file.path.starts_with(folder);
        let mut known = BTreeSet::new();
        for folder in items {
            for file in files.iter().filter(|it| is_in(folder, it)) {
                identifiers(file.text.parse().unwrap(), &mut known);
            }
        }
        check(files.iter().filter(|it| is_in(texts, it)), |file| {
            unknown(file, &known)
        });
    }
    let known = BTreeSet::from(["InFlight".to_owned(), "Key".to_owned(), "derive".to_owned()]);
    let told = |text: &str| unknown(&File::new("a.rs", text), &known).len();
    assert_eq!(
        told(r#"fn f() { write!("gets `InProgress`, see `Key::derive` and `SELECT x`") }"#),
        1
    );
    assert_eq!(
        told(
            r#"fn f() { write!("gets `InFlight`") } /// `InProgress`
        fn g() {}"#
        ),
        0
    );
    assert_eq!(
        told(r#"const A: &str = "`Key::generate` makes one, and `Key::derive(..)`";"#),
        1
    );
}

/// Names in string literals that no file has as an identifier.
fn unknown(file: &File, known: &BTreeSet<String>) -> Vec<String> {
    let mut wrong = Vec::new();
    strings(file.text.parse().unwrap(), &mut |text| {
        // Every second part is between backticks.
        for name in text.split('`').skip(1).step_by(2).filter(|it| is_item(it)) {
            let path = name.split(['(', '<', '.']).next().unwrap_or_default();
            let missing = path.split("::").find(|part| !known.contains(*part));
            if missing.is_some() {
                wrong.push(format!("a text names `{name}`, which does not exist"));
            }
        }
    });
    wrong
}

/// True for a path that begins with a type or a variant. A word in capitals is one of a database or of HTTP.
fn is_item(name: &str) -> bool {
    let begins = name.starts_with(|it: char| it.is_ascii_uppercase());
    let path = name.split(['(', '<', '.']).next().unwrap_or_default();
    let is_path = path
        .chars()
        .all(|it| it.is_ascii_alphanumeric() || it == '_' || it == ':');
    begins && is_path && path.contains(|it: char| it.is_ascii_lowercase())
}

fn identifiers(tokens: TokenStream, known: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(name) => {
                known.insert(name.to_string());
            }
            TokenTree::Group(group) => identifiers(group.stream(), known),
            _ => {}
        }
    }
}

/// Visits the string literals outside of documentation.
fn strings(tokens: TokenStream, visitor: &mut impl FnMut(&str)) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            // `#[doc = "..."]`
            TokenTree::Punct(mark) if mark.as_char() == '#' => {
                if let Some(TokenTree::Punct(_)) = tokens.peek() {
                    tokens.next();
                }
                let is_doc = |group: &proc_macro2::Group| matches!(group.stream().into_iter().next(), Some(TokenTree::Ident(name)) if name == "doc");
                if let Some(TokenTree::Group(group)) = tokens.peek()
                    && is_doc(group)
                {
                    tokens.next();
                }
            }
            TokenTree::Group(group) => strings(group.stream(), visitor),
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                if text.contains('"') {
                    visitor(&text);
                }
            }
            _ => {}
        }
    }
}
