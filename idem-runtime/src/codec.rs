//! How a result becomes bytes and comes back: an encoded value travels with the tag of the codec, and its version,
//! that wrote it, so a later build knows whether it can read it.

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::DecodeError;
use crate::record::Payload;

/// A value that can be stored and given back: anything that is `serde::Serialize` and `serde::de::DeserializeOwned`.
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
    /// JSON: readable in the store, tag `json/1`.
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
    #[error("the result cannot be encoded")]
    Codec(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the result's `Serialize` implementation panicked")]
    Panicked,
}

impl Codec {
    /// Encodes a value, giving up as soon as it is over the limit in bytes.
    pub(crate) fn encode<T: Serialize + ?Sized>(
        self,
        value: &T,
        limit: usize,
    ) -> Result<Payload, EncodeError> {
        let mut bytes = BUFFER.try_with(Cell::take).unwrap_or_default();
        bytes.clear();
        let mut buffer = Limited {
            bytes,
            limit,
            exceeded: false,
        };
        // The work is done by now: a panic in here must not make it look as if it had not been.
        let written = catch_unwind(AssertUnwindSafe(|| self.write(value, &mut buffer)));
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
                Ok(payload)
            }
            Ok(Err(_)) if buffer.exceeded => Err(EncodeError::TooLarge { limit }),
            Ok(Err(error)) => Err(EncodeError::Codec(error)),
            Err(_) => Err(EncodeError::Panicked),
        }
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
        buffer: &mut Limited,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        match self {
            Self::Json => Ok(serde_json::to_writer(buffer, value)?),
            #[cfg(feature = "cbor")]
            Self::Cbor => Ok(ciborium::into_writer(value, buffer)?),
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
