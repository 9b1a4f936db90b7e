//! Every shape of type that the derive accepts, under the strictest lints.
#![deny(warnings, unused_qualifications, missing_debug_implementations)]
#![deny(clippy::all, clippy::pedantic)]

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::marker::PhantomData;

use idem_runtime::Fingerprint;
use idem_runtime::fingerprint::{Encoder, canonical, digest};

#[derive(Debug, Fingerprint)]
struct Unit;

#[derive(Debug, Fingerprint)]
struct Empty {}

#[derive(Debug, Fingerprint)]
struct EmptyTuple();

#[derive(Debug, Fingerprint)]
struct Newtype(u64);

#[derive(Debug, Fingerprint)]
struct Pair(u64, #[fingerprint(skip)] Opaque, String);

#[derive(Debug, Fingerprint)]
enum Never {}

#[derive(Debug)]
struct Opaque;

#[derive(Debug, Fingerprint)]
struct Borrowed<'a, 'b: 'a> {
    text: &'a str,
    bytes: &'b [u8],
    either: Cow<'a, str>,
}

#[derive(Debug, Fingerprint)]
struct Generic<T, K: Ord, const N: usize>
where
    K: Debug + Hash + Eq,
{
    items: [T; N],
    more: HashMap<K, Vec<T>>,
}

#[derive(Debug, Fingerprint)]
struct Projected<I: Iterator> {
    first: I::Item,
    second: Option<<I as Iterator>::Item>,
}

#[derive(Debug, Fingerprint)]
struct Id<T>(u64, PhantomData<T>);

// As with the standard derives, the inferred bound on the parameter of `Id<T>` would be stricter than needed.
#[derive(Debug, Fingerprint)]
#[fingerprint(bound = "")]
struct Marked<T> {
    id: Id<T>,
    marker: PhantomData<fn() -> T>,
}

#[derive(Debug, Fingerprint)]
struct Unsized<T: ?Sized> {
    length: u32,
    tail: Box<T>,
}

#[derive(Debug, Fingerprint)]
enum Tree {
    Leaf(i64),
    Node { left: Box<Tree>, right: Box<Tree> },
    Many(Vec<Tree>, u8),
    End,
    Nothing {},
    NoPlace(),
}

#[derive(Debug, Fingerprint)]
struct List<T> {
    value: T,
    next: Option<Box<List<T>>>,
}

#[derive(Debug, Fingerprint)]
struct Raw {
    r#type: String,
    r#match: u64,
}

#[derive(Debug, Fingerprint)]
#[fingerprint(name = "charge", crate = idem_runtime)]
struct Attributes<T> {
    #[fingerprint(skip)]
    trace: Opaque,
    #[fingerprint(rename = "sum")]
    amount: u64,
    #[fingerprint(default)]
    priority: u8,
    #[fingerprint(default)]
    tags: Vec<T>,
    #[fingerprint(float)]
    ratio: f64,
    #[fingerprint(float, default)]
    ratios: Vec<Option<f32>>,
    #[fingerprint(with = lower)]
    email: String,
    #[fingerprint(with = Opaque::write, rename = "opaque",)]
    written: Opaque,
}

fn lower(text: &str, encoder: &mut Encoder) {
    encoder.text(&text.to_lowercase());
}

impl Opaque {
    fn write(_: &Self, encoder: &mut Encoder) {
        encoder.null();
    }
}

// The inferred bound, `T: Fingerprint`, is not the needed one.
#[derive(Debug, Fingerprint)]
#[fingerprint(bound = "T::Owned: Fingerprint")]
struct Bound<T: ToOwned + ?Sized>
where
    T::Owned: Debug,
{
    owned: T::Owned,
}

#[derive(Debug, Fingerprint)]
struct Defaulted<T = u64> {
    value: T,
}

fn main() {
    let one = List {
        value: 1_u8,
        next: Some(Box::new(List {
            value: 2,
            next: None,
        })),
    };
    assert!(digest(&one).is_ok());
    assert!(
        digest(&Generic {
            items: ["a", "b"],
            more: HashMap::from([(1_u8, vec!["c"])]),
        })
        .is_ok()
    );
    assert!(
        digest(&Projected::<std::ops::Range<u64>> {
            first: 1,
            second: None,
        })
        .is_ok()
    );
    // Neither the marker type nor its parameter needs a canonical form.
    assert!(
        digest(&Marked::<Opaque> {
            id: Id(1, PhantomData),
            marker: PhantomData,
        })
        .is_ok()
    );
    let raw = canonical(&Raw {
        r#type: "a".into(),
        r#match: 1,
    });
    assert_eq!(
        raw.unwrap(),
        b"\x82\x66idem/1\xa2\x64type\x61a\x65match\x01"
    );
    let _ = (
        Unit,
        Empty {},
        EmptyTuple(),
        Newtype(1),
        Pair(1, Opaque, String::new()),
    );
    let _ = Unsized::<str> {
        length: 1,
        tail: "a".into(),
    };
    let _ = Borrowed {
        text: "",
        bytes: b"",
        either: "".into(),
    };
    let _ = Bound::<str> {
        owned: String::new(),
    };
    let _ = Defaulted { value: 1 };
    let _: Option<Never> = None;
    let _ = Tree::Node {
        left: Tree::Leaf(1).into(),
        right: Tree::Many(vec![Tree::End, Tree::Nothing {}, Tree::NoPlace()], 1).into(),
    };
    let _ = Attributes::<u8> {
        trace: Opaque,
        amount: 1,
        priority: 0,
        tags: vec![],
        ratio: 0.5,
        ratios: vec![],
        email: String::new(),
        written: Opaque,
    };
}
