//! The errors of `tests/ui`, checked without a compiler.
//!
//! Each case there has the compiler's whole output in a file. These tests expand its functions and compare the errors
//! of the macro alone: they take a moment, and notice a check that no longer refuses, or refuses too much.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::LitStr;

use super::expand;

/// A function with `#[idempotent(...)]`: the options and the item.
struct Annotated {
    options: TokenStream,
    item: TokenStream,
}

/// Finds all annotated functions in a file.
fn annotated(tokens: TokenStream, found: &mut Vec<Annotated>) {
    let tokens: Vec<_> = tokens.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        let TokenTree::Group(group) = token else {
            continue;
        };
        // What a macro generates is not complete before it is called.
        let is_macro = at > 1
            && matches!(&tokens[at - 1], TokenTree::Ident(_))
            && matches!(&tokens[at - 2], TokenTree::Punct(bang) if bang.as_char() == '!');
        if is_macro {
            continue;
        }
        let is_attribute = group.delimiter() == Delimiter::Bracket
            && at > 0
            && matches!(&tokens[at - 1], TokenTree::Punct(hash) if hash.as_char() == '#');
        if !is_attribute {
            annotated(group.stream(), found);
        } else if let Some(options) = options(group.stream()) {
            let rest = &tokens[at + 1..];
            let ends = |it: &TokenTree| match it {
                TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                TokenTree::Punct(punct) => punct.as_char() == ';',
                _ => false,
            };
            let end = rest.iter().position(ends).map_or(rest.len(), |it| it + 1);
            let item = rest[..end].iter().cloned().collect();
            found.push(Annotated { options, item });
        }
    }
}

/// The options of an attribute, if it is `idempotent`.
fn options(attribute: TokenStream) -> Option<TokenStream> {
    let tokens: Vec<_> = attribute.into_iter().collect();
    match &tokens[..] {
        [.., TokenTree::Ident(name), TokenTree::Group(options)] if name == "idempotent" => {
            Some(options.stream())
        }
        [TokenTree::Ident(name)] if name == "idempotent" => Some(TokenStream::new()),
        _ => None,
    }
}

/// Messages of all `compile_error!` in an expansion.
fn messages(expanded: TokenStream, found: &mut BTreeSet<String>) {
    let tokens: Vec<_> = expanded.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        let TokenTree::Group(group) = token else {
            continue;
        };
        let is_error =
            at > 1 && matches!(&tokens[at - 2], TokenTree::Ident(name) if name == "compile_error");
        match syn::parse2::<LitStr>(group.stream()) {
            Ok(message) if is_error => {
                found.insert(without_spaces(&message.value()));
            }
            _ => messages(group.stream(), found),
        }
    }
}

/// Tokens are printed with other spaces than by the compiler.
fn without_spaces(message: &str) -> String {
    message.split_whitespace().collect()
}

/// Files with this extension in a folder of `tests/ui`.
fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/ui");
    let entries = std::fs::read_dir(root.join(folder)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|it| it == extension))
        .collect()
}

/// Messages of the macro for all annotated functions in a file.
fn refused(path: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut functions = Vec::new();
    annotated(text.parse().unwrap(), &mut functions);
    let mut found = BTreeSet::new();
    for Annotated { options, item } in functions {
        messages(expand(options, &item), &mut found);
    }
    found
}

/// Errors that are not of `#[idempotent]`, or that it cannot find in the source as it was written: case and message.
const OTHERS: &[(&str, &str)] = &[
    ("", "future cannot be sent between threads safely"),
    // `#[async_trait]` expands first.
    ("method_without_name", "charges.capture"),
    ("instrumented_async_trait", "must be async"),
];

#[test]
fn each_case_of_the_compiler_tests_is_refused_with_its_messages() {
    let mut count = 0;
    for path in files("fail", "rs") {
        let case = path.file_stem().unwrap().to_string_lossy();
        let is_other = |message: &str| {
            let other =
                |(file, part): &(&str, &str)| case.starts_with(file) && message.contains(part);
            OTHERS.iter().any(other)
        };
        let printed = std::fs::read_to_string(path.with_extension("stderr")).unwrap();
        let printed: BTreeSet<_> = printed
            .lines()
            .filter_map(|line| line.strip_prefix("error: "))
            .filter(|message| !is_other(message))
            .map(without_spaces)
            .collect();
        let refused = refused(&path);
        // Errors of `#[derive(Fingerprint)]` are printed as well.
        let text = std::fs::read_to_string(&path).unwrap();
        if text.contains("derive(Fingerprint") {
            assert!(refused.is_subset(&printed), "{case}: {refused:?}");
            continue;
        }
        assert_eq!(refused, printed, "{case}");
        count += printed.len();
    }
    assert!(count > 150, "{count} messages");
}

#[test]
fn what_the_compiler_tests_accept_is_accepted() {
    for path in files("pass", "rs") {
        assert_eq!(refused(&path), BTreeSet::new(), "{}", path.display());
    }
}

/// Messages for a function with these options.
fn messages_of(options: &str, item: &str) -> BTreeSet<String> {
    let options = format!("ttl = \"24h\", {options}");
    let mut found = BTreeSet::new();
    let expanded = expand(options.parse().unwrap(), &item.parse().unwrap());
    messages(expanded, &mut found);
    found
}

const CHARGE: &str = "async fn charge(key: &str, amount: u64) -> Result<u64, Error> { Ok(amount) }";

#[test]
fn a_mistake_is_one_error_that_names_it() {
    let no_arguments = "async fn charge() -> Result<u64, Error> { Ok(3) }";
    let tuple = "async fn charge((a, b): (u8, u8), key: &str) -> Result<u8, Error> { Ok(a + b) }";
    let float = "async fn charge(key: &str, amount: f64) -> Result<u64, Error> { Ok(3) }";
    let tuple_result = "async fn charge(key: &str) -> (u64, Error) { (3, Error) }";
    let long = format!("key = key, name = \"{}\"", "n".repeat(256));
    for (options, item, part) in [
        (
            "key = key, store = &Idem::new(MemoryStore::new())",
            CHARGE,
            "each call would make",
        ),
        (
            "key = key, store = Idem::builder(s).build()",
            CHARGE,
            "each call would make",
        ),
        (
            "key = key, name = &format!(\"charge\")",
            CHARGE,
            "a name is a constant",
        ),
        (
            "key = key, name = format!(\"charge\")",
            CHARGE,
            "a name is a constant",
        ),
        (&long, CHARGE, "a name has 1 to 255 bytes"),
        ("key = nokey", no_arguments, "and this function has none"),
        ("key = zzzzzz", CHARGE, "the arguments are"),
        (
            "key = constant(\"k\"), skip(order)",
            no_arguments,
            "this function has none",
        ),
        ("key = key, skip(zzzzzz)", CHARGE, "the arguments are"),
        (
            "key = key, skip(zzzzzz)",
            tuple,
            "there is no argument `zzzzzz`",
        ),
        ("key = key, skip(a)", tuple, "is a part of a pattern"),
        (
            "key = key, fingerprint = none",
            CHARGE,
            "write `skip_all` instead",
        ),
        (
            "key = key, fingerprint = false",
            CHARGE,
            "write `skip_all` instead",
        ),
        (
            "key = key, replay_err = matches!(error, E::A)",
            CHARGE,
            "a condition is its guard",
        ),
        ("key = key, replay_err = (_)", CHARGE, "matches every error"),
        ("key = key, replay_err = &_", CHARGE, "matches every error"),
        ("key = key", tuple_result, "must return a `Result`"),
        // An argument may be meant to be left out.
        ("key = key, skip = amount", float, "`skip"),
        ("key = key, fingerprint = ,", float, "fingerprint"),
    ] {
        let found = messages_of(options, item);
        let one = found.iter().next().filter(|_| found.len() == 1);
        let is_named = one.is_some_and(|it| it.contains(&without_spaces(part)));
        assert!(is_named, "{options}: {found:#?}");
    }
}

#[test]
fn only_the_output_of_a_future_is_taken_for_the_result() {
    let stream = "fn charge(key: &str) -> impl Stream<Item = Result<u64, Error>> { pay(key) }";
    let found = messages_of("key = key", stream);
    let advice = without_spaces("write `async fn charge`");
    assert!(found.iter().any(|it| it.ends_with(&advice)), "{found:#?}");
}

#[test]
fn what_only_looks_like_a_mistake_is_accepted() {
    let tuple = "async fn charge(key: &str, Point(x): Point) -> Result<u64, Error> { Ok(x) }";
    let json = "async fn charge(key: &str, Json(x): Order) -> Result<u64, Error> { Ok(x) }";
    let none = "async fn charge(key: &str, none: u64) -> Result<u64, Error> { Ok(none) }";
    let long = format!("key = key, name = \"{}\"", "n".repeat(255));
    for (options, item) in [
        ("key = key", CHARGE),
        ("key = key, lease = *LEASE", CHARGE),
        ("key = key, name = operation()", CHARGE),
        ("key = key, name = <Charges as Named>::name", CHARGE),
        (&long, CHARGE),
        ("key = key, scope = None", CHARGE),
        ("key = key, fingerprint = none", none),
        ("key = key, fingerprint = REQUEST", CHARGE),
        ("key = key", tuple),
        ("key = key", json),
    ] {
        let found = messages_of(options, item);
        assert!(found.is_empty(), "{options}: {found:#?}");
    }
}

/// The compiler would report more about a function that cannot be right in any way.
#[test]
fn a_function_that_cannot_be_idempotent_stays_as_it_was_written() {
    let json = "async fn charge(Json(key): Json<u64>) -> Result<u64, Error> { Ok(3) }";
    let constant = "const fn charge(key: &str) -> Result<u64, Error> { Ok(3) }";
    for (options, item) in [
        ("key = key", constant),
        ("key = key", json),
        ("key = key, tx = tx", CHARGE),
        ("key = key, store = idem, tx =", CHARGE),
        ("key = key, attempt =", CHARGE),
    ] {
        let options = format!("ttl = \"24h\", {options}");
        let expanded = expand(options.parse().unwrap(), &item.parse().unwrap()).to_string();
        assert!(expanded.contains("compile_error"), "{options}: {expanded}");
        assert!(!expanded.contains("__private"), "{options}: {expanded}");
    }
}
