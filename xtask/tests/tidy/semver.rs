//! Public enums, and structs whose fields are all public, that may grow without a breaking release: each has
//! `#[non_exhaustive]`, or is in the list of those that deliberately do not.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, Group, Spacing, TokenStream, TokenTree};

use crate::{File, check, repository};

/// Types without the attribute, by the reason. RELEASING.md explains the reasons.
const DECIDED: [(&str, &[&str]); 5] = [
    (
        "stores of other authors match or build them: a store that ignored a new variant or field would lose or repeat \
         effects, so that it must not compile",
        &[
            "Attempts",
            "AttemptEntry",
            "AuditEntry",
            "AuditFilter",
            "AuditPage",
            "AuditedRecord",
            "AgeOrder",
            "ClaimInTransaction",
            "ClaimOutcome",
            "ClaimRequest",
            "Count",
            "Counting",
            "Entry",
            "FencedWrite",
            "Filter",
            "Granted",
            "Identity",
            "ListedRecord",
            "NotedReplay",
            "Now",
            "Observation",
            "OnCrash",
            "Outcome",
            "Owner",
            "Page",
            "PageRequest",
            "Payload",
            "PayloadSummary",
            "Purge",
            "Purged",
            "Record",
            "RecordState",
            "RecoveryInput",
            "Redacted",
            "Resolution",
            "Resolved",
            "SavedStep",
            "ScopeFilter",
            "Status",
            "Unreadable",
            "Versioned",
        ],
    ),
    (
        "callers distinguish all cases, and there is no further one",
        &["Finality", "NoError", "ResultSource", "Scopes"],
    ),
    (
        "callers build them, or compare them as a whole",
        &[
            "MemberDifferences",
            "MessageAuditFilter",
            "MessageEntry",
            "ProviderRequest",
        ],
    ),
    (
        "tests of stores and functions build and match them; the crates of tests are no part of a service",
        &["Failed", "Failure", "Op", "Report", "Violation"],
    ),
    (
        "not reachable for users, or hidden",
        &["Entered", "TransactionCall"],
    ),
];

#[test]
fn each_public_type_that_cannot_grow_was_decided() {
    let decided: BTreeSet<&str> = DECIDED
        .iter()
        .flat_map(|(_, names)| *names)
        .copied()
        .collect();
    let files = repository();
    let is_published = |file: &&File| {
        let mut parts = file.path.split('/');
        let package = parts.next().unwrap_or_default();
        package.starts_with("idem-") && parts.next() == Some("src") && file.is_rust()
    };
    check(files.iter().filter(is_published), |file| {
        undecided(file, &decided)
    });
    let found: BTreeSet<String> = files
        .iter()
        .filter(is_published)
        .flat_map(|it| fixed(it.text.parse().unwrap()))
        .collect();
    let gone: Vec<_> = decided.iter().filter(|it| !found.contains(**it)).collect();
    assert!(gone.is_empty(), "no longer without the attribute: {gone:?}");

    let told = |text: &str| undecided(&File::new("a.rs", text), &BTreeSet::from(["Known"])).len();
    for text in [
        "pub enum A { B }",
        "/// Doc.\n#[derive(Debug)] pub enum A { B }",
        "pub struct A { pub b: ::std::string::String, pub c: u32 }",
        "pub struct A<T: X> where T: Y { pub c: T }",
        "mod a { pub enum A { B } }",
    ] {
        assert_eq!(told(text), 1, "{text}");
    }
    for text in [
        "pub enum Known { B }",
        "enum A { B }",
        "pub(crate) enum A { B }",
        "#[non_exhaustive] #[derive(Debug)] pub enum A { B }",
        "#[derive(Debug)] #[non_exhaustive] pub struct A { pub b: u32 }",
        "pub struct A { b: u32 }",
        "pub struct A { b: u32, pub c: u32 }",
        "pub struct A { pub(crate) b: u32 }",
        "pub struct A(pub u32); impl A { pub fn a() {} }",
    ] {
        assert_eq!(told(text), 0, "{text}");
    }
}

fn undecided(file: &File, decided: &BTreeSet<&str>) -> Vec<String> {
    let names = fixed(file.text.parse().unwrap()).into_iter();
    names
        .filter(|name| !decided.contains(&**name))
        .map(|name| {
            format!(
                "`{name}` cannot grow; add `#[non_exhaustive]`, or give the reason in {}",
                file!()
            )
        })
        .collect()
}

/// Names of the public enums, and of the structs whose fields are all public, without the attribute.
fn fixed(tokens: TokenStream) -> Vec<String> {
    let tokens: Vec<_> = tokens.into_iter().collect();
    let mut names = Vec::new();
    let mut may_grow = false;
    let mut at = 0;
    while at < tokens.len() {
        match (&tokens[at], tokens.get(at + 1), tokens.get(at + 2)) {
            (TokenTree::Punct(sign), Some(TokenTree::Group(attribute)), _)
                if sign.as_char() == '#' =>
            {
                may_grow |= attribute.stream().to_string() == "non_exhaustive";
                at += 1;
            }
            (
                TokenTree::Ident(word),
                Some(TokenTree::Ident(kind)),
                Some(TokenTree::Ident(name)),
            ) if word == "pub" && (kind == "enum" || kind == "struct") => {
                let body = body(&tokens[at..]);
                let is_open = body.is_some_and(|it| kind == "enum" || has_public_fields_only(it));
                if is_open && !may_grow {
                    names.push(name.to_string());
                }
                may_grow = false;
                at += 2;
            }
            (TokenTree::Group(group), ..) if group.delimiter() == Delimiter::Brace => {
                names.extend(fixed(group.stream()));
                may_grow = false;
            }
            (TokenTree::Punct(sign), ..) if sign.as_char() == ';' => may_grow = false,
            _ => {}
        }
        at += 1;
    }
    names
}

/// Braces of an item, if it has them before its end.
fn body(item: &[TokenTree]) -> Option<&Group> {
    item.iter()
        .take_while(|it| !matches!(it, TokenTree::Punct(sign) if sign.as_char() == ';'))
        .find_map(|it| match it {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Some(group),
            _ => None,
        })
}

/// Returns true if all fields are public without a restriction. A struct with a private field cannot be built elsewhere.
fn has_public_fields_only(body: &Group) -> bool {
    let tokens: Vec<_> = body.stream().into_iter().collect();
    let (mut fields, mut public) = (0, 0);
    for (at, pair) in tokens.windows(2).enumerate() {
        if let [TokenTree::Ident(_), TokenTree::Punct(sign)] = pair
            && (sign.as_char(), sign.spacing()) == (':', Spacing::Alone)
        {
            fields += 1;
            let before = at.checked_sub(1).and_then(|it| tokens.get(it));
            public += usize::from(matches!(before, Some(TokenTree::Ident(word)) if word == "pub"));
        }
    }
    fields > 0 && fields == public
}
