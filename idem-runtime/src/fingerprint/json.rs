//! Canonical form of JSON: numbers by their exact decimal value, objects sorted.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::encoder::Gather;
use super::{Encoder, Fingerprint};
use crate::error::FingerprintError;

/// Fingerprints JSON text by value. White space, the order of keys and the notation of numbers and strings make no
/// difference. Numbers keep their exact decimal value: 1 = 1.0 = 1e0, and 2^53 differs from 2^53 + 1.
///
/// [`digest`](super::digest) returns an error for text without a canonical form:
///
/// - malformed text
/// - duplicate keys in one object
/// - half of a surrogate pair
/// - a number with an exponent beyond 64 bits
/// - more than 128 levels
pub fn json(text: &[u8]) -> Json<'_> {
    Json(text)
}

/// JSON text without some members of its objects.
#[cfg(feature = "http")]
pub(crate) struct JsonWithout<'a> {
    pub(crate) text: &'a [u8],
    pub(crate) omitted: &'a Omitted,
}

/// Members that are left out of a fingerprint.
#[cfg(feature = "http")]
#[derive(Debug, Clone, Default)]
pub(crate) struct Omitted(Vec<Vec<String>>);

#[cfg(feature = "http")]
impl Omitted {
    /// Adds a member, by the names on the way to it. For each item of an array, the name is `*`.
    pub(crate) fn add(&mut self, path: Vec<String>) {
        self.0.push(path);
    }
}

/// Value of [`json`].
#[derive(Clone, Copy)]
pub struct Json<'a>(&'a [u8]);

impl std::fmt::Debug for Json<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Json({} bytes)", self.0.len())
    }
}

#[diagnostic::do_not_recommend]
impl Fingerprint for Json<'_> {
    fn fingerprint(&self, encoder: &mut Encoder) {
        encode(self.0, Vec::new(), encoder);
    }
}

#[cfg(feature = "http")]
impl Fingerprint for JsonWithout<'_> {
    fn fingerprint(&self, encoder: &mut Encoder) {
        let omitted = self.omitted.0.iter().map(Vec::as_slice);
        encode(self.text, omitted.collect(), encoder);
    }
}

/// Encodes text without the members on these paths.
fn encode(text: &[u8], omitted: Vec<&[String]>, encoder: &mut Encoder) {
    // The parser validates the text in one pass, without recursion. The code below relies on that. It reads the text
    // itself, because a serde visitor would not see the notation of a number.
    match serde_json::from_slice::<&RawValue>(text) {
        Ok(valid) => encode_valid(valid, omitted, encoder),
        Err(error) => encoder.fail(FingerprintError::new(format!(
            "the text is not valid JSON at line {} column {}",
            error.line(),
            error.column(),
        ))),
    }
}

fn encode_valid(text: &RawValue, omitted: Vec<&[String]>, encoder: &mut Encoder) {
    let mut text = Valid {
        text: text.get(),
        at: 0,
        omitted,
    };
    if let Err(error) = text.value(encoder) {
        encoder.fail(error);
    }
}

#[diagnostic::do_not_recommend]
impl Fingerprint for RawValue {
    fn fingerprint(&self, encoder: &mut Encoder) {
        encode_valid(self, Vec::new(), encoder);
    }
}

#[diagnostic::do_not_recommend]
impl Fingerprint for serde_json::Value {
    fn fingerprint(&self, encoder: &mut Encoder) {
        match self {
            Self::Null => encoder.null(),
            Self::Bool(value) => encoder.bool(*value),
            Self::Number(number) => number.fingerprint(encoder),
            Self::String(text) => encoder.text(text),
            Self::Array(items) => items.fingerprint(encoder),
            Self::Object(entries) => entries.fingerprint(encoder),
        }
    }
}

#[diagnostic::do_not_recommend]
impl Fingerprint for serde_json::Map<String, serde_json::Value> {
    fn fingerprint(&self, encoder: &mut Encoder) {
        encoder.map_of(self);
    }
}

#[diagnostic::do_not_recommend]
impl Fingerprint for serde_json::Number {
    fn fingerprint(&self, encoder: &mut Encoder) {
        if let Some(integer) = self.as_u64() {
            encoder.u64(integer);
        } else if let Some(integer) = self.as_i64() {
            encoder.i64(integer);
        } else {
            encoder.decimal(&self.to_string());
        }
    }
}

/// Text that is valid JSON.
struct Valid<'a> {
    text: &'a str,
    at: usize,
    /// Rests of the paths to omitted members that lead through the current value.
    omitted: Vec<&'a [String]>,
}

impl<'a> Valid<'a> {
    fn value(&mut self, encoder: &mut Encoder) -> Result<(), FingerprintError> {
        match self.next_token() {
            Some(b'{') => self.collection(Gather::Map, encoder),
            Some(b'[') => self.collection(Gather::Array, encoder),
            Some(b'"') => self.string(encoder),
            Some(b't') => {
                self.at += "true".len();
                encoder.bool(true);
                Ok(())
            }
            Some(b'f') => {
                self.at += "false".len();
                encoder.bool(false);
                Ok(())
            }
            Some(b'n') => {
                self.at += "null".len();
                encoder.null();
                Ok(())
            }
            Some(_) => self.number(encoder),
            None => Err(ended()),
        }
    }

    fn collection(&mut self, what: Gather, encoder: &mut Encoder) -> Result<(), FingerprintError> {
        // Remains if the collection is too deep, because then `gather` does not call the function.
        let mut result = Err(ended());
        encoder.gather(what, |encoder| match self.members(what, encoder) {
            Ok(count) => {
                result = Ok(());
                count
            }
            Err(error) => {
                encoder.fail(error);
                0
            }
        });
        result
    }

    fn members(&mut self, what: Gather, encoder: &mut Encoder) -> Result<usize, FingerprintError> {
        self.at += 1;
        let mut count = 0;
        loop {
            match self.next_token() {
                Some(b']' | b'}') => {
                    self.at += 1;
                    return Ok(count);
                }
                Some(b',') => self.at += 1,
                Some(_) if what == Gather::Map => {
                    let key = self.text()?;
                    // The colon.
                    self.next_token();
                    self.at += 1;
                    let around = self.enter(&key);
                    if self.omitted.iter().any(|path| path.is_empty()) {
                        self.skip()?;
                    } else {
                        let start = encoder.position();
                        encoder.text(&key);
                        let key_end = encoder.position();
                        self.value(encoder)?;
                        encoder.span(start, key_end);
                        count += 1;
                    }
                    self.omitted = around;
                }
                Some(_) => {
                    let around = self.enter("*");
                    self.value(encoder)?;
                    self.omitted = around;
                    count += 1;
                }
                None => return Err(ended()),
            }
        }
    }

    /// Follows the paths to omitted members into the member or item of this name. Returns the paths before that.
    fn enter(&mut self, name: &str) -> Vec<&'a [String]> {
        let inside = self.omitted.iter().filter_map(|path| {
            let (first, rest) = path.split_first()?;
            (first == name).then_some(rest)
        });
        let inside = inside.collect();
        std::mem::replace(&mut self.omitted, inside)
    }

    /// Skips a value.
    fn skip(&mut self) -> Result<(), FingerprintError> {
        let mut depth = 0_usize;
        loop {
            match self.next_token() {
                Some(b'"') => {
                    self.raw_string()?;
                }
                Some(b'{' | b'[') => {
                    depth += 1;
                    self.at += 1;
                }
                Some(b'}' | b']') => {
                    depth -= 1;
                    self.at += 1;
                }
                Some(b',' | b':') => self.at += 1,
                Some(_) => {
                    self.scalar();
                }
                None => return Err(ended()),
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    fn string(&mut self, encoder: &mut Encoder) -> Result<(), FingerprintError> {
        encoder.text(&self.text()?);
        Ok(())
    }

    /// Reads a string.
    fn text(&mut self) -> Result<Cow<'a, str>, FingerprintError> {
        let start = self.at;
        if self.raw_string()? == HasEscapes(false) {
            return Ok(Cow::Borrowed(&self.text[start + 1..self.at - 1]));
        }
        let text: String = serde_json::from_str(&self.text[start..self.at]).map_err(|_| {
            FingerprintError::new("a JSON string has half of a surrogate pair; send valid Unicode")
        })?;
        Ok(text.into())
    }

    /// Moves behind a string.
    fn raw_string(&mut self) -> Result<HasEscapes, FingerprintError> {
        let mut escaped = false;
        self.at += 1;
        loop {
            match self.text.as_bytes().get(self.at) {
                Some(b'"') => break,
                Some(b'\\') => {
                    escaped = true;
                    self.at += 2;
                }
                Some(_) => self.at += 1,
                None => return Err(ended()),
            }
        }
        self.at += 1;
        Ok(HasEscapes(escaped))
    }

    fn number(&mut self, encoder: &mut Encoder) -> Result<(), FingerprintError> {
        let number = self.scalar();
        if let Ok(integer) = number.parse() {
            encoder.u64(integer);
        } else if let Ok(integer) = number.parse() {
            encoder.i64(integer);
        } else {
            encoder.number(super::number::parse(number)?);
        }
        Ok(())
    }

    /// Moves behind a number or a word.
    fn scalar(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let end = rest
            .find([',', ']', '}', ' ', '\n', '\r', '\t'])
            .unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// Skips white space, and returns the first byte of the next token.
    fn next_token(&mut self) -> Option<u8> {
        loop {
            match self.text.as_bytes().get(self.at) {
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                other => return other.copied(),
            }
        }
    }
}

/// True for a string with escape sequences.
#[derive(PartialEq, Eq)]
struct HasEscapes(bool);

fn ended() -> FingerprintError {
    FingerprintError::new("the JSON text ended early")
}

#[cfg(test)]
#[cfg(feature = "http")]
mod tests {
    use super::*;
    use crate::fingerprint::canonical;

    fn without(paths: &[&[&str]], text: &str) -> Result<Vec<u8>, FingerprintError> {
        let mut omitted = Omitted::default();
        for path in paths {
            omitted.add(path.iter().map(|name| (*name).to_owned()).collect());
        }
        canonical(&JsonWithout {
            text: text.as_bytes(),
            omitted: &omitted,
        })
    }

    #[test]
    fn omitted_members_leave_the_form_of_text_without_them() {
        let cases: [(&[&[&str]], &str, &str); 11] = [
            (&[], r#"{"a": 1}"#, r#"{"a": 1}"#),
            (&[&["at"]], r#"{"at": 1, "a": 2}"#, r#"{"a": 2}"#),
            (&[&["at"]], r#"{"a": 2 , "at" : -1.5e3 }"#, r#"{"a": 2}"#),
            (
                &[&["at"]],
                r#"{"at": "\"}", "b": [{"at": 1}]}"#,
                r#"{"b": [{"at": 1}]}"#,
            ),
            (
                &[&["at"]],
                r#"{"\u0061t": {"x": [1, {"y": "]"}]}, "b": 1}"#,
                r#"{"b": 1}"#,
            ),
            (&[&["at"]], r#"{"at": true}"#, "{}"),
            (
                &[&["t", "id"]],
                r#"{"t": {"id": 1, "x": 2}, "id": 3}"#,
                r#"{"t": {"x": 2}, "id": 3}"#,
            ),
            (
                &[&["l", "*", "at"]],
                r#"{"l": [{"at": 1, "a": 2}, [], {"at": []}]}"#,
                r#"{"l": [{"a": 2}, [], {}]}"#,
            ),
            (
                &[&["*", "at"]],
                r#"{"x": {"at": 1}, "*": {"at": 2}}"#,
                r#"{"x": {"at": 1}, "*": {}}"#,
            ),
            (
                &[&["at"], &["t", "id"]],
                r#"[{"at": 1, "t": {"id": 2}}]"#,
                r#"[{"at": 1, "t": {"id": 2}}]"#,
            ),
            // What is left out needs no canonical form.
            (
                &[&["at"]],
                r#"{"at": {"a": 1, "a": "\ud800"}, "at": 2}"#,
                "{}",
            ),
        ];
        for (paths, text, equal) in cases {
            let expected = canonical(&json(equal.as_bytes())).unwrap();
            assert_eq!(without(paths, text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn items_and_scalars_are_never_omitted() {
        for text in ["1", "[1, 2]", "\"at\"", "null", "[[1], [2]]"] {
            let whole = canonical(&json(text.as_bytes())).unwrap();
            assert_eq!(without(&[&["*"], &["at"], &["0"]], text).unwrap(), whole);
        }
    }

    #[test]
    fn malformed_text_stays_an_error() {
        for text in [r#"{"at": }"#, r#"{"at": 1"#, r#"{"a": 1, "a": 2, "at": 3}"#] {
            assert!(without(&[&["at"]], text).is_err(), "{text}");
        }
    }
}
