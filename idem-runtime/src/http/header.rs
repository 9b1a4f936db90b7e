//! Reads the key from its request header.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::HeaderName;
use idem_store::structured::{self, trim};

use super::problem::{Problem, ProblemKind};
use super::syntax::KeySyntax;
use crate::error::InvalidKey;
use crate::key::Key;

/// Request header with the key, from draft-ietf-httpapi-idempotency-key-header-07.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static(structured::IDEMPOTENCY_KEY);

/// Error of [`KeySyntax::parse`] and [`KeySyntax::find`]. As a [`Problem`] it is a response for the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidKeyHeader {
    /// The request has no key, and needs one. [`KeySyntax::find`] returns `None` instead, for the caller to decide.
    #[error(
        "the request has no idempotency key; make one for this request and repeat it with every retry"
    )]
    Missing,
    /// The request has more than one header with a key.
    #[error("the request has more than one idempotency key; send exactly one header")]
    Repeated,
    /// The value is not a key in this syntax.
    #[error("{}", malformed(*.0))]
    Malformed(KeySyntax),
    /// The key has no quotes, and the syntax is [`Strict`](KeySyntax::Strict).
    #[error("put the key in quotes (RFC 9651): it is the same key with and without them")]
    Unquoted,
    /// The value is well-formed, but its text is not a valid key.
    #[error(transparent)]
    Key(#[from] InvalidKey),
}

fn malformed(syntax: KeySyntax) -> &'static str {
    match syntax {
        KeySyntax::Strict => {
            "send the idempotency key as one string in quotes, such as \"8e03978e-40d5\" (RFC 9651)"
        }
        KeySyntax::Lenient => {
            "send the idempotency key as one string in quotes (RFC 9651), or without quotes if the key is visible ASCII \
             without quotes, commas, semicolons and backslashes"
        }
    }
}

impl From<InvalidKeyHeader> for Problem {
    fn from(error: InvalidKeyHeader) -> Self {
        let kind = match error {
            InvalidKeyHeader::Missing => ProblemKind::MissingKey,
            InvalidKeyHeader::Repeated => ProblemKind::RepeatedKey,
            InvalidKeyHeader::Malformed(_) => ProblemKind::MalformedKey,
            InvalidKeyHeader::Unquoted => ProblemKind::UnquotedKey,
            // Its text names functions of this crate.
            InvalidKeyHeader::Key(error) => return Self::of_key(error),
        };
        Self::new(kind, error.to_string())
    }
}

impl KeySyntax {
    /// Parses the value of a key's header: a string of structured fields (RFC 9651 §3.3.3), or with
    /// [`Lenient`](Self::Lenient) also an unquoted key. Parameters of the string are ignored, because the draft defines
    /// none.
    ///
    /// The layer and the extractor do this themselves. The function is for frameworks that have neither, and for keys
    /// in the metadata of queues and RPCs. The key has no scope: use `scope = ...` or [`Key::scoped`].
    ///
    /// ```
    /// use idem_runtime::http::{InvalidKeyHeader, KeySyntax};
    ///
    /// let key = KeySyntax::Lenient.parse(b"\"8e03978e-40d5\"")?;
    /// assert_eq!(key, KeySyntax::Lenient.parse(b"8e03978e-40d5")?);
    /// assert_eq!(KeySyntax::Strict.parse(b"8e03978e-40d5"), Err(InvalidKeyHeader::Unquoted));
    /// # Ok::<_, InvalidKeyHeader>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidKeyHeader`] if the value is malformed, or its text is empty or longer than 255 characters.
    pub fn parse(self, value: &[u8]) -> Result<Key, InvalidKeyHeader> {
        let value = trim(value);
        let is_quoted = value.starts_with(b"\"");
        let text = if is_quoted {
            structured::read(value)
        } else if value.iter().all(|byte| is_bare(*byte)) {
            std::str::from_utf8(value).ok().map(str::to_owned)
        } else {
            None
        };
        let key = Key::new(text.ok_or(InvalidKeyHeader::Malformed(self))?)?;
        // Not `Malformed`: in lenient syntax this is a key, and may have been used before the syntax changed.
        if self == Self::Strict && !is_quoted {
            return Err(InvalidKeyHeader::Unquoted);
        }
        Ok(key)
    }

    /// Finds and parses the key in the headers of a request. None if there is no header of this name.
    ///
    /// ```
    /// use http::HeaderMap;
    /// use idem_runtime::http::{IDEMPOTENCY_KEY, InvalidKeyHeader, KeySyntax, Problem};
    ///
    /// fn key(headers: &HeaderMap) -> Result<idem_runtime::Key, Problem> {
    ///     let key = KeySyntax::Lenient.find(headers, &IDEMPOTENCY_KEY)?;
    ///     Ok(key.ok_or(InvalidKeyHeader::Missing)?)
    /// }
    /// # assert!(key(&HeaderMap::new()).is_err());
    /// ```
    ///
    /// # Errors
    /// [`InvalidKeyHeader`] if the header is there more than once, or as for [`parse`](Self::parse).
    pub fn find(
        self,
        headers: &HeaderMap,
        name: &HeaderName,
    ) -> Result<Option<Key>, InvalidKeyHeader> {
        let mut values = headers.get_all(name).iter();
        let Some(value) = values.next() else {
            return Ok(None);
        };
        if values.next().is_some() {
            return Err(InvalidKeyHeader::Repeated);
        }
        self.parse(value.as_bytes()).map(Some)
    }
}

fn is_bare(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'"' | b',' | b';' | b'\\')
}

/// Name of a header as people write it: `Idempotency-Key`.
pub(super) fn title(name: &HeaderName) -> Cow<'static, str> {
    if *name == IDEMPOTENCY_KEY {
        return "Idempotency-Key".into();
    }
    let mut starts_word = true;
    let title = name.as_str().chars().map(|char| {
        let title = if starts_word {
            char.to_ascii_uppercase()
        } else {
            char
        };
        starts_word = char == '-';
        title
    });
    title.collect::<String>().into()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn key(value: &[u8], syntax: KeySyntax) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert(IDEMPOTENCY_KEY, HeaderValue::from_bytes(value).unwrap());
        let found = syntax.find(&headers, &IDEMPOTENCY_KEY).ok().flatten();
        assert_eq!(found, syntax.parse(value).ok());
        found.map(|key| key.as_str().to_owned())
    }

    #[test]
    fn each_error_is_a_problem_of_its_own() {
        let problem = |headers: &HeaderMap| match KeySyntax::Strict.find(headers, &IDEMPOTENCY_KEY)
        {
            Ok(key) => key.map(|_| "key"),
            Err(error) => Some(Problem::from(error).kind().slug()),
        };
        let mut headers = HeaderMap::new();
        assert_eq!(problem(&headers), None);
        for (value, expected) in [
            ("\"k\"", "key"),
            ("k", "unquoted-key"),
            ("a, b", "malformed-key"),
            ("\"\"", "malformed-key"),
        ] {
            headers.insert(IDEMPOTENCY_KEY, HeaderValue::from_static(value));
            assert_eq!(problem(&headers), Some(expected), "{value}");
        }
        headers.append(IDEMPOTENCY_KEY, HeaderValue::from_static("\"k\""));
        assert_eq!(problem(&headers), Some("repeated-key"));
        let missing = Problem::from(InvalidKeyHeader::Missing);
        assert_eq!(missing.kind(), ProblemKind::MissingKey);
    }

    #[test]
    fn another_header_is_read_by_its_name() {
        let name = HeaderName::from_static("x-request-id");
        let mut headers = HeaderMap::new();
        headers.insert(IDEMPOTENCY_KEY, HeaderValue::from_static("ignored"));
        assert_eq!(KeySyntax::Lenient.find(&headers, &name), Ok(None));
        headers.insert(&name, HeaderValue::from_static("k"));
        let key = KeySyntax::Lenient.find(&headers, &name).unwrap().unwrap();
        assert_eq!(key.as_str(), "k");
        assert_eq!(title(&name), "X-Request-Id");
        assert_eq!(title(&IDEMPOTENCY_KEY), "Idempotency-Key");
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
            (r#""k";a=%"f%c3%bc; r, you";b"#, "k"),
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
            br#""k";a=%"b"#,
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
