//! Allowed imports between the modules of a crate, and allowed paths in generated code.

use std::collections::BTreeMap;

use proc_macro2::{TokenStream, TokenTree};

use crate::paths::{Names, Path, is_path_separator, test_modules, tokens};
use crate::{File, check, repository};

const MACROS: &str = "idem-macros/src/";

/// Rules for the imports of one crate.
struct Rules {
    /// Folder of the crate's sources.
    root: &'static str,
    /// Modules that each module, with everything below it, may import.
    may_import: &'static [(&'static str, &'static [&'static str])],
    /// Foreign crates, each with the modules that may name it. No other module may depend on the backend, the framework
    /// or the format that the crate implements.
    owned: &'static [(&'static str, &'static [&'static str])],
}

const CRATES: [Rules; 2] = [STORE, RUNTIME];

const STORE: Rules = Rules {
    root: "idem-store/src/",
    may_import: &[
        ("error", &[]),
        ("random", &[]),
        ("structured", &[]),
        ("key", &["error", "random"]),
        ("record", &["error", "key", "random"]),
        ("clock", &["record"]),
        ("store", &["clock", "error", "key", "record"]),
        (
            "cas",
            &["clock", "error", "key", "random", "record", "store"],
        ),
        (
            "conformance",
            &["error", "key", "random", "record", "store"],
        ),
    ],
    owned: &[
        // A simulation replaces the only source of random numbers.
        ("rand", &["random"]),
        ("httpdate", &["clock"]),
        ("tokio", &["cas", "conformance"]),
        ("uuid", &["key"]),
    ],
};

/// `key`, `random` and `record` are modules of `idem-store`.
const RUNTIME: Rules = Rules {
    root: "idem-runtime/src/",
    may_import: &[
        ("key", &[]),
        ("random", &[]),
        ("record", &[]),
        ("error", &[]),
        ("calendar", &[]),
        (
            "fingerprint",
            &["calendar", "error", "key", "random", "record"],
        ),
        ("codec", &["error", "record"]),
        ("policy", &["codec"]),
        ("metrics", &["error"]),
        ("mutex", &[]),
        ("rated", &["mutex"]),
        ("timing", &["error", "random"]),
        ("worker", &["error", "random", "timing"]),
        ("purge_clock", &["record"]),
        ("failure_log", &["error"]),
        (
            "store",
            &[
                "calendar", "error", "key", "metrics", "mutex", "random", "record",
            ],
        ),
        (
            "engine",
            &[
                "codec",
                "error",
                "failure_log",
                "fingerprint",
                "key",
                "metrics",
                "mutex",
                "policy",
                "purge_clock",
                "random",
                "rated",
                "record",
                "store",
                "timing",
                "worker",
            ],
        ),
        (
            "outbox",
            &[
                "codec",
                "error",
                "failure_log",
                "fingerprint",
                "key",
                "metrics",
                "mutex",
                "purge_clock",
                "random",
                "record",
                "store",
                "timing",
                "worker",
            ],
        ),
        (
            "http",
            &[
                "codec",
                "engine",
                "error",
                "fingerprint",
                "key",
                "mutex",
                "record",
                "store",
            ],
        ),
        (
            "verify",
            &["codec", "engine", "error", "key", "record", "store"],
        ),
        (
            "__private",
            &[
                "codec",
                "engine",
                "error",
                "fingerprint",
                "key",
                "policy",
                "record",
                "store",
            ],
        ),
    ],
    owned: &[
        ("axum", &["http"]),
        ("bytes", &["fingerprint", "http"]),
        ("chrono", &["fingerprint"]),
        ("ciborium", &["codec"]),
        ("futures_util", &["store"]),
        ("hmac", &["fingerprint"]),
        ("http", &["http"]),
        ("http_body", &["http"]),
        ("http_body_util", &["http"]),
        ("idem_macros", &["fingerprint"]),
        ("idem_client", &[]),
        (
            "idem_store",
            &["error", "http::header", "http::marks", "store"],
        ),
        ("jiff", &["fingerprint"]),
        ("quick_cache", &["store::cached"]),
        // Only a seed for hashing, which no run depends on.
        ("rand", &["store::memory"]),
        ("redis", &["store"]),
        ("rust_decimal", &["fingerprint"]),
        ("sqlx", &["store"]),
        ("sqlx_core", &["store"]),
        ("tower_layer", &["http"]),
        ("tower_service", &["http"]),
        ("url", &["fingerprint"]),
        ("uuid", &["fingerprint"]),
    ],
};

#[test]
fn modules_import_in_one_direction() {
    let files = repository();
    for rules in &CRATES {
        let files = files
            .iter()
            .filter(|it| it.path.starts_with(rules.root) && it.is_rust());
        let files: Vec<_> = files.collect();
        let lib = files.iter().find(|it| it.path.ends_with("/lib.rs"));
        let exports = Exports::of(lib.unwrap(), rules);
        let is_for_tests = test_modules(files.iter().map(|it| (rules.module_of(&it.path), *it)));
        let checked = files
            .iter()
            .copied()
            .filter(|it| !is_for_tests(&rules.module_of(&it.path)));
        check(checked, |file| violations(file, &exports));
    }
}

#[test]
fn a_forbidden_import_is_found() {
    let lib = File::new(
        "idem-runtime/src/lib.rs",
        "pub use crate::error::Error; pub use crate::store::{Store, memory::MemoryStore as Memory};",
    );
    let exports = Exports::of(&lib, &RUNTIME);
    let wrong = |path: &str, text: &str| {
        violations(
            &File::new(&format!("idem-runtime/src/{path}"), text),
            &exports,
        )
        .len()
    };

    assert_eq!(wrong("error.rs", "use crate::key::Key;"), 1);
    assert_eq!(
        wrong(
            "codec.rs",
            "use crate::{error::DecodeError, policy::{Policy, OnStoreError}};"
        ),
        2
    );
    assert_eq!(
        wrong("store/memory.rs", "use super::super::engine::Idem;"),
        1
    );
    assert_eq!(
        wrong(
            "store/memory.rs",
            "fn f() { vec![crate::codec::Codec::Json]; }"
        ),
        1
    );
    assert_eq!(
        wrong("store.rs", "mod a { use super::super::policy::Policy; }"),
        1
    );
    assert_eq!(
        wrong("engine.rs", "use crate::store::memory::MemoryStore;"),
        1
    );
    assert_eq!(
        wrong("engine/claim.rs", "fn f(store: &crate::Memory) {}"),
        1
    );
    assert_eq!(wrong("engine/claim.rs", "use sqlx::Row;"), 1);
    assert_eq!(wrong("engine/claim.rs", "fn f() { ::sqlx::query(q) }"), 1);
    assert_eq!(wrong("engine/claim.rs", "use ::axum::body::Body;"), 1);
    assert_eq!(wrong("outbox/poll_loop.rs", "use sqlx::Row;"), 1);
    assert_eq!(wrong("outbox/poll_loop.rs", "use redis::Client;"), 1);
    assert_eq!(wrong("http.rs", "use idem_client::Sent;"), 1);
    assert_eq!(wrong("codec.rs", "use idem_store::record::Payload;"), 1);
    assert_eq!(wrong("store/sql.rs", "use axum::Json;"), 1);
    assert_eq!(wrong("store/sql.rs", "use quick_cache::sync::Cache;"), 1);
    assert_eq!(
        wrong("store/cached_more.rs", "use quick_cache::Weighter;"),
        1
    );
    assert_eq!(wrong("http/stored.rs", "use ciborium::Value;"), 1);
    assert_eq!(
        wrong(
            "outbox/poll_loop.rs",
            "use crate::store::sqlite::SqliteStore;"
        ),
        1
    );
    assert_eq!(wrong("outbox/poll_loop.rs", "use crate::engine::Idem;"), 1);
    assert_eq!(
        wrong(
            "codec.rs",
            "macro_rules! m { () => { $crate::policy::Policy } }"
        ),
        1
    );
    assert_eq!(wrong("stranger.rs", ""), 1);
    assert_eq!(wrong("error.rs", "use crate::Nowhere;"), 1);

    assert_eq!(
        wrong(
            "engine/claim.rs",
            "use super::Engine; use crate::{Error, Store};"
        ),
        0
    );
    assert_eq!(
        wrong(
            "codec.rs",
            "use self::inner::X; use crate::error::DecodeError;"
        ),
        0
    );
    assert_eq!(
        wrong("store/memory.rs", "use super::sql; use sqlx::Row;"),
        0
    );
    assert_eq!(wrong("store/cached.rs", "use quick_cache::Weighter;"), 0);
    assert_eq!(
        wrong("store/cached/fill.rs", "use quick_cache::Weighter;"),
        0
    );
    assert_eq!(wrong("engine/claim.rs", "use super::axum::Body;"), 0);
    assert_eq!(
        wrong("engine.rs", "#[cfg(test)] mod tests { use crate::Memory; }"),
        0
    );
    assert_eq!(
        wrong(
            "error.rs",
            "// crate::key\nconst X: &str = \"crate::key::Key\";"
        ),
        0
    );
    assert_eq!(wrong("private.rs", "pub use crate::engine::Idem;"), 0);
    assert_eq!(
        wrong("outbox/poll_loop.rs", "use crate::store::outbox::Messages;"),
        0
    );
}

fn violations(file: &File, exports: &Exports) -> Vec<String> {
    let rules = exports.rules;
    let module = rules.module_of(&file.path);
    let Some(top) = module.first() else {
        // The root may name everything.
        return vec![];
    };
    let Some((_, allowed)) = rules.may_import.iter().find(|(name, _)| name == top) else {
        return vec![format!(
            "`{top}` is new: add its allowed imports to this test"
        )];
    };
    let mut wrong = Vec::new();
    let names = Names::of(&module, file);
    for path in &names.own {
        let written = path.join("::");
        let Some(path) = exports.resolve(path) else {
            wrong.push(format!("the crate does not export `crate::{written}`"));
            continue;
        };
        let target = &path[0];
        if target != top && !allowed.contains(&target.as_str()) {
            wrong.push(format!("`{top}` may not import `crate::{written}`"));
        } else if target != top && target == "store" && exports.is_backend(path.get(1)) {
            wrong.push(format!("`{top}` names a backend, `crate::{written}`"));
        }
    }
    let full_name = module.join("::");
    for (name, owners) in rules.owned {
        let is_owner = owners.iter().any(|owner| {
            let rest = full_name.strip_prefix(owner);
            rest.is_some_and(|it| it.is_empty() || it.starts_with("::"))
        });
        if !is_owner && names.foreign.iter().any(|it| it == name) {
            wrong.push(format!(
                "`{full_name}` names the crate `{name}`, which belongs to `{}`",
                owners.join("` and `")
            ));
        }
    }
    wrong
}

/// Exports of the crate's root: each name with its full path.
struct Exports {
    names: BTreeMap<String, Path>,
    rules: &'static Rules,
}

impl Exports {
    fn of(lib: &File, rules: &'static Rules) -> Self {
        Self {
            names: Names::of(&vec![], lib).aliases.into_iter().collect(),
            rules,
        }
    }

    fn resolve(&self, path: &[String]) -> Option<Path> {
        let first = path.first()?;
        if self.rules.may_import.iter().any(|(name, _)| name == first) {
            return Some(path.to_vec());
        }
        let mut resolved = self.names.get(first)?.clone();
        resolved.extend_from_slice(&path[1..]);
        Some(resolved)
    }

    /// Returns true for the name of a backend's module below `store`. Names of items begin with a capital letter. The
    /// module of the outbox's table serves all databases, and those of the trait for operators, of transitions and of
    /// encodings all stores.
    fn is_backend(&self, name: Option<&String>) -> bool {
        name.is_some_and(|it| {
            let of_all = ["encoding", "operator", "outbox", "transitions"];
            it.starts_with(char::is_lowercase) && !of_all.contains(&it.as_str())
        })
    }
}

impl Rules {
    /// Module of a file: `engine::claim` for `idem-runtime/src/engine/claim.rs`.
    fn module_of(&self, path: &str) -> Path {
        let path = path.strip_prefix(self.root).unwrap_or(path);
        let path = path.strip_suffix(".rs").unwrap_or(path);
        match path {
            "lib" => vec![],
            "private" => vec!["__private".to_owned()],
            path => path.split('/').map(str::to_owned).collect(),
        }
    }
}

#[test]
fn generated_code_names_only_private() {
    let files = repository();
    let macros = files
        .iter()
        .filter(|it| it.path.starts_with(MACROS) && it.is_rust());
    check(macros, exposed);

    let wrong = |text: &str| exposed(&File::new("idem-macros/src/a.rs", text)).len();
    assert_eq!(
        wrong("fn f() { quote! { ::idem_runtime::Key::new(k) } }"),
        1
    );
    assert_eq!(wrong("fn f() { quote! { { #krate::Key } } }"), 1);
    assert_eq!(
        wrong("fn f() { parse_quote!(idem_runtime::store::Store) }"),
        1
    );
    assert_eq!(
        wrong("fn f() { quote! { #krate::__private::enter(#call) } }"),
        0
    );
    assert_eq!(wrong("fn f() { quote! { #private::enter() } }"), 0);
    assert_eq!(wrong("fn f() { parse_quote!(::idem_runtime) }"), 0);
}

/// Paths of the runtime outside `__private` in code that this file generates.
fn exposed(file: &File) -> Vec<String> {
    let mut wrong = Vec::new();
    quoted(tokens(file), &mut wrong);
    wrong
}

/// Names of the runtime in generated code: the crate itself, and the variables that hold its path if it was renamed.
const RUNTIME_NAMES: [&str; 4] = ["idem_runtime", "krate", "crate_path", "runtime"];

fn quoted(tokens: TokenStream, wrong: &mut Vec<String>) {
    let tokens: Vec<_> = tokens.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => quoted(group.stream(), wrong),
            TokenTree::Ident(name)
                if RUNTIME_NAMES.contains(&name.to_string().as_str())
                    && is_path_separator(&tokens[at + 1..]) =>
            {
                match tokens.get(at + 3) {
                    Some(TokenTree::Ident(next)) if next == "__private" => {}
                    next => wrong.push(format!(
                        "generated code names `{}` outside `__private`",
                        next.map_or_else(String::new, ToString::to_string)
                    )),
                }
            }
            _ => {}
        }
    }
}
