//! The canonical form of a request, and the hash of it that tells whether two requests are the same.

mod check;
mod encoder;
#[doc(hidden)]
pub mod fields;
mod foreign;
mod instant;
mod json;
mod number;
mod secret;
mod types;

use std::fmt;

#[cfg(feature = "macros")]
pub use idem_macros::Fingerprint;

pub use self::encoder::Encoder;
pub use self::json::{Json, json};
pub use self::secret::Secret;
pub(crate) use self::secret::matches;
use crate::error::FingerprintError;
use crate::record::Digest;

/// The version of the algorithm that this build writes.
const VERSION: u8 = 1;

/// A type with a canonical form.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no canonical form to fingerprint",
    label = "no `Fingerprint`",
    note = "if `{Self}` is yours, add `#[derive(Fingerprint)]` to it",
    note = "if it has no part in what the request is, leave it out: `#[fingerprint(skip)]` on a field, `skip(...)` in `#[idempotent]`",
    note = "else say how it is written: `#[fingerprint(with = function)]` on a field, `fingerprint = ...` in `#[idempotent]`; a field of floats takes `#[fingerprint(float)]`"
)]
pub trait Fingerprint {
    /// Writes the canonical form of this value: exactly one item.
    fn fingerprint(&self, encoder: &mut Encoder);

    /// Whether a field of this value is left out of the map that it stands in: `None`.
    #[inline]
    fn is_absent(&self) -> bool {
        false
    }

    /// Writes these bytes, which are canonical already, and the value behind them: a leaf checks for room once.
    #[doc(hidden)]
    #[inline]
    fn fingerprint_after(&self, prefix: &[u8], encoder: &mut Encoder) {
        encoder.raw(prefix);
        self.fingerprint(encoder);
    }

    /// Writes a slice of such values: an array, except that bytes are a byte string.
    #[doc(hidden)]
    #[inline]
    fn fingerprint_slice(items: &[Self], encoder: &mut Encoder)
    where
        Self: Sized,
    {
        encoder.array(items.len());
        encoder.nested(|encoder| {
            for item in items {
                item.fingerprint(encoder);
            }
        });
    }
}

/// The digest of a value, unsealed: SHA-256 over its [canonical form](self).
///
/// # Errors
/// [`FingerprintError`] where it has no canonical form.
#[inline]
pub fn digest<T: Fingerprint + ?Sized>(value: &T) -> Result<Digest, FingerprintError> {
    encoder::digest(value)
}

/// The very bytes that [`digest`] hashes: for another language to compare with, and to see where two requests differ.
///
/// Checks as well that a hand-written [`Fingerprint`] wrote one item and sorted its maps, which `digest` takes on
/// trust.
///
/// # Errors
/// [`FingerprintError`] where the value has no canonical form.
pub fn canonical<T: Fingerprint + ?Sized>(value: &T) -> Result<Vec<u8>, FingerprintError> {
    encoder::bytes(value)
}

/// A value whose canonical form a function writes.
pub fn from_fn<F: Fn(&mut Encoder)>(write: F) -> FromFn<F> {
    FromFn(write)
}

/// See [`from_fn`].
#[derive(Clone, Copy)]
pub struct FromFn<F>(F);

#[diagnostic::do_not_recommend]
impl<F: Fn(&mut Encoder)> Fingerprint for FromFn<F> {
    #[inline]
    fn fingerprint(&self, encoder: &mut Encoder) {
        (self.0)(encoder);
    }
}

impl<F> fmt::Debug for FromFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromFn")
    }
}
