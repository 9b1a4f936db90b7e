//! `#[derive(Fingerprint)]` in four stages: parse, check, model, expand.
//!
//! 1. `parse` reads the options in `#[fingerprint(...)]`.
//! 2. `check` reports every error in the type and its options, and builds the model.
//! 3. `model` describes the canonical form of the type.
//! 4. `expand` generates the implementation. It cannot fail.

mod bounds;
mod check;
mod expand;
mod model;
mod parse;

use proc_macro2::TokenStream;
use syn::DeriveInput;

use crate::errors::Errors;

/// Expands to the implementation of `Fingerprint`.
///
/// If there are errors, it is empty, so that the compiler does not report errors that follow from a missing implementation.
pub(crate) fn derive(input: TokenStream) -> TokenStream {
    let input: DeriveInput = match syn::parse2(input) {
        Ok(input) => input,
        Err(error) => return error.into_compile_error(),
    };
    let mut errors = Errors::default();
    let model = check::check(&input, &mut errors);
    if errors.is_empty() {
        expand::implementation(&model)
    } else {
        errors.followed_by(expand::placeholder(&model))
    }
}
