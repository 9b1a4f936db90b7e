//! The canonical hash of a request.

use crate::error::{DecodeError, FingerprintError};
use crate::record::Digest;

/// A type with a canonical form.
pub trait Fingerprint {
    /// Writes the canonical form of this value: exactly one item.
    fn fingerprint(&self, encoder: &mut Encoder);

    /// Whether a field of this value is left out of the map that it stands in: `None`.
    fn is_absent(&self) -> bool {
        false
    }
}

/// Writes canonical forms.
#[derive(Debug)]
pub struct Encoder {
    bytes: Vec<u8>,
    error: Option<FingerprintError>,
}

impl Encoder {
    /// The head of a map of so many entries.
    pub fn map(&mut self, entries: usize) {
        self.bytes.push(0xa0 + entries as u8);
    }

    #[doc(hidden)]
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }
}

/// The digest of a value, unsealed.
///
/// # Errors
/// [`FingerprintError`] where it has no canonical form.
pub fn digest<T: Fingerprint + ?Sized>(value: &T) -> Result<Digest, FingerprintError> {
    let mut encoder = Encoder {
        bytes: vec![],
        error: None,
    };
    value.fingerprint(&mut encoder);
    match encoder.error {
        Some(error) => Err(error),
        None => Ok(Digest::new(
            1,
            [0; 4],
            &<sha2::Sha256 as sha2::Digest>::digest(&encoder.bytes).into(),
        )),
    }
}

/// A secret that seals stored digests.
#[derive(Debug, Clone)]
pub struct Secret;

impl Secret {
    /// The sealed form of an unsealed digest.
    pub fn seal(&self, plain: &Digest) -> Digest {
        *plain
    }
}

/// Whether a stored digest is that of the request whose unsealed digest is given.
pub(crate) fn matches(
    stored: &Digest,
    plain: &Digest,
    _secrets: &[Secret],
) -> Result<bool, DecodeError> {
    Ok(stored == plain)
}

/// A value whose canonical form a function writes.
pub fn from_fn<F: Fn(&mut Encoder)>(write: F) -> FromFn<F> {
    FromFn(write)
}

/// See [`from_fn`].
#[derive(Debug, Clone, Copy)]
pub struct FromFn<F>(F);

impl<F: Fn(&mut Encoder)> Fingerprint for FromFn<F> {
    fn fingerprint(&self, encoder: &mut Encoder) {
        (self.0)(encoder);
    }
}
