//! Parses the tokens in the parentheses of `#[idempotent(...)]` to [`Options`].
//!
//! An option that cannot be parsed is reported and skipped, so that the options after it are still parsed.

use proc_macro2::{Ident, TokenStream, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{Error, Expr, LitStr, Result, Token, token};

use super::duration::Millis;
use super::options::{NAMES, Options};
use super::tokens::written;
use crate::errors::Errors;
use crate::suggest::suggest;

impl Options {
    /// Parses options separated by commas.
    pub(super) fn parse(tokens: TokenStream, errors: &mut Errors) -> Self {
        let mut options = Self::default();
        let parser = |input: ParseStream| {
            while !input.is_empty() {
                if let Err(error) = options.parse_one(input, errors) {
                    errors.push(error);
                    skip_option(input);
                }
                separator(input, errors)?;
            }
            Ok(())
        };
        if let Err(error) = parser.parse2(tokens) {
            errors.push(error);
        }
        options
    }

    fn parse_one(&mut self, input: ParseStream, errors: &mut Errors) -> Result<()> {
        let ahead = input.fork();
        let Ok(option) = input.call(Ident::parse_any) else {
            return Err(self.no_option(input));
        };
        let Some(parsed) = self.parse_value(option.clone(), input, errors) else {
            self.unknown(&option, &ahead, errors);
            skip_value(input);
            return Ok(());
        };
        parsed.map_err(|error| {
            self.unparsed.push(option.to_string());
            unfinished(&option, error, input)
        })
    }

    /// Error for something in the place of an option that is no name.
    fn no_option(&mut self, input: ParseStream) -> Error {
        if input.peek(Token![,]) {
            return input.error("expected an option before this comma: remove the comma");
        }
        let Ok(text) = input.fork().parse::<LitStr>() else {
            return input.error("expected an option, such as `key = ...`");
        };
        let is_duration = Millis::parse(&text.value()).is_ok();
        let option = if is_duration { "ttl" } else { "name" };
        self.unparsed.push(option.to_owned());
        let text = text.to_token_stream();
        input.error(format!("an option has a name, such as `{option} = {text}`"))
    }

    fn unknown(&mut self, option: &Ident, input: ParseStream, errors: &mut Errors) {
        let name = option.to_string();
        if let Some(key) = unnamed_key(input) {
            self.unparsed.push("key".to_owned());
            let written = written(&key);
            let message =
                format!("an option has a name: if this is the key, write `key = {written}`");
            return errors.at(key, message);
        }
        let message = if let Some((_, instead)) = OTHER_WORDS.iter().find(|(it, _)| *it == name) {
            self.unparsed
                .extend(instead.split(' ').next().map(str::to_owned));
            format!("unknown option `{option}`: write `{instead}`")
        } else if let Some((_, advice)) = NO_OPTION.iter().find(|(it, _)| *it == name) {
            format!("there is no option `{option}`: {advice}")
        } else if let Some(meant) = suggest(&name, NAMES) {
            // The option that was meant is not reported as missing.
            self.unparsed.push(meant.to_owned());
            format!("unknown option `{option}`, did you mean `{meant}`?")
        } else {
            let names = NAMES.join("`, `");
            format!("unknown option `{option}`; the options are `{names}`")
        };
        errors.at_span(option.span(), message);
    }
}

/// Words for options that have another name here, each with what to write instead.
const OTHER_WORDS: &[(&str, &str)] = &[
    ("background", "detached"),
    ("connection", "tx = tx"),
    ("db", "store = ..."),
    ("error", "replay_err = ..."),
    ("exclude", "skip(...)"),
    ("expires", "ttl = \"24h\""),
    ("expiry", "ttl = \"24h\""),
    ("handle", "store = ..."),
    ("id", "key = ..."),
    ("idem", "store = ..."),
    ("ignore", "skip(...)"),
    ("operation", "name = \"charges.create\""),
    ("reconcile", "on_crash = reconcile(...)"),
    ("refuse", "on_crash = refuse"),
    ("replay", "replay_err = ..."),
    ("rerun", "on_crash = rerun"),
    ("retention", "ttl = \"24h\""),
    ("spawn", "detached"),
    ("tenant", "scope = ..."),
    ("transaction", "tx = tx"),
    ("user", "scope = ..."),
];

/// Words that no single option stands for, each with advice.
const NO_OPTION: &[(&str, &str)] = &[
    (
        "cache",
        "wrap the store in `Cached` where the handle is made",
    ),
    (
        "codec",
        "the codec of results is set where the handle is made, with `Idem::builder`",
    ),
    ("max_attempts", NO_RETRIES),
    ("retries", NO_RETRIES),
    ("retry", NO_RETRIES),
    (
        "timeout",
        "`wait = \"5s\"` is how long a duplicate waits for the running call, `lease = \"30s\"` how long a claim is valid \
         without renewal, and `deadline = ...` the time after which a call does not begin; to limit the body, call \
         `tokio::time::timeout` in it",
    ),
];

const NO_RETRIES: &str = "a call runs the body once, and the caller retries it with the same key; after a crash, \
                          `recover_with = ...` and a `Recovery` retry it without a caller";

/// Expression about an argument in the place of an option, such as `order.id`.
fn unnamed_key(input: ParseStream) -> Option<Expr> {
    let expr = input.parse::<Expr>().ok()?;
    matches!(expr, Expr::Field(_) | Expr::MethodCall(_) | Expr::Index(_)).then_some(expr)
}

/// Says of which option the value ends too early. At the end of the input, which has no place of its own, the error
/// points at the option.
fn unfinished(option: &Ident, error: Error, input: ParseStream) -> Error {
    let message = error.to_string();
    let at_end = input.is_empty();
    let expected = message
        .strip_prefix("unexpected end of input, ")
        .unwrap_or(&message);
    // The messages of this macro quote code.
    if !(at_end || input.peek(Token![,]))
        || !expected.starts_with("expected ")
        || expected.contains('`')
    {
        return error;
    }
    let at = if at_end { option.span() } else { error.span() };
    Error::new(
        at,
        format!("the value of `{option}` is not complete: {expected}"),
    )
}

/// Parses the comma after an option, or reports that it is missing and goes to the next option.
fn separator(input: ParseStream, errors: &mut Errors) -> Result<()> {
    if input.is_empty() || input.parse::<Option<Token![,]>>()?.is_some() {
        return Ok(());
    }
    errors.push(input.error("expected `,` between two options"));
    if !at_option(input) {
        skip_option(input);
        input.parse::<Option<Token![,]>>()?;
    }
    Ok(())
}

/// Returns whether the input looks like the beginning of an option.
fn at_option(input: ParseStream) -> bool {
    let ahead = input.fork();
    ahead.call(Ident::parse_any).is_ok()
        && (ahead.is_empty()
            || ahead.peek(Token![,])
            || ahead.peek(token::Paren)
            || (ahead.peek(Token![:]) && !ahead.peek(Token![::]))
            || (ahead.peek(Token![=]) && !ahead.peek(Token![==])))
}

/// Skips to the comma before the next option, or to the end.
fn skip_option(input: ParseStream) {
    while !input.is_empty() {
        if input.peek(Token![,]) {
            let ahead = input.fork();
            if ahead.parse::<Token![,]>().is_err() || ahead.is_empty() || at_option(&ahead) {
                return;
            }
        }
        if input.parse::<TokenTree>().is_err() {
            return;
        }
    }
}

/// Skips the value of an unknown option.
fn skip_value(input: ParseStream) {
    if input.peek(Token![=]) {
        let ahead = input.fork();
        let is_expr = ahead.parse::<Token![=]>().is_ok()
            && ahead.parse::<Expr>().is_ok()
            && (ahead.is_empty() || ahead.peek(Token![,]));
        if is_expr && input.parse::<Token![=]>().is_ok() && input.parse::<Expr>().is_ok() {
            return;
        }
    }
    skip_option(input);
}
