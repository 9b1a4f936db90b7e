//! Serializes the parts of a compound value through the wrapper.

use serde::ser::{self, Serialize};

use super::{Kind, Noted, Notes, Place, Role};

/// Serializer of the parts of a compound value: elements, entries or fields.
pub(super) struct Compound<'n, C> {
    to: C,
    notes: &'n Notes,
    place: Place,
    /// Digest of the calls before the parts.
    before: Option<u64>,
    /// Sum of the digests of elements and entries. Sets and maps serialize them in any order.
    sum: u64,
    /// Hash of the first key. Internally tagged enums write their tag first. A later key that is equal to the tag would be
    /// read in its place.
    first_key: Option<u64>,
    first_field: Option<&'static str>,
}

impl<'n, C> Compound<'n, C> {
    /// Begins after all calls that were recorded so far.
    pub(super) fn new(to: C, notes: &'n Notes, place: Place) -> Self {
        Self {
            to,
            notes,
            place,
            before: notes.digest.get(),
            sum: 0,
            first_key: None,
            first_field: None,
        }
    }

    #[inline]
    fn part<'v, T: ?Sized>(&self, value: &'v T, role: Role) -> Noted<'v, T>
    where
        'n: 'v,
    {
        Noted {
            value,
            notes: self.notes,
            place: Place { role, ..self.place },
        }
    }

    /// Begins the digest of an element or an entry. Its position does not count.
    #[inline]
    fn begin(&self) {
        if self.before.is_some() {
            self.notes.digest.set(Some(0));
        }
    }

    #[inline]
    fn add(&mut self) {
        if let (Some(_), Some(part)) = (self.before, self.notes.digest.get()) {
            self.sum = self.sum.wrapping_add(part);
        }
    }

    #[inline]
    fn end_unordered(&self) {
        if self.before.is_some() {
            self.notes.digest.set(self.before);
            self.notes.record(Kind::End, &self.sum.to_le_bytes());
        }
    }

    #[inline]
    fn end_ordered(&self) {
        self.notes.record(Kind::End, &[]);
    }

    #[inline]
    fn field(&mut self, name: &'static str) {
        match self.first_field {
            None => self.first_field = Some(name),
            Some(first) if first == name => self.notes.mark_doubtful(),
            Some(_) => {}
        }
        self.notes.record(Kind::Field, name.as_bytes());
    }

    #[inline]
    fn key(&mut self) {
        let key = self.notes.key.get();
        match self.first_key {
            None => self.first_key = Some(key),
            Some(first) if first == key => self.notes.mark_doubtful(),
            Some(_) => {}
        }
    }
}

macro_rules! parts_of {
    ($of:ident, $before_end:ident { $($methods:tt)* }) => {
        impl<C: ser::$of> ser::$of for Compound<'_, C> {
            type Ok = C::Ok;
            type Error = C::Error;

            $($methods)*

            #[inline]
            fn end(self) -> Result<C::Ok, C::Error> {
                self.$before_end();
                self.to.end()
            }
        }
    };
}

parts_of! {
    SerializeSeq, end_unordered {
        #[inline]
        fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), C::Error> {
            self.begin();
            let value = self.part(value, Role::Value);
            self.to.serialize_element(&value)?;
            self.add();
            Ok(())
        }
    }
}

parts_of! {
    SerializeMap, end_unordered {
        #[inline]
        fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), C::Error> {
            self.begin();
            let noted = self.part(key, Role::Key);
            self.to.serialize_key(&noted)?;
            self.key();
            Ok(())
        }

        #[inline]
        fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), C::Error> {
            let value = self.part(value, Role::Value);
            self.to.serialize_value(&value)?;
            self.add();
            Ok(())
        }
    }
}

macro_rules! in_order {
    ($($of:ident $method:ident;)*) => {$(
        parts_of! {
            $of, end_ordered {
                #[inline]
                fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), C::Error> {
                    let value = self.part(value, Role::Value);
                    self.to.$method(&value)
                }
            }
        }
    )*};
}

in_order! {
    SerializeTuple serialize_element;
    SerializeTupleStruct serialize_field;
    SerializeTupleVariant serialize_field;
}

macro_rules! by_name {
    ($($of:ident;)*) => {$(
        parts_of! {
            $of, end_ordered {
                #[inline]
                fn serialize_field<T: Serialize + ?Sized>(
                    &mut self,
                    key: &'static str,
                    value: &T,
                ) -> Result<(), C::Error> {
                    self.field(key);
                    let value = self.part(value, Role::Value);
                    self.to.serialize_field(key, &value)
                }

                #[inline]
                fn skip_field(&mut self, key: &'static str) -> Result<(), C::Error> {
                    self.notes.note_form(key, 0);
                    self.to.skip_field(key)
                }
            }
        }
    )*};
}

by_name! {
    SerializeStruct;
    SerializeStructVariant;
}
