//! Writes a key into a header, and reads one from it.

use http::HeaderValue;
use idem_store::{Key, structured};

/// Encodes the key as a string of RFC 9651.
pub(super) fn quoted(key: &Key) -> Option<HeaderValue> {
    sensitive(&structured::write(key.as_str()))
}

/// Encodes the key without quotes, if it would arrive unchanged: surrounding spaces are not part of a header's value.
pub(super) fn unquoted(key: &Key) -> Option<HeaderValue> {
    let text = key.as_str();
    let arrives = !text.starts_with([' ', '"']) && !text.ends_with(' ');
    arrives.then(|| sensitive(text)).flatten()
}

/// Marks the value as sensitive, so that printed headers omit it: a key is often guessable or secret.
fn sensitive(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Reads the key from a string of RFC 9651, or from an unquoted value.
pub(super) fn parse(value: &HeaderValue) -> Option<Key> {
    let value = structured::trim(value.as_bytes());
    let text = match value.first() {
        Some(b'"') => structured::read(value)?,
        _ => std::str::from_utf8(value).ok()?.to_owned(),
    };
    Key::new(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Option<String> {
        parse(&HeaderValue::from_str(text).unwrap()).map(|key| key.as_str().to_owned())
    }

    #[test]
    fn what_is_written_is_read() {
        for text in ["k", " ", r#"a"b"#, r"a\b", r#"\""#, "~;=,", "\"quoted\""] {
            let key = Key::new(text).unwrap();
            let written = quoted(&key).unwrap();
            assert!(written.is_sensitive());
            assert_eq!(parse(&written).as_ref(), Some(&key), "{text}");
            // Bare, a key arrives as itself or is refused.
            assert!(unquoted(&key).is_none_or(|sent| parse(&sent).as_ref() == Some(&key)));
        }
        let escaped = quoted(&Key::new(r#"a"\"#).unwrap()).unwrap();
        assert_eq!(escaped.to_str().unwrap(), r#""a\"\\""#);
        let plain = unquoted(&Key::new("a b").unwrap()).unwrap();
        assert_eq!(plain.to_str().unwrap(), "a b");
        assert!(unquoted(&Key::new(" a").unwrap()).is_none());
    }

    #[test]
    fn strings_bare_keys_and_parameters_are_read_and_nothing_else() {
        assert_eq!(key(r#""k""#).as_deref(), Some("k"));
        assert_eq!(key("k").as_deref(), Some("k"));
        assert_eq!(key(r#""k";a=1"#).as_deref(), Some("k"));
        for wrong in [
            "",
            r#"""#,
            r#""""#,
            r#""k"#,
            r#""k"l"#,
            r#""k\"#,
            r#""\k""#,
            r#""k", "l""#,
            r#""k";A=1"#,
            r#""k";"#,
        ] {
            assert_eq!(key(wrong), None, "{wrong}");
        }
    }
}
