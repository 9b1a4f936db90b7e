//! Parts of derived keys.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use super::{Key, ToKey};
use crate::error::InvalidKey;

/// Part of a derived key: text, bytes, an integer (its decimal text), `uuid::Uuid` (its 16 bytes, feature `uuid`), and
/// references to them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a part of a key",
    label = "not a part of a key",
    note = "a part is text, bytes, an integer or a `Uuid` (feature `uuid`); of a struct, name the fields that identify the call; write anything else as text"
)]
pub trait KeyPart {
    /// Bytes of the part.
    fn to_bytes(&self) -> Cow<'_, [u8]>;
}

macro_rules! bytes {
    ($($kind:ty),*) => {$(
        #[diagnostic::do_not_recommend]
        impl KeyPart for $kind {
            fn to_bytes(&self) -> Cow<'_, [u8]> {
                Cow::Borrowed(AsRef::<[u8]>::as_ref(self))
            }
        }
    )*};
}

bytes!(str, String, [u8], Vec<u8>);

#[cfg(feature = "uuid")]
bytes!(uuid::Uuid);

#[diagnostic::do_not_recommend]
impl<const N: usize> KeyPart for [u8; N] {
    fn to_bytes(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self)
    }
}

macro_rules! decimal {
    ($($kind:ty),*) => {$(
        #[diagnostic::do_not_recommend]
        impl KeyPart for $kind {
            fn to_bytes(&self) -> Cow<'_, [u8]> {
                Cow::Owned(self.to_string().into_bytes())
            }
        }
    )*};
}

decimal!(
    u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize
);

macro_rules! by_reference {
    ($($kind:ty),*) => {$(
        #[diagnostic::do_not_recommend]
        impl<T: KeyPart + ?Sized> KeyPart for $kind {
            fn to_bytes(&self) -> Cow<'_, [u8]> {
                (**self).to_bytes()
            }
        }
    )*};
}

by_reference!(&T, Box<T>, Arc<T>, Rc<T>);

#[diagnostic::do_not_recommend]
impl<T: ToOwned + KeyPart + ?Sized> KeyPart for Cow<'_, T> {
    fn to_bytes(&self) -> Cow<'_, [u8]> {
        (**self).to_bytes()
    }
}

/// The key that [`Key::derive`] makes of the parts.
macro_rules! tuple {
    ($($part:ident $index:tt),*) => {
        #[diagnostic::do_not_recommend]
        impl<$($part: KeyPart),*> ToKey for ($($part,)*) {
            fn to_key(&self) -> Result<Key, InvalidKey> {
                Ok(Key::derive([$(self.$index.to_bytes()),*]))
            }
        }
    };
}

tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tuple_is_the_key_of_its_parts() {
        let parts = (7_u64, "invoice", &String::from("reminder"), [1_u8, 2]);
        let derived = Key::derive([&b"7"[..], b"invoice", b"reminder", &[1, 2]]);
        assert_eq!(parts.to_key().unwrap(), derived);
        assert_eq!((7, -31).to_key().unwrap(), Key::derive(["7", "-31"]));
        assert_ne!((7, 31).to_key().unwrap(), (73, 1).to_key().unwrap());
    }

    #[test]
    fn an_integer_is_its_decimal_text() {
        assert_eq!(Key::derive([7, 31]), Key::derive(["7", "31"]));
        assert_eq!(
            Key::derive([u128::MAX]),
            Key::derive([u128::MAX.to_string()])
        );
    }
}
