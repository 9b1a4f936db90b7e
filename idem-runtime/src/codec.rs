//! Codecs: encode results for the store, and decode them. The tag of an encoded value names its codec and version, so a
//! later build knows whether it can read the value.

mod exact;
mod seen;
pub(crate) mod value;
pub(crate) mod version;

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::DecodeError;
use crate::record::Payload;
use exact::{Notes, Reader};

/// Value that can be stored and replayed: any type that is `serde::Serialize` and `serde::de::DeserializeOwned`.
///
/// A replay returns exactly the stored value, bit for bit. A value that the [`Codec`] cannot represent exactly is not
/// stored: the result is [unrecorded](crate::Error::Unrecorded), and an error event has the reason. Such values are:
///
/// - `Some(None)` and `Some(())`, which both codecs write like `None`.
/// - NaN and infinities in JSON.
/// - A value that its own type cannot read back, such as a member that is skipped and has no default. The first value of
///   a type is decoded before it is stored, and so is the first one with a variant or without a member.
/// - Some values of types that buffer their input (internally tagged and untagged enums, flattened fields), for example
///   128-bit integers. Because this depends on the type, the value is decoded once before it is stored, and compared.
///   Where any crate of the build turns on the feature `arbitrary_precision` of serde_json, floats in such types are
///   among them in JSON, and so are all numbers of a `serde_json::Value` in CBOR.
///
/// Values that the type itself serializes identically cannot be distinguished: values that differ only in skipped fields,
/// or in variants of an untagged enum with the same form. A replay may return either of them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be stored and replayed",
    label = "cannot be stored and replayed",
    note = "what an idempotent function or a step returns is stored, so that a retry gets it back: derive `serde::Serialize` and `serde::Deserialize` for `{Self}`, or for the types in it that are yours, and let it own its data",
    note = "of a response, such as `axum::Json<T>`, return the `T`, and make the response in the handler that calls the function"
)]
pub trait StoredValue: Serialize + DeserializeOwned {}

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned> StoredValue for T {}

/// Format of stored results.
///
/// ```
/// use idem_runtime::{Codec, Idem, MemoryStore};
///
/// let idem = Idem::builder(MemoryStore::new()).codec(Codec::Json).build();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Codec {
    /// JSON: readable in the store, tag `json/1`. Finite floats are exact. NaN and infinities are not possible.
    #[default]
    Json,
    /// CBOR (RFC 8949): compact, and exact for bytes and non-finite floats; tag `cbor/1`. Feature `cbor`.
    #[cfg(feature = "cbor")]
    Cbor,
}

/// Maximum size, in bytes, of a buffer that the next result reuses.
const MAX_REUSED: usize = 64 * 1024;

thread_local! {
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

const JSON: &str = "json/1";
const CBOR: &str = "cbor/1";

/// Error of encoding a value.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EncodeError {
    #[error("the result exceeds the limit of {limit} bytes; return less, or raise the limit")]
    TooLarge { limit: usize },
    #[error("the value cannot be stored exactly: {0}")]
    Inexact(&'static str),
    #[error(
        "its type cannot read the encoded value back, because member `{0}` is missing in it; \
         add `#[serde(default)]` to the member, or do not skip it"
    )]
    MemberMissing(String),
    #[error("the result cannot be encoded")]
    Codec(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the result's `Serialize` implementation panicked")]
    Panicked,
}

/// Error text for a value that its own type reads back as another value, or not at all.
const READ_OTHERWISE: &str = "its type does not read the encoded value as the same value; \
     write 128-bit integers, map keys and bytes in buffered types (tagged, untagged, flattened) as texts";

impl Codec {
    /// Encodes a value, and stops as soon as it exceeds the limit in bytes. A value that would not be decoded exactly is an
    /// error.
    pub(crate) fn encode<T: StoredValue>(
        self,
        value: &T,
        limit: usize,
    ) -> Result<Payload, EncodeError> {
        let (payload, notes) = self.encode_noting(value, Reader::Known, limit)?;
        // Most types that cannot read what they write fail on their first value, or on the first one with a variant or
        // without a member. Later values of the same forms cost no reading.
        let forms = notes.forms();
        let seen = seen::of(
            decode::<T> as fn(&Payload) -> Result<T, DecodeError> as usize,
            self.tag(),
        );
        let is_new = seen.is_none_or(|seen| seen.is_new(forms));
        if notes.is_doubtful() || is_new {
            self.check(value, &payload)?;
            if let Some(seen) = seen {
                seen.insert(forms);
            }
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

    /// Encodes a value. Returns with it what was noted about its parts.
    fn encode_noting<T: Serialize + ?Sized>(
        self,
        value: &T,
        reader: Reader,
        limit: usize,
    ) -> Result<(Payload, Notes), EncodeError> {
        let mut bytes = BUFFER.try_with(Cell::take).unwrap_or_default();
        bytes.clear();
        let mut buffer = Limited {
            bytes,
            limit,
            exceeded: false,
        };
        let notes = Notes::new(self, reader);
        // The body has already run. A panic of `Serialize` must not look like a crash of the body.
        let written = catch_unwind(AssertUnwindSafe(|| self.write(value, &notes, &mut buffer)));
        match written {
            Ok(Ok(())) => {
                let payload = Payload {
                    codec: self.tag().into(),
                    bytes: buffer.bytes.as_slice().into(),
                };
                if buffer.bytes.capacity() <= MAX_REUSED {
                    // Fails only while the thread ends, and then nothing reuses the buffer.
                    let _ = BUFFER.try_with(|reused| reused.set(buffer.bytes));
                }
                Ok((payload, notes))
            }
            Ok(Err(_)) if buffer.exceeded => Err(EncodeError::TooLarge { limit }),
            Ok(Err(error)) => Err(match notes.refused() {
                Some(reason) => EncodeError::Inexact(reason),
                None => EncodeError::Codec(error),
            }),
            Err(_) => Err(EncodeError::Panicked),
        }
    }

    /// Decodes the payload, and compares: both values must make the same calls to a serializer.
    fn check<T: StoredValue>(self, value: &T, payload: &Payload) -> Result<(), EncodeError> {
        let compare = || match decode::<T>(payload) {
            Ok(decoded) => {
                let digest = self.digest(value);
                match digest.is_some() && digest == self.digest(&decoded) {
                    true => Ok(()),
                    false => Err(EncodeError::Inexact(READ_OTHERWISE)),
                }
            }
            Err(_) => Err(missing_member::<T>(payload)
                .map_or(EncodeError::Inexact(READ_OTHERWISE), |name| {
                    EncodeError::MemberMissing(name)
                })),
        };
        catch_unwind(AssertUnwindSafe(compare)).unwrap_or(Err(EncodeError::Panicked))
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

    /// Name of the codec in a stored [`Payload`].
    pub const fn tag(self) -> &'static str {
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
    decode_tagged(&payload.codec, &payload.bytes)
}

fn decode_tagged<T: DeserializeOwned>(codec: &str, bytes: &[u8]) -> Result<T, DecodeError> {
    match codec {
        JSON => serde_json::from_slice(bytes).map_err(|error| {
            // serde's own message may quote the stored value, which must not be logged. The position is enough.
            DecodeError::new(format!(
                "the stored JSON does not match the expected type: {} error at byte {}",
                match error.classify() {
                    serde_json::error::Category::Data => "type",
                    _ => "syntax",
                },
                error.column(),
            ))
        }),
        #[cfg(feature = "cbor")]
        CBOR => ciborium::from_reader(bytes).map_err(|error| {
            DecodeError::new(match error {
                ciborium::de::Error::Syntax(at) => {
                    format!("the stored CBOR is malformed at byte {at}")
                }
                _ => "the stored CBOR does not match the expected type".to_owned(),
            })
        }),
        #[cfg(not(feature = "cbor"))]
        CBOR => Err(DecodeError::new(
            "the stored value is CBOR; enable the feature `cbor` to read it",
        )),
        tag => Err(DecodeError::new(format!(
            "this build does not have the codec `{}` of the stored value; deploy a build that has it",
            tag.escape_default()
        ))),
    }
}

/// Name of the member without which a type cannot read the payload. The rest of serde's message may quote the value.
fn missing_member<T: DeserializeOwned>(payload: &Payload) -> Option<String> {
    let message = match &*payload.codec {
        JSON => serde_json::from_slice::<T>(&payload.bytes)
            .err()?
            .to_string(),
        #[cfg(feature = "cbor")]
        CBOR => match ciborium::from_reader::<T, _>(&*payload.bytes).err()? {
            ciborium::de::Error::Semantic(_, message) => message,
            _ => return None,
        },
        _ => return None,
    };
    let (name, _) = message.strip_prefix("missing field `")?.split_once('`')?;
    Some(name.to_owned())
}

/// Buffer that does not grow beyond its limit.
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
