//! Admission of a request: reads its principal, key and body, and checks the layer's limits.

use std::error::Error as StdError;
use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Request, Version, request};
use http_body::Body as HttpBody;
use http_body_util::LengthLimitError;
use tokio::time::timeout;

use super::body::{Body, Collected, Read, collect};
use super::config::Config;
use super::drain::Permit;
use super::header::InvalidKeyHeader;
use super::refusal::Refusal;
use super::{fingerprint, grpc};
use crate::engine::{Attempt, Call};
use crate::key::Key;

/// A request that is not refused.
#[expect(
    clippy::large_enum_variant,
    reason = "it is taken apart at once, and almost always the large variant"
)]
pub(super) enum Admission<ReqBody: HttpBody> {
    /// The key of the request is to be claimed.
    New(AdmittedRequest<ReqBody>),
    /// This layer is applied twice, and holds the claim of the request further outside already.
    Guarded(Request<ReqBody>),
}

/// Request extension with the layer that has claimed the key of the request.
#[derive(Debug, Clone)]
pub(super) struct GuardedBy(pub(super) Arc<Config>);

/// Request that passed all checks before the claim.
pub(super) struct AdmittedRequest<ReqBody: HttpBody> {
    pub(super) call: Call,
    pub(super) request: Request<Body<ReqBody>>,
    /// Held until the handler's task ends.
    pub(super) permit: Permit,
}

impl<ReqBody> Admission<ReqBody>
where
    ReqBody: HttpBody<Data = Bytes>,
    ReqBody::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    /// Checks a request, and reads its body.
    pub(super) async fn of(
        config: &Arc<Config>,
        request: Request<ReqBody>,
        key: Result<Option<Key>, InvalidKeyHeader>,
    ) -> Result<Self, Refusal> {
        if let Some(media_type) = grpc::media_type(request.headers()) {
            return Err(Refusal::Grpc(media_type));
        }
        let (parts, body) = request.into_parts();
        // Before the key, so that an unauthenticated client gets no other information.
        let scope = config.scoping.scope(&parts).ok_or(Refusal::NoPrincipal)?;
        let missing = || Refusal::MissingKey(config.key_header.clone());
        let key = key?.ok_or_else(missing)?;
        if let Some(outer) = parts.extensions.get::<Attempt>()
            && outer.is_of(&scope, &config.operation, &key)
        {
            return match parts.extensions.get::<GuardedBy>() {
                Some(GuardedBy(layer)) if Arc::ptr_eq(layer, config) => {
                    Ok(Self::Guarded(Request::from_parts(parts, body)))
                }
                _ => Err(Refusal::OtherLayer),
            };
        }
        let limit = config.max_request_bytes;
        if content_length(&parts.headers).is_some_and(|length| length > limit as u64) {
            return Err(Refusal::BodyTooLarge(limit));
        }
        let mut permit = config
            .drain
            .admit(&scope, config.limits)
            .map_err(Refusal::Full)?;
        let Read {
            bytes, trailers, ..
        } = read_body(config, &parts, body, &mut permit).await?;
        // Only after the body is complete, so that slow clients do not use up the places of running requests.
        permit.run().map_err(Refusal::Full)?;
        let fingerprint = fingerprint::of(&parts, &bytes, &config.ignored, config.member_digests)
            .map_err(Refusal::NoFingerprint)?;
        Ok(Self::New(AdmittedRequest {
            call: config.call(
                key,
                &scope,
                fingerprint,
                config.retention.of_request(&parts),
                parts.extensions.get(),
            ),
            request: Request::from_parts(parts, Body::read(bytes, trailers)),
            permit,
        }))
    }
}

/// Reads a body within the layer's limits, and proves that it is whole.
async fn read_body<ReqBody>(
    config: &Config,
    parts: &request::Parts,
    body: ReqBody,
    permit: &mut Permit,
) -> Result<Read, Refusal>
where
    ReqBody: HttpBody<Data = Bytes>,
    ReqBody::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    let limit = config.max_request_bytes;
    let reading = collect(body, limit, |bytes| permit.hold(bytes));
    let read = timeout(config.body_timeout, reading)
        .await
        .map_err(|_| Refusal::BodyTimeout(config.body_timeout))?;
    match read {
        Collected::All(read) => prove_whole(parts, read).await,
        Collected::Over(_) => Err(Refusal::BodyTooLarge(limit)),
        Collected::NoRoom(full) => Err(Refusal::Full(full)),
        Collected::Failed(body) => Err(match body.into_error().map(Into::into) {
            Some(error) if is_length_limit(&*error) => Refusal::BodyTooLarge(limit),
            _ => Refusal::BodyUnreadable,
        }),
    }
}

/// Refuses a body that is visibly not whole. HTTP/1 servers check the end of a body themselves.
///
/// An HTTP/2 stream that is reset with `NO_ERROR` looks like the end of its body. `Content-Length` shows that bytes are
/// missing. Without one, the end mark shows that the body is whole. A body type that hides the mark proves nothing, so the
/// future yields once: hyper then asks whether the stream was reset, and drops the future if it was.
async fn prove_whole(parts: &request::Parts, read: Read) -> Result<Read, Refusal> {
    match content_length(&parts.headers) {
        Some(length) if length != read.bytes.len() as u64 => Err(Refusal::WrongLength {
            length,
            arrived: read.bytes.len(),
        }),
        None if parts.version >= Version::HTTP_2 && !read.has_end_mark => {
            tokio::task::yield_now().await;
            Ok(read)
        }
        _ => Ok(read),
    }
}

/// Length of the body by its `Content-Length`.
pub(super) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Returns true if another layer's limit cut the body off.
fn is_length_limit(error: &(dyn StdError + 'static)) -> bool {
    let mut error = Some(error);
    while let Some(cause) = error {
        if cause.is::<LengthLimitError>() {
            return true;
        }
        error = cause.source();
    }
    false
}
