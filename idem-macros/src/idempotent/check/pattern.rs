//! Checks the patterns of `replay_err` and `release_err`.

use proc_macro2::Ident;
use syn::{Lit, Pat, PatSlice, PatTuple, PatTupleStruct, Path};

use crate::errors::Errors;
use crate::idempotent::options::{Given, Options};
use crate::idempotent::tokens::{is_variable, written};
use crate::idempotent::values::ErrorPattern;

/// Reports and removes patterns that match every error, or that cannot match one.
pub(super) fn check_patterns(options: &mut Options, errors: &mut Errors) {
    const REPLAYED: &str =
        "a transient one too would be replayed until the `ttl` is over: name those that are final";
    const RELEASED: &str =
        "the body would run again after an effect too: name those that prove that nothing was done";
    for (given, consequence) in [
        (&mut options.replay_err, REPLAYED),
        (&mut options.release_err, RELEASED),
    ] {
        let Some(Given {
            option,
            value: ErrorPattern::Matching { pat, guard },
        }) = given
        else {
            continue;
        };
        let message = if let Some(message) = no_pattern_of_errors(option, pat) {
            message
        } else if guard.is_none() && matches_everything(pat) {
            format!(
                "`{}` matches every error, and {consequence}, such as `{option} = MyError::Declined(..)`; if every \
                 error is meant, write `{option} = all`",
                written(pat)
            )
        } else {
            continue;
        };
        errors.at(pat, message);
        *given = None;
    }
}

/// Message for a pattern that is no pattern of errors.
fn no_pattern_of_errors(option: &Ident, pat: &Pat) -> Option<String> {
    match pat {
        Pat::Lit(literal) => match &literal.lit {
            Lit::Str(text) => Some(format!(
                "`{option}` takes a pattern, not text: write `{option} = {}` without quotes",
                text.value()
            )),
            Lit::Bool(_) => Some(format!(
                "`{option}` takes a pattern: name the errors, such as `{option} = MyError::Declined(..)`, or write \
                 `{option} = all` for every error"
            )),
            _ => None,
        },
        Pat::TupleStruct(PatTupleStruct { path, elems, .. })
            if path.is_ident("Err") || path.is_ident("Ok") =>
        {
            let inner = elems.first().filter(|inner| !matches_everything(inner));
            let inner = inner.map_or_else(|| "MyError::Declined(..)".to_owned(), written);
            Some(format!(
                "the pattern is for the error itself, not for the `Result`: write `{option} = {inner}`"
            ))
        }
        Pat::TupleStruct(PatTupleStruct { path, .. }) => no_function(option, path),
        Pat::Path(path) => no_function(option, &path.path),
        Pat::Macro(condition) => Some(format!(
            "`{option}` takes a pattern, and a condition is its guard: write `{option} = error if {}`",
            written(condition)
        )),
        // An error type is no tuple and no array, because it is `From<idem_runtime::Error>`.
        Pat::Tuple(PatTuple { elems, .. }) | Pat::Slice(PatSlice { elems, .. }) => {
            let alternatives: Vec<_> = elems.iter().map(written).collect();
            Some(format!(
                "alternatives of a pattern stand between bars: write `{option} = {}`",
                alternatives.join(" | ")
            ))
        }
        _ => None,
    }
}

/// Message for a path that is a function, by its case.
fn no_function(option: &Ident, path: &Path) -> Option<String> {
    let last = &path.segments.last()?.ident;
    let function = written(path);
    last.to_string().starts_with(char::is_lowercase).then(|| {
        format!(
            "`{function}` is a function, and `{option}` takes a pattern: write `{option} = error if {function}(error)`"
        )
    })
}

/// Returns whether a pattern matches every value, whatever its type.
fn matches_everything(pat: &Pat) -> bool {
    match pat {
        Pat::Wild(_) | Pat::Rest(_) => true,
        Pat::Ident(name) => match &name.subpat {
            Some((_, pat)) => matches_everything(pat),
            None => is_variable(&name.ident),
        },
        Pat::Paren(pat) => matches_everything(&pat.pat),
        Pat::Reference(pat) => matches_everything(&pat.pat),
        Pat::Or(pat) => pat.cases.iter().any(matches_everything),
        _ => false,
    }
}
