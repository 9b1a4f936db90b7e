//! The tower service that [`IdempotencyLayer`](super::IdempotencyLayer) puts around another one.

use std::error::Error as StdError;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as HttpBody;
use tower_service::Service;

use super::body::Body;
use super::config::Config;
use super::future::{ResponseFuture, TaskSwitch};
use super::guarded::GuardedCall;

/// Service whose guarded requests are idempotent. Made by [`IdempotencyLayer`](super::IdempotencyLayer).
#[derive(Debug, Clone)]
pub struct Idempotency<S> {
    inner: S,
    config: Arc<Config>,
}

impl<S> Idempotency<S> {
    pub(super) fn new(inner: S, config: Arc<Config>) -> Self {
        Self { inner, config }
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for Idempotency<S>
where
    S: Service<Request<Body<ReqBody>>, Response = Response<ResBody>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    ReqBody: HttpBody<Data = Bytes> + Send + 'static,
    ReqBody::Error: Into<Box<dyn StdError + Send + Sync>> + Send,
    ResBody: HttpBody<Data = Bytes> + Send + 'static,
    ResBody::Error: Send,
{
    type Response = Response<Body<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, ResBody, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let config = &self.config;
        if !config.guards(request.method()) {
            return ResponseFuture::passed(self.inner.call(request.map(Body::passed)));
        }
        let key = config.syntax.find(request.headers(), &config.key_header);
        if !config.required && matches!(key, Ok(None)) {
            return ResponseFuture::passed(self.inner.call(request.map(Body::passed)));
        }
        // Drops the instance that is ready, with what it has reserved, such as a place of a concurrency limit. Otherwise
        // a body that never arrives would hold the reservation, and so would a replay.
        self.inner = self.inner.clone();
        let switch = TaskSwitch::default();
        let guarded = GuardedCall {
            inner: self.inner.clone(),
            config: Arc::clone(config),
            request,
            key,
            switch: switch.clone(),
        };
        ResponseFuture::guarded(Arc::clone(config), guarded.respond(), switch)
    }
}
