//! A request on its way through the layer.

use std::any::Any;
use std::convert::Infallible;
use std::error::Error as StdError;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Request, Response, request};
use http_body::Body as HttpBody;
use http_body_util::LengthLimitError;
use tokio::time::timeout;
use tower_service::Service;
use tracing::Instrument as _;

use super::body::{Body, Collected, collect};
use super::drain::Admission;
use super::future::ResponseFuture;
use super::grpc;
use super::header::{self, IDEMPOTENT_REPLAYED};
use super::layer::Config;
use super::problem::{Problem, Refusal};
use super::stored;
use crate::engine::typed::{self, ErrorCodec, Running, ValueCodec};
use crate::engine::{Call, ErrorKind};
use crate::error::{Error, FingerprintError};
use crate::fingerprint::{digest, json};
use crate::key::{Key, Scope};
use crate::record::{Digest, OnCrash};

/// A service whose POST and PATCH requests are idempotent. Made by [`IdempotencyLayer`](super::IdempotencyLayer).
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

impl<S, B, R> Service<Request<B>> for Idempotency<S>
where
    S: Service<Request<Body<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>> + Send,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Send,
{
    type Response = Response<Body<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, R, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let config = &self.config;
        if !config.guards(request.method()) {
            return ResponseFuture::passed(self.inner.call(request.map(Body::passed)));
        }
        let key = header::read(request.headers(), config.syntax);
        if !config.required && matches!(key, Ok(None)) {
            return ResponseFuture::passed(self.inner.call(request.map(Body::passed)));
        }
        // The clone has not been asked whether it is ready; the one that was is the one to be called.
        let clone = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, clone);
        let guarded = Guarded {
            inner,
            config: Arc::clone(config),
        };
        ResponseFuture::guarded(Box::pin(guarded.respond(request, key)))
    }
}

/// A request that is guarded.
struct Guarded<S> {
    inner: S,
    config: Arc<Config>,
}

/// A response that is final.
struct Answer<R: HttpBody> {
    response: Response<Body<R>>,
    /// As it is stored; none where it is too long.
    written: Option<Vec<u8>>,
}

/// What the handler's task ends with instead.
enum NotStored<R: HttpBody, E> {
    /// The engine refused.
    Refused(Error),
    /// A response that is not stored.
    Response(Response<Body<R>>, ErrorKind),
    /// The service itself failed.
    Service(E),
}

impl<R: HttpBody, E> From<Error> for NotStored<R, E> {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

/// What a guarded request ends with: an answer to store, or one that is not stored.
type GuardedResult<R, E> = Result<Answer<R>, NotStored<R, E>>;

impl<S> Guarded<S> {
    async fn respond<B, R>(
        self,
        request: Request<B>,
        key: Result<Option<Key>, Refusal>,
    ) -> Result<Response<Body<R>>, S::Error>
    where
        S: Service<Request<Body<B>>, Response = Response<R>> + Send + 'static,
        S::Future: Send,
        S::Error: Send + 'static,
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>> + Send,
        R: HttpBody<Data = Bytes> + Send + 'static,
        R::Error: Send,
    {
        let config = Arc::clone(&self.config);
        if let Some(media_type) = grpc::media_type(request.headers()) {
            return Ok(grpc::refusal(Refusal::Grpc.into(), media_type));
        }
        let outcome = match Admitted::of(&config, request, key).await {
            Ok(admitted) => self.outcome(admitted).await,
            Err(refusal) => return Ok(refused(&config, refusal)),
        };
        match outcome {
            Ok(Ok(answer)) => Ok(answer.response),
            Ok(Err(NotStored::Response(response, _))) => Ok(response),
            Ok(Err(NotStored::Service(error))) => Err(error),
            Ok(Err(NotStored::Refused(error))) => Ok(refused(&config, error)),
            Err(Stopped::Panicked(panic)) => std::panic::resume_unwind(panic),
            Err(Stopped::Cancelled) => Ok(refused(&config, Refusal::ShuttingDown)),
        }
    }

    /// Claims the key, and runs the handler where it is granted.
    ///
    /// A server drops this future when its client goes away. So whatever does not end at once is a task of its own, the
    /// claim included: one that is cut off in the store would leave a key that nobody works on.
    async fn outcome<B, R>(
        self,
        admitted: Admitted<B>,
    ) -> Result<GuardedResult<R, S::Error>, Stopped>
    where
        S: Service<Request<Body<B>>, Response = Response<R>> + Send + 'static,
        S::Future: Send,
        S::Error: Send + 'static,
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Send,
        R: HttpBody<Data = Bytes> + Send + 'static,
        R::Error: Send,
    {
        let Admitted {
            call,
            request,
            admission,
        } = admitted;
        let mut entering = typed::enter(
            typed::handle(&self.config.idem),
            call,
            ValueCodec::by(
                |answer: &Answer<R>, _, limit| stored::encode(answer.written.as_deref(), limit),
                |payload| stored::decode(payload).map(Answer::replayed),
            ),
            ErrorCodec::none(),
        );
        // A replay from memory is there at the first poll and needs no task. Nothing can drop this future between that
        // poll and the spawn.
        let entered = poll_fn(|cx| Poll::Ready(Pin::new(&mut entering).poll(cx))).await;
        let entered = match entered {
            Poll::Ready(Err(outcome)) => return Ok(outcome),
            Poll::Ready(Ok(running)) => Some(running),
            Poll::Pending => None,
        };
        let task = async move {
            let entered = match entered {
                Some(running) => Ok(running),
                None => entering.await,
            };
            let outcome = match entered {
                Ok(running) => self.run(running, request).await,
                Err(outcome) => outcome,
            };
            drop(admission);
            outcome
        };
        let task = tokio::spawn(task.in_current_span());
        task.await.map_err(|error| match error.try_into_panic() {
            Ok(panic) => Stopped::Panicked(panic),
            Err(_) => Stopped::Cancelled,
        })
    }

    async fn run<B, R>(
        mut self,
        mut running: Running<Answer<R>, NotStored<R, S::Error>>,
        mut request: Request<Body<B>>,
    ) -> GuardedResult<R, S::Error>
    where
        S: Service<Request<Body<B>>, Response = Response<R>>,
        B: HttpBody<Data = Bytes>,
        R: HttpBody<Data = Bytes>,
    {
        request.extensions_mut().insert(running.attempt());
        running.begin();
        let handler = async {
            let response = self.inner.call(request).await.map_err(NotStored::Service)?;
            answer(&self.config, response).await
        };
        let outcome = running.drive(handler).await;
        let on_crash = self.config.on_crash;
        let finish = running.finish(outcome, |error| match error {
            NotStored::Response(_, kind) => *kind,
            NotStored::Service(_) if on_crash == OnCrash::Rerun => ErrorKind::Transient,
            NotStored::Service(_) | NotStored::Refused(_) => ErrorKind::Unknown,
        });
        finish.await
    }
}

/// Why a handler's task has no outcome.
enum Stopped {
    /// It panicked. The panic goes on in whoever awaits the response, as it would without the layer.
    Panicked(Box<dyn Any + Send>),
    /// The runtime is shut down.
    Cancelled,
}

/// A request that may go to the engine.
struct Admitted<B: HttpBody> {
    call: Call,
    request: Request<Body<B>>,
    admission: Admission,
}

impl<B> Admitted<B>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    async fn of(
        config: &Config,
        request: Request<B>,
        key: Result<Option<Key>, Refusal>,
    ) -> Result<Self, Refusal> {
        let (parts, body) = request.into_parts();
        // Whoever is not known is told nothing else.
        let scope = config.scoping.scope(&parts).ok_or(Refusal::NoPrincipal)?;
        let key = key?.ok_or(Refusal::MissingKey)?;
        let limit = config.max_request_bytes;
        if announced(&parts.headers).is_some_and(|length| length > limit as u64) {
            return Err(Refusal::BodyTooLarge(limit));
        }
        let mut admission = config
            .drain
            .admit(&scope, config.limits)
            .map_err(Refusal::Full)?;
        let reading = collect(body, limit, |bytes| admission.hold(bytes));
        let read = timeout(config.body_timeout, reading)
            .await
            .map_err(|_| Refusal::BodyTimeout(config.body_timeout))?;
        let (bytes, trailers) = match read {
            Collected::All(bytes, trailers) => (bytes, trailers),
            Collected::Over(_) => return Err(Refusal::BodyTooLarge(limit)),
            Collected::NoRoom(full) => return Err(Refusal::Full(full)),
            Collected::Failed(body) => {
                return Err(match body.into_error().map(Into::into) {
                    Some(error) if is_limit(&*error) => Refusal::BodyTooLarge(limit),
                    _ => Refusal::BodyUnreadable,
                });
            }
        };
        // Not before its body is complete: whoever is slow to send one keeps nobody from running.
        admission.run().map_err(Refusal::Full)?;
        let fingerprint = fingerprint(&parts, &bytes).map_err(Refusal::NoFingerprint)?;
        Ok(Self {
            call: call(config, key, &scope, fingerprint),
            request: Request::from_parts(parts, Body::read(bytes, trailers)),
            admission,
        })
    }
}

/// The length that a request says its body has.
fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Whether a body was cut off by another layer's limit.
fn is_limit(error: &(dyn StdError + 'static)) -> bool {
    let mut error = Some(error);
    while let Some(cause) = error {
        if cause.is::<LengthLimitError>() {
            return true;
        }
        error = cause.source();
    }
    false
}

/// What the request is: two requests of one key must agree in all of this.
///
/// JSON counts by what it says, so that a retry that was serialised anew is the same request; what calls itself JSON
/// and is none, or is compressed, counts by its bytes.
fn fingerprint(parts: &request::Parts, body: &Bytes) -> Result<Digest, FingerprintError> {
    let (method, uri) = (parts.method.as_str(), original_uri(parts));
    let (path, query) = (uri.path(), uri.query());
    let content_type = parts.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let coding = content_coding(&parts.headers);
    if coding.is_empty()
        && let Some(kind) = content_type.and_then(json_type)
        && let Ok(digest) = digest(&(method, path, query, kind.as_slice(), json(body)))
    {
        return Ok(digest);
    }
    let coding = coding.as_slice();
    digest(&(method, path, query, content_type, coding, body.as_ref()))
}

/// The URI as the client sent it: a nested router sees a part of it, and two of them may see the same.
fn original_uri(parts: &request::Parts) -> &http::Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return original;
    }
    &parts.uri
}

/// What was done to the body before it was sent, one `,` behind each coding. Empty where nothing was.
fn content_coding(headers: &HeaderMap) -> Vec<u8> {
    let mut codings = Vec::new();
    for value in headers.get_all(CONTENT_ENCODING) {
        for coding in value.as_bytes().split(|byte| *byte == b',') {
            let coding = coding.trim_ascii().to_ascii_lowercase();
            if !coding.is_empty() && coding != b"identity" {
                codings.extend_from_slice(&coding);
                codings.push(b',');
            }
        }
    }
    codings
}

/// `application/json` and `…+json` in lower case, with their parameters but for `charset`, which means nothing there
/// (RFC 8259 §11).
fn json_type(content_type: &[u8]) -> Option<Vec<u8>> {
    let mut parts = content_type
        .split(|byte| *byte == b';')
        .map(<[u8]>::trim_ascii);
    let mut kind = parts.next()?.to_ascii_lowercase();
    if kind != b"application/json" && !kind.ends_with(b"+json") {
        return None;
    }
    for parameter in parts {
        let name = parameter.split(|byte| *byte == b'=').next()?;
        if !parameter.is_empty() && !name.eq_ignore_ascii_case(b"charset") {
            kind.push(b';');
            kind.extend_from_slice(parameter);
        }
    }
    Some(kind)
}

fn call(config: &Config, key: Key, scope: &Scope, fingerprint: Digest) -> Call {
    let mut call = Call::of_digest(config.operation.clone(), key, fingerprint, config.ttl)
        .scope(scope)
        .on_crash(config.on_crash);
    if let Some(lease) = config.lease {
        call = call.lease(lease);
    }
    if let Some(wait) = config.wait {
        call = call.wait(wait);
    }
    call
}

/// A handler's response, read to its end where it is to be stored.
async fn answer<R, E>(config: &Config, response: Response<R>) -> GuardedResult<R, E>
where
    R: HttpBody<Data = Bytes>,
{
    let (parts, body) = response.into_parts();
    let kind = config.finality.of(&parts, config.on_crash);
    if kind != ErrorKind::Terminal {
        let response = Response::from_parts(parts, Body::passed(body));
        return Err(NotStored::Response(response, kind));
    }
    let any_room = |_| Ok::<(), Infallible>(());
    match collect(body, config.max_response_bytes, any_room).await {
        Collected::All(bytes, trailers) => {
            let written = config.allowed.write(parts.status, &parts.headers, &bytes);
            Ok(Answer {
                response: Response::from_parts(parts, Body::read(bytes, trailers)),
                written: Some(written),
            })
        }
        // The status says that the work is done, so it is not done again, although this cannot be replayed.
        Collected::Over(body) | Collected::Failed(body) => Ok(Answer {
            response: Response::from_parts(parts, body),
            written: None,
        }),
        Collected::NoRoom(never) => match never {},
    }
}

impl<R: HttpBody> Answer<R> {
    fn replayed(stored: Response<Bytes>) -> Self {
        let mut response = stored.map(Body::from);
        response
            .headers_mut()
            .insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
        Self {
            response,
            written: None,
        }
    }
}

fn refused<R: HttpBody>(config: &Config, problem: impl Into<Problem>) -> Response<Body<R>> {
    let mut problem = problem.into();
    if let Some(url) = &config.policy_url {
        problem = problem.documented_at(url.clone());
    }
    problem.into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::hex;

    fn hashed(method: &str, uri: &str, headers: &[(&str, &str)], body: &'static str) -> String {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        hex(&fingerprint(&parts, &body.into()).unwrap().hash())
    }

    /// A retry may come to a later build, so these never change. Computed by hand-written CBOR in another language.
    #[test]
    fn fingerprints_are_frozen() {
        let json = hashed(
            "POST",
            "/charges?a=1",
            &[("content-type", "Application/JSON; v=1; charset=utf-8")],
            r#"{"b": [1.0], "a": 1}"#,
        );
        assert_eq!(
            json,
            "0fd2e79b5fdacc700139dbdd746252a754f09ea8ca0d7d24931542b95e5c7356"
        );
        let bytes = hashed(
            "PATCH",
            "http://bank.example/charges",
            &[
                ("content-type", "text/plain; v=1"),
                ("content-encoding", "GZIP, identity"),
                ("content-encoding", "br"),
            ],
            "500 cents",
        );
        assert_eq!(
            bytes,
            "17bdab0f75693e3fc6e4f8ebe049ccdadb0b92781f9b4c884703d4d2c3d6bd22"
        );
        let nothing = hashed("POST", "/", &[], "");
        assert_eq!(
            nothing,
            "44a4ab275798292b7409cdb7812da6573b05da94f37d21b42b0b23ec47370d1f"
        );
    }
}
