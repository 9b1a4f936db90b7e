//! Parses the tokens in the parentheses of `#[idempotent(...)]` to [`Options`].
//!
//! An option that cannot be parsed is reported and skipped, so that the options after it are still parsed.

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{Expr, Result, Token, token};

use super::options::{NAMES, Options};
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
        let Ok(option) = input.call(Ident::parse_any) else {
            return Err(input.error("expected an option, such as `key = ...`"));
        };
        let Some(parsed) = self.parse_value(option.clone(), input, errors) else {
            self.unknown(&option, errors);
            skip_value(input);
            return Ok(());
        };
        if parsed.is_err() {
            self.unparsed.push(option.to_string());
        }
        parsed
    }

    fn unknown(&mut self, option: &Ident, errors: &mut Errors) {
        let message = if let Some(meant) = suggest(&option.to_string(), NAMES) {
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
