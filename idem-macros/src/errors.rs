//! Compile errors, collected so that all of them are reported together.

use std::fmt::Display;

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};

/// Compile errors found so far.
#[derive(Default)]
pub(crate) struct Errors {
    all: Option<syn::Error>,
    count: usize,
}

impl Errors {
    /// Adds an error at these tokens.
    pub(crate) fn at(&mut self, tokens: impl ToTokens, message: impl Display) {
        self.push(syn::Error::new_spanned(tokens, message));
    }

    /// Adds an error at this span.
    pub(crate) fn at_span(&mut self, span: Span, message: impl Display) {
        self.push(syn::Error::new(span, message));
    }

    /// Adds an error.
    pub(crate) fn push(&mut self, error: syn::Error) {
        self.count += 1;
        match &mut self.all {
            Some(errors) => errors.combine(error),
            none => *none = Some(error),
        }
    }

    /// Runs a check. Returns whether it added an error.
    pub(crate) fn by(&mut self, check: impl FnOnce(&mut Self)) -> bool {
        let before = self.count;
        check(self);
        self.count > before
    }

    /// Returns whether no error was added.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_none()
    }

    /// Expands to the errors, followed by `item`.
    pub(crate) fn followed_by(self, item: impl ToTokens) -> TokenStream {
        let errors = self.all.map(|error| error.to_compile_error());
        quote!(#errors #item)
    }
}
