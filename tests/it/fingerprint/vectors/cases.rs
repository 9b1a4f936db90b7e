//! Values of the frozen vectors, each with an independent description of its form.

use super::library::library;
use super::*;

#[derive(Fingerprint)]
struct Unit;

#[derive(Fingerprint)]
struct NoFields {}

#[derive(Fingerprint)]
struct NoPlaces();

#[derive(Fingerprint)]
struct Newtype(u64);

#[derive(Fingerprint)]
struct Pair(u64, &'static str);

#[derive(Fingerprint)]
#[expect(dead_code, reason = "what is skipped is not read")]
struct Partly(u64, #[fingerprint(skip)] f64, &'static str);

#[derive(Fingerprint)]
#[expect(dead_code, reason = "what is skipped is not read")]
struct Lonely(#[fingerprint(skip)] &'static str);

#[derive(Fingerprint)]
struct Maybe(Option<u64>);

#[derive(Fingerprint)]
struct Charge {
    customer: String,
    amount: u64,
    note: Option<String>,
    hint: Option<Option<u64>>,
    maybe: Maybe,
    marker: PhantomData<f64>,
}

fn charge(note: Option<&str>, hint: Option<Option<u64>>, maybe: Option<u64>) -> Charge {
    Charge {
        customer: "c".into(),
        amount: 1,
        note: note.map(Into::into),
        hint,
        maybe: Maybe(maybe),
        marker: PhantomData,
    }
}

#[derive(Fingerprint)]
struct Order {
    bb: u8,
    #[fingerprint(rename = "c")]
    aaa: u8,
    r#type: u8,
    a_name_of_twenty_four_ch: u8,
    ab: u8,
}

#[derive(Fingerprint)]
#[fingerprint(name = "refund")]
struct Refund {
    amount: u64,
}

#[derive(Fingerprint)]
#[fingerprint(name = "state")]
enum Named {
    Open,
}

#[derive(Fingerprint)]
enum Event {
    Ping,
    Paid(u64),
    Moved(u64, &'static str),
    Sent {
        to: &'static str,
        copy: Option<u64>,
    },
    Nothing {},
    NoPlace(),
    #[fingerprint(rename = "done")]
    Finished,
    Maybe(Option<u64>),
}

#[derive(Fingerprint)]
struct Attributes {
    #[fingerprint(skip)]
    _trace: f64,
    #[fingerprint(default)]
    retries: u8,
    #[fingerprint(with = lower)]
    email: String,
    #[fingerprint(float)]
    rate: Option<f64>,
    #[fingerprint(float, default)]
    rates: Vec<f32>,
}

fn lower(text: &str, encoder: &mut Encoder) {
    encoder.text(&text.to_lowercase());
}

#[derive(Fingerprint)]
struct Real(#[fingerprint(float)] f64);

#[derive(Fingerprint)]
struct Single(#[fingerprint(float)] f32);

fn simple() -> Vec<Case> {
    vec![
        both("None", "null", None::<u64>, Null),
        both("true", "true", true, true),
        both("false", "false", false, false),
        both("integer 0", "0", 0_u8, 0),
        both("integer 23", "23", 23_i16, 23),
        both("integer 24", "24", 24_u32, 24),
        both("integer 255", "255", 255_u8, 255),
        both("integer 256", "256", 256_i64, 256),
        both("integer 65535", "65535", u16::MAX, 65535),
        both("integer 65536", "65536", 65536_usize, 65536),
        both("integer 2^32 - 1", "4294967295", u32::MAX, u32::MAX),
        both("integer 2^32", "4294967296", 1_u64 << 32, 1_u64 << 32),
        both(
            "integer 2^64 - 1",
            "18446744073709551615",
            u64::MAX,
            u64::MAX,
        ),
        both("integer -1", "-1", -1_i8, -1),
        both("integer -24", "-24", -24_i32, -24),
        both("integer -25", "-25", -25_isize, -25),
        both("integer -2^63", "-9223372036854775808", i64::MIN, i64::MIN),
        both(
            "integer 2^64",
            "18446744073709551616",
            1_u128 << 64,
            big(2, 1 << 64),
        ),
        both(
            "integer 2^128 - 1",
            "340282366920938463463374607431768211455",
            u128::MAX,
            big(2, u128::MAX),
        ),
        both(
            "integer -2^64",
            "-18446744073709551616",
            -(1_i128 << 64),
            Cbor::Integer((-(1_i128 << 64)).try_into().expect("it fits")),
        ),
        both(
            "integer -2^64 - 1",
            "-18446744073709551617",
            -(1_i128 << 64) - 1,
            big(3, 1 << 64),
        ),
        both(
            "integer -2^127",
            "-170141183460469231731687303715884105728",
            i128::MIN,
            big(3, i128::MAX as u128),
        ),
        case("NonZero 7", std::num::NonZeroU16::MIN.saturating_add(6), 7),
        case("Wrapping 7", std::num::Wrapping(7_u8), 7),
        both("empty text", "\"\"", "", ""),
        both("text a", "\"a\"", "a".to_owned(), "a"),
        both("character a", "\"a\"", 'a', "a"),
        both("text of two bytes a character", r#""\u00fc""#, "ü", "ü"),
        both(
            "text of 24 bytes",
            r#""twenty-four bytes of it.""#,
            "twenty-four bytes of it.",
            "twenty-four bytes of it.",
        ),
        case("text of 256 bytes, all x", "x".repeat(256), "x".repeat(256)),
        case("no bytes", Vec::<u8>::new(), Bytes(vec![])),
        case(
            "bytes 1, 2, 255",
            vec![1_u8, 2, 255],
            Bytes(vec![1, 2, 255]),
        ),
        case("bytes 1, 2 in an array of u8", [1_u8, 2], Bytes(vec![1, 2])),
        both("no items", "[]", Vec::<u16>::new(), Array(vec![])),
        both(
            "items 1, 2, 255 of u16",
            "[1,2,255]",
            vec![1_u16, 2, 255],
            Array(vec![1.into(), 2.into(), 255.into()]),
        ),
        both(
            "24 items, each 0",
            "[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]",
            [0_u16; 24],
            Array(vec![0.into(); 24]),
        ),
        both("()", "[]", (), Array(vec![])),
        both(
            "tuple of 1 and text a",
            "[1,\"a\"]",
            (1_u8, "a"),
            Array(vec![1.into(), "a".into()]),
        ),
        case(
            "tuple of 1 and PhantomData",
            (1_u8, PhantomData::<f64>),
            Array(vec![1.into(), Null]),
        ),
        both("Some of 1", "1", Some(1_u8), 1),
        case("Some of None", Some(None::<u8>), present(Null)),
        case(
            "Some of Some of None",
            Some(Some(None::<u8>)),
            present(present(Null)),
        ),
        case("Some of Some of 1", Some(Some(1_u8)), 1),
        case("Some of JSON null", Some(json(b"null")), present(Null)),
        both(
            "items None, Some of 1",
            "[null,1]",
            [None, Some(1_u8)],
            Array(vec![Null, 1.into()]),
        ),
        case(
            "items None, Some of None",
            vec![None, Some(None::<u8>)],
            Array(vec![Null, present(Null)]),
        ),
        both(
            "Ok of 1, as Result",
            r#"{"Ok":1}"#,
            Ok::<_, String>(1_u8),
            fields([("Ok", 1.into())]),
        ),
        both(
            "Err of text e, as Result",
            r#"{"Err":"e"}"#,
            Err::<u8, _>("e"),
            fields([("Err", "e".into())]),
        ),
    ]
}

fn numbers() -> Vec<Case> {
    vec![
        case("float 0.0", Real(0.0), Float(0.0)),
        case("float -0.0, which is 0.0", Real(-0.0), Float(0.0)),
        case("float 1.0", Real(1.0), Float(1.0)),
        case("float -1.5, single", Single(-1.5), Float(-1.5)),
        case(
            "float 65504.0, the largest half",
            Real(65504.0),
            Float(65504.0),
        ),
        case("float 65536.0", Real(65536.0), Float(65536.0)),
        case(
            "float 2^-24, the smallest half",
            Real(2_f64.powi(-24)),
            Float(2_f64.powi(-24)),
        ),
        case("float 2^-25", Real(2_f64.powi(-25)), Float(2_f64.powi(-25))),
        case("float 0.1, single", Single(0.1), Float(f64::from(0.1_f32))),
        case("float 0.1", Real(0.1), Float(0.1)),
        case("float 1e300", Real(1e300), Float(1e300)),
        case("float infinity", Real(f64::INFINITY), Float(f64::INFINITY)),
        case(
            "float minus infinity",
            Single(f32::NEG_INFINITY),
            Float(f64::NEG_INFINITY),
        ),
        text("number 1.5", "1.5", fraction(-1, 15)),
        text("number 1.50, which is 1.5", "1.50", fraction(-1, 15)),
        text("number 1.0, which is 1", "1.0", 1),
        text("number 1e0, which is 1", "1e0", 1),
        text("number -0.0, which is 0", "-0.0", 0),
        text("number 1e2, which is 100", "1e2", 100),
        text("number -0.001", "-0.001", fraction(-3, -1)),
        text("number 1e38", "1e38", big(2, 10_u128.pow(38))),
        text("number 1e39", "1e39", fraction(39, 1)),
        text("number 12e-400", "12e-400", fraction(-400, 12)),
        text(
            "number 2^64 + 0.5, its mantissa a bignum",
            "18446744073709551616.5",
            fraction(-1, big(2, 184_467_440_737_095_516_165)),
        ),
        text(
            "number 2^128",
            "340282366920938463463374607431768211456",
            long(0, "340282366920938463463374607431768211456"),
        ),
        text(
            "number -2^127 - 1",
            "-170141183460469231731687303715884105729",
            long(0, "-170141183460469231731687303715884105729"),
        ),
        text(
            "number 2^127 / 10",
            "17014118346046923173168730371588410572.8",
            long(-1, "170141183460469231731687303715884105728"),
        ),
        text(
            "number -2^127 / 10",
            "-17014118346046923173168730371588410572.8",
            fraction(-1, big(3, i128::MAX as u128)),
        ),
        text(
            "number of 45 digits with zeros at the end",
            "123456789012345678901234567890123456789012000",
            long(3, "123456789012345678901234567890123456789012"),
        ),
        both(
            "decimal 12.30, rust_decimal",
            "12.30",
            rust_decimal::Decimal::new(1230, 2),
            fraction(-1, 123),
        ),
        both(
            "decimal 100.00, rust_decimal",
            "100.00",
            rust_decimal::Decimal::new(10000, 2),
            100,
        ),
        both(
            "decimal by hand",
            "-7.25",
            from_fn(|encoder| encoder.decimal("-0725e-2")),
            fraction(-2, -725),
        ),
    ]
}

fn derived() -> Vec<Case> {
    let plain = || vec![("amount", 1.into()), ("customer", "c".into())];
    let with = |more: Vec<(&'static str, Cbor)>| {
        let entries = plain().into_iter().chain(more);
        Cbor::Map(entries.map(|(name, value)| (name.into(), value)).collect())
    };
    vec![
        both("struct Unit;", "{}", Unit, fields([])),
        both("struct NoFields {}", "{}", NoFields {}, fields([])),
        both("struct NoPlaces();", "[]", NoPlaces(), Array(vec![])),
        both("struct Newtype(7)", "7", Newtype(7), 7),
        both(
            "struct Pair(7, a)",
            "[7,\"a\"]",
            Pair(7, "a"),
            Array(vec![7.into(), "a".into()]),
        ),
        both(
            "struct of three places, the second skipped",
            "[7,\"a\"]",
            Partly(7, f64::NAN, "a"),
            Array(vec![7.into(), "a".into()]),
        ),
        both(
            "struct of one place, skipped",
            "[]",
            Lonely("a"),
            Array(vec![]),
        ),
        both(
            "struct {customer: c, amount: 1, note: None, hint: None, maybe: newtype of None, marker: PhantomData}",
            r#"{"amount":1,"customer":"c"}"#,
            charge(None, None, None),
            with(vec![]),
        ),
        case(
            "the same with note: Some of x, hint: Some of None",
            charge(Some("x"), Some(None), None),
            with(vec![("note", "x".into()), ("hint", present(Null))]),
        ),
        both(
            "the same with hint: Some of Some of 2, maybe: newtype of Some of 3",
            r#"{"amount":1,"customer":"c","hint":2,"maybe":3}"#,
            charge(None, Some(Some(2)), Some(3)),
            with(vec![("hint", 2.into()), ("maybe", 3.into())]),
        ),
        both(
            "struct {bb: 1, aaa renamed c: 2, r#type: 3, a_name_of_twenty_four_ch: 4, ab: 5}",
            r#"{"bb":1,"c":2,"type":3,"a_name_of_twenty_four_ch":4,"ab":5}"#,
            Order {
                bb: 1,
                aaa: 2,
                r#type: 3,
                a_name_of_twenty_four_ch: 4,
                ab: 5,
            },
            fields([
                ("bb", 1.into()),
                ("c", 2.into()),
                ("type", 3.into()),
                ("a_name_of_twenty_four_ch", 4.into()),
                ("ab", 5.into()),
            ]),
        ),
        both(
            "struct {amount: 1} with name = refund",
            r#"{"refund":{"amount":1}}"#,
            Refund { amount: 1 },
            fields([("refund", fields([("amount", 1.into())]))]),
        ),
        both(
            "enum with name = state, variant Open",
            r#"{"state":"Open"}"#,
            Named::Open,
            fields([("state", "Open".into())]),
        ),
        both("variant Ping", "\"Ping\"", Event::Ping, "Ping"),
        both(
            "variant Finished renamed done",
            "\"done\"",
            Event::Finished,
            "done",
        ),
        both(
            "variant Paid(5)",
            r#"{"Paid":5}"#,
            Event::Paid(5),
            fields([("Paid", 5.into())]),
        ),
        both(
            "variant Maybe(None)",
            r#"{"Maybe":null}"#,
            Event::Maybe(None),
            fields([("Maybe", Null)]),
        ),
        both(
            "variant Moved(5, a)",
            r#"{"Moved":[5,"a"]}"#,
            Event::Moved(5, "a"),
            fields([("Moved", Array(vec![5.into(), "a".into()]))]),
        ),
        both(
            "variant Sent {to: a, copy: None}",
            r#"{"Sent":{"to":"a"}}"#,
            Event::Sent {
                to: "a",
                copy: None,
            },
            fields([("Sent", fields([("to", "a".into())]))]),
        ),
        both(
            "variant Sent {to: a, copy: Some of 1}",
            r#"{"Sent":{"to":"a","copy":1}}"#,
            Event::Sent {
                to: "a",
                copy: Some(1),
            },
            fields([("Sent", fields([("to", "a".into()), ("copy", 1.into())]))]),
        ),
        both(
            "variant Nothing {}",
            r#"{"Nothing":{}}"#,
            Event::Nothing {},
            fields([("Nothing", fields([]))]),
        ),
        both(
            "variant NoPlace()",
            r#"{"NoPlace":[]}"#,
            Event::NoPlace(),
            fields([("NoPlace", Array(vec![]))]),
        ),
        both(
            "struct with a field skipped, defaults left out, and email written in lower case",
            r#"{"email":"a@b"}"#,
            Attributes {
                _trace: f64::NAN,
                retries: 0,
                email: "A@B".into(),
                rate: None,
                rates: vec![],
            },
            fields([("email", "a@b".into())]),
        ),
        case(
            "the same with retries: 3, rate: Some of 0.5, rates: [0.1]",
            Attributes {
                _trace: 0.0,
                retries: 3,
                email: "A@B".into(),
                rate: Some(0.5),
                rates: vec![0.1],
            },
            fields([
                ("email", "a@b".into()),
                ("retries", 3.into()),
                ("rate", Float(0.5)),
                ("rates", Array(vec![Float(f64::from(0.1_f32))])),
            ]),
        ),
    ]
}

fn collections() -> Vec<Case> {
    vec![
        both(
            "map from text, shorter keys first",
            r#"{"b":1,"aa":2,"a":3,"":4}"#,
            BTreeMap::from([("b", 1), ("aa", 2), ("a", 3), ("", 4)]),
            fields([
                ("b", 1.into()),
                ("aa", 2.into()),
                ("a", 3.into()),
                ("", 4.into()),
            ]),
        ),
        both(
            "map whose value is None",
            r#"{"a":null}"#,
            HashMap::from([("a", None::<u8>)]),
            fields([("a", Null)]),
        ),
        case(
            "map from integers -1, 100, 10, -300 and 1000",
            HashMap::from([(-1, 'a'), (100, 'b'), (10, 'c'), (-300, 'd'), (1000, 'e')]),
            map([
                ((-1).into(), "a".into()),
                (100.into(), "b".into()),
                (10.into(), "c".into()),
                ((-300).into(), "d".into()),
                (1000.into(), "e".into()),
            ]),
        ),
        case(
            "map from tuples",
            BTreeMap::from([((2_u8, "a"), true), ((1, "bb"), false)]),
            map([
                (Array(vec![2.into(), "a".into()]), Bool(true)),
                (Array(vec![1.into(), "bb".into()]), Bool(false)),
            ]),
        ),
        both(
            "map of maps",
            r#"{"z":{"y":1,"x":2},"a":{}}"#,
            HashMap::from([
                ("z", HashMap::from([("y", 1), ("x", 2)])),
                ("a", HashMap::new()),
            ]),
            fields([
                ("z", fields([("y", 1.into()), ("x", 2.into())])),
                ("a", fields([])),
            ]),
        ),
        case(
            "set of texts b, aa, a",
            HashSet::from(["b", "aa", "a"]),
            Array(vec!["a".into(), "b".into(), "aa".into()]),
        ),
        case(
            "set of integers 10, -1, 1000",
            BTreeSet::from([10, -1, 1000]),
            Array(vec![10.into(), 1000.into(), (-1).into()]),
        ),
        text(
            "JSON of every kind",
            "{ \"b\": [1, 2.50, null, {\"a\": \"x\\n\"}],\n \"a\": true, \"\\u00e9\": {}, \"aa\": -1e1 }",
            fields([
                (
                    "b",
                    Array(vec![
                        1.into(),
                        fraction(-1, 25),
                        Null,
                        fields([("a", "x\n".into())]),
                    ]),
                ),
                ("a", Bool(true)),
                ("é", fields([])),
                ("aa", (-10).into()),
            ]),
        ),
    ]
}

pub(super) fn cases() -> Vec<Case> {
    [simple(), numbers(), derived(), collections(), library()]
        .into_iter()
        .flatten()
        .collect()
}
