//! Reads the key from the `Idempotency-Key` request header.

use http::HeaderMap;
use http::header::HeaderName;

use super::refusal::Refusal;
use super::syntax::KeySyntax;
use crate::key::Key;
use crate::structured::{self, trim};

pub use crate::structured::IDEMPOTENCY_KEY;

/// Response header that is `true` if the response is a stored one, and the handler did not run.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Reads the key of a request. None if the request has no such header.
pub(super) fn read(headers: &HeaderMap, syntax: KeySyntax) -> Result<Option<Key>, Refusal> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(Refusal::RepeatedKey);
    }
    let value = trim(value.as_bytes());
    let is_quoted = value.starts_with(b"\"");
    let text = if is_quoted {
        structured::read(value)
    } else if value.iter().all(|byte| is_bare(*byte)) {
        std::str::from_utf8(value).ok().map(str::to_owned)
    } else {
        None
    };
    let text = text.ok_or(Refusal::MalformedKey(syntax))?;
    let key = Key::new(text).map_err(Refusal::InvalidKey)?;
    // Not `MalformedKey`: in lenient syntax this is a key, and may have been used before the syntax changed.
    if syntax == KeySyntax::Strict && !is_quoted {
        return Err(Refusal::UnquotedKey);
    }
    Ok(Some(key))
}

fn is_bare(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'"' | b',' | b';' | b'\\')
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn key(value: &[u8], syntax: KeySyntax) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert(IDEMPOTENCY_KEY, HeaderValue::from_bytes(value).unwrap());
        let key = read(&headers, syntax).ok()?;
        key.map(|key| key.as_str().to_owned())
    }

    #[test]
    fn accepts_strings_of_structured_fields() {
        for (value, text) in [
            (r#""k""#, "k"),
            (r#"  "k"  "#, "k"),
            (r#""a b, c; d""#, "a b, c; d"),
            (r#""a\"b\\c""#, r#"a"b\c"#),
            (r#""k";v=1;w="a\";b";x;y=:aGk=:;z=?1"#, "k"),
            (r#""k"; *a=tok/en"#, "k"),
        ] {
            for syntax in [KeySyntax::Strict, KeySyntax::Lenient] {
                assert_eq!(
                    key(value.as_bytes(), syntax).as_deref(),
                    Some(text),
                    "{value}"
                );
            }
        }
    }

    #[test]
    fn accepts_bare_keys_only_in_lenient_syntax() {
        for value in [
            "k",
            "8e03978e-40d5-43e8-bc93-6894a57f9324",
            "a/b:c=d+e",
            "42",
            "?1",
        ] {
            assert_eq!(
                key(value.as_bytes(), KeySyntax::Lenient).as_deref(),
                Some(value)
            );
            assert_eq!(key(value.as_bytes(), KeySyntax::Strict), None, "{value}");
        }
    }

    #[test]
    fn rejects_malformed_keys() {
        let long = format!("\"{}\"", "k".repeat(256));
        for value in [
            &b""[..],
            b"\"\"",
            b"\"",
            b"\"k",
            b"k\"",
            br#""k\""#,
            br#""a\n""#,
            br#""a" "b""#,
            br#""a", "b""#,
            b"a, b",
            b"a b",
            b"a;b",
            br#""k";"#,
            br#""k";A=1"#,
            br#""k";a="#,
            br#""k";a="b"#,
            br#""k"x"#,
            b"\"\xc3\xa4\"",
            b"\xc3\xa4",
            b"\"a\tb\"",
            long.as_bytes(),
        ] {
            for syntax in [KeySyntax::Strict, KeySyntax::Lenient] {
                assert_eq!(key(value, syntax), None, "{}", value.escape_ascii());
            }
        }
    }
}
