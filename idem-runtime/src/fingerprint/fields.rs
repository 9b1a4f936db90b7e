//! Wrappers that `#[derive(Fingerprint)]` puts around fields with attributes.
//!
//! Only the functions have trait bounds, not the types, so that a field of an unsuitable type is only one compiler error.

use std::fmt;

use super::{Encoder, Fingerprint};

/// Field with `#[fingerprint(default)]`: absent if it equals its default.
#[derive(Debug)]
pub struct Defaulted<V> {
    absent: bool,
    value: V,
}

/// Wraps a field, and the value that is written for it.
#[inline]
pub fn defaulted<T: Default + PartialEq, V: Fingerprint>(field: &T, value: V) -> Defaulted<V> {
    Defaulted {
        absent: *field == T::default(),
        value,
    }
}

#[diagnostic::do_not_recommend]
impl<V: Fingerprint> Fingerprint for Defaulted<V> {
    #[inline]
    fn fingerprint(&self, encoder: &mut Encoder) {
        self.value.fingerprint(encoder);
    }

    #[inline]
    fn is_absent(&self) -> bool {
        self.absent
    }
}

/// Field that a function writes.
pub struct Written<'a, T: ?Sized, F> {
    field: &'a T,
    absent: bool,
    write: F,
}

/// Wraps a field with `#[fingerprint(float)]`.
#[inline]
pub fn float<T: Floats + ?Sized>(field: &T) -> Written<'_, T, fn(&T, &mut Encoder)> {
    Written {
        field,
        absent: field.is_none(),
        write: T::write,
    }
}

/// Wraps a field with `#[fingerprint(with = path)]`.
#[inline]
pub fn with<T: ?Sized, F: Fn(&T, &mut Encoder)>(field: &T, write: F) -> Written<'_, T, F> {
    Written {
        field,
        absent: false,
        write,
    }
}

#[diagnostic::do_not_recommend]
impl<T: ?Sized, F: Fn(&T, &mut Encoder)> Fingerprint for Written<'_, T, F> {
    #[inline]
    fn fingerprint(&self, encoder: &mut Encoder) {
        (self.write)(self.field, encoder);
    }

    #[inline]
    fn is_absent(&self) -> bool {
        self.absent
    }
}

impl<T: ?Sized, F> fmt::Debug for Written<'_, T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Written")
    }
}

/// Type that `#[fingerprint(float)]` accepts.
#[diagnostic::on_unimplemented(
    message = "`#[fingerprint(float)]` does not take a `{Self}`",
    label = "not a float",
    note = "it takes `f32`, `f64`, and `Option`, `Vec`, arrays and references of them; for anything else write `#[fingerprint(with = function)]`"
)]
pub trait Floats {
    /// Writes the canonical form.
    fn write(&self, encoder: &mut Encoder);

    /// Returns true for `None`.
    fn is_none(&self) -> bool {
        false
    }
}

impl Floats for f64 {
    fn write(&self, encoder: &mut Encoder) {
        encoder.float(*self);
    }
}

impl Floats for f32 {
    fn write(&self, encoder: &mut Encoder) {
        encoder.float(f64::from(*self));
    }
}

impl<T: Floats> Floats for Option<T> {
    fn write(&self, encoder: &mut Encoder) {
        match self {
            None => encoder.null(),
            Some(value) => encoder.some(0, |encoder| value.write(encoder)),
        }
    }

    fn is_none(&self) -> bool {
        self.is_none()
    }
}

impl<T: Floats> Floats for [T] {
    fn write(&self, encoder: &mut Encoder) {
        encoder.array(self.len());
        encoder.nested(|encoder| self.iter().for_each(|item| item.write(encoder)));
    }
}

impl<T: Floats> Floats for Vec<T> {
    fn write(&self, encoder: &mut Encoder) {
        self.as_slice().write(encoder);
    }
}

impl<T: Floats, const N: usize> Floats for [T; N] {
    fn write(&self, encoder: &mut Encoder) {
        self.as_slice().write(encoder);
    }
}

impl<T: Floats + ?Sized> Floats for &T {
    fn write(&self, encoder: &mut Encoder) {
        encoder.nested(|encoder| (**self).write(encoder));
    }

    fn is_none(&self) -> bool {
        (**self).is_none()
    }
}
