//! Admission of a request: reads its principal, key and body, and checks the layer's limits.

use std::error::Error as StdError;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Version, request};
use http_body::Body as HttpBody;
use http_body_util::LengthLimitError;
use tokio::time::timeout;

use super::body::{Body, Read, Stopped, collect};
use super::config::Config;
use super::drain::Permit;
use super::header::InvalidKeyHeader;
use super::refusal::Refusal;
use super::{deadline, fingerprint, grpc};
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
    /// This layer is applied twice, and holds the claim of the request further outside already. The body was not read.
    Guarded(ReqBody),
}

/// Request extension with the layer that has claimed the key of the request.
#[derive(Debug, Clone)]
pub(super) struct GuardedBy(pub(super) Arc<Config>);

/// Request that passed all checks before the claim.
pub(super) struct AdmittedRequest<ReqBody: HttpBody> {
    pub(super) call: Call,
    pub(super) body: Body<ReqBody>,
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
        parts: &request::Parts,
        body: ReqBody,
        key: Result<Option<Key>, InvalidKeyHeader>,
    ) -> Result<Self, Refusal> {
        if let Some(media_type) = grpc::media_type(&parts.headers) {
            return Err(Refusal::Grpc(media_type));
        }
        // Before the key, so that an unauthenticated client gets no other information.
        let scope = config.scoping.scope(parts).ok_or(Refusal::NoPrincipal)?;
        let missing = || Refusal::MissingKey(config.key_header.clone());
        let key = key?.ok_or_else(missing)?;
        if let Some(outer) = parts.extensions.get::<Attempt>()
            && outer.is_of(&scope, &config.operation, &key)
        {
            return match parts.extensions.get::<GuardedBy>() {
                Some(GuardedBy(layer)) if Arc::ptr_eq(layer, config) => Ok(Self::Guarded(body)),
                _ => Err(Refusal::OtherLayer),
            };
        }
        let limit = config.max_request_bytes;
        let length = content_length(&parts.headers);
        if length.is_some_and(|length| length > limit as u64) {
            return Err(Refusal::BodyTooLarge(limit));
        }
        let mut permit = config
            .drain
            .admit(&scope, config.limits)
            .map_err(Refusal::Full)?;
        let read = read_body(config, body, &mut permit).await?;
        prove_whole(length, parts.version, &read).await?;
        // Only after the body is complete, so that slow clients do not use up the places of running requests.
        permit.run().map_err(Refusal::Full)?;
        let fingerprint =
            fingerprint::of(parts, &read.bytes, &config.ignored, config.member_digests)
                .map_err(Refusal::NoFingerprint)?;
        Ok(Self::New(AdmittedRequest {
            call: config.call(
                key,
                &scope,
                fingerprint,
                config.retention.of_request(parts),
                deadline::of(&parts.extensions),
            ),
            body: Body::read(read.bytes, read.trailers),
            permit,
        }))
    }
}

/// Reads a body within the layer's limits.
async fn read_body<ReqBody>(
    config: &Config,
    body: ReqBody,
    permit: &mut Permit,
) -> Result<Read, Refusal>
where
    ReqBody: HttpBody<Data = Bytes>,
    ReqBody::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    let limit = config.max_request_bytes;
    let body = pin!(body);
    let mut reading = pin!(collect(body, limit, |bytes| permit.hold(bytes)));
    // Most bodies have arrived with the head of their request, and need no timer.
    let read = match poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx))).await {
        Poll::Ready(read) => read,
        // Boxed, because the future of a request has room for it until its end.
        Poll::Pending => Box::pin(timeout(config.body_timeout, reading))
            .await
            .map_err(|_| Refusal::BodyTimeout(config.body_timeout))?,
    };
    read.map_err(|stopped| match stopped {
        Stopped::Over(_) => Refusal::BodyTooLarge(limit),
        Stopped::NoRoom(full) => Refusal::Full(full),
        Stopped::Failed(_, error) => match is_length_limit(&*error.into()) {
            true => Refusal::BodyTooLarge(limit),
            false => Refusal::BodyUnreadable,
        },
    })
}

/// Refuses a body that is visibly not whole. HTTP/1 servers check the end of a body themselves.
///
/// An HTTP/2 stream that is reset with `NO_ERROR` looks like the end of its body. `Content-Length` shows that bytes are
/// missing. Without one, the end mark shows that the body is whole. A body type that hides the mark proves nothing, so the
/// future yields once: hyper then asks whether the stream was reset, and drops the future if it was.
async fn prove_whole(length: Option<u64>, version: Version, read: &Read) -> Result<(), Refusal> {
    match length {
        Some(length) if length != read.bytes.len() as u64 => Err(Refusal::WrongLength {
            length,
            arrived: read.bytes.len(),
        }),
        None if version >= Version::HTTP_2 && !read.has_end_mark => {
            tokio::task::yield_now().await;
            Ok(())
        }
        _ => Ok(()),
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
