//! `#[derive(Fingerprint)]`: parse, then a checked model, then an expansion that cannot fail.

use proc_macro2::TokenStream;

/// The implementation of `Fingerprint`.
pub(crate) fn derive(_input: TokenStream) -> TokenStream {
    TokenStream::new()
}
