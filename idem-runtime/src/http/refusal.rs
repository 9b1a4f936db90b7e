//! Reasons for which a request is refused before it reaches the engine.

use std::time::Duration;

use http::HeaderValue;
use http::header::HeaderName;

use super::drain::Full;
use super::header::{InvalidKeyHeader, title};
use super::problem::{GRPC_UNSUPPORTED, Problem, ProblemKind};
use crate::error::{Error, FingerprintError};

#[derive(Debug)]
pub(super) enum Refusal {
    /// The header that the key is missing in.
    MissingKey(HeaderName),
    KeyHeader(InvalidKeyHeader),
    NoPrincipal,
    BodyTooLarge(usize),
    BodyUnreadable,
    /// The body's length is not that of its `Content-Length`.
    WrongLength {
        length: u64,
        arrived: usize,
    },
    BodyTimeout(Duration),
    NoFingerprint(FingerprintError),
    /// A gRPC call, with its media type.
    Grpc(HeaderValue),
    Full(Full),
    /// Another layer with the same operation holds the claim of the request.
    OtherLayer,
    ShuttingDown,
}

impl From<InvalidKeyHeader> for Refusal {
    fn from(error: InvalidKeyHeader) -> Self {
        Self::KeyHeader(error)
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let soon = Duration::from_secs(1);
        match refusal {
            Refusal::MissingKey(header) => Self::new(
                ProblemKind::MissingKey,
                format!(
                    "send an `{}` header: make one key for this request and repeat it with every retry",
                    title(&header)
                ),
            ),
            Refusal::KeyHeader(error) => error.into(),
            Refusal::NoPrincipal => Self::new(
                ProblemKind::NoPrincipal,
                "the request is not authenticated, and an idempotency key belongs to an authenticated caller",
            ),
            Refusal::BodyTooLarge(limit) => Self::new(
                ProblemKind::BodyTooLarge,
                format!(
                    "the body of a request with an idempotency key can have at most {limit} bytes"
                ),
            ),
            Refusal::BodyUnreadable => Self::new(
                ProblemKind::BodyUnreadable,
                "the body ended before it was complete, so the request was not run",
            ),
            Refusal::WrongLength { length, arrived } => Self::new(
                ProblemKind::BodyUnreadable,
                format!(
                    "{arrived} bytes of the body arrived, but its `Content-Length` is {length}, so the request was not \
                     run; send the whole body with the same key, and remove the header wherever the body is changed"
                ),
            ),
            Refusal::BodyTimeout(limit) => Self::new(
                ProblemKind::BodyTimeout,
                format!(
                    "the body did not arrive within {limit:?}, so the request was not run; send it again with the same key"
                ),
            )
            .retryable_after(soon),
            Refusal::NoFingerprint(error) => Self::from(&Error::Fingerprint(error)),
            Refusal::Grpc(_) => Self::new(ProblemKind::GrpcUnsupported, GRPC_UNSUPPORTED),
            Refusal::Full(Full::Principal) => Self::new(
                ProblemKind::TooManyRequests,
                "wait until your running requests are answered, then send this request again with the same key",
            )
            .retryable_after(soon),
            Refusal::Full(Full::All) => Self::new(
                ProblemKind::Overloaded,
                "the service runs as many requests as it can; send this one again with the same key",
            )
            .retryable_after(soon),
            Refusal::OtherLayer => Self::new(
                ProblemKind::Misconfigured,
                "the service is misconfigured; its log has the details",
            )
            .because(
                "two idempotency layers with the same operation are on one route; give each layer a name of its own, or \
                 apply only one",
            ),
            Refusal::ShuttingDown => Self::new(
                ProblemKind::LeaseLost,
                "the process shut down while it ran the request; send it again with the same key",
            )
            .retryable_after(soon),
        }
    }
}
