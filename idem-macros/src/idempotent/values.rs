//! Values of options: their types and their parsers.
//!
//! A parser is a function of the option's name and the input after that name. Parsers that need a text for their error
//! messages are made by a function that takes the text, such as [`expr`].

use proc_macro2::{Ident, TokenStream};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::ParseStream;
use syn::punctuated::Punctuated;
use syn::{Error, Expr, LitInt, Pat, Path, Result, Token, parenthesized, token};

use super::tokens::bare_word;
use crate::suggest::suggest;

/// Value of an option.
pub(super) trait Value {
    /// Expression in the value that is evaluated before the body.
    fn expression(&self) -> Option<&Expr> {
        None
    }
}

impl Value for Expr {
    fn expression(&self) -> Option<&Expr> {
        Some(self)
    }
}

/// Name that the body uses for something that the macro declares.
impl Value for Ident {}

impl Value for Path {}

/// Option without a value.
pub(super) struct Flag;

impl Value for Flag {}

/// Source of the key.
pub(super) enum Key {
    Expr(Expr),
    /// `key = fingerprint`: the key is derived from the request.
    Fingerprint,
}

impl Value for Key {
    fn expression(&self) -> Option<&Expr> {
        match self {
            Self::Expr(expr) => Some(expr),
            Self::Fingerprint => None,
        }
    }
}

/// Argument that is left out of the fingerprint.
pub(super) enum Skip {
    Name(Ident),
    /// Position of an argument that is a pattern.
    Position(LitInt),
}

impl Value for Vec<Skip> {}

impl Skip {
    /// Name or position, without `r#`.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Name(name) => name.unraw().to_string(),
            Self::Position(position) => position.to_string(),
        }
    }
}

impl ToTokens for Skip {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        match self {
            Self::Name(name) => name.to_tokens(tokens),
            Self::Position(position) => position.to_tokens(tokens),
        }
    }
}

/// Behaviour of the next call after a crash.
pub(super) enum OnCrash {
    Rerun,
    Refuse,
    Reconcile(Expr),
}

impl Value for OnCrash {
    fn expression(&self) -> Option<&Expr> {
        match self {
            Self::Reconcile(expr) => Some(expr),
            Self::Rerun | Self::Refuse => None,
        }
    }
}

/// Pattern for the `Err` values that an option is about.
pub(super) struct ErrorPattern {
    pub(super) pat: Pat,
    pub(super) guard: Option<(Token![if], Expr)>,
}

impl Value for ErrorPattern {}

/// Text that says which value an option needs.
pub(super) enum Hint<'a> {
    /// Example of the value, as code.
    Example(&'a str),
    /// Description of the value, in words.
    Words(&'a str),
}

/// Parses the `=` after an option that needs a value.
fn equals(option: &Ident, hint: &Hint<'_>, input: ParseStream) -> Result<()> {
    let found = input.parse::<Option<Token![=]>>()?.is_some();
    if found && !input.is_empty() && !input.peek(Token![,]) {
        return Ok(());
    }
    let message = match hint {
        Hint::Example(example) => {
            format!("`{option}` needs a value, such as `{option} = {example}`")
        }
        Hint::Words(words) => {
            format!("`{option}` needs a value: write `{option} = ...` with {words}")
        }
    };
    Err(Error::new(option.span(), message))
}

/// Parser of `= EXPR`.
pub(super) fn expr(hint: Hint<'_>) -> impl Fn(&Ident, ParseStream) -> Result<Expr> {
    move |option, input| {
        equals(option, &hint, input)?;
        input.parse()
    }
}

/// Parser of an option without a value. `instead` says what to write in the place of a value.
pub(super) fn flag(instead: &str) -> impl Fn(&Ident, ParseStream) -> Result<Flag> {
    move |option, input| {
        if input.peek(Token![=]) || input.peek(token::Paren) {
            let message = format!("`{option}` takes no value: {instead}");
            return Err(Error::new(option.span(), message));
        }
        Ok(Flag)
    }
}

/// Parser of an option whose only possible value is the word `known`.
pub(super) fn word(known: &str) -> impl Fn(&Ident, ParseStream) -> Result<Flag> {
    move |option, input| {
        equals(option, &Hint::Example(known), input)?;
        let Ok(given) = input.call(Ident::parse_any) else {
            return Err(input.error(format!("expected `{option} = {known}`")));
        };
        if given == known {
            return Ok(Flag);
        }
        Err(Error::new(
            given.span(),
            format!(
                "`{option}` has only the value `{known}`: write `{option} = {known}` or leave the option out"
            ),
        ))
    }
}

/// Parses the name that the body uses for something that the macro declares.
pub(super) fn binding(option: &Ident, input: ParseStream) -> Result<Ident> {
    equals(option, &Hint::Example(&option.to_string()), input)?;
    input.parse().map_err(|error| {
        let message = format!("expected a name to use in the body, such as `{option} = {option}`");
        Error::new(error.span(), message)
    })
}

/// Parses the value of `crate`.
pub(super) fn runtime_path(option: &Ident, input: ParseStream) -> Result<Path> {
    equals(option, &Hint::Example("::path::to::idem_runtime"), input)?;
    input.call(Path::parse_mod_style).map_err(|error| {
        Error::new(
            error.span(),
            "expected the path of the runtime, such as `crate = ::idem_runtime` or `crate = crate::idem`",
        )
    })
}

/// Parses the value of `key`.
pub(super) fn key(option: &Ident, input: ParseStream) -> Result<Key> {
    let expr = expr(Hint::Words("an expression for the key"))(option, input)?;
    let reserved = matches!(&expr, Expr::Path(_))
        && bare_word(&expr).is_some_and(|word| word == "fingerprint");
    Ok(if reserved {
        Key::Fingerprint
    } else {
        Key::Expr(expr)
    })
}

/// Parses the arguments of `skip(...)`.
pub(super) fn skip(option: &Ident, input: ParseStream) -> Result<Vec<Skip>> {
    if !input.peek(token::Paren) {
        return Err(Error::new(
            option.span(),
            "`skip` takes the arguments to leave out in parentheses: `skip(a, b)`",
        ));
    }
    let content;
    parenthesized!(content in input);
    let skip = Punctuated::<Skip, Token![,]>::parse_terminated_with(&content, skipped)?;
    if skip.is_empty() {
        return Err(Error::new(
            option.span(),
            "`skip()` leaves no argument out: name some, as in `skip(a, b)`, or remove it",
        ));
    }
    Ok(skip.into_iter().collect())
}

fn skipped(input: ParseStream) -> Result<Skip> {
    if input.peek(LitInt) {
        return input.parse().map(Skip::Position);
    }
    let name = input.call(Ident::parse_any);
    name.map(Skip::Name).map_err(|error| {
        let message = "expected the name of an argument, as in `skip(a, b)`";
        Error::new(error.span(), message)
    })
}

/// Parses the value of `on_crash`.
pub(super) fn on_crash(option: &Ident, input: ParseStream) -> Result<OnCrash> {
    const WORDS: &[&str] = &["rerun", "refuse", "reconcile"];
    const KNOWN: &str = "`rerun`, `refuse` or `reconcile(EXPR)`";
    equals(option, &Hint::Example("refuse"), input)?;
    let Ok(given) = input.call(Ident::parse_any) else {
        return Err(input.error(format!("expected {KNOWN}")));
    };
    match given.to_string().as_str() {
        "rerun" => Ok(OnCrash::Rerun),
        "refuse" => Ok(OnCrash::Refuse),
        "reconcile" => reconcile(&given, input),
        other => Err(Error::new(
            given.span(),
            match suggest(other, WORDS) {
                Some(meant) => format!("`{option}` cannot be `{other}`, did you mean `{meant}`?"),
                None => format!("`{option}` cannot be `{other}`: write {KNOWN}"),
            },
        )),
    }
}

/// Parses the parentheses after `reconcile`.
fn reconcile(reconcile: &Ident, input: ParseStream) -> Result<OnCrash> {
    let missing = || {
        Error::new(
            reconcile.span(),
            "`reconcile` needs a future in parentheses that finds out what happened, such as \
             `reconcile(self.bank.lookup(&charge.id))`",
        )
    };
    if !input.peek(token::Paren) {
        return Err(missing());
    }
    let content;
    parenthesized!(content in input);
    if content.is_empty() {
        return Err(missing());
    }
    let expr = content.parse()?;
    content.parse::<Option<Token![,]>>()?;
    if !content.is_empty() {
        return Err(content.error("`reconcile` takes one expression"));
    }
    Ok(OnCrash::Reconcile(expr))
}

/// Parses the pattern of `replay_err` or `retry_err`, with its guard.
pub(super) fn error_pattern(option: &Ident, input: ParseStream) -> Result<ErrorPattern> {
    equals(option, &Hint::Example("MyError::Declined { .. }"), input)?;
    Ok(ErrorPattern {
        pat: input.call(Pat::parse_multi_with_leading_vert)?,
        guard: if input.peek(Token![if]) {
            Some((input.parse()?, input.parse()?))
        } else {
            None
        },
    })
}
