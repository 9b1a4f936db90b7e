//! Reads `#[fingerprint(...)]`: the same words, wherever they stand, each understood or refused on its own.

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::{Attribute, ExprPath, Ident, LitStr, Meta, Path, Token, WherePredicate};

use crate::suggest::suggest;

/// Everything that is wrong, to be told at once.
#[derive(Default)]
pub(super) struct Errors(Option<syn::Error>);

impl Errors {
    pub(super) fn push(&mut self, error: syn::Error) {
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            none => *none = Some(error),
        }
    }

    pub(super) fn at(&mut self, tokens: &impl ToTokens, message: impl std::fmt::Display) {
        self.push(syn::Error::new_spanned(tokens, message));
    }

    pub(super) fn into_result(self) -> syn::Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}

/// Where an attribute stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Type,
    Field,
    Variant,
}

impl Place {
    const fn words(self) -> &'static [&'static str] {
        match self {
            Self::Type => &["name", "bound", "crate"],
            Self::Field => &["skip", "rename", "with", "default", "float"],
            Self::Variant => &["rename"],
        }
    }

    const fn phrase(self) -> &'static str {
        match self {
            Self::Type => "a type",
            Self::Field => "a field",
            Self::Variant => "a variant",
        }
    }
}

/// The options of one place.
#[derive(Default)]
pub(super) struct Options {
    pub(super) name: Option<Set<LitStr>>,
    pub(super) bound: Option<Set<Vec<WherePredicate>>>,
    pub(super) krate: Option<Set<Path>>,
    pub(super) skip: Option<Set<()>>,
    pub(super) rename: Option<Set<LitStr>>,
    pub(super) with: Option<Set<ExprPath>>,
    pub(super) default: Option<Set<()>>,
    pub(super) float: Option<Set<()>>,
}

/// An option that was set, and the word that set it.
pub(super) struct Set<T> {
    pub(super) word: Ident,
    pub(super) value: T,
}

pub(super) fn options(attributes: &[Attribute], place: Place, errors: &mut Errors) -> Options {
    let mut options = Options::default();
    for attribute in attributes {
        if !attribute.path().is_ident("fingerprint") {
            continue;
        }
        let Meta::List(list) = &attribute.meta else {
            errors.at(
                &attribute.meta,
                format!(
                    "options stand in parentheses: `#[fingerprint({})]`",
                    example(place.words()[0])
                ),
            );
            continue;
        };
        for option in split(list.tokens.clone()) {
            let read = |input: ParseStream<'_>| one(input, place, &mut options);
            if let Err(error) = read.parse2(option) {
                errors.push(error);
            }
        }
    }
    options
}

/// The tokens between commas, so that what is wrong in one option does not hide the next.
fn split(tokens: TokenStream) -> Vec<TokenStream> {
    let mut parts = vec![TokenStream::new()];
    for token in tokens {
        match (&token, parts.last_mut()) {
            (TokenTree::Punct(punct), _) if punct.as_char() == ',' => {
                parts.push(TokenStream::new());
            }
            // Invisible delimiters come from `macro_rules!` fragments.
            (TokenTree::Group(group), Some(last)) if group.delimiter() == Delimiter::None => {
                last.extend(group.stream());
            }
            (_, Some(last)) => last.extend([token]),
            (_, None) => {}
        }
    }
    // A comma may end the list.
    if parts.last().is_some_and(TokenStream::is_empty) {
        parts.pop();
    }
    parts
}

fn one(input: ParseStream<'_>, place: Place, options: &mut Options) -> syn::Result<()> {
    let word = input.call(Ident::parse_any).map_err(|error| {
        syn::Error::new(
            error.span(),
            format!(
                "expected an option, such as `{}`",
                example(place.words()[0])
            ),
        )
    })?;
    let text = word.to_string();
    if !place.words().contains(&text.as_str()) {
        return Err(syn::Error::new(word.span(), misplaced(&text, place)));
    }
    let twice = || {
        syn::Error::new(
            word.span(),
            format!("`{text}` is there already: keep one of the two"),
        )
    };
    match text.as_str() {
        "skip" => set(&mut options.skip, &word, flag(input, &word)?, twice)?,
        "default" => set(&mut options.default, &word, flag(input, &word)?, twice)?,
        "float" => set(&mut options.float, &word, flag(input, &word)?, twice)?,
        "name" => set(&mut options.name, &word, string(input, &word)?, twice)?,
        "rename" => set(&mut options.rename, &word, string(input, &word)?, twice)?,
        "with" => {
            let path = path(input, &word, <ExprPath as syn::parse::Parse>::parse)?;
            set(&mut options.with, &word, path, twice)?;
        }
        "crate" => {
            let path = path(input, &word, Path::parse_mod_style)?;
            set(&mut options.krate, &word, path, twice)?;
        }
        _ => {
            let predicates = string(input, &word)?
                .parse_with(Punctuated::<_, Token![,]>::parse_terminated)
                .map_err(|error| {
                    let message = format!(
                        "`{text}` takes what stands after `where`, `{}`: {error}",
                        example(&text)
                    );
                    syn::Error::new(error.span(), message)
                })?
                .into_iter()
                .collect();
            set(&mut options.bound, &word, predicates, twice)?;
        }
    }
    if input.is_empty() {
        Ok(())
    } else {
        Err(input.error(format!("expected a comma after `{text}`")))
    }
}

fn set<T>(
    slot: &mut Option<Set<T>>,
    word: &Ident,
    value: T,
    twice: impl Fn() -> syn::Error,
) -> syn::Result<()> {
    if slot.is_some() {
        return Err(twice());
    }
    *slot = Some(Set {
        word: word.clone(),
        value,
    });
    Ok(())
}

fn flag(input: ParseStream<'_>, word: &Ident) -> syn::Result<()> {
    if input.peek(Token![=]) {
        return Err(input.error(format!("`{word}` stands alone, without a value")));
    }
    Ok(())
}

fn equals(input: ParseStream<'_>, word: &Ident) -> syn::Result<()> {
    if input.is_empty() {
        return Err(missing(word, word.span()));
    }
    let equals: syn::Result<Token![=]> = input.parse();
    equals.map_err(|error| missing(word, error.span()))?;
    Ok(())
}

fn missing(word: &Ident, span: Span) -> syn::Error {
    let example = example(&word.to_string());
    syn::Error::new(span, format!("`{word}` takes a value: `{example}`"))
}

fn string(input: ParseStream<'_>, word: &Ident) -> syn::Result<LitStr> {
    equals(input, word)?;
    let example = example(&word.to_string());
    input.parse().map_err(|error| {
        let span = if input.is_empty() {
            word.span()
        } else {
            error.span()
        };
        syn::Error::new(span, format!("`{word}` takes a string: `{example}`"))
    })
}

fn path<T>(
    input: ParseStream<'_>,
    word: &Ident,
    parse: impl Fn(ParseStream<'_>) -> syn::Result<T>,
) -> syn::Result<T> {
    equals(input, word)?;
    let example = example(&word.to_string());
    let quoted: Option<LitStr> = input.fork().parse().ok();
    parse(input).map_err(|error| match quoted {
        Some(quoted) => syn::Error::new(
            quoted.span(),
            format!(
                "`{word}` takes a path without quotes: `{word} = {}`",
                quoted.value()
            ),
        ),
        None => {
            let span = if input.is_empty() {
                word.span()
            } else {
                error.span()
            };
            syn::Error::new(span, format!("`{word}` takes a path: `{example}`"))
        }
    })
}

fn example(word: &str) -> &'static str {
    match word {
        "name" => r#"name = "charge""#,
        "bound" => r#"bound = "T: Fingerprint""#,
        "crate" => "crate = path::to::idem_runtime",
        "rename" => r#"rename = "amount""#,
        "with" => "with = function",
        _ => "skip",
    }
}

/// Why a word does not belong where it stands.
fn misplaced(word: &str, place: Place) -> String {
    let here = place.phrase();
    match (word, place) {
        ("skip", Place::Variant) => {
            return "a variant cannot be skipped, it says which request this is; skip fields of it"
                .into();
        }
        ("rename", Place::Type) => {
            return "a type has no name in the canonical form, so there is nothing to rename; \
                    `name = \"...\"` wraps its form in a map with that one name"
                .into();
        }
        ("name", Place::Field | Place::Variant) => {
            return format!("`name` goes on a type; on {here} it is `rename = \"...\"`");
        }
        _ => {}
    }
    let elsewhere = [Place::Type, Place::Field, Place::Variant]
        .into_iter()
        .find(|other| *other != place && other.words().contains(&word));
    if let Some(other) = elsewhere {
        return format!("`{word}` goes on {}, not on {here}", other.phrase());
    }
    let words = place
        .words()
        .iter()
        .map(|word| format!("`{word}`"))
        .collect::<Vec<_>>()
        .join(", ");
    match suggest(word, place.words()) {
        Some(meant) => format!("`{word}` is no option of {here}, did you mean `{meant}`?"),
        None => format!("`{word}` is no option of {here}, there is {words}"),
    }
}
