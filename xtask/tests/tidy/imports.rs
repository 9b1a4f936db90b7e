//! Rules for imports between the runtime's modules, and for names in generated code.
//!
//! Paths are read from the tokens, so `use`, expressions, types and the contents of macros count equally. Comments,
//! strings and `#[cfg(test)]` do not count.

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::{File, check, repository};

const RUNTIME: &str = "idem-runtime/src/";
const MACROS: &str = "idem-macros/src/";

/// Allowed imports of each module, including everything below it.
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

/// Crates that only one module may name: any other module would otherwise depend on a backend.
const OWNED: &[(&str, &str)] = &[("sqlx", "store")];

type Path = Vec<String>;

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
    let tests = test_modules(&files);
    let checked = files
        .into_iter()
        .filter(|it| !tests.contains(&module_of(&it.path)));
    check(checked, |file| departures(file, &exports));
}

#[test]
fn a_module_that_looks_the_other_way_is_found() {
    let lib = File::new(
        "idem-runtime/src/lib.rs",
        "pub use crate::error::Error; pub use crate::store::{Store, memory::MemoryStore as Memory};",
    );
    let exports = Exports::of(&lib);
    let wrong = |path: &str, text: &str| {
        departures(
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
    assert_eq!(wrong("outbox/poll_loop.rs", "use sqlx::Row;"), 1);
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

fn departures(file: &File, exports: &Exports) -> Vec<String> {
    let module = module_of(&file.path);
    let Some(top) = module.first() else {
        // The root names everything.
        return vec![];
    };
    let Some((_, allowed)) = MAY_IMPORT.iter().find(|(name, _)| name == top) else {
        return vec![format!(
            "`{top}` is new: say in this test what it may import"
        )];
    };
    let mut wrong = Vec::new();
    let mut names = Names::default();
    names.read(&module, tokens(file));
    for path in &names.own {
        let written = path.join("::");
        let Some(path) = exports.resolve(path) else {
            wrong.push(format!(
                "`crate::{written}` is nothing that the crate exports"
            ));
            continue;
        };
        let target = &path[0];
        if target != top && !allowed.contains(&target.as_str()) {
            wrong.push(format!("`{top}` may not import `crate::{written}`"));
        } else if target != top && target == "store" && exports.is_backend(path.get(1)) {
            wrong.push(format!("`{top}` names a backend, `crate::{written}`"));
        }
    }
    for (name, owner) in OWNED {
        if top != owner && names.foreign.iter().any(|it| it == name) {
            wrong.push(format!(
                "`{top}` names `{name}`, which is for `{owner}` alone"
            ));
        }
    }
    wrong
}

/// The modules that are declared as test-only.
fn test_modules(files: &[&File]) -> Vec<Path> {
    let mut modules = Vec::new();
    for file in files {
        let tokens: Vec<_> = tokens(file).into_iter().collect();
        for (at, _) in tokens.iter().enumerate() {
            if let [
                TokenTree::Ident(word),
                TokenTree::Ident(name),
                TokenTree::Punct(end),
                ..,
            ] = &tokens[at..]
                && word == "mod"
                && end.as_char() == ';'
                && at >= 2
                && is_test_only(&tokens[at - 2..at])
            {
                let mut module = module_of(&file.path);
                module.push(name.to_string());
                modules.push(module);
            }
        }
    }
    modules
}

/// Exports of the crate's root, by name, with their full paths.
struct Exports {
    names: BTreeMap<String, Path>,
    modules: Vec<String>,
}

impl Exports {
    fn of(lib: &File) -> Self {
        let mut names = Names::default();
        names.read(&vec![], tokens(lib));
        Self {
            names: names.aliases.into_iter().collect(),
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

    /// True if this names a module below `store`; the items of `store` itself begin with a capital. The outbox's table
    /// module does not count: it represents all databases, as the trait represents all stores.
    fn is_backend(&self, name: Option<&String>) -> bool {
        name.is_some_and(|it| it.starts_with(char::is_lowercase) && it != "outbox")
    }
}

/// The paths in a piece of code.
#[derive(Default)]
struct Names {
    /// Paths into the crate itself, starting at its root.
    own: Vec<Path>,
    /// The last names of those paths, or their new names after renaming, with the paths.
    aliases: Vec<(String, Path)>,
    /// The first names of other paths.
    foreign: Vec<String>,
}

impl Names {
    fn read(&mut self, module: &Path, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            if is_test_only(&tokens[at..]) {
                at = after_item(&tokens, at + 2);
                continue;
            }
            match &tokens[at..] {
                [
                    TokenTree::Ident(word),
                    TokenTree::Ident(name),
                    TokenTree::Group(body),
                    ..,
                ] if word == "mod" => {
                    let mut inner = module.clone();
                    inner.push(name.to_string());
                    self.read(&inner, body.stream());
                    at += 3;
                }
                [TokenTree::Ident(first), rest @ ..] if is_path_separator(rest) => {
                    let begins_path = at < 2 || !is_path_separator(&tokens[at - 2..at]);
                    let base = match first.to_string().as_str() {
                        _ if !begins_path => None,
                        "crate" => Some(vec![]),
                        "self" => Some(module.clone()),
                        "super" => Some(parent(module)),
                        other => {
                            self.foreign.push(other.to_owned());
                            None
                        }
                    };
                    if let Some(base) = base {
                        self.tree(base, &tokens[at + 3..]);
                    }
                    // A group may follow the separator; its contents belong to the path.
                    at += 3;
                    if matches!(tokens.get(at), Some(TokenTree::Group(_))) {
                        at += 1;
                    }
                }
                [TokenTree::Group(group), ..] => {
                    self.read(module, group.stream());
                    at += 1;
                }
                _ => at += 1,
            }
        }
    }

    /// Parses the rest of a path, or of a tree of paths, in the module `base`.
    fn tree(&mut self, mut base: Path, tokens: &[TokenTree]) {
        match tokens {
            [TokenTree::Ident(name), rest @ ..] => {
                let name = name.to_string();
                match name.as_str() {
                    "super" => base = parent(&base),
                    "self" => {}
                    _ => base.push(name.clone()),
                }
                if is_path_separator(rest) {
                    return self.tree(base, &rest[2..]);
                }
                let alias = match rest {
                    [TokenTree::Ident(word), TokenTree::Ident(alias), ..] if word == "as" => {
                        alias.to_string()
                    }
                    _ => name,
                };
                self.aliases.push((alias, base.clone()));
                self.own.push(base);
            }
            [TokenTree::Group(group), ..] if group.delimiter() == Delimiter::Brace => {
                let tokens: Vec<_> = group.stream().into_iter().collect();
                for branch in tokens.split(|it| is_punct(it, ',')) {
                    if !branch.is_empty() {
                        self.tree(base.clone(), branch);
                    }
                }
            }
            _ => self.own.push(base),
        }
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

fn parent(module: &Path) -> Path {
    module[..module.len().saturating_sub(1)].to_vec()
}

fn tokens(file: &File) -> TokenStream {
    file.text
        .parse()
        .unwrap_or_else(|error| panic!("{} does not parse: {error}", file.path))
}

fn is_punct(token: &TokenTree, mark: char) -> bool {
    matches!(token, TokenTree::Punct(it) if it.as_char() == mark)
}

fn is_path_separator(tokens: &[TokenTree]) -> bool {
    matches!(tokens, [a, b, ..] if is_punct(a, ':') && is_punct(b, ':'))
}

/// True if these tokens begin with an attribute that makes an item test-only.
fn is_test_only(tokens: &[TokenTree]) -> bool {
    matches!(tokens, [mark, TokenTree::Group(attribute), ..]
        if is_punct(mark, '#') && attribute.to_string().replace(' ', "").starts_with("[cfg(test)"))
}

/// Returns the end of the item that begins here.
fn after_item(tokens: &[TokenTree], begin: usize) -> usize {
    let ends = |token: &TokenTree| {
        is_punct(token, ';')
            || matches!(token, TokenTree::Group(it) if it.delimiter() == Delimiter::Brace)
    };
    let is_use = matches!(tokens.get(begin), Some(TokenTree::Ident(word)) if word == "use");
    tokens[begin..]
        .iter()
        .position(|it| if is_use { is_punct(it, ';') } else { ends(it) })
        .map_or(tokens.len(), |at| begin + at + 1)
}

#[test]
fn generated_code_names_nothing_but_private() {
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

/// Finds names of the runtime outside of `__private` in generated code.
fn exposed(file: &File) -> Vec<String> {
    let mut wrong = Vec::new();
    quoted(tokens(file), &mut wrong);
    wrong
}

/// Names of the runtime crate in generated code: its own, and the placeholders for a crate that the user has renamed.
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
                        "generated code names `{}` outside of `__private`",
                        next.map_or_else(String::new, ToString::to_string)
                    )),
                }
            }
            _ => {}
        }
    }
}
