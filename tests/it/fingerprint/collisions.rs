//! Pairs of values that must differ, or must be equal, and that simpler hashing methods get wrong.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::SystemTime;

use idem_runtime::Fingerprint;
use idem_runtime::fingerprint::json;
use serde_json::json as value;

use super::{bytes, differ, same};

#[test]
fn adjacent_values_are_separated() {
    differ(&("ab", "c"), &("a", "bc"));
    differ(&["ab"].as_slice(), &["a", "b"].as_slice());
    differ(
        &(vec![1_u16], vec![2_u16]),
        &(vec![1_u16, 2], Vec::<u16>::new()),
    );
}

#[test]
fn the_form_contains_names_of_variants_and_fields_but_not_their_order() {
    mod before {
        #[derive(idem_runtime::Fingerprint)]
        pub(super) enum Method {
            Card(u64),
            #[expect(dead_code, reason = "its place is what matters")]
            Bank(u64),
        }

        #[derive(idem_runtime::Fingerprint)]
        pub(super) struct Charge {
            pub(super) amount: u64,
            pub(super) fee: u64,
        }
    }
    mod after {
        #[derive(idem_runtime::Fingerprint)]
        pub(super) enum Method {
            Bank(u64),
            Card(u64),
        }

        #[derive(idem_runtime::Fingerprint)]
        pub(super) struct Charge {
            pub(super) fee: u64,
            pub(super) amount: u64,
        }
    }
    differ(&before::Method::Card(1), &after::Method::Bank(1));
    same(&before::Method::Card(1), &after::Method::Card(1));
    let (amount, fee) = (1, 2);
    same(
        &before::Charge { amount, fee },
        &after::Charge { fee, amount },
    );
    differ(
        &before::Charge { amount, fee },
        &after::Charge { fee: 1, amount: 2 },
    );
}

#[test]
fn numbers_differ_by_every_digit() {
    differ(&((1_u64 << 53) + 1), &(1_u64 << 53));
    differ(&json(b"9007199254740993"), &json(b"9007199254740992"));
    differ(
        &json(b"18446744073709551616"),
        &json(b"18446744073709551617"),
    );
    differ(
        &json(b"0.1"),
        &json(b"0.1000000000000000055511151231257827"),
    );
    same(&json(b"1"), &json(b"1.0"));
    same(&json(b"1"), &json(b"1e0"));
    same(&json(b"100"), &json(b"1e2"));
    same(&value!(100.0), &json(b"1e2"));
    same(&json(b"-0.0"), &0_u8);
    same(&json(b"-12.3"), &rust_decimal::Decimal::new(-1230, 2));
    same(&json(b"0"), &rust_decimal::Decimal::new(0, 2));
}

#[test]
fn floats_have_one_form_behind_references_and_in_arrays() {
    #[derive(Fingerprint)]
    struct Owned {
        #[fingerprint(float)]
        all: Vec<f64>,
        #[fingerprint(float)]
        first: f64,
        #[fingerprint(float)]
        last: Option<f64>,
    }
    #[derive(Fingerprint)]
    struct Borrowed<'a> {
        #[fingerprint(float)]
        all: [f64; 2],
        #[fingerprint(float)]
        first: &'a f64,
        #[fingerprint(float)]
        last: &'a Option<f64>,
    }
    #[derive(Fingerprint)]
    struct WithoutLast {
        #[fingerprint(float)]
        all: [f64; 2],
        #[fingerprint(float)]
        first: f64,
    }
    let (all, first) = ([0.5, 1e10], 0.5);
    for last in [None, Some(0.1)] {
        let owned = Owned {
            all: all.to_vec(),
            first,
            last,
        };
        let borrowed = Borrowed {
            all,
            first: &first,
            last: &last,
        };
        same(&owned, &borrowed);
        if last.is_none() {
            same(&owned, &WithoutLast { all, first });
            differ(&owned, &WithoutLast { all, first: 0.25 });
        }
    }
}

#[test]
fn the_form_is_independent_of_the_order_of_a_hash_map() {
    let entries = || (0..100_u32).map(|number| (number.to_string(), number));
    // Each map has its own seed.
    let one: HashMap<_, _> = entries().collect();
    let other: HashMap<_, _> = entries().rev().collect();
    assert_ne!(
        one.keys().collect::<Vec<_>>(),
        other.keys().collect::<Vec<_>>(),
        "the maps are in different orders"
    );
    same(&one, &other);
}

#[test]
fn values_of_different_kinds_never_collide() {
    differ(&0_u64, &"");
    differ(&97_u8, &"a");
    differ(&"1", &1_u64);
    differ(&false, &0_u64);
    differ(&"a", &b"a".as_slice());
    differ(&None::<u64>, &0_u64);
    differ(&None::<u64>, &"");
    differ(&None::<u64>, &());
    differ(&(), &value!({}));
    differ(&vec![1_u8], &vec![1_u16]);
    differ(&[("a", 1_u64)], &HashMap::from([("a", 1_u64)]));
    differ(&"null", &json(b"null"));
}

#[test]
fn nested_nones_differ() {
    let nothing: Option<Option<Option<u64>>> = None;
    let all = [
        bytes(&nothing),
        bytes(&Some(None::<Option<u64>>)),
        bytes(&Some(Some(None::<u64>))),
        bytes(&Some(Some(Some(0_u64)))),
    ];
    for (at, one) in all.iter().enumerate() {
        for other in &all[at + 1..] {
            assert_ne!(one, other);
        }
    }
    differ(&Some(serde_json::Value::Null), &None::<serde_json::Value>);
    differ(&Some(json(b"null")), &None::<u64>);
    differ(&Some(Some(serde_json::Value::Null)), &Some(None::<u64>));
}

/// A long text goes to the hasher at once, so that positions in the buffer begin again.
#[test]
fn what_follows_a_long_text_does_not_change_how_it_is_written() {
    let after = vec![None::<u8>; 40];
    for before in 0..24 {
        let before = "x".repeat(before);
        bytes(&(before, Some(("y".repeat(5000), &after))));
    }
}

/// The hash needs room behind the value for the padding of SHA-256. A new thread has a buffer of 512 bytes.
#[test]
fn a_value_that_fills_the_buffer_of_a_new_thread_has_its_hash() {
    for length in 400..600 {
        let hashed = std::thread::spawn(move || bytes(&"x".repeat(length)));
        hashed.join().expect("it has a hash");
    }
}

#[test]
fn an_absent_field_is_not_a_null_field() {
    #[derive(Fingerprint)]
    struct Before {
        amount: u64,
    }
    #[derive(Fingerprint)]
    struct After {
        amount: u64,
        note: Option<Option<String>>,
    }
    let amount = 1;
    let with = |note| After { amount, note };
    same(&Before { amount }, &with(None));
    differ(&with(None), &with(Some(None)));
    differ(&with(Some(None)), &with(Some(Some(String::new()))));
    same(
        &with(Some(Some("a".into()))),
        &value!({"amount": 1, "note": "a"}),
    );
    #[derive(Fingerprint)]
    struct Borrowed<'a> {
        amount: u64,
        note: Cow<'a, Option<String>>,
    }
    for (note, like) in [(None, None), (Some("a"), Some(Some("a")))] {
        let note = note.map(str::to_owned);
        let like = like.map(|note| note.map(str::to_owned));
        let note = Cow::Borrowed(&note);
        same(&Borrowed { amount, note }, &with(like));
    }
    // A null in JSON text is a null, not an absent field.
    differ(
        &json(br#"{"amount": 1}"#),
        &json(br#"{"amount": 1, "note": null}"#),
    );
}

#[test]
fn named_types_of_one_shape_differ() {
    #[derive(Fingerprint)]
    struct Plain(Option<u64>);
    #[derive(Fingerprint)]
    #[fingerprint(name = "charge")]
    struct Charge(Option<u64>);
    #[derive(Fingerprint)]
    #[fingerprint(name = "refund")]
    struct Refund(Option<u64>);
    differ(&Charge(Some(1)), &Refund(Some(1)));
    differ(&Charge(Some(1)), &Plain(Some(1)));
    same(&Charge(Some(1)), &value!({"charge": 1}));
    // A newtype is absent if its field is. A named newtype is never absent.
    assert!(Plain(None).is_absent());
    assert!(!Charge(None).is_absent());
    same(&Charge(None), &value!({"charge": null}));
}

#[test]
fn a_moment_has_one_form_in_every_library() {
    let half = 500_000_000;
    let seconds = [-100, -2, -1, 0, 1, 1_769_860_800];
    for (seconds, nanos) in seconds.into_iter().flat_map(|at| [(at, 0), (at, half)]) {
        let chrono = chrono::DateTime::from_timestamp(seconds, nanos).unwrap();
        let total = i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        let time = time::OffsetDateTime::from_unix_timestamp_nanos(total).unwrap();
        let jiff = jiff::Timestamp::from_nanosecond(total).unwrap();
        same(&chrono, &SystemTime::from(chrono));
        same(&chrono, &time);
        same(&chrono, &jiff);
    }
}

#[test]
fn an_address_has_the_form_of_its_text() {
    for text in ["192.0.2.1", "2001:db8::1"] {
        let address: IpAddr = text.parse().unwrap();
        same(&address, &text);
        let socket = SocketAddr::new(address, 80);
        same(&socket, &socket.to_string());
    }
}

#[test]
fn a_raw_value_has_the_form_of_its_text() {
    let text = r#"{"b": 1.0, "a": [2]}"#;
    let raw = serde_json::value::RawValue::from_string(text.to_owned()).unwrap();
    same(&*raw, &json(br#"{"a": [2], "b": 1}"#));
}

/// A request may be secret, and errors and logs print it with `Debug`.
#[test]
fn json_text_is_not_printed() {
    assert_eq!(format!("{:?}", json(b"[4242]")), "Json(6 bytes)");
}
