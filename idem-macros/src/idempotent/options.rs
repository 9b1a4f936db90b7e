//! The options of `#[idempotent]`, each declared once, in the order of the documentation.
//!
//! To add an option:
//!
//! 1. Declare it below. Its name, parser, duplicate check, suggestions and error texts come from the declaration.
//! 2. `idem-runtime/src/idempotent.md`: describe it in the table of options. A test compares that table, and the one in
//!    `README.md`, with the declarations.
//! 3. `model.rs`: add a field for it to `Idempotent`. `expand.rs`: use the field. Most options become a method of
//!    `Call`: one line in `settings` in `expand/call.rs`, and the method in `idem-runtime/src/engine/call.rs`.
//! 4. `check.rs`: report options that it cannot be combined with. `refused_with_tx` below needs nothing there.
//! 5. Tests: a snapshot in `snapshots.rs`; `tests/ui/pass/options.rs`; a case in `tests/ui/fail` for each new error, and
//!    `tests/ui/fail/unknown_option.stderr`, which lists all options; `tests/it/idempotent/` for what it does.

use proc_macro2::{Ident, Span, TokenStream};
use quote::ToTokens;
use syn::parse::ParseStream;
use syn::{Expr, Path, Result};

use super::values::Hint::{Example, Words};
use super::values::{self, ErrorPattern, Flag, Key, OnCrash, Skip, Value};
use super::versions::{self, Downgrade, Upgrade, Version};
use crate::errors::Errors;

/// Declares options: each is a field of [`Options`], with the type of its value.
///
/// - `name`: the option as the user writes it.
/// - `value`: the parser of the value.
/// - `required`: makes the option required; says what to write when it is missing.
/// - `refused_with_tx`: makes the option an error together with `tx`; says why.
macro_rules! declare_options {
    ($($field:ident: $type:ty {
        name: $name:literal,
        value: $parser:expr,
        $(required: $required:literal,)?
        $(refused_with_tx: $refused:literal,)?
    })*) => {
        /// Options as they were written, not yet checked.
        #[derive(Default)]
        pub(super) struct Options {
            $(pub(super) $field: Option<Given<$type>>,)*
            /// Names of options that were written, but could not be parsed.
            pub(super) unparsed: Vec<String>,
        }

        /// Declarations of all options, in the order of the documentation.
        const DECLARED: &[Declared] = &[$(Declared {
            name: $name,
            required: optional!($($required)?),
            refused_with_tx: optional!($($refused)?),
        }),*];

        /// Names of all options, in the order of the documentation.
        pub(super) const NAMES: &[&str] = &[$($name),*];

        impl Options {
            /// Parses the value of an option. Returns `None` if there is no option of this name.
            pub(super) fn parse_value(
                &mut self,
                option: Ident,
                input: ParseStream,
                errors: &mut Errors,
            ) -> Option<Result<()>> {
                Some(match option.to_string().as_str() {
                    $($name => {
                        let value = $parser(&option, input);
                        value.map(|value| set(&mut self.$field, option, value, errors))
                    })*
                    _ => return None,
                })
            }

            /// Name of an option at the place where it was written.
            fn given(&self, name: &str) -> Option<&Ident> {
                match name {
                    $($name => self.$field.as_ref().map(|given| &given.option),)*
                    _ => None,
                }
            }

            /// Tokens of all expressions that are evaluated before the body.
            pub(super) fn expressions(&self) -> TokenStream {
                let mut tokens = TokenStream::new();
                $(if let Some(expr) = self.$field.as_ref().and_then(|it| it.value.expression()) {
                    expr.to_tokens(&mut tokens);
                })*
                tokens
            }
        }
    };
}

macro_rules! optional {
    () => {
        None
    };
    ($value:expr) => {
        Some($value)
    };
}

declare_options! {
    key: Key {
        name: "key",
        value: values::key,
        required: "write `key = ...` with a value that the caller sends again when it retries, or \
                   `key = fingerprint` to derive the key from the request",
    }
    ttl: Expr {
        name: "ttl",
        value: values::expr(Example("\"24h\"")),
        required: "write, for instance, `ttl = \"24h\"`, the longest time after which a caller may still retry",
    }
    remember: Expr {
        name: "remember",
        value: values::expr(Example("\"90d\"")),
    }
    store: Expr {
        name: "store",
        value: values::expr(Words("an expression for an `Idem` handle")),
    }
    scope: Expr {
        name: "scope",
        value: values::expr(Words("an expression for a tenant, user or account")),
    }
    name: Expr {
        name: "name",
        value: values::expr(Example("\"charges.create\"")),
    }
    skip: Vec<Skip> {
        name: "skip",
        value: values::skip,
    }
    skip_all: Flag {
        name: "skip_all",
        value: values::flag("to leave out some arguments, write `skip(a, b)`"),
    }
    fingerprint: Expr {
        name: "fingerprint",
        value: values::expr(Words("an expression that is `Fingerprint`")),
    }
    lease: Expr {
        name: "lease",
        value: values::expr(Example("\"30s\"")),
        refused_with_tx: "the transaction holds the record, without a lease",
    }
    wait: Expr {
        name: "wait",
        value: values::expr(Example("\"5s\"")),
    }
    deadline: Expr {
        name: "deadline",
        value: values::expr(Words("an expression for the `Instant` after which nobody waits for the answer")),
    }
    on_crash: OnCrash {
        name: "on_crash",
        value: values::on_crash,
        refused_with_tx: "a crash rolls the body back, so there is nothing to decide",
    }
    replay_err: ErrorPattern {
        name: "replay_err",
        value: values::error_pattern,
    }
    release_err: ErrorPattern {
        name: "release_err",
        value: values::error_pattern,
        refused_with_tx: "every error that does not match `replay_err` rolls the body back",
    }
    version: Version {
        name: "version",
        value: versions::version,
    }
    upgrade: Upgrade {
        name: "upgrade",
        value: versions::upgrade,
    }
    downgrade: Downgrade {
        name: "downgrade",
        value: versions::downgrade,
    }
    on_store_error: Flag {
        name: "on_store_error",
        value: values::word("run"),
        refused_with_tx: "without the store there is no transaction to run in",
    }
    detached: Flag {
        name: "detached",
        value: values::flag("the body runs in a task of its own, or the option is left out"),
        refused_with_tx: "a caller that is dropped rolls the transaction back, as if it had never called; to commit \
                          whatever the caller does, call the function in `idem.detach(...)`",
    }
    recover_with: Expr {
        name: "recover_with",
        value: values::expr(Words("an expression for the input that a retry of the call needs")),
        refused_with_tx: "a crash rolls the body back, so there is nothing to recover",
    }
    tx: Ident {
        name: "tx",
        value: values::binding,
    }
    issued: Flag {
        name: "issued",
        value: values::flag(
            "the time that a key is valid for is an argument of `idem.issue(operation, scope, ttl)`"
        ),
    }
    refuse_old_keys: Expr {
        name: "refuse_old_keys",
        value: values::expr(Example("\"1h\"")),
    }
    member_digests: Flag {
        name: "member_digests",
        value: values::flag("the digests are of all arguments that the fingerprint has"),
    }
    attempt: Ident {
        name: "attempt",
        value: values::binding,
    }
    krate: Path {
        name: "crate",
        value: values::runtime_path,
    }
}

/// Option that was written, with its value.
pub(super) struct Given<T> {
    /// Name of the option, for errors that point at it.
    pub(super) option: Ident,
    pub(super) value: T,
}

/// Value of an option that was written.
pub(super) fn value<T>(given: Option<&Given<T>>) -> Option<&T> {
    given.map(|given| &given.value)
}

/// Declaration of an option.
struct Declared {
    name: &'static str,
    /// Advice for a required option that is missing.
    required: Option<&'static str>,
    /// Reason to refuse the option together with `tx`.
    refused_with_tx: Option<&'static str>,
}

impl<T> Given<T> {
    /// Replaces an option that is missing or wrong.
    pub(super) fn in_place_of(name: &str, value: T) -> Self {
        Self {
            option: Ident::new(name, Span::call_site()),
            value,
        }
    }
}

impl Options {
    /// Returns whether an option of this name was written, but could not be parsed.
    pub(super) fn was_tried(&self, name: &str) -> bool {
        self.unparsed.iter().any(|unparsed| unparsed == name)
    }

    /// Required options that were not written, each with the text on what to write.
    pub(super) fn missing(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        DECLARED
            .iter()
            .filter_map(|option| Some((option.name, option.required?)))
            .filter(move |(name, _)| self.given(name).is_none() && !self.was_tried(name))
    }

    /// Options that are an error together with `tx`, each with the reason.
    pub(super) fn refused_with_tx(&self) -> impl Iterator<Item = (&Ident, &'static str)> {
        DECLARED
            .iter()
            .filter_map(move |option| Some((self.given(option.name)?, option.refused_with_tx?)))
    }
}

/// Stores an option, or reports that it was written twice.
fn set<T>(slot: &mut Option<Given<T>>, option: Ident, value: T, errors: &mut Errors) {
    match slot {
        None => *slot = Some(Given { option, value }),
        Some(first) => {
            errors.at_span(
                option.span(),
                format!("`{option}` is given twice: remove one of them"),
            );
            errors.at_span(first.option.span(), format!("this is the first `{option}`"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{DECLARED, NAMES};

    /// Row of a table of options.
    struct Row {
        /// First word of each code span in the first cell.
        words: Vec<String>,
        /// All cells.
        cells: Vec<String>,
    }

    /// Table of options in a page of the repository, if the page has one.
    fn table(page: &str) -> Option<Vec<Row>> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let text = std::fs::read_to_string(root.join(page)).unwrap();
        let mut lines = text.lines();
        lines.find(|line| line.starts_with("| option |"))?;
        let rows = lines.skip(1).take_while(|line| line.starts_with('|'));
        Some(rows.map(row).collect())
    }

    fn row(line: &str) -> Row {
        let cells = line.trim_matches('|').split(" | ");
        let cells: Vec<_> = cells.map(|cell| cell.trim().to_owned()).collect();
        let spans = cells[0].split('`').skip(1).step_by(2);
        let words = spans.map(|span| {
            let end = span.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
            span[..end.unwrap_or(span.len())].to_owned()
        });
        Row {
            words: words.collect(),
            cells,
        }
    }

    #[test]
    fn the_reference_describes_each_option() {
        let rows = table("idem-runtime/src/idempotent.md").unwrap();
        let described: Vec<_> = rows.iter().map(|row| row.words[0].as_str()).collect();
        assert_eq!(described, NAMES);
        for (row, option) in rows.iter().zip(DECLARED) {
            let [_, _, default] = &row.cells[..] else {
                panic!("three cells: {:?}", row.cells);
            };
            let required = default == "required";
            assert_eq!(required, option.required.is_some(), "{}", option.name);
        }
    }

    #[test]
    fn the_reference_lists_the_options_refused_with_tx() {
        let rows = table("idem-runtime/src/idempotent.md").unwrap();
        let tx = rows.iter().find(|row| row.words[0] == "tx").unwrap();
        let (_, listed) = tx.cells[1].split_once("Not with ").unwrap();
        let listed: Vec<_> = listed.split('`').skip(1).step_by(2).collect();
        let refused = DECLARED
            .iter()
            .filter(|option| option.refused_with_tx.is_some());
        let refused: Vec<_> = refused.map(|option| option.name).collect();
        assert_eq!(listed, refused);
    }

    #[test]
    fn the_readme_names_no_other_options() {
        let Some(rows) = table("README.md") else {
            // The page links to the reference.
            return;
        };
        for row in &rows {
            let first = row.words[0].as_str();
            assert!(NAMES.contains(&first), "`{first}` is not an option");
        }
        let described: Vec<_> = rows.iter().flat_map(|row| &row.words).collect();
        for name in NAMES {
            assert!(
                described.iter().any(|word| word == name),
                "`{name}` is missing"
            );
        }
    }
}
