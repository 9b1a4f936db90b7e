//! A serializer around that of a codec, which notices what the codec does not give back as it was.
//!
//! A value passes through it on its way to the codec, so noticing costs no pass of its own. There are three answers:
//!
//! - The codec carries it, whatever type reads it.
//! - The codec cannot carry it: serializing fails.
//! - It depends on the type that reads it (*doubtful*). Types that buffer what they read (internally tagged and untagged
//!   enums, flattened fields) lose 128-bit integers, keys that are not texts, and more. Whoever has that type decodes
//!   and compares.
//!
//! Comparing is by a digest over all that a value says to its serializer. It needs nothing of a type but `Serialize`.

mod parts;

use std::cell::Cell;
use std::fmt::Display;
use std::hash::{DefaultHasher, Hasher as _};

use serde::ser::{self, Serialize, Serializer};

use super::Codec;
use parts::Compound;

/// A value that is nested deeper may exceed the limit on recursion that the codecs have when they read: 128 levels of
/// JSON, of which one level of serde's is up to two.
const DEEP: u16 = 60;
/// ciborium reads texts that are longer, in bytes, for some types only.
const LONG: usize = 4096;
/// The only `f32`, sign aside, whose shortest decimal text is another `f32` when it is read as `f64` first, as types
/// that buffer do with JSON. All of them were tried.
const ROUNDED_TWICE: u32 = 0x15ae_43fd;

/// Whether the type is at hand that will read a value, to find out what it makes of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reader {
    Known,
    Unknown,
}

/// What one pass over a value notices.
pub(super) struct Notes {
    codec: Codec,
    reader: Reader,
    refused: Cell<Option<&'static str>>,
    doubtful: Cell<bool>,
    /// What was said so far; None where nobody asks.
    digest: Cell<Option<u64>>,
    /// The hash of the last text that was written as a key.
    key: Cell<u64>,
}

impl Notes {
    pub(super) fn new(codec: Codec, reader: Reader) -> Self {
        Self {
            codec,
            reader,
            refused: Cell::new(None),
            doubtful: Cell::new(false),
            digest: Cell::new(None),
            key: Cell::new(0),
        }
    }

    pub(super) fn digesting(codec: Codec) -> Self {
        let notes = Self::new(codec, Reader::Known);
        notes.digest.set(Some(0));
        notes
    }

    /// The reason for which serializing failed, if it is one of this module's.
    pub(super) fn refused(&self) -> Option<&'static str> {
        self.refused.get()
    }

    /// It depends on the type that reads the value whether it comes back as it was.
    pub(super) fn is_doubtful(&self) -> bool {
        self.doubtful.get()
    }

    pub(super) fn digest(&self) -> Option<u64> {
        self.digest.get()
    }

    /// The value with this serializer around whichever it is given.
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

    fn doubt(&self) {
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
    fn say(&self, what: What, bytes: &[u8]) {
        if let Some(said) = self.digest.get() {
            let mut hasher = DefaultHasher::new();
            hasher.write_u64(said);
            hasher.write_u8(what as u8);
            hasher.write(bytes);
            self.digest.set(Some(hasher.finish()));
        }
    }
}

/// What was said, so that an `i32` is no `i64` and a text is no variant.
#[derive(Clone, Copy)]
enum What {
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
    /// Directly within a `Some`, newtypes aside.
    Some,
    /// A key of a map, newtypes aside.
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

/// A value, or a part of one, that is serialized through [`Exact`].
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
    fn leaf(&self, what: What, bytes: &[u8]) {
        if self.place.role == Role::Key {
            self.notes.doubt();
        }
        self.notes.say(what, bytes);
    }

    fn text(&self, what: What, text: &str) {
        if self.place.role == Role::Key {
            self.notes.key.set(fnv(text));
        }
        if !self.notes.is_json() && text.len() > LONG {
            self.notes.doubt();
        }
        self.notes.say(what, text.as_bytes());
    }

    /// What is written as null would be read as the outer `None`.
    fn null(&self) -> Result<(), S::Error> {
        match self.place.role {
            Role::Some => Err(self.notes.refuse(
                "a `Some` of `None` or of a unit is written as null, which is read as `None`; \
                 put the inner value into a struct with a field or into an enum",
            )),
            Role::Key => {
                self.notes.doubt();
                Ok(())
            }
            Role::Value => Ok(()),
        }
    }

    fn unit(&self) -> Result<(), S::Error> {
        self.null()?;
        if !self.notes.is_json() {
            // CBOR has one null for units and for `None`; a type that buffers it takes it for the latter.
            self.notes.doubt();
        }
        Ok(())
    }

    fn finite(&self, is_finite: bool, is_nan: bool) -> Result<(), S::Error> {
        if self.notes.is_json() {
            if !is_finite {
                return Err(self.notes.refuse(
                    "JSON has neither infinities nor NaN; use codec `Cbor`, an `Option` or a text",
                ));
            }
        } else if is_nan {
            // Not all of its bits may survive conversions between the widths.
            self.notes.doubt();
        }
        Ok(())
    }

    fn name(&self, name: &'static str) {
        // Codecs know some of their own types by names like these.
        if name.starts_with(['$', '@']) {
            self.notes.doubt();
        }
    }

    /// Goes one level deeper, into the parts that `to` takes.
    fn compound<C>(
        notes: &'n Notes,
        place: Place,
        what: What,
        says: &[u8],
        to: Result<C, S::Error>,
    ) -> Result<Compound<'n, C>, S::Error> {
        if place.depth >= DEEP || place.role == Role::Key {
            notes.doubt();
        }
        notes.say(what, says);
        Ok(Compound::new(to?, notes, place.deeper(Role::Value)))
    }

    fn noted<'v, T: ?Sized>(&self, value: &'v T, role: Role) -> Noted<'v, T>
    where
        'n: 'v,
    {
        if self.place.depth >= DEEP {
            self.notes.doubt();
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
            self.leaf(What::$what, &v.to_le_bytes());
            self.to.$method(v)
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
        self.leaf(What::Bool, &[u8::from(v)]);
        self.to.serialize_bool(v)
    }

    fn serialize_i128(self, v: i128) -> Result<S::Ok, S::Error> {
        // Types that buffer know integers of 64 bits.
        self.notes.doubt();
        self.leaf(What::I128, &v.to_le_bytes());
        self.to.serialize_i128(v)
    }

    fn serialize_u128(self, v: u128) -> Result<S::Ok, S::Error> {
        self.notes.doubt();
        self.leaf(What::U128, &v.to_le_bytes());
        self.to.serialize_u128(v)
    }

    #[inline]
    fn serialize_f32(self, v: f32) -> Result<S::Ok, S::Error> {
        self.finite(v.is_finite(), v.is_nan())?;
        if v.abs().to_bits() == ROUNDED_TWICE && self.notes.is_json() {
            // Some type would read it, and read another number.
            if self.notes.reader == Reader::Unknown {
                return Err(self.notes.refuse(
                    "this `f32` is another one when it is read as `f64` first; make it an `f64`",
                ));
            }
            self.notes.doubt();
        }
        self.leaf(What::F32, &v.to_bits().to_le_bytes());
        self.to.serialize_f32(v)
    }

    #[inline]
    fn serialize_f64(self, v: f64) -> Result<S::Ok, S::Error> {
        self.finite(v.is_finite(), v.is_nan())?;
        self.leaf(What::F64, &v.to_bits().to_le_bytes());
        self.to.serialize_f64(v)
    }

    #[inline]
    fn serialize_char(self, v: char) -> Result<S::Ok, S::Error> {
        self.text(What::Char, v.encode_utf8(&mut [0; 4]));
        self.to.serialize_char(v)
    }

    #[inline]
    fn serialize_str(self, v: &str) -> Result<S::Ok, S::Error> {
        self.text(What::Str, v);
        self.to.serialize_str(v)
    }

    fn serialize_bytes(self, v: &[u8]) -> Result<S::Ok, S::Error> {
        // JSON writes them as an array, which not every type of bytes reads.
        self.notes.doubt();
        self.leaf(What::Bytes, v);
        self.to.serialize_bytes(v)
    }

    #[inline]
    fn serialize_none(self) -> Result<S::Ok, S::Error> {
        self.null()?;
        self.notes.say(What::None, &[]);
        self.to.serialize_none()
    }

    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.leaf(What::Some, &[]);
        let value = self.noted(value, Role::Some);
        self.to.serialize_some(&value)
    }

    #[inline]
    fn serialize_unit(self) -> Result<S::Ok, S::Error> {
        self.unit()?;
        self.notes.say(What::Unit, &[]);
        self.to.serialize_unit()
    }

    fn serialize_unit_struct(self, name: &'static str) -> Result<S::Ok, S::Error> {
        self.unit()?;
        self.notes.say(What::Unit, name.as_bytes());
        self.to.serialize_unit_struct(name)
    }

    #[inline]
    fn serialize_unit_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
    ) -> Result<S::Ok, S::Error> {
        self.name(name);
        self.text(What::Variant, variant);
        self.to.serialize_unit_variant(name, index, variant)
    }

    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.name(name);
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
        self.name(name);
        self.leaf(What::Variant, variant.as_bytes());
        let value = self.noted(value, Role::Value);
        self.to
            .serialize_newtype_variant(name, index, variant, &value)
    }

    #[inline]
    fn serialize_seq(self, len: Option<usize>) -> Result<Self::SerializeSeq, S::Error> {
        let to = self.to.serialize_seq(len);
        Self::compound(self.notes, self.place, What::Seq, &[], to)
    }

    #[inline]
    fn serialize_tuple(self, len: usize) -> Result<Self::SerializeTuple, S::Error> {
        let to = self.to.serialize_tuple(len);
        Self::compound(self.notes, self.place, What::Tuple, &[], to)
    }

    fn serialize_tuple_struct(
        self,
        name: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleStruct, S::Error> {
        self.name(name);
        let to = self.to.serialize_tuple_struct(name, len);
        Self::compound(self.notes, self.place, What::Tuple, name.as_bytes(), to)
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleVariant, S::Error> {
        self.name(name);
        let to = self.to.serialize_tuple_variant(name, index, variant, len);
        Self::compound(
            self.notes,
            self.place,
            What::Variant,
            variant.as_bytes(),
            to,
        )
    }

    #[inline]
    fn serialize_map(self, len: Option<usize>) -> Result<Self::SerializeMap, S::Error> {
        if len.is_none() {
            // A struct with flattened fields, of which two may have one name.
            self.notes.doubt();
        }
        let to = self.to.serialize_map(len);
        Self::compound(self.notes, self.place, What::Map, &[], to)
    }

    #[inline]
    fn serialize_struct(
        self,
        name: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStruct, S::Error> {
        self.name(name);
        let to = self.to.serialize_struct(name, len);
        Self::compound(self.notes, self.place, What::Struct, name.as_bytes(), to)
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStructVariant, S::Error> {
        self.name(name);
        let to = self.to.serialize_struct_variant(name, index, variant, len);
        Self::compound(
            self.notes,
            self.place,
            What::Variant,
            variant.as_bytes(),
            to,
        )
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
            // A type that asks is written in its compact form, and one that buffers does not know that.
            self.notes.doubt();
        }
        self.to.is_human_readable()
    }
}

/// FNV-1a, 64 bits: a hash of keys, which are short.
fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
