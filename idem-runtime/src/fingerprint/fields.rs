//! What `#[derive(Fingerprint)]` puts around a field that bears an attribute.

use super::{Encoder, Fingerprint};

/// A field under `#[fingerprint(default)]`: absent while it equals its default.
#[derive(Debug)]
pub struct Defaulted<'a, T: ?Sized, V> {
    field: &'a T,
    value: V,
}

/// A field, and what writes it.
#[inline]
pub fn defaulted<T, V>(field: &T, value: V) -> Defaulted<'_, T, V>
where
    T: Default + PartialEq,
    V: Fingerprint,
{
    Defaulted { field, value }
}

impl<T: Default + PartialEq, V: Fingerprint> Fingerprint for Defaulted<'_, T, V> {
    #[inline]
    fn fingerprint(&self, encoder: &mut Encoder) {
        self.value.fingerprint(encoder);
    }

    #[inline]
    fn is_absent(&self) -> bool {
        *self.field == T::default()
    }
}

/// A field under `#[fingerprint(float)]`.
#[derive(Debug)]
pub struct Float<'a, T: ?Sized>(&'a T);

/// A field of floats.
#[inline]
pub fn float<T: Floats + ?Sized>(field: &T) -> Float<'_, T> {
    Float(field)
}

impl<T: Floats + ?Sized> Fingerprint for Float<'_, T> {
    #[inline]
    fn fingerprint(&self, encoder: &mut Encoder) {
        self.0.write(encoder);
    }

    #[inline]
    fn is_absent(&self) -> bool {
        self.0.is_none()
    }
}

/// What `#[fingerprint(float)]` takes.
#[diagnostic::on_unimplemented(
    message = "`#[fingerprint(float)]` does not take a `{Self}`",
    label = "not a float",
    note = "it takes `f32`, `f64`, and `Option`, `Vec`, arrays and references of them; for anything else write `#[fingerprint(with = function)]`"
)]
pub trait Floats {
    /// Writes the form.
    fn write(&self, encoder: &mut Encoder);

    /// Whether this is `None`.
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

/// A field under `#[fingerprint(with = path)]`.
#[derive(Debug)]
pub struct With<'a, T: ?Sized, F>(&'a T, F);

/// A field, and the function that writes it.
#[inline]
pub fn with<T: ?Sized, F: Fn(&T, &mut Encoder)>(field: &T, write: F) -> With<'_, T, F> {
    With(field, write)
}

impl<T: ?Sized, F: Fn(&T, &mut Encoder)> Fingerprint for With<'_, T, F> {
    #[inline]
    fn fingerprint(&self, encoder: &mut Encoder) {
        (self.1)(self.0, encoder);
    }
}
