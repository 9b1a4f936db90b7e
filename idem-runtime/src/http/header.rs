//! The `Idempotency-Key` request header: reading a key off it.

use http::HeaderMap;
use http::header::HeaderName;

use super::problem::Refusal;
use crate::key::Key;
use crate::structured::{self, trim};

pub use crate::structured::IDEMPOTENCY_KEY;

/// The response header that says `true` where a stored response was given instead of running the handler.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// How a key must be spelt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum KeySyntax {
    /// As [`Strict`](Self::Strict), and bare as well: `Idempotency-Key: 8e03978e-40d5`, as most clients send it. A bare
    /// key is visible ASCII without `"`, `,`, `;` and `\`, and means the same key as its quoted spelling.
    #[default]
    Lenient,
    /// A string of structured fields alone, `Idempotency-Key: "8e03978e-40d5"`, as the draft has it (§2.1, RFC 9651
    /// §3.3.3).
    Strict,
}

/// The key of a request; none where it has no such header.
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
    // A refusal of its own: in lenient syntax this is a key, and may have been used as one before the syntax changed.
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
    fn a_string_of_structured_fields_is_a_key() {
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
    fn a_bare_key_is_one_in_lenient_syntax_alone() {
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
    fn anything_else_is_malformed() {
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
