//! A serializer wrapper that detects values which a codec does not read back exactly.
//!
//! It wraps the codec's own serializer, so detection needs no second pass. There are three results:
//!
//! - The codec can represent the value for every type that reads it.
//! - The codec cannot represent the value: serializing fails.
//! - The type that reads the value decides (*doubtful*). Types that buffer their input (internally tagged and untagged
//!   enums, flattened fields) lose 128-bit integers, map keys that are not strings, and more. The caller then decodes
//!   the value once and compares.
//!
//! The comparison uses a digest of all calls that a value makes to its serializer, so it needs only `Serialize`.

mod parts;

use std::cell::Cell;
use std::fmt::Display;
use std::hash::{DefaultHasher, Hasher as _};
use std::num::FpCategory;
use std::sync::LazyLock;

use serde::ser::{self, Serialize, Serializer};

use super::Codec;
use parts::Compound;

/// Depth from which a value may exceed the codecs' recursion limit on reading: 128 levels of JSON. One level of serde is
/// up to two levels of JSON.
const DEEP: u16 = 60;
/// Length in bytes beyond which ciborium reads a text only for some types.
const LONG: usize = 4096;
/// The only `f32`, apart from its sign, whose shortest decimal text becomes another `f32` if it is read as an `f64` first.
/// Types that buffer JSON do that. All `f32`s were tried.
const ROUNDED_TWICE: u32 = 0x15ae_43fd;

/// Prefix of the names by which serde_json knows its own types.
const SERDE_JSON: &str = "$serde_json::private::";

/// True if types that buffer JSON can read floats. They cannot if any crate of the build turns on the feature
/// `arbitrary_precision` of serde_json.
static BUFFERED_FLOATS_ARE_READ: LazyLock<bool> = LazyLock::new(|| {
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Buffered {
        Float(f64),
    }
    matches!(serde_json::from_str("0.5"), Ok(Buffered::Float(0.5)))
});

/// Knowledge about the type that will read a value. A doubtful value can be decoded and compared only if the type is known.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    Known,
    Unknown,
}

/// Findings of one pass over a value.
pub(super) struct Notes {
    codec: Codec,
    reader: Reader,
    refused: Cell<Option<&'static str>>,
    doubtful: Cell<bool>,
    /// Bits for the variants and the skipped members of the value. The first bit is always set.
    forms: Cell<u64>,
    /// Digest of the serializer calls so far; None if no digest is needed.
    digest: Cell<Option<u64>>,
    /// Hash of the last text that was written as a key.
    key: Cell<u64>,
}

impl Notes {
    pub(super) fn new(codec: Codec, reader: Reader) -> Self {
        Self {
            codec,
            reader,
            refused: Cell::new(None),
            doubtful: Cell::new(false),
            forms: Cell::new(1),
            digest: Cell::new(None),
            key: Cell::new(0),
        }
    }

    pub(super) fn digesting(codec: Codec) -> Self {
        let notes = Self::new(codec, Reader::Known);
        notes.digest.set(Some(0));
        notes
    }

    /// Reason for which this wrapper made serializing fail; None if the value's own `Serialize` failed.
    pub(super) fn refused(&self) -> Option<&'static str> {
        self.refused.get()
    }

    /// Returns true if the type that reads the value decides whether it is read back exactly.
    pub(super) fn is_doubtful(&self) -> bool {
        self.doubtful.get()
    }

    pub(super) fn digest(&self) -> Option<u64> {
        self.digest.get()
    }

    /// Wraps a value, so that it is serialized through [`Exact`].
    pub(super) fn on<'a, T: ?Sized>(&'a self, value: &'a T) -> Noted<'a, T> {
        Noted {
            value,
            notes: self,
            place: Place {
                depth: 0,
                role: Role::Value,
            },
        }
    }

    pub(super) fn forms(&self) -> u64 {
        self.forms.get()
    }

    /// Notes that the value has this variant, or lacks the member of this name.
    #[inline]
    fn note_form(&self, text: &'static str, index: u32) {
        // The address stands for the text: it is read faster, and two texts rarely share one.
        let hash =
            (text.as_ptr() as u64 ^ u64::from(index) << 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.forms.set(self.forms.get() | 1 << (1 + hash % 63));
    }

    fn mark_doubtful(&self) {
        self.doubtful.set(true);
    }

    fn refuse<E: ser::Error>(&self, reason: &'static str) -> E {
        self.refused.set(Some(reason));
        E::custom(reason)
    }

    fn is_json(&self) -> bool {
        self.codec == Codec::Json
    }

    #[inline]
    fn record(&self, kind: Kind, bytes: &[u8]) {
        if let Some(so_far) = self.digest.get() {
            let mut hasher = DefaultHasher::new();
            hasher.write_u64(so_far);
            hasher.write_u8(kind as u8);
            hasher.write(bytes);
            self.digest.set(Some(hasher.finish()));
        }
    }
}

/// Kind of a serializer call. An `i32` is another kind than an `i64`, and a string another than a variant.
#[derive(Clone, Copy)]
enum Kind {
    Bool,
    I8,
    I16,
    I32,
    I64,
    I128,
    U8,
    U16,
    U32,
    U64,
    U128,
    F32,
    F64,
    Char,
    Str,
    Bytes,
    None,
    Some,
    Unit,
    Struct,
    Variant,
    Seq,
    Tuple,
    Map,
    Field,
    End,
}

#[derive(Clone, Copy)]
struct Place {
    depth: u16,
    role: Role,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Value,
    /// Directly within a `Some`, or only newtypes between them.
    Some,
    /// Key of a map, or within newtypes of the key.
    Key,
}

impl Place {
    fn deeper(self, role: Role) -> Self {
        Self {
            depth: self.depth.saturating_add(1),
            role,
        }
    }
}

/// Value, or a part of one, that is serialized through the wrapper.
pub(super) struct Noted<'a, T: ?Sized> {
    value: &'a T,
    notes: &'a Notes,
    place: Place,
}

impl<T: Serialize + ?Sized> Serialize for Noted<'_, T> {
    #[inline]
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(Exact {
            to,
            notes: self.notes,
            place: self.place,
        })
    }
}

struct Exact<'n, S> {
    to: S,
    notes: &'n Notes,
    place: Place,
}

impl<'n, S: Serializer> Exact<'n, S> {
    #[inline]
    fn leaf(&self, kind: Kind, bytes: &[u8]) {
        if self.place.role == Role::Key {
            self.notes.mark_doubtful();
        }
        self.notes.record(kind, bytes);
    }

    fn text(&self, kind: Kind, text: &str) {
        if self.place.role == Role::Key {
            self.notes.key.set(fnv(text));
        }
        if !self.notes.is_json() && text.len() > LONG {
            self.notes.mark_doubtful();
        }
        self.notes.record(kind, text.as_bytes());
    }

    /// Refuses null directly inside a `Some`: it would be read as the outer `None`.
    fn null(&self) -> Result<(), S::Error> {
        match self.place.role {
            Role::Some => Err(self.notes.refuse(
                "a `Some` of `None` or of a unit is written as null, which is read as `None`; \
                 put the inner value into a struct with a field or into an enum",
            )),
            Role::Key => {
                self.notes.mark_doubtful();
                Ok(())
            }
            Role::Value => Ok(()),
        }
    }

    fn unit(&self) -> Result<(), S::Error> {
        self.null()?;
        if !self.notes.is_json() {
            // CBOR has one null for units and for `None`. A type that buffers reads it as `None`.
            self.notes.mark_doubtful();
        }
        Ok(())
    }

    fn check_float(&self, category: FpCategory) -> Result<(), S::Error> {
        let is_nan = category == FpCategory::Nan;
        if self.notes.is_json() && !*BUFFERED_FLOATS_ARE_READ {
            self.notes.mark_doubtful();
        }
        if !self.notes.is_json() {
            if is_nan {
                // Not all of its bits may survive conversions between the widths.
                self.notes.mark_doubtful();
            }
            return Ok(());
        }
        if is_nan || category == FpCategory::Infinite {
            return Err(self.notes.refuse(
                "JSON has neither infinities nor NaN; use codec `Cbor`, an `Option` or a text",
            ));
        }
        Ok(())
    }

    #[inline]
    fn name(&self, name: &'static str) -> Result<(), S::Error> {
        // serde_json and ciborium use such names for their own types.
        if name.starts_with(['$', '@']) {
            if !self.notes.is_json() && name.starts_with(SERDE_JSON) {
                return Err(self.notes.refuse(
                    "raw JSON, and numbers of serde_json with its feature `arbitrary_precision`, are maps in CBOR, which \
                     a build without that feature reads as objects; use codec `Json`, or a text",
                ));
            }
            self.notes.mark_doubtful();
        }
        Ok(())
    }

    /// Enters a compound value, whose parts go to `to`.
    fn compound<C>(
        notes: &'n Notes,
        place: Place,
        kind: Kind,
        bytes: &[u8],
        to: Result<C, S::Error>,
    ) -> Result<Compound<'n, C>, S::Error> {
        if place.depth >= DEEP || place.role == Role::Key {
            notes.mark_doubtful();
        }
        notes.record(kind, bytes);
        Ok(Compound::new(to?, notes, place.deeper(Role::Value)))
    }

    fn noted<'v, T: ?Sized>(&self, value: &'v T, role: Role) -> Noted<'v, T>
    where
        'n: 'v,
    {
        if self.place.depth >= DEEP {
            self.notes.mark_doubtful();
        }
        Noted {
            value,
            notes: self.notes,
            place: self.place.deeper(role),
        }
    }
}

macro_rules! integers {
    ($($method:ident($integer:ty) $what:ident;)*) => {$(
        #[inline]
        fn $method(self, v: $integer) -> Result<S::Ok, S::Error> {
            self.leaf(Kind::$what, &v.to_le_bytes());
            self.to.$method(v)
        }
    )*};
}

macro_rules! compounds {
    ($($method:ident($($argument:ident: $type:ty),*) -> $compound:ident,
        $kind:ident $(of $name:ident)? $(form $variant:ident $index:ident)?, $bytes:expr;)*) => {$(
        #[inline]
        fn $method(self, $($argument: $type),*) -> Result<Self::$compound, S::Error> {
            $(self.name($name)?;)?
            $(self.notes.note_form($variant, $index);)?
            let to = self.to.$method($($argument),*);
            Self::compound(self.notes, self.place, Kind::$kind, $bytes, to)
        }
    )*};
}

impl<'n, S: Serializer> Serializer for Exact<'n, S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Compound<'n, S::SerializeSeq>;
    type SerializeTuple = Compound<'n, S::SerializeTuple>;
    type SerializeTupleStruct = Compound<'n, S::SerializeTupleStruct>;
    type SerializeTupleVariant = Compound<'n, S::SerializeTupleVariant>;
    type SerializeMap = Compound<'n, S::SerializeMap>;
    type SerializeStruct = Compound<'n, S::SerializeStruct>;
    type SerializeStructVariant = Compound<'n, S::SerializeStructVariant>;

    integers! {
        serialize_i8(i8) I8;
        serialize_i16(i16) I16;
        serialize_i32(i32) I32;
        serialize_i64(i64) I64;
        serialize_u8(u8) U8;
        serialize_u16(u16) U16;
        serialize_u32(u32) U32;
        serialize_u64(u64) U64;
    }

    #[inline]
    fn serialize_bool(self, v: bool) -> Result<S::Ok, S::Error> {
        self.leaf(Kind::Bool, &[u8::from(v)]);
        self.to.serialize_bool(v)
    }

    fn serialize_i128(self, v: i128) -> Result<S::Ok, S::Error> {
        // Types that buffer support integers of at most 64 bits.
        self.notes.mark_doubtful();
        self.leaf(Kind::I128, &v.to_le_bytes());
        self.to.serialize_i128(v)
    }

    fn serialize_u128(self, v: u128) -> Result<S::Ok, S::Error> {
        self.notes.mark_doubtful();
        self.leaf(Kind::U128, &v.to_le_bytes());
        self.to.serialize_u128(v)
    }

    #[inline]
    fn serialize_f32(self, v: f32) -> Result<S::Ok, S::Error> {
        self.check_float(v.classify())?;
        if v.abs().to_bits() == ROUNDED_TWICE && self.notes.is_json() {
            // A type that buffers would read another number without an error.
            if self.notes.reader == Reader::Unknown {
                return Err(self
                    .notes
                    .refuse("this `f32` changes if it is read as `f64` first; use an `f64`"));
            }
            self.notes.mark_doubtful();
        }
        self.leaf(Kind::F32, &v.to_bits().to_le_bytes());
        self.to.serialize_f32(v)
    }

    #[inline]
    fn serialize_f64(self, v: f64) -> Result<S::Ok, S::Error> {
        self.check_float(v.classify())?;
        self.leaf(Kind::F64, &v.to_bits().to_le_bytes());
        self.to.serialize_f64(v)
    }

    #[inline]
    fn serialize_char(self, v: char) -> Result<S::Ok, S::Error> {
        self.text(Kind::Char, v.encode_utf8(&mut [0; 4]));
        self.to.serialize_char(v)
    }

    #[inline]
    fn serialize_str(self, v: &str) -> Result<S::Ok, S::Error> {
        self.text(Kind::Str, v);
        self.to.serialize_str(v)
    }

    fn serialize_bytes(self, v: &[u8]) -> Result<S::Ok, S::Error> {
        // JSON writes bytes as an array, which not every type of bytes can read.
        self.notes.mark_doubtful();
        self.leaf(Kind::Bytes, v);
        self.to.serialize_bytes(v)
    }

    #[inline]
    fn serialize_none(self) -> Result<S::Ok, S::Error> {
        self.null()?;
        self.notes.record(Kind::None, &[]);
        self.to.serialize_none()
    }

    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.leaf(Kind::Some, &[]);
        let value = self.noted(value, Role::Some);
        self.to.serialize_some(&value)
    }

    #[inline]
    fn serialize_unit(self) -> Result<S::Ok, S::Error> {
        self.unit()?;
        self.notes.record(Kind::Unit, &[]);
        self.to.serialize_unit()
    }

    fn serialize_unit_struct(self, name: &'static str) -> Result<S::Ok, S::Error> {
        self.unit()?;
        self.notes.record(Kind::Unit, name.as_bytes());
        self.to.serialize_unit_struct(name)
    }

    #[inline]
    fn serialize_unit_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
    ) -> Result<S::Ok, S::Error> {
        self.name(name)?;
        self.notes.note_form(variant, index);
        self.text(Kind::Variant, variant);
        self.to.serialize_unit_variant(name, index, variant)
    }

    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.name(name)?;
        let value = self.noted(value, self.place.role);
        self.to.serialize_newtype_struct(name, &value)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.name(name)?;
        self.notes.note_form(variant, index);
        self.leaf(Kind::Variant, variant.as_bytes());
        let value = self.noted(value, Role::Value);
        self.to
            .serialize_newtype_variant(name, index, variant, &value)
    }

    compounds! {
        serialize_seq(len: Option<usize>) -> SerializeSeq, Seq, &[];
        serialize_tuple(len: usize) -> SerializeTuple, Tuple, &[];
        serialize_tuple_struct(name: &'static str, len: usize) -> SerializeTupleStruct,
            Tuple of name, name.as_bytes();
        serialize_struct(name: &'static str, len: usize) -> SerializeStruct,
            Struct of name, name.as_bytes();
        serialize_tuple_variant(name: &'static str, index: u32, variant: &'static str, len: usize)
            -> SerializeTupleVariant, Variant of name form variant index, variant.as_bytes();
        serialize_struct_variant(name: &'static str, index: u32, variant: &'static str, len: usize)
            -> SerializeStructVariant, Variant of name form variant index, variant.as_bytes();
    }

    #[inline]
    fn serialize_map(self, len: Option<usize>) -> Result<Self::SerializeMap, S::Error> {
        if len.is_none() {
            // A struct with flattened fields, two of which may have the same name.
            self.notes.mark_doubtful();
        }
        let to = self.to.serialize_map(len);
        Self::compound(self.notes, self.place, Kind::Map, &[], to)
    }

    fn collect_str<T: Display + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        let plain = self.place.role != Role::Key && self.notes.is_json();
        if plain && self.notes.digest.get().is_none() {
            return self.to.collect_str(value);
        }
        self.serialize_str(&value.to_string())
    }

    fn is_human_readable(&self) -> bool {
        if !self.notes.is_json() {
            // Such a type writes its compact form here, but a type that buffers expects the readable form.
            self.notes.mark_doubtful();
        }
        self.to.is_human_readable()
    }
}

/// FNV-1a with 64 bits. The keys that it hashes are short.
fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
