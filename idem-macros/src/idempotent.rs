//! `#[idempotent(...)]`: options and function are parsed, checked once, and expanded. Whatever is wrong is told at
//! once, beside the function as it was written, so that nothing else seems wrong because of it.

mod duration;
mod expand;
mod function;
mod model;
mod params;
mod parse;
#[cfg(test)]
mod snapshots;
mod tokens;

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};

use self::function::Function;
use self::model::Idempotent;
use self::parse::Options;

/// The function that takes the place of `item`, or the errors and `item`.
pub(crate) fn expand(options: TokenStream, item: &TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let options = Options::parse(options, &mut errors);
    let function = match Function::parse(item.clone(), &mut errors) {
        Ok(function) => function,
        // What the options lack does not matter until they stand on a function.
        Err(error) => {
            errors.combine(error);
            return errors.beside(item);
        }
    };
    let plain = function.without_macro(&options);
    match Idempotent::check(options, function, &mut errors) {
        Some(idempotent) if errors.is_empty() => idempotent.expand(),
        _ => errors.beside(&plain),
    }
}

/// Everything that is wrong.
#[derive(Default)]
struct Errors(Option<syn::Error>);

impl Errors {
    /// At these tokens.
    fn at(&mut self, tokens: impl ToTokens, message: impl std::fmt::Display) {
        self.combine(syn::Error::new_spanned(tokens, message));
    }

    /// At this span.
    fn at_span(&mut self, span: Span, message: impl std::fmt::Display) {
        self.combine(syn::Error::new(span, message));
    }

    fn combine(&mut self, error: syn::Error) {
        match &mut self.0 {
            Some(errors) => errors.combine(error),
            none => *none = Some(error),
        }
    }

    fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    fn beside(self, item: &TokenStream) -> TokenStream {
        let errors = self.0.map(|error| error.to_compile_error());
        quote!(#errors #item)
    }
}
