//! From the tokens in the parentheses to the options that stand there, whatever they are worth together. An option
//! that cannot be read is told and skipped, so that the ones behind it are read all the same.

use proc_macro2::{Ident, TokenStream, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::{Expr, LitInt, Pat, Path, Result, Token, parenthesized, token};

use super::Errors;
use super::tokens::bare_word;
use crate::suggest::suggest;

/// Every option's name, in the order in which they are documented.
const NAMES: &[&str] = &[
    "key",
    "ttl",
    "store",
    "scope",
    "name",
    "skip",
    "skip_all",
    "fingerprint",
    "lease",
    "wait",
    "on_crash",
    "replay_err",
    "retry_err",
    "on_store_error",
    "recover_with",
    "tx",
    "issued",
    "attempt",
    "crate",
];

/// The options as they are written.
#[derive(Default)]
pub(super) struct Options {
    pub(super) key: Option<Given<Key>>,
    pub(super) ttl: Option<Given<Expr>>,
    pub(super) store: Option<Given<Expr>>,
    pub(super) scope: Option<Given<Expr>>,
    pub(super) name: Option<Given<Expr>>,
    pub(super) skip: Option<Given<Vec<Skip>>>,
    pub(super) skip_all: Option<Given<()>>,
    pub(super) fingerprint: Option<Given<Expr>>,
    pub(super) lease: Option<Given<Expr>>,
    pub(super) wait: Option<Given<Expr>>,
    pub(super) on_crash: Option<Given<OnCrash>>,
    pub(super) replay_err: Option<Given<ErrorPattern>>,
    pub(super) retry_err: Option<Given<ErrorPattern>>,
    pub(super) on_store_error: Option<Given<()>>,
    pub(super) recover_with: Option<Given<Expr>>,
    pub(super) issued: Option<Given<()>>,
    /// What the connection is called in the body.
    pub(super) tx: Option<Given<Ident>>,
    pub(super) attempt: Option<Given<Ident>>,
    pub(super) krate: Option<Given<Path>>,
    /// Words for options that could not be read: they are not missing.
    unread: Vec<String>,
}

/// An option.
pub(super) struct Given<T> {
    /// Its name, to point at.
    pub(super) option: Ident,
    pub(super) value: T,
}

/// Where the key comes from.
pub(super) enum Key {
    Expr(Expr),
    Fingerprint,
}

/// A parameter to leave out.
pub(super) enum Skip {
    Name(Ident),
    /// Of a parameter that is a pattern.
    Position(LitInt),
}

impl ToTokens for Skip {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        match self {
            Self::Name(name) => name.to_tokens(tokens),
            Self::Position(position) => position.to_tokens(tokens),
        }
    }
}

/// What happens after a crash.
pub(super) enum OnCrash {
    Rerun,
    Refuse,
    Reconcile(Expr),
}

/// Which errors.
pub(super) struct ErrorPattern {
    pub(super) pat: Pat,
    pub(super) guard: Option<(Token![if], Expr)>,
}

impl Options {
    pub(super) fn parse(tokens: TokenStream, errors: &mut Errors) -> Self {
        let mut options = Self::default();
        let parser = |input: ParseStream| {
            while !input.is_empty() {
                if let Err(error) = options.parse_one(input, errors) {
                    errors.combine(error);
                    skip_option(input);
                }
                if input.is_empty() || input.parse::<Option<Token![,]>>()?.is_some() {
                    continue;
                }
                errors.combine(input.error("expected `,` between two options"));
                if !at_option(input) {
                    skip_option(input);
                    input.parse::<Option<Token![,]>>()?;
                }
            }
            Ok(())
        };
        if let Err(error) = parser.parse2(tokens) {
            errors.combine(error);
        }
        options
    }

    /// Whether an option of this name was tried.
    pub(super) fn was_tried(&self, name: &str) -> bool {
        self.unread.iter().any(|unread| unread == name)
    }

    fn parse_one(&mut self, input: ParseStream, errors: &mut Errors) -> Result<()> {
        let Ok(option) = input.call(Ident::parse_any) else {
            return Err(input.error("expected an option, such as `key = ...`"));
        };
        let name = option.to_string();
        let read = self.parse_value(&name, option, input, errors);
        if read.is_err() {
            self.unread.push(name);
        }
        read
    }

    fn parse_value(
        &mut self,
        name: &str,
        option: Ident,
        input: ParseStream,
        errors: &mut Errors,
    ) -> Result<()> {
        match name {
            "key" => {
                let expr = expr(&option, "the expression that the key is", input)?;
                let reserved = matches!(&expr, Expr::Path(_))
                    && bare_word(&expr).is_some_and(|word| word == "fingerprint");
                let key = if reserved {
                    Key::Fingerprint
                } else {
                    Key::Expr(expr)
                };
                set(&mut self.key, option, key, errors);
            }
            "ttl" => {
                let ttl = expr(&option, "\"24h\"", input)?;
                set(&mut self.ttl, option, ttl, errors);
            }
            "lease" => {
                let lease = expr(&option, "\"30s\"", input)?;
                set(&mut self.lease, option, lease, errors);
            }
            "wait" => {
                let wait = expr(&option, "\"5s\"", input)?;
                set(&mut self.wait, option, wait, errors);
            }
            "store" => {
                let store = expr(&option, "an expression for an `Idem` handle", input)?;
                set(&mut self.store, option, store, errors);
            }
            "scope" => {
                let scope = expr(
                    &option,
                    "an expression for a tenant, user or account",
                    input,
                )?;
                set(&mut self.scope, option, scope, errors);
            }
            "name" => {
                let operation = expr(&option, "\"charges.create\"", input)?;
                set(&mut self.name, option, operation, errors);
            }
            "fingerprint" => {
                let fingerprint = expr(&option, "an expression that is `Fingerprint`", input)?;
                set(&mut self.fingerprint, option, fingerprint, errors);
            }
            "skip" => {
                let skip = skip(&option, input)?;
                set(&mut self.skip, option, skip, errors);
            }
            "skip_all" => {
                if input.peek(Token![=]) || input.peek(token::Paren) {
                    return Err(syn::Error::new(
                        option.span(),
                        "`skip_all` stands alone; to leave out some arguments write `skip(a, b)`",
                    ));
                }
                set(&mut self.skip_all, option, (), errors);
            }
            "on_crash" => {
                let on_crash = on_crash(&option, input)?;
                set(&mut self.on_crash, option, on_crash, errors);
            }
            "replay_err" => {
                let pattern = error_pattern(&option, input)?;
                set(&mut self.replay_err, option, pattern, errors);
            }
            "retry_err" => {
                let pattern = error_pattern(&option, input)?;
                set(&mut self.retry_err, option, pattern, errors);
            }
            "on_store_error" => {
                word(&option, "run", input)?;
                set(&mut self.on_store_error, option, (), errors);
            }
            "recover_with" => {
                let input = expr(
                    &option,
                    "an expression for the input that a retry of the call needs",
                    input,
                )?;
                set(&mut self.recover_with, option, input, errors);
            }
            "attempt" => {
                let attempt = binding(&option, input)?;
                set(&mut self.attempt, option, attempt, errors);
            }
            "crate" => {
                equals(&option, "::path::to::idem_runtime", input)?;
                let path = input.call(Path::parse_mod_style).map_err(|error| {
                    syn::Error::new(
                        error.span(),
                        "expected the path of the runtime, such as `crate = ::idem_runtime` or `crate = crate::idem`",
                    )
                })?;
                set(&mut self.krate, option, path, errors);
            }
            "tx" => {
                let tx = binding(&option, input)?;
                set(&mut self.tx, option, tx, errors);
            }
            "issued" => {
                if input.peek(Token![=]) || input.peek(token::Paren) {
                    return Err(syn::Error::new(
                        option.span(),
                        "`issued` stands alone; how long a key is good for is said where it is issued, \
                         `idem.issue(operation, scope, ttl)`",
                    ));
                }
                set(&mut self.issued, option, (), errors);
            }
            _ => {
                let message = match suggest(name, NAMES) {
                    Some(meant) => format!("unknown option `{name}`, did you mean `{meant}`?"),
                    None => {
                        let names: Vec<_> = NAMES.iter().map(|name| format!("`{name}`")).collect();
                        format!(
                            "unknown option `{name}`; the options are {}",
                            names.join(", ")
                        )
                    }
                };
                // It is not missing where it was meant.
                if let Some(meant) = suggest(name, NAMES) {
                    self.unread.push(meant.to_owned());
                }
                errors.at_span(option.span(), message);
                skip_value(input);
            }
        }
        Ok(())
    }
}

/// Takes an option, unless it is there already.
fn set<T>(slot: &mut Option<Given<T>>, option: Ident, value: T, errors: &mut Errors) {
    match slot {
        None => *slot = Some(Given { option, value }),
        Some(first) => {
            errors.at_span(
                option.span(),
                format!("`{option}` is given twice: leave one of them out"),
            );
            errors.at_span(first.option.span(), format!("this is the first `{option}`"));
        }
    }
}

/// The `=` behind an option that needs a value, such as `example`.
fn equals(option: &Ident, example: &str, input: ParseStream) -> Result<()> {
    if input.parse::<Option<Token![=]>>()?.is_none() || input.is_empty() || input.peek(Token![,]) {
        return Err(syn::Error::new(
            option.span(),
            if example.contains(' ') {
                format!("`{option}` needs a value: write `{option} = ...` with {example}")
            } else {
                format!("`{option}` needs a value, such as `{option} = {example}`")
            },
        ));
    }
    Ok(())
}

fn expr(option: &Ident, example: &str, input: ParseStream) -> Result<Expr> {
    equals(option, example, input)?;
    input.parse()
}

fn word(option: &Ident, known: &str, input: ParseStream) -> Result<()> {
    equals(option, known, input)?;
    let given: Option<Ident> = input.call(Ident::parse_any).ok();
    match given {
        Some(given) if given == known => Ok(()),
        Some(given) => Err(syn::Error::new(
            given.span(),
            format!("`{option}` can be `{known}` only: write `{option} = {known}` or leave it out"),
        )),
        None => Err(input.error(format!("expected `{option} = {known}`"))),
    }
}

/// The name that an option gives to something in the body, for example its own.
fn binding(option: &Ident, input: ParseStream) -> Result<Ident> {
    equals(option, &option.to_string(), input)?;
    input.parse().map_err(|error| {
        syn::Error::new(
            error.span(),
            format!("expected the name to give it in the body, such as `{option} = {option}`"),
        )
    })
}

fn skip(option: &Ident, input: ParseStream) -> Result<Vec<Skip>> {
    if !input.peek(token::Paren) {
        return Err(syn::Error::new(
            option.span(),
            "`skip` takes the arguments to leave out in parentheses: `skip(a, b)`",
        ));
    }
    let content;
    parenthesized!(content in input);
    let skip = Punctuated::<Skip, Token![,]>::parse_terminated_with(&content, |input| {
        if input.peek(LitInt) {
            return input.parse().map(Skip::Position);
        }
        input
            .call(Ident::parse_any)
            .map(Skip::Name)
            .map_err(|error| {
                syn::Error::new(
                    error.span(),
                    "expected the name of an argument, as in `skip(a, b)`",
                )
            })
    })?;
    if skip.is_empty() {
        return Err(syn::Error::new(
            option.span(),
            "`skip()` leaves nothing out: name arguments, as in `skip(a, b)`, or leave it out",
        ));
    }
    Ok(skip.into_iter().collect())
}

fn on_crash(option: &Ident, input: ParseStream) -> Result<OnCrash> {
    const WORDS: &[&str] = &["rerun", "refuse", "reconcile"];
    const KNOWN: &str = "`rerun`, `refuse` or `reconcile(EXPR)`";
    equals(option, "refuse", input)?;
    let Ok(given) = input.call(Ident::parse_any) else {
        return Err(input.error(format!("expected {KNOWN}")));
    };
    match given.to_string().as_str() {
        "rerun" => Ok(OnCrash::Rerun),
        "refuse" => Ok(OnCrash::Refuse),
        "reconcile" => {
            const NEEDS: &str = "`reconcile` needs the future to ask in parentheses, such as \
                                 `reconcile(self.bank.lookup(&charge.id))`";
            if !input.peek(token::Paren) {
                return Err(syn::Error::new(given.span(), NEEDS));
            }
            let content;
            parenthesized!(content in input);
            if content.is_empty() {
                return Err(syn::Error::new(given.span(), NEEDS));
            }
            let expr = content.parse()?;
            content.parse::<Option<Token![,]>>()?;
            if !content.is_empty() {
                return Err(content.error("`reconcile` takes one expression"));
            }
            Ok(OnCrash::Reconcile(expr))
        }
        other => Err(syn::Error::new(
            given.span(),
            match suggest(other, WORDS) {
                Some(meant) => format!("`{option}` cannot be `{other}`, did you mean `{meant}`?"),
                None => format!("`{option}` cannot be `{other}`: write {KNOWN}"),
            },
        )),
    }
}

fn error_pattern(option: &Ident, input: ParseStream) -> Result<ErrorPattern> {
    equals(option, "MyError::Declined { .. }", input)?;
    Ok(ErrorPattern {
        pat: input.call(Pat::parse_multi_with_leading_vert)?,
        guard: if input.peek(Token![if]) {
            Some((input.parse()?, input.parse()?))
        } else {
            None
        },
    })
}

/// Whether what follows looks like the beginning of an option.
fn at_option(input: ParseStream) -> bool {
    let ahead = input.fork();
    ahead.call(Ident::parse_any).is_ok()
        && (ahead.is_empty()
            || ahead.peek(Token![,])
            || ahead.peek(token::Paren)
            || (ahead.peek(Token![=]) && !ahead.peek(Token![==])))
}

/// Goes on to the comma before the next option, or to the end.
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

/// Goes on behind the value of an option that nobody knows.
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
