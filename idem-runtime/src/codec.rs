//! How a result becomes bytes and comes back: an encoded value travels with the tag of the codec, and its version,
//! that wrote it, so a later build knows whether it can read it.

mod exact;

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::DecodeError;
use crate::record::Payload;
use exact::{Notes, Reader};

/// A value that can be stored and given back: anything that is `serde::Serialize` and `serde::de::DeserializeOwned`.
///
/// A replay gives back the very value, bit for bit. What the [`Codec`] cannot carry is not stored: the result counts as
/// [unrecorded](crate::Error::Unrecorded), with an error event that says why. Both codecs write `Some(None)` and
/// `Some(())` as they write `None`; JSON has no NaN and no infinities; types that buffer what they read (internally
/// tagged and untagged enums, flattened fields) cannot read all that codecs write, 128-bit integers for one. Where that
/// depends on the type, the value is decoded once before it is stored, and compared.
///
/// Two values that the type itself serializes alike cannot be told apart: skipped fields, or variants of an untagged enum
/// that look the same. Such a type reads either value as one of the two.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be stored and replayed",
    label = "cannot be stored and replayed",
    note = "what an idempotent function returns is stored, so that a retry gets it back: derive `serde::Serialize` and `serde::Deserialize` for `{Self}`, or for the types in it that are yours, and let it own its data"
)]
pub trait StoredValue: Serialize + DeserializeOwned {}

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned> StoredValue for T {}

/// How results are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Codec {
    /// JSON: readable in the store, tag `json/1`. Finite floats come back bit for bit; there are no others.
    #[default]
    Json,
    /// CBOR (RFC 8949): compact, and exact for bytes and non-finite floats; tag `cbor/1`. Feature `cbor`.
    #[cfg(feature = "cbor")]
    Cbor,
}

/// A buffer that grew beyond this, in bytes, is not kept for the next result.
const KEPT: usize = 64 * 1024;

thread_local! {
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

const JSON: &str = "json/1";
const CBOR: &str = "cbor/1";

/// Why a value could not be stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EncodeError {
    #[error("the result is over the limit of {limit} bytes")]
    TooLarge { limit: usize },
    #[error("the value would not come back as it is: {0}")]
    Inexact(&'static str),
    #[error("the result cannot be encoded")]
    Codec(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the result's `Serialize` implementation panicked")]
    Panicked,
}

/// Error text for a value that its own type reads back as another value, or not at all.
const READ_OTHERWISE: &str = "its type does not read the encoded value as the same value; \
     write 128-bit integers, map keys and bytes in buffered types (tagged, untagged, flattened) as texts";

impl Codec {
    /// Encodes a value, giving up as soon as it is over the limit in bytes. A value that would not be decoded exactly is
    /// an error.
    pub(crate) fn encode<T: StoredValue>(
        self,
        value: &T,
        limit: usize,
    ) -> Result<Payload, EncodeError> {
        let (payload, doubtful) = self.encode_noting(value, Reader::Known, limit)?;
        if doubtful && !self.comes_back(value, &payload)? {
            return Err(EncodeError::Inexact(READ_OTHERWISE));
        }
        Ok(payload)
    }

    /// Encodes a value whose reader's type is unknown. A value that no type could read back exactly is an error.
    pub(crate) fn encode_unread<T: Serialize + ?Sized>(
        self,
        value: &T,
        limit: usize,
    ) -> Result<Payload, EncodeError> {
        self.encode_noting(value, Reader::Unknown, limit)
            .map(|(payload, _)| payload)
    }

    /// Encodes a value, and tells if its reader's type decides how it is read back.
    fn encode_noting<T: Serialize + ?Sized>(
        self,
        value: &T,
        reader: Reader,
        limit: usize,
    ) -> Result<(Payload, bool), EncodeError> {
        let mut bytes = BUFFER.try_with(Cell::take).unwrap_or_default();
        bytes.clear();
        let mut buffer = Limited {
            bytes,
            limit,
            exceeded: false,
        };
        let notes = Notes::new(self, reader);
        // The work is done by now: a panic in here must not make it look as if it had not been.
        let written = catch_unwind(AssertUnwindSafe(|| self.write(value, &notes, &mut buffer)));
        match written {
            Ok(Ok(())) => {
                let payload = Payload {
                    codec: self.tag().into(),
                    bytes: buffer.bytes.as_slice().into(),
                };
                if buffer.bytes.capacity() <= KEPT {
                    // A thread that is ending has no use for the buffer.
                    let _ = BUFFER.try_with(|kept| kept.set(buffer.bytes));
                }
                Ok((payload, notes.is_doubtful()))
            }
            Ok(Err(_)) if buffer.exceeded => Err(EncodeError::TooLarge { limit }),
            Ok(Err(error)) => Err(match notes.refused() {
                Some(reason) => EncodeError::Inexact(reason),
                None => EncodeError::Codec(error),
            }),
            Err(_) => Err(EncodeError::Panicked),
        }
    }

    /// Decodes the payload and compares: true if both values make the same calls to a serializer.
    fn comes_back<T: StoredValue>(self, value: &T, payload: &Payload) -> Result<bool, EncodeError> {
        let compare = || match decode::<T>(payload) {
            Ok(decoded) => {
                let digest = self.digest(value);
                digest.is_some() && digest == self.digest(&decoded)
            }
            Err(_) => false,
        };
        catch_unwind(AssertUnwindSafe(compare)).map_err(|_| EncodeError::Panicked)
    }

    fn digest<T: Serialize + ?Sized>(self, value: &T) -> Option<u64> {
        let mut nowhere = Limited {
            bytes: Vec::new(),
            limit: usize::MAX,
            exceeded: false,
        };
        let notes = Notes::digesting(self);
        self.write(value, &notes, &mut nowhere).ok()?;
        notes.digest()
    }

    pub(crate) const fn tag(self) -> &'static str {
        match self {
            Self::Json => JSON,
            #[cfg(feature = "cbor")]
            Self::Cbor => CBOR,
        }
    }

    fn write<T: Serialize + ?Sized>(
        self,
        value: &T,
        notes: &Notes,
        buffer: &mut Limited,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        match self {
            Self::Json => Ok(serde_json::to_writer(buffer, &notes.on(value))?),
            #[cfg(feature = "cbor")]
            Self::Cbor => Ok(ciborium::into_writer(&notes.on(value), buffer)?),
        }
    }
}

/// Decodes a stored value with the codec that wrote it.
pub(crate) fn decode<T: DeserializeOwned>(payload: &Payload) -> Result<T, DecodeError> {
    match &*payload.codec {
        JSON => serde_json::from_slice(&payload.bytes).map_err(|error| {
            // serde's own message may quote the stored value; where it went wrong is enough to find it.
            DecodeError::new(format!(
                "the stored JSON does not fit the type that is expected now: {} error at byte {}",
                match error.classify() {
                    serde_json::error::Category::Data => "type",
                    _ => "syntax",
                },
                error.column(),
            ))
        }),
        #[cfg(feature = "cbor")]
        CBOR => ciborium::from_reader(&*payload.bytes).map_err(|error| {
            DecodeError::new(match error {
                ciborium::de::Error::Syntax(at) => {
                    format!("the stored CBOR is malformed at byte {at}")
                }
                _ => "the stored CBOR does not fit the type that is expected now".to_owned(),
            })
        }),
        #[cfg(not(feature = "cbor"))]
        CBOR => Err(DecodeError::new(
            "the stored value is CBOR, which this build reads with feature `cbor` only",
        )),
        tag => Err(DecodeError::new(format!(
            "this build has no codec `{}`",
            tag.escape_default()
        ))),
    }
}

/// A buffer that refuses to grow past its limit.
struct Limited {
    bytes: Vec<u8>,
    limit: usize,
    exceeded: bool,
}

impl io::Write for Limited {
    fn write(&mut self, chunk: &[u8]) -> io::Result<usize> {
        if chunk.len() > self.limit - self.bytes.len() {
            self.exceeded = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(chunk);
        Ok(chunk.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
