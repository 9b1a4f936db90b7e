//! Versions of a result type. The tag of a stored value names the version that wrote it: `json/1;v2`. A value without one
//! is of version 1.

use std::time::Duration;

use super::StoredValue;
use crate::error::DecodeError;
use crate::record::Payload;

/// Mark between the tag of a codec and the version of the result type.
const MARK: &str = ";v";

/// The version of values that were stored before their type had one.
const FIRST: u32 = 1;

/// Stored value, with the version of its type that wrote it.
///
/// ```
/// use idem_runtime::advanced::{StoredResult, Versioned};
/// use idem_runtime::error::DecodeError;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Receipt {
///     number: String,
/// }
///
/// impl Versioned for Receipt {
///     const VERSION: u32 = 2;
///
///     fn read_other(stored: StoredResult<'_>) -> Result<Self, DecodeError> {
///         match stored.version() {
///             1 => stored.read().map(|number: u64| Self { number: number.to_string() }),
///             _ => Err(stored.unknown::<Self>()),
///         }
///     }
/// }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct StoredResult<'a> {
    payload: &'a Payload,
    kept_for: Option<Duration>,
}

/// Result type whose stored form has changed: reads what other versions of it have stored.
///
/// Implement it for a result type, and call [`TypedOperation::versioned`](crate::TypedOperation::versioned) or
/// [`RunOptions::versioned`](crate::advanced::RunOptions::versioned). The options `version` and `upgrade` of
/// `#[idempotent]` are a shorter form, for a function whose operation has no [`TypedOperation`](crate::TypedOperation).
pub trait Versioned: StoredValue {
    /// Version that this build writes: 2 for the first changed form, because values without a version are of version 1.
    const VERSION: u32;

    /// Reads a value of another version. A version that is not known is [`StoredResult::unknown`].
    ///
    /// # Errors
    /// The value cannot be read.
    fn read_other(stored: StoredResult<'_>) -> Result<Self, DecodeError>;
}

impl<'a> StoredResult<'a> {
    pub(crate) fn new(payload: &'a Payload, kept_for: Option<Duration>) -> Self {
        Self { payload, kept_for }
    }

    /// Version of the result type that wrote the value.
    pub fn version(self) -> u32 {
        split(&self.payload.codec).1
    }

    /// Reads the value in the form of its version.
    ///
    /// # Errors
    /// The value has another form.
    pub fn read<T: StoredValue>(self) -> Result<T, DecodeError> {
        super::decode_tagged(split(&self.payload.codec).0, &self.payload.bytes)
    }

    /// Error for a value of a version that the type `T` cannot read.
    pub fn unknown<T: Versioned>(self) -> DecodeError {
        unknown(self.version(), T::VERSION)
    }

    #[cfg(feature = "http")]
    pub(crate) fn payload(self) -> &'a Payload {
        self.payload
    }

    /// Time for which the value is kept. None if it has no end.
    pub fn kept_for(self) -> Option<Duration> {
        self.kept_for
    }
}

/// Reads a value of a type with versions.
pub(crate) fn read<T: Versioned>(stored: StoredResult<'_>) -> Result<T, DecodeError> {
    match stored.version() == T::VERSION {
        true => stored.read(),
        false => T::read_other(stored),
    }
}

/// Reads a value of a type without versions.
pub(crate) fn read_first<T: StoredValue>(stored: StoredResult<'_>) -> Result<T, DecodeError> {
    match stored.version() {
        FIRST => stored.read(),
        version => Err(unknown(version, FIRST)),
    }
}

/// Error for a value of a version that a build with this `own` version cannot read.
pub(crate) fn unknown(version: u32, own: u32) -> DecodeError {
    if version > own {
        return DecodeError::of_newer_version(format!(
            "version {version} of the result type wrote the stored value, and this build reads up to version {own}; finish \
             the deployment of the build that wrote it"
        ));
    }
    DecodeError::new(format!(
        "version {version} of the result type wrote the stored value, and this build of version {own} cannot upgrade it; \
         deploy a build that has the function for it in `upgrade`"
    ))
}

/// Adds the version to the tag of an encoded value. Version 1 has no mark.
pub(crate) fn tagged(mut payload: Payload, version: u32) -> Payload {
    if version > FIRST {
        payload.codec = format!("{}{MARK}{version}", payload.codec).into();
    }
    payload
}

/// Tag of the codec, and version of the type. A tag that is written in any other way is that of a foreign codec.
fn split(tag: &str) -> (&str, u32) {
    let Some((codec, digits)) = tag.rsplit_once(MARK) else {
        return (tag, FIRST);
    };
    match digits.parse::<u32>() {
        Ok(version) if version > FIRST && version.to_string() == digits => (codec, version),
        _ => (tag, FIRST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_has_one_form() {
        assert_eq!(split("json/1"), ("json/1", 1));
        assert_eq!(split("json/1;v2"), ("json/1", 2));
        assert_eq!(split("cbor/1;v4294967295"), ("cbor/1", u32::MAX));
        for foreign in [
            "json/1;v",
            "json/1;v0",
            "json/1;v1",
            "json/1;v02",
            "json/1;v+2",
            "json/1;v4294967296",
            "json/1;V2",
            ";v",
        ] {
            assert_eq!(split(foreign), (foreign, 1));
        }
    }

    #[test]
    fn only_later_versions_have_a_mark() {
        let payload = || Payload {
            codec: "json/1".into(),
            bytes: (*b"7").into(),
        };
        assert_eq!(tagged(payload(), 1), payload());
        let second = tagged(payload(), 2);
        assert_eq!((&*second.codec, &*second.bytes), ("json/1;v2", &b"7"[..]));
        let stored = StoredResult::new(&second, None);
        assert_eq!(stored.version(), 2);
        assert_eq!(stored.read::<u8>().unwrap(), 7);
    }

    #[test]
    fn a_build_without_the_version_says_so() {
        let payload = tagged(
            Payload {
                codec: "json/1".into(),
                bytes: (*b"7").into(),
            },
            3,
        );
        let error = read_first::<u8>(StoredResult::new(&payload, None)).unwrap_err();
        assert!(error.is_of_newer_version(), "{error}");
        assert!(!unknown(1, 3).is_of_newer_version());
    }
}
