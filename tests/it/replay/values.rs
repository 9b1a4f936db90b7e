//! Random values of all kinds that serde supports.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::collection::{btree_map, hash_set, vec};
use proptest::prelude::*;
use serde::de::{self, DeserializeOwned, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! by_bits {
    ($($name:ident($float:ident);)*) => {$(
        /// Float that is compared by its bits.
        #[derive(Clone, Copy, Serialize, Deserialize)]
        #[serde(transparent)]
        pub(crate) struct $name(pub(crate) $float);

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.0.to_bits() == other.0.to_bits()
            }
        }

        impl Eq for $name {}

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }

        impl Ord for $name {
            fn cmp(&self, other: &Self) -> std::cmp::Ordering {
                self.0.total_cmp(&other.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?} ({:#x})", self.0, self.0.to_bits())
            }
        }
    )*};
}

by_bits! {
    F32(f32);
    F64(f64);
}

/// Bytes that are serialized as bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_byte_buf(BytesVisitor).map(Self)
    }
}

/// Bytes that are deserialized only from bytes, not from a sequence of numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StrictBytes(pub(crate) Vec<u8>);

impl Serialize for StrictBytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for StrictBytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Strict;

        impl Visitor<'_> for Strict {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }
        }

        from.deserialize_bytes(Strict).map(Self)
    }
}

struct BytesVisitor;

impl<'de> Visitor<'de> for BytesVisitor {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
        Ok(bytes.to_vec())
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<u8>, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = seq.next_element()? {
            bytes.push(byte);
        }
        Ok(bytes)
    }
}

/// Text that is read with `deserialize_str`, as many types with a text form are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StrOnly(pub(crate) String);

impl Serialize for StrOnly {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for StrOnly {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = String;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
                Ok(text.to_owned())
            }
        }

        from.deserialize_str(Text).map(Self)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Nothing;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct New<T>(pub(crate) T);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Two<A, B>(pub(crate) A, pub(crate) B);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Name {
    First,
    Second,
}

/// Variants that JSON cannot distinguish beyond 64 bits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Amount {
    Whole(u128),
    Part(F64),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Untagged<T> {
    Fields { value: T },
    Tuple(T, bool),
    Nothing,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum External<T> {
    Nothing,
    New(T),
    Tuple(T, u8),
    Fields { value: T },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "tag")]
pub(crate) enum Internal<T> {
    Nothing,
    Fields {
        value: T,
    },
    Inner(Fields<T>),
    /// Map, in which one key may be equal to the tag.
    Map(BTreeMap<String, T>),
    Numbered(BTreeMap<u64, T>),
    Unit(()),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "tag", content = "content")]
pub(crate) enum Adjacent<T> {
    Nothing,
    New(T),
    Tuple(T, u8),
    Fields { value: T },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fields<T> {
    value: T,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<i32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Flat<T> {
    value: u8,
    #[serde(flatten)]
    rest: BTreeMap<String, T>,
}

/// Value of any kind that serde supports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Any {
    Bool(bool),
    I8(i8),
    I16(i16),
    I32(i32),
    I64(i64),
    I128(i128),
    U8(u8),
    U16(u16),
    U32(u32),
    U64(u64),
    U128(u128),
    F32(F32),
    F64(F64),
    Char(char),
    Text(String),
    StrOnly(StrOnly),
    Bytes(Bytes),
    StrictBytes(StrictBytes),
    Unit,
    UnitValue(()),
    UnitStruct(Nothing),
    Some(Option<u8>),
    SomeSome(Option<Option<u8>>),
    SomeUnit(Option<()>),
    SomeNothing(Option<New<Nothing>>),
    SomeFloat(Option<F64>),
    SomeUntagged(Option<Untagged<u8>>),
    SomeJson(Option<serde_json::Value>),
    NewUnit(New<()>),
    Pair(Two<F64, i64>),
    Amount(Amount),
    Ip(IpAddr),
    Names(BTreeMap<Name, u8>),
    ByText(BTreeMap<String, F64>),
    ByChar(BTreeMap<char, u8>),
    ByBool(BTreeMap<bool, u8>),
    ByNumber(BTreeMap<i64, u8>),
    ByLargeNumber(BTreeMap<u128, u8>),
    ByFloat(BTreeMap<F64, u8>),
    ByShortFloat(BTreeMap<F32, u8>),
    ByOption(BTreeMap<Option<String>, u8>),
    BySequence(BTreeMap<Vec<u8>, u8>),
    Set(HashSet<u16>),
    ShortFloats(Vec<F32>),
    Sequence(Vec<Self>),
    External(Box<External<Self>>),
    Internal(Box<Internal<Self>>),
    Adjacent(Box<Adjacent<Self>>),
    Untagged(Box<Untagged<Self>>),
    Flat(Box<Flat<Self>>),
    Fields(Box<Fields<Self>>),
}

/// The only `f32` that changes if its text is read as `f64` first.
pub(crate) const ROUNDED_TWICE: f32 = f32::from_bits(0x15ae_43fd);

fn f64s() -> impl Strategy<Value = F64> {
    prop_oneof![
        8 => any::<u64>().prop_map(f64::from_bits),
        8 => (0.0..1.0_f64, 0..12).prop_map(|(unit, exponent)| unit * 10_f64.powi(exponent)),
        1 => Just(-0.0),
        1 => Just(f64::INFINITY),
        1 => Just(f64::from_bits(0x7ff8_0000_0000_0001)),
        1 => Just(f64::from_bits(0xfff0_0000_0000_0001)),
        1 => Just(f64::from(f32::MAX)),
        1 => Just(f64::from_bits(1)),
    ]
    .prop_map(F64)
}

fn f32s() -> impl Strategy<Value = F32> {
    prop_oneof![
        8 => any::<u32>().prop_map(f32::from_bits),
        1 => Just(-0.0),
        1 => Just(ROUNDED_TWICE),
        1 => Just(-ROUNDED_TWICE),
        1 => Just(f32::from_bits(0x7f80_0001)),
        1 => Just(f32::from_bits(0xffc0_0001)),
    ]
    .prop_map(F32)
}

fn u128s() -> impl Strategy<Value = u128> {
    prop_oneof![
        any::<u128>(),
        any::<u64>().prop_map(u128::from),
        Just(u128::MAX)
    ]
}

fn texts() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => any::<String>(),
        // Names that the types above use themselves.
        2 => prop_oneof!["tag", "value", "content"],
        1 => (4_090..4_100_usize).prop_map(|length| "ä".repeat(length)),
    ]
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![4 => vec(any::<u8>(), 0..20), 1 => vec(any::<u8>(), 4_095..4_099)]
}

fn amounts() -> impl Strategy<Value = Any> {
    prop_oneof![
        u128s().prop_map(Amount::Whole),
        f64s().prop_map(Amount::Part)
    ]
    .prop_map(Any::Amount)
}

fn leaves() -> impl Strategy<Value = Any> {
    let json = prop_oneof![
        Just(serde_json::Value::Null),
        any::<i64>().prop_map(Into::into),
        (0.0..1e9_f64).prop_map(Into::into),
        any::<String>().prop_map(Into::into),
    ];
    let numbers = prop_oneof![
        any::<bool>().prop_map(Any::Bool),
        any::<i8>().prop_map(Any::I8),
        any::<i16>().prop_map(Any::I16),
        any::<i32>().prop_map(Any::I32),
        any::<i64>().prop_map(Any::I64),
        any::<i128>().prop_map(Any::I128),
        any::<u8>().prop_map(Any::U8),
        any::<u16>().prop_map(Any::U16),
        any::<u32>().prop_map(Any::U32),
        any::<u64>().prop_map(Any::U64),
        u128s().prop_map(Any::U128),
        f32s().prop_map(Any::F32),
        f64s().prop_map(Any::F64),
        vec(f32s(), 0..4).prop_map(Any::ShortFloats),
        (f64s(), any::<i64>()).prop_map(|(one, other)| Any::Pair(Two(one, other))),
    ];
    let texts_and_bytes = prop_oneof![
        any::<char>().prop_map(Any::Char),
        texts().prop_map(Any::Text),
        texts().prop_map(StrOnly).prop_map(Any::StrOnly),
        bytes().prop_map(Bytes).prop_map(Any::Bytes),
        bytes().prop_map(StrictBytes).prop_map(Any::StrictBytes),
        any::<u32>().prop_map(|ip| Any::Ip(Ipv4Addr::from_bits(ip).into())),
        any::<u128>().prop_map(|ip| Any::Ip(Ipv6Addr::from_bits(ip).into())),
    ];
    let units = prop_oneof![
        Just(Any::Unit),
        Just(Any::UnitValue(())),
        Just(Any::UnitStruct(Nothing)),
        Just(Any::NewUnit(New(()))),
    ];
    let untagged = prop_oneof![
        any::<u8>().prop_map(|value| Untagged::Fields { value }),
        Just(Untagged::Nothing),
    ];
    let options = prop_oneof![
        any::<Option<u8>>().prop_map(Any::Some),
        any::<Option<Option<u8>>>().prop_map(Any::SomeSome),
        any::<Option<()>>().prop_map(Any::SomeUnit),
        any::<bool>().prop_map(|some| Any::SomeNothing(some.then_some(New(Nothing)))),
        proptest::option::of(f64s()).prop_map(Any::SomeFloat),
        proptest::option::of(untagged).prop_map(Any::SomeUntagged),
        proptest::option::of(json).prop_map(Any::SomeJson),
    ];
    let name = prop_oneof![Just(Name::First), Just(Name::Second)];
    let maps = prop_oneof![
        btree_map(name, any::<u8>(), 0..3).prop_map(Any::Names),
        btree_map(texts(), f64s(), 0..3).prop_map(Any::ByText),
        btree_map(any::<char>(), any::<u8>(), 0..3).prop_map(Any::ByChar),
        btree_map(any::<bool>(), any::<u8>(), 0..3).prop_map(Any::ByBool),
        btree_map(any::<i64>(), any::<u8>(), 0..3).prop_map(Any::ByNumber),
        btree_map(u128s(), any::<u8>(), 0..3).prop_map(Any::ByLargeNumber),
        btree_map(f64s(), any::<u8>(), 0..3).prop_map(Any::ByFloat),
        btree_map(f32s(), any::<u8>(), 0..3).prop_map(Any::ByShortFloat),
        btree_map(any::<Option<String>>(), any::<u8>(), 0..3).prop_map(Any::ByOption),
        btree_map(vec(any::<u8>(), 0..3), any::<u8>(), 0..3).prop_map(Any::BySequence),
        hash_set(any::<u16>(), 0..20).prop_map(Any::Set),
    ];
    prop_oneof![4 => numbers, 2 => texts_and_bytes, 1 => units, 2 => options, 3 => maps]
}

/// Variants that look alike. Their values are read back exactly only if the writer knows the reader's type.
#[derive(Clone, Copy)]
pub(crate) enum Lookalikes {
    Included,
    Excluded,
}

/// Nested random values.
pub(crate) fn values(lookalikes: Lookalikes) -> BoxedStrategy<Any> {
    let leaves = match lookalikes {
        Lookalikes::Included => prop_oneof![20 => leaves(), 1 => amounts()].boxed(),
        Lookalikes::Excluded => leaves().boxed(),
    };
    leaves
        .prop_recursive(4, 24, 3, |inner| {
            let part = || inner.clone();
            let map = || btree_map(texts(), part(), 0..3);
            prop_oneof![
                vec(part(), 0..3).prop_map(Any::Sequence),
                external(part()).prop_map(Box::new).prop_map(Any::External),
                internal(part(), map())
                    .prop_map(Box::new)
                    .prop_map(Any::Internal),
                adjacent(part()).prop_map(Box::new).prop_map(Any::Adjacent),
                untagged(part()).prop_map(Box::new).prop_map(Any::Untagged),
                (any::<u8>(), map())
                    .prop_map(|(value, rest)| Any::Flat(Box::new(Flat { value, rest }))),
                fields(part()).prop_map(Box::new).prop_map(Any::Fields),
            ]
        })
        .boxed()
}

fn external(inner: impl Strategy<Value = Any> + Clone) -> impl Strategy<Value = External<Any>> {
    prop_oneof![
        Just(External::Nothing),
        inner.clone().prop_map(External::New),
        (inner.clone(), any::<u8>()).prop_map(|(one, other)| External::Tuple(one, other)),
        inner.prop_map(|value| External::Fields { value }),
    ]
}

fn internal(
    inner: impl Strategy<Value = Any> + Clone,
    map: impl Strategy<Value = BTreeMap<String, Any>>,
) -> impl Strategy<Value = Internal<Any>> {
    prop_oneof![
        Just(Internal::Nothing),
        Just(Internal::Unit(())),
        inner.clone().prop_map(|value| Internal::Fields { value }),
        fields(inner.clone()).prop_map(Internal::Inner),
        map.prop_map(Internal::Map),
        btree_map(any::<u64>(), inner, 0..3).prop_map(Internal::Numbered),
    ]
}

fn adjacent(inner: impl Strategy<Value = Any> + Clone) -> impl Strategy<Value = Adjacent<Any>> {
    prop_oneof![
        Just(Adjacent::Nothing),
        inner.clone().prop_map(Adjacent::New),
        (inner.clone(), any::<u8>()).prop_map(|(one, other)| Adjacent::Tuple(one, other)),
        inner.prop_map(|value| Adjacent::Fields { value }),
    ]
}

fn untagged(inner: impl Strategy<Value = Any> + Clone) -> impl Strategy<Value = Untagged<Any>> {
    prop_oneof![
        Just(Untagged::Nothing),
        inner.clone().prop_map(|value| Untagged::Fields { value }),
        (inner, any::<bool>()).prop_map(|(one, other)| Untagged::Tuple(one, other)),
    ]
}

fn fields(inner: impl Strategy<Value = Any>) -> impl Strategy<Value = Fields<Any>> {
    (inner, any::<Option<String>>(), any::<Option<i32>>()).prop_map(|(value, note, number)| {
        Fields {
            value,
            note,
            number,
        }
    })
}

/// Bounds of a value in these tests.
pub(crate) trait Value:
    Serialize + DeserializeOwned + PartialEq + Clone + fmt::Debug + Send + Sync + 'static
{
}

impl<T: Serialize + DeserializeOwned + PartialEq + Clone + fmt::Debug + Send + Sync + 'static> Value
    for T
{
}
