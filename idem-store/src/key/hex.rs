//! Bytes as hexadecimal digits.

/// Encodes bytes as lower-case digits.
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    push(&mut text, bytes);
    text
}

/// Appends the digits of these bytes to a text.
pub fn push(text: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        text.push(DIGITS[usize::from(byte >> 4)].into());
        text.push(DIGITS[usize::from(byte & 15)].into());
    }
}

/// Decodes the digits of `N` bytes, in lower or upper case. Returns `None` for any other text.
pub fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// Decodes digits, as [`decode`] does, of any number of bytes.
#[cfg(any(feature = "serde", feature = "cas"))]
pub fn decode_any(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| decode::<1>(std::str::from_utf8(pair).ok()?).map(|[byte]| byte))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_decoded_as_it_was_encoded() {
        let bytes: [u8; 256] = std::array::from_fn(|n| n as u8);
        let text = encode(&bytes);
        assert_eq!(text[..8], *"00010203");
        assert_eq!(text[504..], *"fcfdfeff");
        assert_eq!(decode(&text), Some(bytes));
        assert_eq!(decode(&text.to_uppercase()), Some(bytes));
    }

    #[test]
    fn other_texts_are_not_decoded() {
        assert_eq!(decode(""), Some([]));
        for text in [
            "", "1", "123", "12345", "0g10", "+123", " 123", "é12", "12\0\0",
        ] {
            assert_eq!(decode::<2>(text), None, "{text:?}");
        }
    }
}
