//! Canonical form of requests. Two requests are the same if the hashes of their canonical forms are equal.
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
//! # Ok::<(), idem_runtime::error::FingerprintError>(())
//! ```
//!
//! # The canonical form
//!
//! The fingerprint of a value, version 1, is the SHA-256 of the array `["idem/1", value]` in deterministically encoded
//! CBOR ([RFC 8949 §4.2.1](https://www.rfc-editor.org/rfc/rfc8949#section-4.2.1)). Lengths are definite, heads and floats
//! as short as possible, and map keys in the bytewise order of their encodings. Every hashed message
//! therefore begins with the bytes `82 66 69 64 65 6d 2f 31`. The following rules are complete: they suffice to compute
//! fingerprints in another language. `tests/vectors/fingerprint.json` in the repository has test vectors, and
//! [`canonical`] returns the bytes of any value.
//!
//! | value | form |
//! | --- | --- |
//! | integers of any width, `NonZero`, `Wrapping`, `Saturating` | an integer: major types 0 and 1, beyond 64 bits a bignum (tags 2 and 3) without leading zeros. The width makes no difference |
//! | `bool` | `false`, `true` |
//! | `str`, `String`, `char` | a text string, without Unicode normalization |
//! | `[u8]`, `Vec<u8>`, `[u8; N]`, `Bytes` | a byte string |
//! | other slices, arrays, `Vec`, `VecDeque`, `LinkedList` | an array of the items (a `VecDeque<u8>` too) |
//! | tuples up to 12 | an array; `()` is the empty array |
//! | `HashMap`, `BTreeMap` | a map, sorted by the encoded keys; two keys with the same encoding are an error |
//! | `HashSet`, `BTreeSet` | an array of the elements, sorted by their encodings; two elements with the same encoding are an error |
//! | references, `Box`, `Rc`, `Arc`, `Cow` | the form of the value behind them |
//! | `None` | null; **absent** as a field |
//! | `Some(x)` | `x`; in tag 0x6964 if the encoding of `x` begins with null (`f6`) or with that tag (`d9 69 64`). So `None`, `Some(None)` and `Some(Some(None))` are `f6`, `d9 69 64 f6` and `d9 69 64 d9 69 64 f6` |
//! | `PhantomData` | null; absent as a field |
//! | `Result` | as an enum with the variants `Ok` and `Err` |
//! | `Duration` | the array `[seconds, nanoseconds]`; in signed durations of other crates both numbers have the sign of the duration |
//! | `SystemTime` | the text of the instant, see below |
//! | IP and socket addresses | their text, such as `[::1]:80`; the array `[text, flow]` for a `SocketAddrV6` whose flow is not zero |
//!
//! ## Derived types
//!
//! | type | form |
//! | --- | --- |
//! | struct with named fields | a map from the names, as text, to the values; absent fields are omitted |
//! | unit struct | the empty map |
//! | struct with one unnamed field that is not skipped | the form of the field |
//! | struct with another number of unnamed fields, or one skipped | an array of the fields that are not skipped |
//! | unit variant | its name, as text |
//! | variant with one unnamed field | a map with one entry, from the name to the form of the field |
//! | variant with several unnamed fields | a map with one entry, from the name to the array of the fields |
//! | variant with named fields | a map with one entry, from the name to the map of the fields |
//!
//! - Absent values are `None`, `PhantomData`, a newtype or pointer of an absent value, and a field that `default` omits.
//! - `#[fingerprint(name = "...")]` on a type wraps its form in a map with one entry of that name. The map is never
//!   absent.
//! - `#[fingerprint(rename = "...")]` changes a name. Raw identifiers lose their `r#`.
//! - Type names, and the order of fields and variants, make no difference.
//!
//! ## Numbers
//!
//! **Floats** have a form only with `#[fingerprint(float)]`, or by [`Encoder::float`]: the shortest of half, single and
//! double precision that is exact. `-0.0` is `0.0`, infinities are allowed, and NaN is an error. A float never equals an
//! integer: `1.0` is `f9 3c 00`.
//!
//! **Decimal numbers** are JSON numbers and `rust_decimal` values: exactly `m × 10^e`, where `m` is an integer without
//! trailing decimal zeros. Zero is the integer 0.
//!
//! 1. An integer from -2^127 to 2^128 - 1 has the form of that integer: `1`, `1.0`, `10e-1` and the integer 1 are equal.
//! 2. Otherwise, if `m` is from -2^127 to 2^127 - 1: tag 4, a decimal fraction, with the array `[e, m]`. Beyond 64 bits,
//!    `m` is a bignum. `1.50` is `c4 82 20 0f`; 10^39 is `c4 82 18 27 01`.
//! 3. Otherwise: tag 0x6965 with the array `[e, text]`. The text has the decimal digits of `m`, after a `-` if `m` is
//!    negative.
//!
//! An `e` beyond 64 signed bits is an error.
//!
//! ## JSON
//!
//! JSON is a text in [`json`], or a `serde_json::Value`: null, `true` and `false`, strings as text, numbers as decimal
//! numbers, arrays, and objects as maps. Null in an object is null, not absent. Duplicate keys in an object, half of a
//! surrogate pair, and more than 128 levels are errors. A `Value` has rounded each number of its text that is neither an
//! integer of 64 bits nor a double, unless any crate of the build turns on the feature `arbitrary_precision` of serde_json.
//! Its form has the number that the `Value` has. When a deploy turns that feature on or off, a retry with such a number is
//! refused as [`KeyReused`](crate::Error::KeyReused). The form of [`json`] and of `RawValue` does not depend on features.
//!
//! Other values with more than 128 levels of collections and pointers are an error too.
//!
//! ## Types of other crates
//!
//! Each has the feature of its crate's name:
//!
//! | type | form |
//! | --- | --- |
//! | `bytes::{Bytes, BytesMut}` | a byte string |
//! | `uuid::Uuid` | its 16 bytes |
//! | `url::Url` | its text, as normalized by the crate |
//! | `rust_decimal::Decimal` | a decimal number; its scale makes no difference |
//! | `chrono::DateTime<_>`, `time::{OffsetDateTime, UtcDateTime}`, `jiff::Timestamp` | the text of the instant |
//! | `jiff::Zoned` | `[text of the instant, name of the zone]`; a fixed offset is named `+05:30` |
//! | dates, times of day, both without a zone | ISO 8601 text: `2026-01-31`, `12:00:00.25`, `2026-01-31T12:00:00.25` |
//! | `chrono::TimeDelta`, `time::Duration`, `jiff::SignedDuration` | `[seconds, nanoseconds]`, both with the sign of the duration |
//!
//! The text of an **instant** is RFC 3339 in UTC with `Z`: `2026-01-31T12:00:00.25Z`. The fraction of a second is as short
//! as possible, and omitted if it is zero. Years before 0 and after 9999 have a sign and at least six digits. A leap
//! second is second 60. Equal instants of the three crates have equal texts, and the offset of an instant makes no
//! difference.
//!
//! # Compatible changes
//!
//! | change of a type | fingerprints |
//! | --- | --- |
//! | new field that is an `Option` or has `#[fingerprint(default)]` | same for requests without the field |
//! | wider integer, another order of fields or variants, `Box`, `Arc` or a newtype around a value | same |
//! | renamed field or variant | different, unless `rename` has the old name |
//! | `Vec<u8>` becomes `Vec<u16>` | different |
//! | second field in a newtype | different |
//!
//! If the fingerprint of a request changes, a retry with its key gets [`KeyReused`](crate::Error::KeyReused) until the
//! record expires.
//!
//! # Guessable requests
//!
//! A reader of the store can guess a request and compare its hash with the stored one. With a [`Secret`], the stored hash
//! is an HMAC-SHA-256 instead.

#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod captured;
mod check;
mod encoder;
#[doc(hidden)]
pub mod fields;
mod foreign;
mod instant;
mod json;
mod members;
mod number;
mod secret;
mod types;

use std::fmt;

#[cfg(feature = "macros")]
pub use idem_macros::Fingerprint;

pub use self::encoder::Encoder;
pub use self::json::{Json, json};
#[cfg(feature = "http")]
pub(crate) use self::json::{JsonWithout, Omitted};
pub(crate) use self::members::digests as member_digests;
pub use self::members::{MemberDifferences, compare_members};
pub use self::secret::Secret;
pub(crate) use self::secret::matches;
use crate::error::FingerprintError;
use crate::record::Digest;

/// Version of the algorithm in this build.
const VERSION: u8 = 1;

/// Type with a [canonical form](self). Can be derived for structs and enums:
///
/// | attribute | on | effect |
/// | --- | --- | --- |
/// | `skip` | a field | omits the field from the fingerprint |
/// | `rename = "..."` | a field, a variant | uses this name |
/// | `default` | a named field | omits the field if it equals its default, so that it can be added later |
/// | `float` | a field | accepts `f32`, `f64`, and `Option`, `Vec` and arrays of them |
/// | `with = path` | a field | writes the field with a `fn(&T, &mut Encoder)` |
/// | `name = "..."` | a type | wraps the form in a map with this name, so that it differs from types of the same shape |
/// | `bound = "..."` | a type | replaces the bounds of its type parameters. Default: `T: Fingerprint` for each that is used |
/// | `crate = path` | a type | path of `idem_runtime` |
///
/// ```
/// use idem_runtime::Fingerprint;
/// use idem_runtime::fingerprint::digest;
///
/// #[derive(Fingerprint)]
/// struct Charge {
///     cents: u64,
///     #[fingerprint(skip)]
///     trace: u64,
/// }
///
/// // A retry with another trace is the same request. Another amount is not.
/// assert_eq!(digest(&Charge { cents: 500, trace: 1 })?, digest(&Charge { cents: 500, trace: 2 })?);
/// assert_ne!(digest(&Charge { cents: 500, trace: 1 })?, digest(&Charge { cents: 900, trace: 1 })?);
/// # Ok::<(), idem_runtime::error::FingerprintError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no canonical form to fingerprint",
    label = "not `Fingerprint`",
    note = "calls with one key are compared by the fingerprint of their request: if `{Self}`, or a type in it, is yours, add `#[derive(Fingerprint)]` to that type",
    note = "if it is no part of the request, leave it out: `skip(...)` in `#[idempotent]`, `#[fingerprint(skip)]` on a field",
    note = "otherwise say how to write it: `fingerprint = ...` in `#[idempotent]`, `#[fingerprint(with = function)]` on a field, `#[fingerprint(float)]` on a field of floats"
)]
pub trait Fingerprint {
    /// Writes the canonical form of this value: exactly one item.
    fn fingerprint(&self, encoder: &mut Encoder);

    /// Returns true if a field with this value is omitted from its map, as `None` is.
    #[inline]
    fn is_absent(&self) -> bool {
        false
    }

    /// Writes bytes that are canonical already, and then the value. Leaf types do both with one check for room.
    #[doc(hidden)]
    #[inline]
    fn fingerprint_after(&self, prefix: &[u8], encoder: &mut Encoder) {
        encoder.raw(prefix);
        self.fingerprint(encoder);
    }

    /// Writes a slice of these values: an array, or a byte string for bytes.
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

/// Hashes the [canonical form](self) of a value with SHA-256, without a [`Secret`].
///
/// # Errors
/// [`FingerprintError`] if the value has no canonical form.
#[inline]
pub fn digest<T: Fingerprint + ?Sized>(value: &T) -> Result<Digest, FingerprintError> {
    #[cfg(feature = "testing")]
    captured::note(value);
    encoder::digest(value)
}

/// Returns the bytes that [`digest`] hashes, for comparison with another language or with another request.
///
/// Also checks that a hand-written [`Fingerprint`] wrote one item and sorted its maps. `digest` does not check this.
///
/// # Errors
/// [`FingerprintError`] if the value has no canonical form.
pub fn canonical<T: Fingerprint + ?Sized>(value: &T) -> Result<Vec<u8>, FingerprintError> {
    encoder::bytes(value)
}

/// Makes a value whose canonical form a function writes.
///
/// ```
/// use idem_runtime::fingerprint::{digest, from_fn};
///
/// let lower = |text: &str| digest(&from_fn(|encoder| encoder.text(&text.to_lowercase())));
/// assert_eq!(lower("A")?, lower("a")?);
/// # Ok::<(), idem_runtime::error::FingerprintError>(())
/// ```
pub fn from_fn<F: Fn(&mut Encoder)>(write: F) -> FromFn<F> {
    FromFn(write)
}

/// Value of [`from_fn`].
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
