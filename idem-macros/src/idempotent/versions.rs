//! The options `version`, `upgrade` and `downgrade`: their values and parsers.

use proc_macro2::{Ident, TokenStream};
use quote::ToTokens;
use syn::parse::ParseStream;
use syn::{Error, Expr, ExprLit, ExprPath, Lit, LitInt, Result};

use super::tokens::bare;
use super::values::Hint::{Example, Words};
use super::values::{Value, expr};

/// Version of the result type.
pub(super) struct Version {
    pub(super) number: u32,
    written: LitInt,
}

impl Value for Version {}

impl ToTokens for Version {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        self.written.to_tokens(tokens);
    }
}

/// Function that converts a result of one version into the next one. `None` for a version of which no result is left.
pub(super) type Conversion = Option<ExprPath>;

/// The functions of `upgrade`, that of version 1 first.
pub(super) struct Upgrade {
    pub(super) conversions: Vec<Conversion>,
    written: Expr,
}

impl Value for Upgrade {}

impl ToTokens for Upgrade {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        self.written.to_tokens(tokens);
    }
}

/// Function of `downgrade`.
pub(super) struct Downgrade(pub(super) ExprPath);

impl Value for Downgrade {}

/// Parses the value of `version`.
pub(super) fn version(option: &Ident, input: ParseStream) -> Result<Version> {
    let given = expr(Example("2"))(option, input)?;
    if let Expr::Lit(ExprLit {
        lit: Lit::Int(written),
        ..
    }) = bare(&given)
        && written.suffix().is_empty()
        && let Ok(number) = written.base10_parse::<u32>()
        && number > 0
    {
        return Ok(Version {
            number,
            written: written.clone(),
        });
    }
    Err(Error::new_spanned(
        given,
        "a version is a whole number, such as `version = 2`; version 1 is that of the results which were stored before the \
         function had one",
    ))
}

/// Parses the value of `upgrade`.
pub(super) fn upgrade(option: &Ident, input: ParseStream) -> Result<Upgrade> {
    let written = expr(Example("v1_to_v2"))(option, input)?;
    let conversions = match bare(&written) {
        Expr::Array(list) => list.elems.iter().map(conversion).collect::<Result<_>>()?,
        one => vec![conversion(one)?],
    };
    Ok(Upgrade {
        conversions,
        written,
    })
}

fn conversion(given: &Expr) -> Result<Conversion> {
    match bare(given) {
        Expr::Infer(_) => Ok(None),
        Expr::Path(path) => Ok(Some(path.clone())),
        _ => Err(Error::new_spanned(
            given,
            "`upgrade` takes the name of a function from the result of one version to that of the next one, such as \
             `upgrade = v1_to_v2`, or a list of them, such as `upgrade = [v1_to_v2, v2_to_v3]`",
        )),
    }
}

/// Parses the value of `downgrade`.
pub(super) fn downgrade(option: &Ident, input: ParseStream) -> Result<Downgrade> {
    let given = expr(Words(
        "the name of a function from the result of the next version to that of this one",
    ))(option, input)?;
    match bare(&given) {
        Expr::Path(path) => Ok(Downgrade(path.clone())),
        _ => Err(Error::new_spanned(
            given,
            "`downgrade` takes the name of a function from the result of the next version to that of this one, such as \
             `downgrade = v2_to_v1`",
        )),
    }
}
