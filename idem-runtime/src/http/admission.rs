//! Admission of a request: reads its principal, key and body, and checks the layer's limits.

use std::error::Error as StdError;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Request};
use http_body::Body as HttpBody;
use http_body_util::LengthLimitError;
use tokio::time::timeout;

use super::body::{Body, Collected, collect};
use super::config::Config;
use super::drain::Permit;
use super::header::InvalidKeyHeader;
use super::refusal::Refusal;
use super::{fingerprint, grpc};
use crate::engine::Call;
use crate::key::Key;

/// Request that passed all checks before the claim.
pub(super) struct AdmittedRequest<ReqBody: HttpBody> {
    pub(super) call: Call,
    pub(super) request: Request<Body<ReqBody>>,
    /// Held until the handler's task ends.
    pub(super) permit: Permit,
}

impl<ReqBody> AdmittedRequest<ReqBody>
where
    ReqBody: HttpBody<Data = Bytes>,
    ReqBody::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    /// Checks a request, and reads its body.
    pub(super) async fn admit(
        config: &Config,
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
        let limit = config.max_request_bytes;
        if content_length(&parts.headers).is_some_and(|length| length > limit as u64) {
            return Err(Refusal::BodyTooLarge(limit));
        }
        let mut permit = config
            .drain
            .admit(&scope, config.limits)
            .map_err(Refusal::Full)?;
        let (bytes, trailers) = read_body(config, body, &mut permit).await?;
        // Only after the body is complete, so that slow clients do not use up the places of running requests.
        permit.run().map_err(Refusal::Full)?;
        let fingerprint = fingerprint::of(&parts, &bytes, &config.ignored, config.member_digests)
            .map_err(Refusal::NoFingerprint)?;
        Ok(Self {
            call: config.call(
                key,
                &scope,
                fingerprint,
                config.retention.of_request(&parts),
            ),
            request: Request::from_parts(parts, Body::read(bytes, trailers)),
            permit,
        })
    }
}

/// Reads a body within the layer's limits.
async fn read_body<ReqBody>(
    config: &Config,
    body: ReqBody,
    permit: &mut Permit,
) -> Result<(Bytes, Option<HeaderMap>), Refusal>
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
        Collected::All(bytes, trailers) => Ok((bytes, trailers)),
        Collected::Over(_) => Err(Refusal::BodyTooLarge(limit)),
        Collected::NoRoom(full) => Err(Refusal::Full(full)),
        Collected::Failed(body) => Err(match body.into_error().map(Into::into) {
            Some(error) if is_length_limit(&*error) => Refusal::BodyTooLarge(limit),
            _ => Refusal::BodyUnreadable,
        }),
    }
}

/// Length of the body by its `Content-Length`.
fn content_length(headers: &HeaderMap) -> Option<u64> {
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
