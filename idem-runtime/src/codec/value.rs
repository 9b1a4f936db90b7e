//! Encoding of the values of a type, as functions.

use super::version::{self, StoredResult, Versioned};
use super::{Codec, EncodeError, StoredValue};
use crate::error::DecodeError;
use crate::record::Payload;

/// Encoding of values of type `T`.
///
/// This type and `ErrorCodec` are the only places that require [`StoredValue`] and `CallError`. Generated code
/// constructs one of each at the place of the user's type, so a missing bound is reported there, once, without
/// follow-up errors.
pub struct ValueCodec<T> {
    pub(crate) encode: Encode<T>,
    pub(crate) decode: Decode<T>,
}

/// Encodes a value, up to a limit in bytes.
type Encode<T> = fn(&T, Codec, usize) -> Result<Payload, EncodeError>;

/// Decodes a stored value.
pub(crate) type Decode<T> = fn(StoredResult<'_>) -> Result<T, DecodeError>;

impl<T> ValueCodec<T> {
    /// Encodes values with their serde implementations.
    pub const fn stored() -> Self
    where
        T: StoredValue,
    {
        Self {
            encode: |value, codec, limit| codec.encode(value, limit),
            decode: version::read_first,
        }
    }

    /// Encodes values of a type with versions.
    pub(crate) const fn versioned() -> Self
    where
        T: Versioned,
    {
        Self {
            encode: |value, codec, limit| {
                let payload = codec.encode(value, limit)?;
                Ok(version::tagged(payload, T::VERSION))
            },
            decode: version::read,
        }
    }

    /// Encodes values as this version, and decodes every version with this function.
    pub const fn of_version<const VERSION: u32>(decode: Decode<T>) -> Self
    where
        T: StoredValue,
    {
        Self {
            encode: |value, codec, limit| {
                let payload = codec.encode(value, limit)?;
                Ok(version::tagged(payload, VERSION))
            },
            decode,
        }
    }

    /// Encodes values with these functions.
    #[cfg(feature = "http")]
    pub(crate) const fn by(encode: Encode<T>, decode: Decode<T>) -> Self {
        Self { encode, decode }
    }
}

impl<T> Clone for ValueCodec<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ValueCodec<T> {}
