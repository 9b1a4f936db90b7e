//! `#[derive(Fingerprint)]`: parse, then a checked model, then an expansion that cannot fail.

mod expand;
mod model;
mod parse;

use proc_macro2::TokenStream;
use quote::quote;
use syn::DeriveInput;

/// The implementation of `Fingerprint`; beside errors an empty one, so that nothing else complains.
pub(crate) fn derive(input: TokenStream) -> TokenStream {
    let input: DeriveInput = match syn::parse2(input) {
        Ok(input) => input,
        Err(error) => return error.into_compile_error(),
    };
    let mut errors = parse::Errors::default();
    let model = model::check(&input, &mut errors);
    match errors.into_result() {
        Ok(()) => expand::implementation(&model),
        Err(errors) => {
            let errors = errors.into_compile_error();
            let placeholder = expand::placeholder(&model);
            quote!(#errors #placeholder)
        }
    }
}
