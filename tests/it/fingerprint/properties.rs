//! Properties of all values: equal values have one form, unequal values have two, and any CBOR library can read them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use ciborium::Value as Cbor;
use idem_runtime::Fingerprint;
use idem_runtime::fingerprint::{digest, from_fn, json};
use proptest::prelude::*;
use serde_json::Value;

use super::{bytes, same};

#[derive(Debug, Clone, PartialEq, Fingerprint)]
struct Request {
    id: i64,
    name: String,
    body: Vec<u8>,
    tags: BTreeSet<String>,
    lines: Vec<Line>,
    note: Option<Option<String>>,
    #[fingerprint(default)]
    priority: u8,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Fingerprint)]
struct Line {
    amounts: BTreeMap<i16, u128>,
    flag: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Fingerprint)]
enum Kind {
    Plain,
    One(Option<char>),
    Two(u8, i128),
    Named { amount: u64, fee: Option<u64> },
}

/// Request with other types, orders and containers, and the same form as [`Request`].
#[derive(Fingerprint)]
struct Mirror<'a> {
    kind: &'a Kind,
    note: &'a Option<Option<String>>,
    #[fingerprint(rename = "priority")]
    urgency: Option<u64>,
    lines: std::collections::VecDeque<&'a Line>,
    tags: HashSet<&'a str>,
    body: Box<[u8]>,
    name: std::borrow::Cow<'a, str>,
    id: i128,
}

fn mirror(request: &Request) -> Mirror<'_> {
    Mirror {
        kind: &request.kind,
        note: &request.note,
        urgency: (request.priority != 0).then(|| request.priority.into()),
        lines: request.lines.iter().collect(),
        tags: request.tags.iter().map(String::as_str).collect(),
        body: request.body.clone().into(),
        name: request.name.as_str().into(),
        id: request.id.into(),
    }
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Plain),
        any::<Option<char>>().prop_map(Kind::One),
        any::<(u8, i128)>().prop_map(|(a, b)| Kind::Two(a, b)),
        any::<(u64, Option<u64>)>().prop_map(|(amount, fee)| Kind::Named { amount, fee }),
    ]
}

fn lines() -> impl Strategy<Value = Line> {
    let amounts = prop::collection::btree_map(any::<i16>(), any::<u128>(), 0..30);
    (amounts, any::<Option<bool>>()).prop_map(|(amounts, flag)| Line { amounts, flag })
}

fn requests() -> impl Strategy<Value = Request> {
    (
        any::<i64>(),
        ".{0,40}",
        // Lengths around the limit from which strings go directly to the hasher.
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..40),
            prop::collection::vec(any::<u8>(), 1000..1100),
        ],
        prop::collection::btree_set(".{0,30}", 0..30),
        prop::collection::vec(lines(), 0..4),
        any::<Option<Option<String>>>(),
        0..3_u8,
        kinds(),
    )
        .prop_map(
            |(id, name, body, tags, lines, note, priority, kind)| Request {
                id,
                name,
                body,
                tags,
                lines,
                note,
                priority,
                kind,
            },
        )
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        prop::num::f64::NORMAL.prop_map(Value::from),
        ".{0,30}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 60, 30, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..30).prop_map(Value::from),
            prop::collection::hash_map(".{0,30}", inner, 0..30)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Reads the bytes with ciborium, and writes them with ciborium.
fn rewritten(bytes: &[u8]) -> Vec<u8> {
    let value: Cbor = ciborium::from_reader(bytes).expect("it is CBOR");
    let mut written = vec![];
    ciborium::into_writer(&value, &mut written).expect("it can be written");
    written
}

proptest! {
    #[test]
    fn equal_requests_have_one_form(request in requests()) {
        same(&request, &request.clone());
        same(&request, &mirror(&request));
    }

    #[test]
    fn unequal_requests_have_different_forms(one in requests(), other in requests(), keep in any::<[bool; 8]>()) {
        // Unrelated requests differ in every field. The hard cases share most of their fields.
        let mut other = other;
        let [id, name, body, tags, lines, note, priority, kind] = keep;
        if id { other.id = one.id; }
        if name { other.name.clone_from(&one.name); }
        if body { other.body.clone_from(&one.body); }
        if tags { other.tags.clone_from(&one.tags); }
        if lines { other.lines.clone_from(&one.lines); }
        if note { other.note.clone_from(&one.note); }
        if priority { other.priority = one.priority; }
        if kind { other.kind = one.kind.clone(); }
        prop_assert_eq!(one == other, bytes(&one) == bytes(&other));
    }

    #[test]
    fn unequal_integers_have_different_forms(one in any::<i128>(), shift in 0..127_u32, other in any::<u128>()) {
        let one = one >> shift;
        let other = other >> shift;
        let equal = u128::try_from(one).is_ok_and(|one| one == other);
        prop_assert_eq!(equal, bytes(&one) == bytes(&other));
    }

    #[test]
    fn another_library_reads_and_writes_the_same_form(request in requests(), value in values()) {
        let request = bytes(&request);
        prop_assert_eq!(&rewritten(&request), &request);
        let value = bytes(&value);
        prop_assert_eq!(&rewritten(&value), &value);
    }

    #[test]
    fn a_json_value_has_the_form_of_its_text(value in values()) {
        let compact = serde_json::to_string(&value).expect("it can be written");
        let pretty = serde_json::to_string_pretty(&value).expect("it can be written");
        same(&value, &json(compact.as_bytes()));
        same(&value, &json(pretty.as_bytes()));
    }

    #[test]
    fn floats_are_written_as_another_library_writes_them(float in any::<f64>(), single in any::<f32>()) {
        for float in [float, f64::from(single), f64::from(single as i16)] {
            let value = from_fn(move |encoder| encoder.float(float));
            if float.is_nan() {
                prop_assert!(digest(&value).is_err());
            } else {
                let mut expected = b"\x82\x66idem/1".to_vec();
                // Makes 0.0 of -0.0, which has the same form.
                ciborium::into_writer(&(float + 0.0), &mut expected).expect("it can be written");
                prop_assert_eq!(bytes(&value), expected);
            }
        }
    }

    #[test]
    fn decimals_of_one_value_have_one_form(
        digits in "[0-9]{1,60}",
        fraction in "[0-9]{0,60}",
        exponent in -400..400_i64,
        shift in 0..50_usize,
    ) {
        let text = |whole: &str, fraction: &str, exponent: i64| {
            let point = if fraction.is_empty() { "" } else { "." };
            format!("{whole}{point}{fraction}e{exponent}")
        };
        let value = |text: String| bytes(&from_fn(move |encoder| encoder.decimal(&text)));
        let plain = value(text(&digits, &fraction, exponent));
        // The point is moved, and zeros are added at both ends.
        let all = format!("{digits}{fraction}");
        let places = fraction.len() as i64;
        prop_assert_eq!(&plain, &value(text(&all, "", exponent - places)));
        let zeros = "0".repeat(shift);
        let longer = text(&format!("{zeros}{digits}"), &format!("{fraction}{zeros}"), exponent);
        prop_assert_eq!(&plain, &value(longer));
        let shifted = text(&format!("{all}{zeros}"), "", exponent - places - shift as i64);
        prop_assert_eq!(&plain, &value(shifted));
        // Adding one in the last place makes another number.
        let more = text(&format!("{all}1"), "", exponent - places - 1);
        prop_assert_ne!(&plain, &value(more));
    }

    #[test]
    fn maps_and_sets_of_every_type_have_one_form(
        entries in prop::collection::btree_map(".{0,30}", any::<u64>(), 0..60),
    ) {
        let hashed: HashMap<_, _> = entries.iter().collect();
        same(&entries, &hashed);
        let keys: BTreeSet<_> = entries.keys().collect();
        let hashed: HashSet<_> = entries.keys().rev().collect();
        same(&keys, &hashed);
        let value: serde_json::Map<_, _> = entries
            .iter()
            .map(|(key, value)| (key.clone(), Value::from(*value)))
            .collect();
        same(&entries, &Value::Object(value));
    }
}

#[test]
fn integers_of_all_widths_have_one_form() {
    for number in i8::MIN..=i8::MAX {
        let wide = bytes(&i128::from(number));
        assert_eq!(&bytes(&number), &wide);
        assert_eq!(&bytes(&i16::from(number)), &wide);
        assert_eq!(&bytes(&i32::from(number)), &wide);
        assert_eq!(&bytes(&i64::from(number)), &wide);
        assert_eq!(&bytes(&(number as isize)), &wide);
        if let Ok(number) = u8::try_from(number) {
            assert_eq!(&bytes(&number), &wide);
            assert_eq!(&bytes(&u16::from(number)), &wide);
            assert_eq!(&bytes(&u32::from(number)), &wide);
            assert_eq!(&bytes(&u64::from(number)), &wide);
            assert_eq!(&bytes(&u128::from(number)), &wide);
            assert_eq!(&bytes(&usize::from(number)), &wide);
        }
    }
}
