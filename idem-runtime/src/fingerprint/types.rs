//! Canonical forms of the standard library's types.
//!
//! All implementations have `do_not_recommend`, because the compiler would otherwise list them for each type that has
//! none.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, LinkedList, VecDeque};
use std::convert::Infallible;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::num::{NonZero, Saturating, Wrapping};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Encoder, Fingerprint, instant};
use crate::error::FingerprintError;

macro_rules! integers {
    ($($kind:ty: $wide:ty, $write:ident, $write_after:ident;)*) => {$(
        #[diagnostic::do_not_recommend]
        impl Fingerprint for $kind {
            #[inline]
            fn fingerprint(&self, encoder: &mut Encoder) {
                encoder.$write(*self as $wide);
            }

            #[inline]
            fn fingerprint_after(&self, prefix: &[u8], encoder: &mut Encoder) {
                encoder.$write_after(prefix, *self as $wide);
            }
        }
    )*};
}

integers! {
    u16: u64, u64, u64_after;
    u32: u64, u64, u64_after;
    u64: u64, u64, u64_after;
    usize: u64, u64, u64_after;
    i8: i64, i64, i64_after;
    i16: i64, i64, i64_after;
    i32: i64, i64, i64_after;
    i64: i64, i64, i64_after;
    isize: i64, i64, i64_after;
}

#[diagnostic::do_not_recommend]
impl Fingerprint for u128 {
    fn fingerprint(&self, encoder: &mut Encoder) {
        encoder.u128(*self);
    }
}

#[diagnostic::do_not_recommend]
impl Fingerprint for i128 {
    fn fingerprint(&self, encoder: &mut Encoder) {
        encoder.i128(*self);
    }
}

#[diagnostic::do_not_recommend]
impl Fingerprint for u8 {
    #[inline]
    fn fingerprint(&self, encoder: &mut Encoder) {
        encoder.u64(u64::from(*self));
    }

    #[inline]
    fn fingerprint_after(&self, prefix: &[u8], encoder: &mut Encoder) {
        encoder.u64_after(prefix, u64::from(*self));
    }

    #[inline]
    fn fingerprint_slice(items: &[Self], encoder: &mut Encoder) {
        encoder.bytes(items);
    }
}

macro_rules! non_zero {
    ($($kind:ty),*) => {$(
        #[diagnostic::do_not_recommend]
        impl Fingerprint for NonZero<$kind> {
            #[inline]
            fn fingerprint(&self, encoder: &mut Encoder) {
                self.get().fingerprint(encoder);
            }
        }
    )*};
}

non_zero!(
    u8, u16, u32, u64, usize, u128, i8, i16, i32, i64, isize, i128
);

#[diagnostic::do_not_recommend]
impl Fingerprint for bool {
    #[inline]
    fn fingerprint(&self, encoder: &mut Encoder) {
        encoder.bool(*self);
    }
}

#[diagnostic::do_not_recommend]
impl Fingerprint for str {
    #[inline]
    fn fingerprint(&self, encoder: &mut Encoder) {
        encoder.text(self);
    }

    #[inline]
    fn fingerprint_after(&self, prefix: &[u8], encoder: &mut Encoder) {
        encoder.text_after(prefix, self);
    }
}

#[diagnostic::do_not_recommend]
impl Fingerprint for String {
    #[inline]
    fn fingerprint(&self, encoder: &mut Encoder) {
        encoder.text(self);
    }

    #[inline]
    fn fingerprint_after(&self, prefix: &[u8], encoder: &mut Encoder) {
        encoder.text_after(prefix, self);
    }
}

#[diagnostic::do_not_recommend]
impl Fingerprint for char {
    #[inline]
    fn fingerprint(&self, encoder: &mut Encoder) {
        encoder.text(self.encode_utf8(&mut [0; 4]));
    }
}

macro_rules! transparent {
    ($($kind:ident),*) => {$(
        #[diagnostic::do_not_recommend]
        impl<T: Fingerprint> Fingerprint for $kind<T> {
            #[inline]
            fn fingerprint(&self, encoder: &mut Encoder) {
                self.0.fingerprint(encoder);
            }

            #[inline]
            fn is_absent(&self) -> bool {
                self.0.is_absent()
            }
        }
    )*};
}

transparent!(Wrapping, Saturating);

macro_rules! pointers {
    ($($kind:ty),*) => {$(
        #[diagnostic::do_not_recommend]
        impl<T: Fingerprint + ?Sized> Fingerprint for $kind {
            #[inline]
            fn fingerprint(&self, encoder: &mut Encoder) {
                encoder.nested(|encoder| (**self).fingerprint(encoder));
            }

            #[inline]
            fn is_absent(&self) -> bool {
                (**self).is_absent()
            }
        }
    )*};
}

pointers!(&T, &mut T, Box<T>, Rc<T>, Arc<T>);

#[diagnostic::do_not_recommend]
impl<T: Fingerprint + ToOwned + ?Sized> Fingerprint for Cow<'_, T> {
    #[inline]
    fn fingerprint(&self, encoder: &mut Encoder) {
        encoder.nested(|encoder| (**self).fingerprint(encoder));
    }

    #[inline]
    fn is_absent(&self) -> bool {
        (**self).is_absent()
    }
}

#[diagnostic::do_not_recommend]
impl<T: Fingerprint> Fingerprint for Option<T> {
    #[inline]
    fn fingerprint(&self, encoder: &mut Encoder) {
        match self {
            None => encoder.null(),
            Some(value) => encoder.some(0, |encoder| value.fingerprint(encoder)),
        }
    }

    #[inline]
    fn fingerprint_after(&self, prefix: &[u8], encoder: &mut Encoder) {
        match self {
            None => {
                encoder.raw(prefix);
                encoder.null();
            }
            Some(value) => encoder.some(prefix.len(), |encoder| {
                value.fingerprint_after(prefix, encoder);
            }),
        }
    }

    #[inline]
    fn is_absent(&self) -> bool {
        self.is_none()
    }
}

#[diagnostic::do_not_recommend]
impl<T: Fingerprint, E: Fingerprint> Fingerprint for Result<T, E> {
    fn fingerprint(&self, encoder: &mut Encoder) {
        encoder.map(1);
        match self {
            Ok(value) => {
                encoder.text("Ok");
                value.fingerprint(encoder);
            }
            Err(error) => {
                encoder.text("Err");
                error.fingerprint(encoder);
            }
        }
    }
}

#[diagnostic::do_not_recommend]
impl Fingerprint for Infallible {
    fn fingerprint(&self, _encoder: &mut Encoder) {
        match *self {}
    }
}

#[diagnostic::do_not_recommend]
impl<T: ?Sized> Fingerprint for PhantomData<T> {
    #[inline]
    fn fingerprint(&self, encoder: &mut Encoder) {
        encoder.null();
    }

    #[inline]
    fn is_absent(&self) -> bool {
        true
    }
}

#[diagnostic::do_not_recommend]
impl Fingerprint for () {
    #[inline]
    fn fingerprint(&self, encoder: &mut Encoder) {
        encoder.array(0);
    }
}

macro_rules! tuples {
    ($($len:literal: $($name:ident $place:tt),+;)*) => {$(
        #[diagnostic::do_not_recommend]
        impl<$($name: Fingerprint),+> Fingerprint for ($($name,)+) {
            #[inline]
            fn fingerprint(&self, encoder: &mut Encoder) {
                encoder.array($len);
                $(self.$place.fingerprint(encoder);)+
            }
        }
    )*};
}

tuples! {
    1: A 0;
    2: A 0, B 1;
    3: A 0, B 1, C 2;
    4: A 0, B 1, C 2, D 3;
    5: A 0, B 1, C 2, D 3, E 4;
    6: A 0, B 1, C 2, D 3, E 4, F 5;
    7: A 0, B 1, C 2, D 3, E 4, F 5, G 6;
    8: A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7;
    9: A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8;
    10: A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9;
    11: A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10;
    12: A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11;
}

#[diagnostic::do_not_recommend]
impl<T: Fingerprint> Fingerprint for [T] {
    #[inline]
    fn fingerprint(&self, encoder: &mut Encoder) {
        T::fingerprint_slice(self, encoder);
    }
}

#[diagnostic::do_not_recommend]
impl<T: Fingerprint, const N: usize> Fingerprint for [T; N] {
    #[inline]
    fn fingerprint(&self, encoder: &mut Encoder) {
        T::fingerprint_slice(self, encoder);
    }
}

#[diagnostic::do_not_recommend]
impl<T: Fingerprint> Fingerprint for Vec<T> {
    #[inline]
    fn fingerprint(&self, encoder: &mut Encoder) {
        T::fingerprint_slice(self, encoder);
    }
}

macro_rules! sequences {
    ($($kind:ident),*) => {$(
        #[diagnostic::do_not_recommend]
        impl<T: Fingerprint> Fingerprint for $kind<T> {
            fn fingerprint(&self, encoder: &mut Encoder) {
                encoder.array(self.len());
                encoder.nested(|encoder| self.iter().for_each(|item| item.fingerprint(encoder)));
            }
        }
    )*};
}

sequences!(VecDeque, LinkedList);

#[diagnostic::do_not_recommend]
impl<K: Fingerprint, V: Fingerprint, S> Fingerprint for HashMap<K, V, S> {
    fn fingerprint(&self, encoder: &mut Encoder) {
        encoder.map_of(self);
    }
}

#[diagnostic::do_not_recommend]
impl<K: Fingerprint, V: Fingerprint> Fingerprint for BTreeMap<K, V> {
    fn fingerprint(&self, encoder: &mut Encoder) {
        encoder.map_of(self);
    }
}

#[diagnostic::do_not_recommend]
impl<T: Fingerprint, S> Fingerprint for HashSet<T, S> {
    fn fingerprint(&self, encoder: &mut Encoder) {
        encoder.set_of(self);
    }
}

#[diagnostic::do_not_recommend]
impl<T: Fingerprint> Fingerprint for BTreeSet<T> {
    fn fingerprint(&self, encoder: &mut Encoder) {
        encoder.set_of(self);
    }
}

#[diagnostic::do_not_recommend]
impl Fingerprint for Duration {
    fn fingerprint(&self, encoder: &mut Encoder) {
        encoder.array(2);
        encoder.u64(self.as_secs());
        encoder.u64(u64::from(self.subsec_nanos()));
    }
}

#[diagnostic::do_not_recommend]
impl Fingerprint for SystemTime {
    fn fingerprint(&self, encoder: &mut Encoder) {
        let seconds = |distance: Duration| i64::try_from(distance.as_secs()).ok();
        let at = match self.duration_since(UNIX_EPOCH) {
            Ok(after) => seconds(after).map(|seconds| (seconds, after.subsec_nanos())),
            Err(before) => {
                let before = before.duration();
                seconds(before).map(|seconds| match before.subsec_nanos() {
                    0 => (-seconds, 0),
                    nanos => (-seconds - 1, 1_000_000_000 - nanos),
                })
            }
        };
        match at {
            Some((seconds, nanos)) => instant::utc(encoder, seconds, nanos),
            None => encoder.fail(FingerprintError::new("an instant is out of range")),
        }
    }
}

macro_rules! printed {
    ($($kind:ty),*) => {$(
        #[diagnostic::do_not_recommend]
        impl Fingerprint for $kind {
            fn fingerprint(&self, encoder: &mut Encoder) {
                encoder.text(&self.to_string());
            }
        }
    )*};
}

printed!(Ipv4Addr, Ipv6Addr, SocketAddrV4);

#[diagnostic::do_not_recommend]
impl Fingerprint for IpAddr {
    fn fingerprint(&self, encoder: &mut Encoder) {
        match self {
            Self::V4(address) => address.fingerprint(encoder),
            Self::V6(address) => address.fingerprint(encoder),
        }
    }
}

#[diagnostic::do_not_recommend]
impl Fingerprint for SocketAddr {
    fn fingerprint(&self, encoder: &mut Encoder) {
        match self {
            Self::V4(address) => address.fingerprint(encoder),
            Self::V6(address) => address.fingerprint(encoder),
        }
    }
}

#[diagnostic::do_not_recommend]
impl Fingerprint for SocketAddrV6 {
    fn fingerprint(&self, encoder: &mut Encoder) {
        // The text of the address does not include the flow.
        if self.flowinfo() != 0 {
            encoder.array(2);
            encoder.text(&self.to_string());
            encoder.u64(u64::from(self.flowinfo()));
        } else {
            encoder.text(&self.to_string());
        }
    }
}
