//! Values of options: their types and their parsers.
//!
//! A parser is a function of the option's name and the input after that name. Parsers that need a text for their error
//! messages are made by a function that takes the text, such as [`expr`].

use proc_macro2::{Ident, TokenStream};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::{
    BinOp, Error, Expr, ExprClosure, ExprLit, Lit, LitInt, Pat, Path, Result, Token, parenthesized,
    token,
};

use super::tokens::{bare_word, is_variable, root, written};
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
    /// `key = constant(EXPR)`: one key for all calls.
    Constant(Expr),
    /// `key = fingerprint`: the key is derived from the request. The word, for errors that point at it.
    Fingerprint(Ident),
}

impl Value for Key {
    fn expression(&self) -> Option<&Expr> {
        match self {
            Self::Expr(expr) | Self::Constant(expr) => Some(expr),
            Self::Fingerprint(_) => None,
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

/// `Err` values that an option is about.
#[expect(
    clippy::large_enum_variant,
    reason = "a handful of them exist while one function is expanded"
)]
pub(super) enum ErrorPattern {
    /// `all`: every error.
    All,
    Matching {
        pat: Pat,
        guard: Option<(Token![if], Expr)>,
    },
}

impl Value for ErrorPattern {}

impl ErrorPattern {
    /// Constant or unit variant that is the whole pattern.
    pub(super) fn constant(&self) -> Option<&Ident> {
        match self {
            Self::Matching {
                pat: Pat::Ident(name),
                ..
            } if name.subpat.is_none() && !is_variable(&name.ident) => Some(&name.ident),
            _ => None,
        }
    }
}

/// Text that says which value an option needs.
pub(super) enum Hint<'a> {
    /// Example of the value, as code.
    Example(&'a str),
    /// Description of the value, in words.
    Words(&'a str),
}

/// Parses the `=` after an option that needs a value.
fn equals(option: &Ident, hint: &Hint<'_>, input: ParseStream) -> Result<()> {
    if input.peek(token::Paren) || (input.peek(Token![:]) && !input.peek(Token![::])) {
        let message = format!("the value of `{option}` stands after `=`: write `{option} = ...`");
        return Err(Error::new(option.span(), message));
    }
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
    let mut expr = expr(Hint::Words("an expression for the key"))(option, input)?;
    // `macro_rules!` puts a group around an expression.
    while let Expr::Group(group) = expr {
        expr = *group.expr;
    }
    match expr {
        Expr::Path(path) => Ok(match path.path.get_ident() {
            Some(word) if word == "fingerprint" => Key::Fingerprint(word.clone()),
            _ => Key::Expr(Expr::Path(path)),
        }),
        Expr::Call(mut call) if bare_word(&call.func).is_some_and(|it| it == "constant") => {
            match (call.args.pop(), call.args.is_empty()) {
                (Some(constant), true) => Ok(Key::Constant(constant)),
                _ => Err(Error::new_spanned(
                    call.func,
                    "`constant` needs one value: write, for instance, `key = constant(\"nightly\")`",
                )),
            }
        }
        expr => Ok(Key::Expr(expr)),
    }
}

/// Parses the arguments of `skip(...)`.
pub(super) fn skip(option: &Ident, input: ParseStream) -> Result<Vec<Skip>> {
    if !input.peek(token::Paren) {
        let names = skipped_after_equals(input).unwrap_or_else(|| "a, b".to_owned());
        return Err(Error::new(
            option.span(),
            format!("`skip` takes the arguments to leave out in parentheses: `skip({names})`"),
        ));
    }
    let content = in_parentheses(input)?;
    let skip = Punctuated::<Skip, Token![,]>::parse_terminated_with;
    let skip = (|input: ParseStream| skip(input, skipped)).parse2(content)?;
    if skip.is_empty() {
        return Err(Error::new(
            option.span(),
            "`skip()` leaves no argument out: name some, as in `skip(a, b)`, or remove it",
        ));
    }
    Ok(skip.into_iter().collect())
}

/// The names in `skip = a` and `skip = [a, b]`.
fn skipped_after_equals(input: ParseStream) -> Option<String> {
    let ahead = input.fork();
    ahead.parse::<Token![=]>().ok()?;
    let names = match ahead.parse().ok()? {
        Expr::Array(array) => array.elems,
        Expr::Tuple(tuple) => tuple.elems,
        name => Punctuated::from_iter([name]),
    };
    let names: Option<Vec<_>> = names.iter().map(bare_word).collect();
    let names = names.filter(|names| !names.is_empty())?;
    Some(
        names
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", "),
    )
}

fn skipped(input: ParseStream) -> Result<Skip> {
    if input.peek(LitInt) {
        return input.parse().map(Skip::Position);
    }
    let ahead = input.fork();
    if let Ok(name) = input.call(Ident::parse_any)
        && (input.is_empty() || input.peek(Token![,]))
    {
        return Ok(Skip::Name(name));
    }
    Err(no_argument(&ahead))
}

/// Error for something in `skip(...)` that is not the name of an argument.
fn no_argument(input: ParseStream) -> Error {
    let Ok(given) = input.parse::<Expr>() else {
        return input.error("expected the name of an argument, as in `skip(a, b)`");
    };
    let message = match (bare_word(&given), &given) {
        (Some(name), _) => format!("write the name of the argument alone: `skip({name})`"),
        (None, Expr::Lit(ExprLit { lit: Lit::Str(text), .. })) => {
            format!("write the name of the argument without quotes: `skip({})`", text.value())
        }
        _ => "`skip` leaves out whole arguments, by their names; to leave out a part of one, add `#[fingerprint(skip)]` \
              to the field, or name what counts in `fingerprint = ...`"
            .to_owned(),
    };
    Error::new_spanned(given, message)
}

/// Tokens in parentheses. Parsed on their own, they cause one error each.
fn in_parentheses(input: ParseStream) -> Result<TokenStream> {
    let content;
    parenthesized!(content in input);
    content.parse()
}

/// Parses the value of `on_crash`.
pub(super) fn on_crash(option: &Ident, input: ParseStream) -> Result<OnCrash> {
    equals(option, &Hint::Example("refuse"), input)?;
    let ahead = input.fork();
    let given = input.call(Ident::parse_any);
    let ends = input.is_empty() || input.peek(Token![,]);
    match given {
        Ok(given) if given == "rerun" && ends => Ok(OnCrash::Rerun),
        Ok(given) if given == "refuse" && ends => Ok(OnCrash::Refuse),
        Ok(given) if given == "reconcile" => reconcile(&given, input),
        _ => Err(no_crash_behaviour(option, &ahead)),
    }
}

/// Error for a value that `on_crash` cannot have.
fn no_crash_behaviour(option: &Ident, input: ParseStream) -> Error {
    const WORDS: &[&str] = &["rerun", "refuse", "reconcile"];
    const KNOWN: &str = "`rerun` (the next call runs the body again), `refuse` (it is refused until an operator resolves \
                         the record) or `reconcile(EXPR)` (EXPR finds out what happened)";
    let Ok(given) = input.parse::<Expr>() else {
        return input.error(format!("expected {KNOWN}"));
    };
    let text = written(&given);
    let word = match &given {
        Expr::Path(path) => path.path.segments.last().map(|it| it.ident.to_string()),
        Expr::Lit(literal) => match &literal.lit {
            Lit::Str(text) => Some(text.value()),
            _ => None,
        },
        _ => None,
    };
    let word = word.map(|word| word.to_lowercase());
    let message = match word.as_deref().and_then(|word| suggest(word, WORDS)) {
        Some(meant) if word.as_deref() == Some(meant) => {
            format!("write the word alone: `{option} = {meant}`")
        }
        Some(meant) => format!("`{option}` cannot be `{text}`, did you mean `{meant}`?"),
        None if matches!(given, Expr::Call(_) | Expr::MethodCall(_) | Expr::Async(_)) => {
            format!("to find out what happened, write `{option} = reconcile({text})`")
        }
        None => format!("`{option}` cannot be `{text}`: write {KNOWN}"),
    };
    Error::new_spanned(given, message)
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
    let content = in_parentheses(input)?;
    if content.is_empty() {
        return Err(missing());
    }
    let mut questions = Punctuated::<Expr, Token![,]>::parse_terminated.parse2(content)?;
    let expr = match questions.pop() {
        Some(expr) if questions.is_empty() => expr,
        second => {
            let message = "`reconcile` takes one expression: call what it needs in a block, as in \
                           `reconcile(async { ... })`";
            return Err(Error::new_spanned(second, message));
        }
    };
    if let Expr::Closure(closure) = &expr {
        return Err(Error::new_spanned(
            closure,
            format!(
                "`reconcile` takes a future instead of a closure: write `reconcile({})`",
                future_of(closure)
            ),
        ));
    }
    Ok(OnCrash::Reconcile(expr))
}

/// Text of the future that a closure makes.
fn future_of(closure: &ExprClosure) -> String {
    match &*closure.body {
        Expr::Block(_) => format!("async {}", written(&closure.body)),
        body if closure.asyncness.is_some() => format!("async {{ {} }}", written(body)),
        body => written(body),
    }
}

/// Parses the pattern of `replay_err` or `release_err`, with its guard.
pub(super) fn error_pattern(option: &Ident, input: ParseStream) -> Result<ErrorPattern> {
    equals(option, &Hint::Example("MyError::Declined { .. }"), input)?;
    if let Some(closure) = closure(input) {
        return Err(predicate(option, &closure));
    }
    let ahead = input.fork();
    let pat = input.call(Pat::parse_multi_with_leading_vert);
    let ends = input.is_empty() || input.peek(Token![,]) || input.peek(Token![if]);
    let pat = match pat {
        Ok(pat) if ends => pat,
        Ok(_) => {
            return Err(
                condition(option, &ahead).unwrap_or_else(|| input.error("expected `if` or `,`"))
            );
        }
        Err(error) => return Err(condition(option, &ahead).unwrap_or(error)),
    };
    let guard = if input.peek(Token![if]) {
        Some((input.parse()?, input.parse()?))
    } else {
        None
    };
    Ok(match (&pat, &guard) {
        (Pat::Ident(all), None) if all.ident == "all" => ErrorPattern::All,
        _ => ErrorPattern::Matching { pat, guard },
    })
}

/// Error for a condition in the place of a pattern.
fn condition(option: &Ident, input: ParseStream) -> Option<Error> {
    let condition = input.parse::<Expr>().ok()?;
    let message = if let Some(alternatives) = alternatives(&condition) {
        format!(
            "alternatives of a pattern stand between single bars: write `{option} = {alternatives}`"
        )
    } else {
        let error = match root(&condition) {
            Some(name) if is_variable(name) => name.to_string(),
            _ => "error".to_owned(),
        };
        let condition = written(&condition);
        format!(
            "`{option}` takes a pattern, and a condition is its guard: write `{option} = {error} if {condition}`"
        )
    };
    Some(Error::new_spanned(condition, message))
}

/// Text of the pattern that `A || B` means.
fn alternatives(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Binary(both) if matches!(both.op, BinOp::Or(_)) => {
            let (left, right) = (alternatives(&both.left)?, alternatives(&both.right)?);
            Some(format!("{left} | {right}"))
        }
        Expr::Path(path) => Some(written(path)),
        Expr::Call(call) if matches!(&*call.func, Expr::Path(_)) => Some(written(call)),
        _ => None,
    }
}

/// Closure in the place of a pattern. It differs from alternatives after a leading `|`: these are paths, and the
/// parameter of a closure is a name.
fn closure(input: ParseStream) -> Option<ExprClosure> {
    let closure: ExprClosure = input.fork().parse().ok()?;
    let mut parameters = closure.inputs.iter();
    let named = parameters.next().is_some_and(|parameter| match parameter {
        Pat::Ident(name) => is_variable(&name.ident),
        Pat::Type(_) | Pat::Wild(_) | Pat::Reference(_) => true,
        _ => false,
    });
    named.then_some(closure)
}

fn predicate(option: &Ident, closure: &ExprClosure) -> Error {
    let parameter = match closure.inputs.first() {
        Some(Pat::Type(typed)) => written(&typed.pat),
        parameter => written(&parameter),
    };
    let body = written(&closure.body);
    Error::new_spanned(
        closure,
        format!(
            "`{option}` takes a pattern instead of a closure: write `{option} = {parameter} if {body}`"
        ),
    )
}
