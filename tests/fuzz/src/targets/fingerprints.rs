//! The canonical form of JSON, against an implementation that shares nothing but the parser of JSON.

use std::fmt;

use ciborium::Value;
use idem_runtime::fingerprint;
use num_bigint::{BigInt, BigUint, Sign};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

/// Deepest nesting that has a form.
const LEVELS: usize = 128;

/// The bytes and their hash are as the documentation of `idem_runtime::fingerprint` says.
pub(super) fn json(input: &[u8]) {
    let form = fingerprint::canonical(&fingerprint::json(input));
    let digest = fingerprint::digest(&fingerprint::json(input));
    assert_eq!(form.is_ok(), digest.is_ok());
    let expected = canonical(input);
    assert_eq!(
        form.as_ref().ok(),
        expected.as_ref(),
        "{}",
        input.escape_ascii()
    );
    if let (Some(expected), Ok(digest)) = (expected, digest) {
        assert_eq!(digest.hash(), *Sha256::digest(expected));
    }
}

/// The form of a text; `None` if it has none.
fn canonical(input: &[u8]) -> Option<Vec<u8>> {
    let text: &RawValue = serde_json::from_slice(input).ok()?;
    let value = value(text, 0)?;
    Some(encode(&Value::Array(vec![
        Value::Text("idem/1".into()),
        value,
    ])))
}

fn encode(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    ciborium::into_writer(value, &mut bytes).expect("writing to memory does not fail");
    bytes
}

fn value(text: &RawValue, level: usize) -> Option<Value> {
    let text = text.get();
    let is_collection = text.starts_with(['[', '{']);
    if is_collection && level == LEVELS {
        return None;
    }
    Some(match text.as_bytes()[0] {
        b'n' => Value::Null,
        b't' => Value::Bool(true),
        b'f' => Value::Bool(false),
        b'"' => Value::Text(serde_json::from_str(text).ok()?),
        b'[' => {
            let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            let items = items.into_iter().map(|item| value(item, level + 1));
            Value::Array(items.collect::<Option<_>>()?)
        }
        b'{' => object(text, level)?,
        _ => number(text)?,
    })
}

fn object(text: &str, level: usize) -> Option<Value> {
    let Members(members) = serde_json::from_str(text).ok()?;
    let mut entries = Vec::new();
    for (name, member) in members {
        let name = Value::Text(name);
        entries.push((encode(&name), name, value(member, level + 1)?));
    }
    entries.sort_by(|(one, ..), (other, ..)| one.cmp(other));
    if entries.windows(2).any(|two| two[0].0 == two[1].0) {
        return None;
    }
    let entries = entries.into_iter().map(|(_, name, value)| (name, value));
    Some(Value::Map(entries.collect()))
}

/// The members of an object, duplicates included.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Collect)
    }
}

/// A number as m × 10^e, where m has no trailing zeros.
fn number(text: &str) -> Option<Value> {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    let is_negative = digits.starts_with('-');
    let digits = digits.trim_start_matches(['-', '0']);
    let significant = digits.trim_end_matches('0');
    if significant.is_empty() {
        return Some(integer(&BigInt::ZERO));
    }
    let exponent: BigInt = exponent.trim_start_matches('+').parse().ok()?;
    let exponent = exponent - fraction.len() + (digits.len() - significant.len());
    let exponent = i64::try_from(exponent).ok()?;
    let mut m: BigInt = significant.parse().ok()?;
    if is_negative {
        m = -m;
    }
    if let Some(whole) = whole_number(&m, exponent) {
        return Some(integer(&whole));
    }
    let e = integer(&exponent.into());
    Some(match i128::try_from(&m) {
        Ok(_) => Value::Tag(4, Box::new(Value::Array(vec![e, integer(&m)]))),
        Err(_) => {
            let text = Value::Text(m.to_string());
            Value::Tag(0x6965, Box::new(Value::Array(vec![e, text])))
        }
    })
}

/// The value, if it is an integer of at most 128 bits.
fn whole_number(m: &BigInt, exponent: i64) -> Option<BigInt> {
    let exponent = u32::try_from(exponent).ok().filter(|it| *it < 40)?;
    let value = m * BigInt::from(10).pow(exponent);
    let fits = u128::try_from(&value).is_ok() || i128::try_from(&value).is_ok();
    fits.then_some(value)
}

/// An integer, or beyond 64 bits a bignum.
fn integer(value: &BigInt) -> Value {
    let (tag, argument) = match value.sign() {
        Sign::Minus => (3, (-value - 1_u8).magnitude().clone()),
        Sign::NoSign | Sign::Plus => (2, value.magnitude().clone()),
    };
    match u64::try_from(&argument) {
        Ok(argument) if tag == 2 => Value::Integer(argument.into()),
        Ok(argument) => {
            let value = -1 - i128::from(argument);
            Value::Integer(value.try_into().expect("major type 1 holds it"))
        }
        Err(_) => Value::Tag(tag, Box::new(Value::Bytes(BigUint::to_bytes_be(&argument)))),
    }
}
