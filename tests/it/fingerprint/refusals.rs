//! Values without a canonical form: helpful errors, in time that is linear in their length.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use idem_runtime::Fingerprint;
use idem_runtime::fingerprint::{Encoder, canonical, digest, from_fn, json};

use super::{bytes, same};

#[track_caller]
fn refused(value: &(impl Fingerprint + ?Sized), because: &str) {
    let error = digest(value).expect_err("it has no canonical form");
    assert!(error.to_string().contains(because), "{error}");
    assert_eq!(canonical(value).expect_err("it has none"), error);
}

#[derive(Fingerprint)]
struct Reading(#[fingerprint(float)] Vec<f64>);

#[test]
fn nan_is_refused() {
    refused(&Reading(vec![1.0, f64::NAN]), "NaN");
    bytes(&Reading(vec![f64::INFINITY, f64::NEG_INFINITY]));
}

/// Type whose unequal values all have the same form.
#[derive(PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Loose(u8);

impl Fingerprint for Loose {
    fn fingerprint(&self, encoder: &mut Encoder) {
        encoder.text("one");
    }
}

#[test]
fn keys_and_elements_of_one_form_are_refused() {
    let keys: BTreeMap<_, _> = (0..3).map(|key| (Loose(key), key)).collect();
    refused(&keys, "two keys of one map");
    let elements: BTreeSet<_> = (0..3).map(Loose).collect();
    refused(&elements, "two elements of one set");
    refused(&json(br#"{"a": 1, "b": 2, "a": 1}"#), "two keys of one map");
    refused(&json(br#"[{"a": 1, "\u0061": 2}]"#), "two keys of one map");
}

#[test]
fn the_first_error_is_returned() {
    let both = (
        from_fn(|encoder| encoder.decimal("one")),
        Reading(vec![f64::NAN]),
    );
    refused(&both, "a decimal number is malformed");
    // The next request does not see the error.
    same(&1_u64, &json(b"1"));
}

#[test]
fn invalid_json_is_refused() {
    for text in [
        "",
        " ",
        "{",
        "[1,]",
        "{\"a\":}",
        "{a:1}",
        "nul",
        "01",
        "1.",
        ".5",
        "+1",
        "1e",
        "NaN",
        "\"\u{1}\"",
        "\"\\x\"",
        "[1] 2",
        "'a'",
        "\u{feff}1",
        "[1}",
    ] {
        refused(&json(text.as_bytes()), "the text is not valid JSON");
    }
    refused(&json(b"\"\xff\""), "the text is not valid JSON");
    refused(&json(br#""\ud800""#), "half of a surrogate pair");
    refused(&json(b"1e9223372036854775808"), "beyond 64 bits");
}

#[test]
fn json_strings_are_compared_by_value() {
    same(
        &json(r#" "a\u00fc\ud83d\ude00\n\"\\\/" "#.as_bytes()),
        &"aü😀\n\"\\/",
    );
    same(
        &json(br#"{"\"": [], "}": {}, "]": "[,"}"#),
        &json(br#"{"]":"[,","}":{},"\"":[]}"#),
    );
    same(&json(b"[ ]"), &json(b"[]"));
    same(&json(b"\t{ \r\n}"), &json(b"{}"));
}

#[test]
fn more_than_128_levels_are_an_error_and_not_a_stack_overflow() {
    let nested = |levels| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    bytes(&json(nested(128).as_bytes()));
    refused(&json(nested(129).as_bytes()), "128 levels");
    refused(&json(nested(200_000).as_bytes()), "128 levels");
    let objects = format!("{}1{}", r#"{"a":"#.repeat(100_000), "}".repeat(100_000));
    refused(&json(objects.as_bytes()), "128 levels");

    #[derive(Fingerprint)]
    struct List {
        next: Option<Box<Self>>,
    }
    let list = |len| {
        (0..len).fold(List { next: None }, |list, _| List {
            next: Some(list.into()),
        })
    };
    bytes(&list(128));
    refused(&list(2_000), "128 levels");

    #[derive(Fingerprint)]
    enum Tree {
        Node(Vec<Self>),
        Queue(VecDeque<Self>),
        Map(HashMap<u8, Self>),
    }
    let trees: [fn(Tree) -> Tree; 3] = [
        |tree| Tree::Node(vec![tree]),
        |tree| Tree::Queue(VecDeque::from([tree])),
        |tree| Tree::Map(HashMap::from([(1, tree)])),
    ];
    for wrap in trees {
        let tree = (0..2_000).fold(Tree::Node(vec![]), |tree, _| wrap(tree));
        refused(&tree, "128 levels");
    }
    let value = (0..2_000).fold(serde_json::Value::Null, |value, _| vec![value].into());
    refused(&value, "128 levels");
}

#[test]
fn a_hostile_megabyte_is_read_in_one_pass() {
    let nines = "9".repeat(1 << 20);
    assert!(bytes(&json(nines.as_bytes())).len() < nines.len() + 32);
    refused(&json(format!("1e{nines}").as_bytes()), "beyond 64 bits");
    same(&json(format!("0e{nines}").as_bytes()), &0_u8);
    same(
        &json(format!("-0.{}", "0".repeat(1 << 20)).as_bytes()),
        &0_u8,
    );
    // Maximum depth, and the width of a megabyte.
    let wide = format!(
        "{}{}1{}",
        "[".repeat(128),
        "1,".repeat(1 << 19),
        "]".repeat(128)
    );
    bytes(&json(wide.as_bytes()));
}

#[test]
fn canonical_finds_invalid_implementations() {
    let found = |write: fn(&mut Encoder), because: &str| {
        let error = canonical(&from_fn(write)).expect_err("it breaks the rules");
        assert!(error.to_string().contains(because), "{error}");
    };
    found(|_| {}, "less than it announced");
    found(|encoder| encoder.array(1), "less than it announced");
    found(
        |encoder| {
            encoder.map(2);
            encoder.text("a");
            encoder.null();
        },
        "less than it announced",
    );
    found(
        |encoder| {
            encoder.null();
            encoder.null();
        },
        "more than one item",
    );
    for keys in [["b", "a"], ["aa", "b"], ["a", "a"]] {
        let unsorted = from_fn(move |encoder| {
            encoder.map(2);
            for key in keys {
                encoder.text(key);
                encoder.bool(true);
            }
        });
        let error = canonical(&unsorted).expect_err("it is not sorted");
        assert!(error.to_string().contains("not sorted"), "{error}");
    }
    found(
        |encoder| (0..100_000).for_each(|_| encoder.map(1)),
        "128 levels",
    );
    found(
        |encoder| (0..100_000).for_each(|_| encoder.array(1)),
        "less than it announced",
    );
    // Sorted by encoding, so the shorter name is first. A map may be a key.
    let sorted = from_fn(|encoder| {
        encoder.map(2);
        encoder.text("b");
        encoder.map(1);
        encoder.map(0);
        encoder.bytes(&[1]);
        encoder.text("aa");
        encoder.float(0.5);
    });
    bytes(&sorted);
}

#[test]
fn long_strings_have_one_form_at_every_position() {
    #[derive(Fingerprint)]
    struct Upload {
        name: String,
        body: Vec<u8>,
        again: Option<String>,
        #[fingerprint(skip)]
        _trace: (),
    }
    for len in [1000, 1023, 1024, 1025, 70_000] {
        let upload = || Upload {
            name: "a".into(),
            body: vec![7; len],
            again: Some("b".repeat(len)),
            _trace: (),
        };
        bytes(&upload());
        bytes(&Some(Some(upload())));
        bytes(&(1_u8, upload(), None::<u8>, Some(upload()), Some(None::<u8>)));
        // In a map, they are buffered until the map is sorted.
        bytes(&HashMap::from([(2_u8, upload()), (1, upload())]));
        bytes(&vec![upload(), upload()]);
    }
}

#[test]
fn a_fingerprint_may_contain_another() {
    let inner = from_fn(|encoder| match digest(&"inner") {
        Ok(digest) => encoder.bytes(&digest.hash()),
        Err(error) => encoder.fail(error),
    });
    let hash = digest(&"inner").expect("it has a form").hash();
    same(&(1_u8, inner, 2_u8), &(1_u8, hash.as_slice(), 2_u8));
}
