//! Frozen vectors: `vectors/fingerprint.json` has the bytes that this build writes, and that an independent CBOR library
//! writes for a description of the value. Records outlive builds, so a vector never changes.

mod cases;
mod library;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::marker::PhantomData;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, UNIX_EPOCH};

use ciborium::Value::{self as Cbor, Array, Bool, Bytes, Float, Null, Tag};
use idem_runtime::Fingerprint;
use idem_runtime::fingerprint::{Encoder, canonical, digest, from_fn, json};
use serde::{Deserialize, Serialize};

use self::cases::cases;
use super::{hex, same};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Vector {
    /// Description of the value.
    value: String,
    /// Value as JSON text, if JSON can represent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    json: Option<String>,
    /// Canonical bytes of `["idem/1", value]`, in hex.
    canonical: String,
    /// SHA-256 of the bytes, in hex.
    digest: String,
}

struct Case {
    value: &'static str,
    json: Option<&'static str>,
    of: Box<dyn Fingerprint>,
    cbor: Cbor,
}

fn case(value: &'static str, of: impl Fingerprint + 'static, cbor: impl Into<Cbor>) -> Case {
    Case {
        value,
        json: None,
        of: Box::new(of),
        cbor: cbor.into(),
    }
}

/// Case whose value has the same form as a JSON text.
fn both(
    value: &'static str,
    json: &'static str,
    of: impl Fingerprint + 'static,
    cbor: impl Into<Cbor>,
) -> Case {
    Case {
        json: Some(json),
        ..case(value, of, cbor)
    }
}

/// Case of a JSON text without a Rust value.
fn text(value: &'static str, json: &'static str, cbor: impl Into<Cbor>) -> Case {
    both(
        value,
        json,
        idem_runtime::fingerprint::json(json.as_bytes()),
        cbor,
    )
}

fn map<const N: usize>(entries: [(Cbor, Cbor); N]) -> Cbor {
    Cbor::Map(entries.into())
}

fn fields<const N: usize>(entries: [(&str, Cbor); N]) -> Cbor {
    Cbor::Map(entries.map(|(name, value)| (name.into(), value)).into())
}

fn present(value: Cbor) -> Cbor {
    Tag(0x6964, value.into())
}

fn fraction(exponent: i64, mantissa: impl Into<Cbor>) -> Cbor {
    Tag(4, Array(vec![exponent.into(), mantissa.into()]).into())
}

fn long(exponent: i64, digits: &str) -> Cbor {
    Tag(0x6965, Array(vec![exponent.into(), digits.into()]).into())
}

/// Integer beyond 64 bits, in the preferred form.
fn big(tag: u64, argument: u128) -> Cbor {
    let bytes: Vec<u8> = argument
        .to_be_bytes()
        .into_iter()
        .skip_while(|byte| *byte == 0)
        .collect();
    Tag(tag, Bytes(bytes).into())
}

fn encoded(value: &Cbor) -> Vec<u8> {
    let mut bytes = vec![];
    ciborium::into_writer(value, &mut bytes).expect("it can be written");
    bytes
}

/// Sorts the maps by their encoded keys, because the library does not.
fn sorted(value: Cbor) -> Cbor {
    match value {
        Cbor::Map(entries) => {
            let mut entries: Vec<_> = entries
                .into_iter()
                .map(|(key, value)| (sorted(key), sorted(value)))
                .collect();
            entries.sort_by_key(|(key, _)| encoded(key));
            Cbor::Map(entries)
        }
        Array(items) => Array(items.into_iter().map(sorted).collect()),
        Tag(tag, inner) => Tag(tag, sorted(*inner).into()),
        leaf => leaf,
    }
}

#[test]
fn this_build_writes_the_frozen_vectors() {
    let frozen: Vec<Vector> =
        serde_json::from_str(include_str!("../../vectors/fingerprint.json")).expect("it is JSON");
    let written: Vec<_> = cases()
        .iter()
        .map(|case| Vector {
            value: case.value.into(),
            json: case.json.map(Into::into),
            canonical: hex(&canonical(&*case.of).expect(case.value)),
            digest: hex(&digest(&*case.of).expect(case.value).hash()),
        })
        .collect();
    for frozen in &frozen {
        let written = written.iter().find(|it| it.value == frozen.value);
        assert_eq!(Some(frozen), written, "a vector never changes");
    }
    let missing: Vec<_> = written
        .iter()
        .filter(|it| !frozen.iter().any(|frozen| frozen.value == it.value))
        .collect();
    assert!(
        missing.is_empty(),
        "new cases belong in the file:\n{}",
        serde_json::to_string_pretty(&missing).expect("it is JSON"),
    );
    assert_eq!(
        frozen.len(),
        written.len(),
        "the descriptions of cases are unique"
    );
}

#[test]
fn an_independent_library_writes_the_same_bytes() {
    for case in cases() {
        let expected = sorted(Array(vec!["idem/1".into(), case.cbor]));
        let written = canonical(&*case.of).expect(case.value);
        assert_eq!(hex(&written), hex(&encoded(&expected)), "{}", case.value);
    }
}

#[test]
fn json_text_has_the_form_of_its_value() {
    let mut texts = 0;
    for case in cases() {
        if let Some(text) = case.json {
            same(&*case.of, &json(text.as_bytes()));
            texts += 1;
        }
    }
    assert!(texts > 40);
}

#[test]
fn a_json_value_has_the_form_of_its_text_if_its_numbers_are_exact() {
    for case in cases() {
        let Some(text) = case.json else { continue };
        let value: serde_json::Value = serde_json::from_str(text).expect(case.value);
        // A float changes a number that has more digits than it can hold.
        let exact = value.to_string();
        let (of_value, of_exact) = (canonical(&value), canonical(&json(exact.as_bytes())));
        assert_eq!(of_value, of_exact, "{}", case.value);
    }
}
