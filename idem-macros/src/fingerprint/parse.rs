//! Parses `#[fingerprint(...)]`.
//!
//! Each option is declared once. An option that cannot be parsed does not affect the others.

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::parse::{Parse as _, ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::{Attribute, Error, ExprPath, Ident, LitStr, Meta, Path, Result, Token, WherePredicate};

use crate::errors::Errors;
use crate::suggest::suggest;

/// Place of an attribute.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Type,
    Field,
    Variant,
}

impl Place {
    fn words(self) -> Vec<&'static str> {
        let here = DECLARED
            .iter()
            .filter(|option| option.places.contains(&self));
        here.map(|option| option.word).collect()
    }

    fn example(self) -> &'static str {
        self.words().first().map_or("", |word| example(word))
    }

    const fn phrase(self) -> &'static str {
        match self {
            Self::Type => "a type",
            Self::Field => "a field",
            Self::Variant => "a variant",
        }
    }
}

/// Declares options: each is a field of [`Options`], with the type of its value.
///
/// - `word`: the option as the user writes it.
/// - `places`: where it may be.
/// - `value`: the parser of the value.
/// - `example`: the option with a value, for error messages.
macro_rules! declare_options {
    ($($field:ident: $type:ty {
        word: $word:literal,
        places: $places:expr,
        value: $parser:expr,
        example: $example:literal,
    })*) => {
        /// Options of one type, field or variant.
        #[derive(Default)]
        pub(super) struct Options {
            $(pub(super) $field: Option<Given<$type>>,)*
        }

        const DECLARED: &[Declared] = &[$(Declared {
            word: $word,
            places: $places,
            example: $example,
        }),*];

        impl Options {
            /// Parses the value of an option, and stores it.
            fn parse_value(&mut self, word: &Ident, input: ParseStream<'_>) -> Result<()> {
                match word.to_string().as_str() {
                    $($word => {
                        let twice = self.$field.is_some();
                        let value = $parser(input, word)?;
                        if twice {
                            return Err(given_twice(word));
                        }
                        let word = word.clone();
                        self.$field = Some(Given { word, value });
                    })*
                    _ => {}
                }
                Ok(())
            }
        }
    };
}

declare_options! {
    name: LitStr {
        word: "name",
        places: &[Place::Type],
        value: string,
        example: r#"name = "charge""#,
    }
    bound: Vec<WherePredicate> {
        word: "bound",
        places: &[Place::Type],
        value: predicates,
        example: r#"bound = "T: Fingerprint""#,
    }
    krate: Path {
        word: "crate",
        places: &[Place::Type],
        value: path(Path::parse_mod_style),
        example: "crate = path::to::idem_runtime",
    }
    skip: () {
        word: "skip",
        places: &[Place::Field],
        value: flag,
        example: "skip",
    }
    rename: LitStr {
        word: "rename",
        places: &[Place::Field, Place::Variant],
        value: string,
        example: r#"rename = "amount""#,
    }
    with: ExprPath {
        word: "with",
        places: &[Place::Field],
        value: path(ExprPath::parse),
        example: "with = function",
    }
    default: () {
        word: "default",
        places: &[Place::Field],
        value: flag,
        example: "default",
    }
    float: () {
        word: "float",
        places: &[Place::Field],
        value: flag,
        example: "float",
    }
}

/// Option that was written, with its value.
pub(super) struct Given<T> {
    pub(super) word: Ident,
    pub(super) value: T,
}

/// Declaration of an option.
struct Declared {
    word: &'static str,
    places: &'static [Place],
    example: &'static str,
}

/// Parses the options in the attributes of one place.
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
                    "write the options in parentheses: `#[fingerprint({})]`",
                    place.example()
                ),
            );
            continue;
        };
        for option in split(list.tokens.clone()) {
            let read = |input: ParseStream<'_>| parse_one(input, place, &mut options);
            if let Err(error) = read.parse2(option) {
                errors.push(error);
            }
        }
    }
    options
}

/// Splits tokens at commas, so that an error in one option does not hide those in the next.
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
    // The list may end with a comma.
    if parts.last().is_some_and(TokenStream::is_empty) {
        parts.pop();
    }
    parts
}

fn parse_one(input: ParseStream<'_>, place: Place, options: &mut Options) -> Result<()> {
    let word = input.call(Ident::parse_any).map_err(|error| {
        let message = format!("expected an option, such as `{}`", place.example());
        Error::new(error.span(), message)
    })?;
    let text = word.to_string();
    if !place.words().contains(&text.as_str()) {
        return Err(Error::new(word.span(), misplaced(&text, place)));
    }
    options.parse_value(&word, input)?;
    if input.is_empty() {
        Ok(())
    } else {
        Err(input.error(format!("expected a comma after `{text}`")))
    }
}

fn given_twice(word: &Ident) -> Error {
    Error::new(
        word.span(),
        format!("`{word}` is given twice: remove one of them"),
    )
}

fn flag(input: ParseStream<'_>, word: &Ident) -> Result<()> {
    if input.peek(Token![=]) {
        return Err(input.error(format!("`{word}` takes no value")));
    }
    Ok(())
}

fn equals(input: ParseStream<'_>, word: &Ident) -> Result<()> {
    let missing = |span: Span| {
        let example = example(&word.to_string());
        Error::new(span, format!("`{word}` needs a value: `{example}`"))
    };
    if input.is_empty() {
        return Err(missing(word.span()));
    }
    let equals: Result<Token![=]> = input.parse();
    equals.map_err(|error| missing(error.span()))?;
    Ok(())
}

fn string(input: ParseStream<'_>, word: &Ident) -> Result<LitStr> {
    equals(input, word)?;
    input
        .parse()
        .map_err(|error| wrong_value(input, word, "string", &error))
}

fn predicates(input: ParseStream<'_>, word: &Ident) -> Result<Vec<WherePredicate>> {
    let predicates = string(input, word)?.parse_with(Punctuated::<_, Token![,]>::parse_terminated);
    match predicates {
        Ok(predicates) => Ok(predicates.into_iter().collect()),
        Err(error) => {
            let example = example(&word.to_string());
            let message = format!(
                "the value of `{word}` is the text of a `where` clause, `{example}`: {error}"
            );
            Err(Error::new(error.span(), message))
        }
    }
}

/// Parser of a path, which may be written in quotes by mistake.
fn path<T>(
    parse: impl Fn(ParseStream<'_>) -> Result<T>,
) -> impl Fn(ParseStream<'_>, &Ident) -> Result<T> {
    move |input, word| {
        equals(input, word)?;
        let quoted: Option<LitStr> = input.fork().parse().ok();
        parse(input).map_err(|error| match quoted {
            Some(quoted) => {
                let path = quoted.value();
                let message =
                    format!("write the path of `{word}` without quotes: `{word} = {path}`");
                Error::new(quoted.span(), message)
            }
            None => wrong_value(input, word, "path", &error),
        })
    }
}

fn wrong_value(input: ParseStream<'_>, word: &Ident, what: &str, error: &Error) -> Error {
    let span = if input.is_empty() {
        word.span()
    } else {
        error.span()
    };
    let example = example(&word.to_string());
    Error::new(
        span,
        format!("the value of `{word}` is a {what}: `{example}`"),
    )
}

fn example(word: &str) -> &'static str {
    let declared = DECLARED.iter().find(|option| option.word == word);
    declared.map_or("", |option| option.example)
}

/// Message for a word that is no option of this place.
fn misplaced(word: &str, place: Place) -> String {
    let here = place.phrase();
    match (word, place) {
        ("skip", Place::Variant) => {
            return "a variant cannot be skipped, because it tells requests apart: skip fields of it"
                .into();
        }
        ("rename", Place::Type) => {
            return "a type has no name in the canonical form, so there is nothing to rename: \
                    `name = \"...\"` wraps its form in a map with that one name"
                .into();
        }
        ("name", Place::Field | Place::Variant) => {
            return format!("`name` is for a type: on {here} write `rename = \"...\"`");
        }
        _ => {}
    }
    let elsewhere = [Place::Type, Place::Field, Place::Variant]
        .into_iter()
        .find(|other| *other != place && other.words().contains(&word));
    if let Some(other) = elsewhere {
        return format!("`{word}` is for {}, not for {here}", other.phrase());
    }
    let words = place.words();
    if let Some((_, instead)) = SERDE.iter().find(|(serde, _)| *serde == word) {
        return format!("`{word}` is not an option of {here}: {instead}");
    }
    match suggest(word, &words) {
        Some(meant) => format!("`{word}` is not an option of {here}, did you mean `{meant}`?"),
        None => {
            let words = words.join("`, `");
            format!("`{word}` is not an option of {here}; the options are `{words}`")
        }
    }
}

/// Options of serde and other words that have no counterpart, each with what to do instead.
const SERDE: &[(&str, &str)] = &[
    ("exclude", "to leave the field out, write `skip`"),
    (
        "flatten",
        "a field is one entry of the form; if its place may change, write it with `with = function`",
    ),
    ("ignore", "to leave the field out, write `skip`"),
    (
        "rename_all",
        "the names of the form need not be those of the JSON; to choose one, write `rename = \"...\"` at the field or \
         variant",
    ),
    (
        "skip_serializing_if",
        "to leave the field out while it has its default value, write `default`; `None` is left out by itself",
    ),
    (
        "tag",
        "an enum is written with the names of its variants, however serde writes it",
    ),
    (
        "untagged",
        "an enum is written with the names of its variants, however serde writes it",
    ),
];
