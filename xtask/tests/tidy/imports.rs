//! Allowed imports between the modules of the runtime, and allowed paths in generated code.

use std::collections::BTreeMap;

use proc_macro2::{TokenStream, TokenTree};

use crate::paths::{Names, Path, is_path_separator, test_modules, tokens};
use crate::{File, check, repository};

const RUNTIME: &str = "idem-runtime/src/";
const MACROS: &str = "idem-macros/src/";

/// Modules that each module, with everything below it, may import.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("structured", &[]),
    ("client", &["key", "structured"]),
    ("key", &["error"]),
    ("record", &["error", "key"]),
    ("fingerprint", &["error", "key", "record"]),
    ("codec", &["error", "record"]),
    ("policy", &["codec"]),
    ("store", &["error", "key", "record"]),
    ("conformance", &["error", "key", "record", "store"]),
    (
        "engine",
        &[
            "codec",
            "error",
            "fingerprint",
            "key",
            "policy",
            "record",
            "store",
        ],
    ),
    (
        "outbox",
        &["codec", "error", "fingerprint", "key", "record", "store"],
    ),
    (
        "http",
        &[
            "codec",
            "engine",
            "error",
            "fingerprint",
            "key",
            "record",
            "store",
            "structured",
        ],
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
];

/// Foreign crates that belong to these modules. Any other module that named one would depend on a backend, a framework
/// or a format.
const OWNED: &[(&str, &[&str])] = &[
    ("axum", &["http"]),
    ("bytes", &["fingerprint", "http"]),
    ("chrono", &["fingerprint"]),
    ("ciborium", &["codec"]),
    ("futures_util", &["store"]),
    ("hmac", &["fingerprint"]),
    ("http", &["client", "http", "structured"]),
    ("http_body", &["client", "http"]),
    ("http_body_util", &["http"]),
    ("httpdate", &["client"]),
    ("idem_macros", &["fingerprint"]),
    ("jiff", &["fingerprint"]),
    ("quick_cache", &["store::cached"]),
    ("redis", &["store"]),
    ("reqwest", &["client"]),
    ("reqwest_middleware", &["client"]),
    ("rust_decimal", &["fingerprint"]),
    ("sqlx", &["store"]),
    ("sqlx_core", &["store"]),
    ("tower_layer", &["http"]),
    ("tower_service", &["http"]),
    ("url", &["fingerprint"]),
    ("uuid", &["fingerprint", "key"]),
];

#[test]
fn modules_import_in_one_direction() {
    let files = repository();
    let files: Vec<_> = runtime(&files).collect();
    let exports = Exports::of(
        files
            .iter()
            .find(|it| it.path.ends_with("/lib.rs"))
            .unwrap(),
    );
    let is_for_tests = test_modules(files.iter().map(|it| (module_of(&it.path), *it)));
    let checked = files
        .iter()
        .copied()
        .filter(|it| !is_for_tests(&module_of(&it.path)));
    check(checked, |file| violations(file, &exports));
}

#[test]
fn a_forbidden_import_is_found() {
    let lib = File::new(
        "idem-runtime/src/lib.rs",
        "pub use crate::error::Error; pub use crate::store::{Store, memory::MemoryStore as Memory};",
    );
    let exports = Exports::of(&lib);
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
            "key.rs",
            "use crate::{error::InvalidKey, record::{State, Record}};"
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
    assert_eq!(wrong("codec.rs", "use reqwest_middleware::Next;"), 1);
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
            "record.rs",
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
            "key.rs",
            "use self::inner::X; use crate::error::InvalidKey;"
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

fn runtime(files: &[File]) -> impl Iterator<Item = &File> {
    files
        .iter()
        .filter(|it| it.path.starts_with(RUNTIME) && it.is_rust())
}

fn violations(file: &File, exports: &Exports) -> Vec<String> {
    let module = module_of(&file.path);
    let Some(top) = module.first() else {
        // The root may name everything.
        return vec![];
    };
    let Some((_, allowed)) = MAY_IMPORT.iter().find(|(name, _)| name == top) else {
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
    for (name, owners) in OWNED {
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
    modules: Vec<String>,
}

impl Exports {
    fn of(lib: &File) -> Self {
        Self {
            names: Names::of(&vec![], lib).aliases.into_iter().collect(),
            modules: MAY_IMPORT
                .iter()
                .map(|(name, _)| (*name).to_owned())
                .collect(),
        }
    }

    fn resolve(&self, path: &[String]) -> Option<Path> {
        let first = path.first()?;
        if self.modules.contains(first) {
            return Some(path.to_vec());
        }
        let mut resolved = self.names.get(first)?.clone();
        resolved.extend_from_slice(&path[1..]);
        Some(resolved)
    }

    /// Returns true for the name of a backend's module below `store`. Names of items begin with a capital letter, and
    /// the module of the outbox's table serves all databases.
    fn is_backend(&self, name: Option<&String>) -> bool {
        name.is_some_and(|it| it.starts_with(char::is_lowercase) && it != "outbox")
    }
}

/// `idem-runtime/src/engine/claim.rs` is `engine::claim`.
fn module_of(path: &str) -> Path {
    let path = path.strip_prefix(RUNTIME).unwrap_or(path);
    let path = path.strip_suffix(".rs").unwrap_or(path);
    match path {
        "lib" => vec![],
        "private" => vec!["__private".to_owned()],
        path => path.split('/').map(str::to_owned).collect(),
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
