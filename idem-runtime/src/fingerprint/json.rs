//! Canonical form of JSON: numbers by their exact decimal value, objects sorted.

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
        // The parser validates the text in one pass, without recursion. The code below relies on that. It reads the
        // text itself, because a serde visitor would not see the notation of a number.
        match serde_json::from_slice::<&RawValue>(self.0) {
            Ok(valid) => valid.fingerprint(encoder),
            Err(error) => encoder.fail(FingerprintError::new(format!(
                "the text is not valid JSON at line {} column {}",
                error.line(),
                error.column(),
            ))),
        }
    }
}

#[diagnostic::do_not_recommend]
impl Fingerprint for RawValue {
    fn fingerprint(&self, encoder: &mut Encoder) {
        let mut text = Valid {
            text: self.get(),
            at: 0,
        };
        if let Err(error) = text.value(encoder) {
            encoder.fail(error);
        }
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
                    let start = encoder.position();
                    self.string(encoder)?;
                    let key_end = encoder.position();
                    // The colon.
                    self.next_token();
                    self.at += 1;
                    self.value(encoder)?;
                    encoder.span(start, key_end);
                    count += 1;
                }
                Some(_) => {
                    self.value(encoder)?;
                    count += 1;
                }
                None => return Err(ended()),
            }
        }
    }

    fn string(&mut self, encoder: &mut Encoder) -> Result<(), FingerprintError> {
        let start = self.at;
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
        if escaped {
            let text: String = serde_json::from_str(&self.text[start..self.at]).map_err(|_| {
                FingerprintError::new(
                    "a JSON string has half of a surrogate pair; send valid Unicode",
                )
            })?;
            encoder.text(&text);
        } else {
            encoder.text(&self.text[start + 1..self.at - 1]);
        }
        Ok(())
    }

    fn number(&mut self, encoder: &mut Encoder) -> Result<(), FingerprintError> {
        let rest = &self.text[self.at..];
        let end = rest
            .find([',', ']', '}', ' ', '\n', '\r', '\t'])
            .unwrap_or(rest.len());
        self.at += end;
        let number = &rest[..end];
        if let Ok(integer) = number.parse() {
            encoder.u64(integer);
        } else if let Ok(integer) = number.parse() {
            encoder.i64(integer);
        } else {
            encoder.number(super::number::parse(number)?);
        }
        Ok(())
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

fn ended() -> FingerprintError {
    FingerprintError::new("the JSON text ended early")
}
