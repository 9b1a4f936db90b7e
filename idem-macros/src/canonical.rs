//! Generates the encoding of a map from names to values. The macro sorts and encodes the names.

use proc_macro2::{Ident, Literal, Span, TokenStream};
use quote::quote;

/// Entry of a map.
pub(crate) struct Entry {
    /// Name, encoded as a CBOR text string.
    pub name: String,
    /// Expression of type `&T`, where `T: Fingerprint`. It is evaluated more than once, so it must have no side effects.
    pub value: TokenStream,
}

/// Block that writes the entries to `encoder`, an expression of type `&mut Encoder`.
///
/// The entries are sorted by their encoded names (RFC 8949 §4.2.1). Absent values are left out. `private` is the path of
/// the runtime's `__private`.
pub(crate) fn encode_map(
    private: &TokenStream,
    encoder: &TokenStream,
    entries: Vec<Entry>,
) -> TokenStream {
    let mut entries: Vec<_> = entries
        .into_iter()
        .map(|Entry { name, value }| (text(&name), value))
        .collect();
    entries.sort_by(|(one, _), (other, _)| one.cmp(other));
    // The name resolves as generated code, so that the user's expressions cannot refer to it.
    let target = Ident::new("__encoder", Span::mixed_site());
    let values = entries.iter().map(|(_, value)| value);
    let writes = entries.iter().map(|(name, value)| {
        let name = Literal::byte_string(name);
        quote!(#private::Encoder::entry(#target, #name, #value);)
    });
    // The sum and the head of the map are constants, unless a value is known to be present only at run time.
    quote! {{
        let #target: &mut #private::Encoder = #encoder;
        #private::Encoder::map(#target, 0usize #(+ #private::Encoder::present(#values))*);
        #(#writes)*
    }}
}

/// Encodes a CBOR text string.
pub(crate) fn text(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len() + 9);
    let len = text.len() as u64;
    match len {
        0..24 => bytes.push(0x60 | len as u8),
        24..=0xff => bytes.extend([0x78, len as u8]),
        0x100..=0xffff => {
            bytes.push(0x79);
            bytes.extend((len as u16).to_be_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            bytes.push(0x7a);
            bytes.extend((len as u32).to_be_bytes());
        }
        _ => {
            bytes.push(0x7b);
            bytes.extend(len.to_be_bytes());
        }
    }
    bytes.extend(text.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn a_text_has_the_shortest_head() {
        for (len, head) in [
            (0, &[0x60][..]),
            (23, &[0x77]),
            (24, &[0x78, 24]),
            (255, &[0x78, 255]),
            (256, &[0x79, 1, 0]),
            (65_535, &[0x79, 255, 255]),
            (65_536, &[0x7a, 0, 1, 0, 0]),
        ] {
            let encoded = text(&"x".repeat(len));
            assert_eq!(encoded[..head.len()], *head);
            assert_eq!(encoded.len(), head.len() + len);
        }
    }
}
