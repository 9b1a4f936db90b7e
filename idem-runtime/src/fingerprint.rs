//! The canonical form of a request, and the hash of it that tells whether two requests are the same.
//!
//! ```
//! use idem_runtime::Fingerprint;
//! use idem_runtime::fingerprint::{digest, json};
//!
//! #[derive(Fingerprint)]
//! struct Charge {
//!     amount: u64,
//!     currency: String,
//!     note: Option<String>,
//!     #[fingerprint(skip)]
//!     trace_id: u64,
//! }
//!
//! let charge = |trace_id| Charge { amount: 100, currency: "EUR".into(), note: None, trace_id };
//! assert_eq!(digest(&charge(1))?, digest(&charge(2))?);
//! assert_eq!(digest(&charge(1))?, digest(&json(br#"{"currency": "EUR", "amount": 1e2}"#))?);
//! # Ok::<(), idem_runtime::FingerprintError>(())
//! ```
//!
//! # The canonical form
//!
//! The fingerprint of a value, version 1, is the SHA-256 of `["idem/1", value]`, an array of two, in deterministically
//! encoded CBOR ([RFC 8949 §4.2.1](https://www.rfc-editor.org/rfc/rfc8949#section-4.2.1)): definite lengths, the
//! shortest head, the shortest exact float, map keys in the bytewise order of their encodings. So every message begins
//! with the bytes `82 66 69 64 65 6d 2f 31`. What follows is all there is to know for computing it in another language;
//! `tests/vectors/fingerprint.json` in the repository has vectors to check with, and [`canonical`] gives the bytes of
//! any value.
//!
//! | value | form |
//! | --- | --- |
//! | integers of any width, `NonZero`, `Wrapping`, `Saturating` | an integer: major types 0 and 1, beyond 64 bits a bignum (tags 2 and 3) without leading zeros. The width makes no difference |
//! | `bool` | `false`, `true` |
//! | `str`, `String`, `char` | a text string, as it is: no Unicode normalisation |
//! | `[u8]`, `Vec<u8>`, `[u8; N]`, `Bytes` | a byte string |
//! | other slices, arrays, `Vec`, `VecDeque`, `LinkedList` | an array of the items (a `VecDeque<u8>` too) |
//! | tuples up to 12 | an array; `()` is the empty one |
//! | `HashMap`, `BTreeMap` | a map, sorted by the encoded keys; two keys of one encoding are an error |
//! | `HashSet`, `BTreeSet` | an array of the elements, sorted by their encodings; two of one encoding are an error |
//! | references, `Box`, `Rc`, `Arc`, `Cow` | what they point to |
//! | `None` | null; **absent** as a field |
//! | `Some(x)` | `x`, in tag 0x6964 where the encoding of `x` begins with null (`f6`) or that very tag (`d9 69 64`). So `None`, `Some(None)` and `Some(Some(None))` are `f6`, `d9 69 64 f6` and `d9 69 64 d9 69 64 f6` |
//! | `PhantomData` | null; absent as a field |
//! | `Result` | as an enum with the variants `Ok` and `Err` |
//! | `Duration` | the array `[seconds, nanoseconds]`; signed durations of other crates likewise, both numbers with the sign of the whole |
//! | `SystemTime` | the text of the instant, see below |
//! | IP and socket addresses | their text, such as `[::1]:80`; a `SocketAddrV6` whose flow is not zero: `[text, flow]` |
//!
//! **Derived types.** A struct with named fields is a map from the names, as text, to the values; absent fields are left
//! out. Absent are `None`, `PhantomData`, a newtype or pointer of something absent, and what `default` leaves out. A
//! unit struct is the empty map. A struct of one unnamed field is that field, whatever it is; of more, or of none, the
//! array of those not skipped (also where one unnamed field is skipped: the empty array). A unit variant is its name, as
//! text. Any other variant is a map of one entry, from the name to the field of a variant of one unnamed field, the array
//! of several, or the map of named ones. `#[fingerprint(name = "...")]` on a type wraps all of that in a map of one entry
//! with that name, which is never absent. `#[fingerprint(rename = "...")]` changes a name. Raw identifiers go without
//! their `r#`. Neither type names, nor the order of fields and variants, have a part in it.
//!
//! **Floats** have a form only under `#[fingerprint(float)]`, or by [`Encoder::float`]: the shortest of half, single and
//! double precision that is exact; `-0.0` is `0.0`, infinities are allowed, NaN is an error. A float is no integer:
//! `1.0` is `f9 3c 00`.
//!
//! **Decimal numbers** are what JSON numbers and `rust_decimal` hold: `m × 10^e`, exactly, where `m` is an integer
//! without trailing zeros in decimal; zero is the integer 0.
//!
//! 1. An integral value from -2^127 to 2^128 - 1 is that integer, so `1`, `1.0`, `10e-1` and the integer 1 are one.
//! 2. Otherwise, with `m` from -2^127 to 2^127 - 1: tag 4, a decimal fraction, over the array `[e, m]`, `m` a bignum beyond
//!    64 bits. `1.50` is `c4 82 20 0f`; 10^39 is `c4 82 18 27 01`.
//! 3. Otherwise: tag 0x6965 over the array `[e, text]`, the decimal digits of `m`, behind a `-` where it is negative.
//!
//! An `e` outside of 64 signed bits is an error.
//!
//! **JSON**, as text by [`json`] or as a `serde_json::Value`: null, `true` and `false`, strings as text, numbers as
//! decimal numbers, arrays, and objects as maps. A key twice in one object, half of a surrogate pair, and nesting deeper
//! than 128 levels are errors. A `Value` may have rounded what its text said; then its form is that of what it holds. Null
//! in an object is null, not absent.
//!
//! Values of any other kind that nest more than 128 collections and pointers deep are an error too.
//!
//! **Types of other crates**, each behind the feature named after the crate:
//!
//! | type | form |
//! | --- | --- |
//! | `bytes::{Bytes, BytesMut}` | a byte string |
//! | `uuid::Uuid` | its 16 bytes |
//! | `url::Url` | its text, as the crate normalises it |
//! | `rust_decimal::Decimal` | a decimal number; its scale makes no difference |
//! | `chrono::DateTime<_>`, `time::{OffsetDateTime, UtcDateTime}`, `jiff::Timestamp` | the text of the instant |
//! | `jiff::Zoned` | `[text of the instant, name of the zone]`; a fixed offset is named `+05:30` |
//! | dates, times of day, both without a zone | ISO 8601 text: `2026-01-31`, `12:00:00.25`, `2026-01-31T12:00:00.25` |
//! | `chrono::TimeDelta`, `time::Duration`, `jiff::SignedDuration` | `[seconds, nanoseconds]`, both with the sign of the whole |
//!
//! The text of an **instant** is RFC 3339 in UTC with `Z`, and with the shortest fraction of a second, none where it is
//! zero: `2026-01-31T12:00:00.25Z`. Years before 0 and after 9999 have a sign and at least six digits. A leap second is
//! second 60. So the three crates agree, and the offset that an instant was given with makes no difference.
//!
//! # What changes a fingerprint
//!
//! Adding an `Option` field, or one under `#[fingerprint(default)]`, keeps the fingerprints of requests without it;
//! widening an integer, reordering fields or variants, and wrapping in `Box`, `Arc` or a newtype keep all. Renaming a
//! field or variant changes them (`rename` keeps the old name), as does turning a `Vec<u8>` into a `Vec<u16>`, and
//! adding a second field to a newtype. A call whose record was made with another fingerprint is answered with
//! [`KeyReused`](crate::Error::KeyReused), until the record expires.
//!
//! # Guessable requests
//!
//! The hash of a request that can be guessed tells whoever reads the store when the guess was right. With a [`Secret`] the
//! stored hash is an HMAC-SHA-256 of it.

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

/// A type with a canonical form, see [the module](self). Derived for structs and enums:
///
/// | attribute | on | effect |
/// | --- | --- | --- |
/// | `skip` | a field | has no part in the fingerprint |
/// | `rename = "..."` | a field, a variant | is written under this name |
/// | `default` | a named field | left out while it equals its default, so that it can be added later |
/// | `float` | a field | accepts `f32`, `f64`, and `Option`, `Vec` and arrays of them |
/// | `with = path` | a field | written by a `fn(&T, &mut Encoder)` |
/// | `name = "..."` | a type | its form is wrapped in a map with this one name, so that it differs from others of its shape |
/// | `bound = "..."` | a type | replaces the bounds on its type parameters, `T: Fingerprint` for each that is used |
/// | `crate = path` | a type | where `idem_runtime` is |
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

/// The digest of a value, unsigned: SHA-256 over its [canonical form](self).
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
///
/// ```
/// use idem_runtime::fingerprint::{digest, from_fn};
///
/// let lower = |text: &str| digest(&from_fn(|encoder| encoder.text(&text.to_lowercase())));
/// assert_eq!(lower("A")?, lower("a")?);
/// # Ok::<(), idem_runtime::FingerprintError>(())
/// ```
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
