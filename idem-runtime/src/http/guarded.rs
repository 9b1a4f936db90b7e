//! A guarded request, from its admission to its response.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, request, response};
use http_body::Body as HttpBody;
use tower_service::Service;

use super::admission::{Admission, AdmittedRequest, GuardedBy, content_length};
use super::body::{Body, Read, Stopped, collect};
use super::config::Config;
use super::derived::{self, StoredAs, StoredReply};
use super::finality::{self, Unrouted};
use super::future::{Answer, TaskSwitch, Unanswered};
use super::header::InvalidKeyHeader;
use super::marks::{IDEMPOTENCY_TTL, IDEMPOTENT_REPLAYED, ttl};
use super::stored::{self, Encoded, Stored};
use crate::codec::value::ValueCodec;
use crate::engine::typed::{self, ErrorCodec};
use crate::engine::{Attempt, Finality};
use crate::error::Error;
use crate::key::{Key, RecordId};
use crate::record::OnCrash;

/// One call of the inner service, made at most once for its key.
pub(super) struct GuardedCall<S, ReqBody> {
    /// Instance that is made ready after the claim.
    pub(super) inner: S,
    pub(super) config: Arc<Config>,
    pub(super) request: Request<ReqBody>,
    /// The request's key, or the reason why it has none.
    pub(super) key: Result<Option<Key>, InvalidKeyHeader>,
    /// Moves the call into its own task.
    pub(super) switch: TaskSwitch,
}

/// Result of the engine: a response that is stored, or what takes its place.
type GuardedResult<ResBody, E> = Result<FinalResponse<ResBody>, NotStored<ResBody, E>>;

/// Response that the engine stores, or has replayed.
struct FinalResponse<ResBody: HttpBody> {
    response: Response<Body<ResBody>>,
    /// Stored form of the response. None if it is too long, was cut off, or is a replay.
    encoded: Option<Encoded>,
    /// What the response to a retry is derived from; `response` is empty until then.
    underived: Option<Box<Underived>>,
}

/// Value that is stored in the place of a response, with the status of the response.
struct Underived {
    status: StatusCode,
    value: String,
}

/// Result of a request for which no response is stored.
enum NotStored<ResBody: HttpBody, E> {
    /// The engine refused the call.
    Refused(Error),
    /// The handler's response is not final.
    Response(Response<Body<ResBody>>, Finality),
    /// The inner service failed before the request was passed to it.
    NotReady(E),
    /// The inner service returned an error.
    Service(E),
}

impl<ResBody: HttpBody, E> From<Error> for NotStored<ResBody, E> {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl<S, ReqBody, ResBody> GuardedCall<S, ReqBody>
where
    S: Service<Request<Body<ReqBody>>, Response = Response<ResBody>> + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    ReqBody: HttpBody<Data = Bytes> + Send + 'static,
    ReqBody::Error: Into<Box<dyn StdError + Send + Sync>> + Send,
    ResBody: HttpBody<Data = Bytes> + Send + 'static,
    ResBody::Error: Send,
{
    /// Admits the request, claims its key, and runs the handler if the claim is granted.
    ///
    /// A server drops the response future when its client disconnects. Everything that does not finish at its first poll
    /// after the admission therefore runs in a separate task. That includes the claim: a claim that is cancelled on its
    /// way to the store could leave the key claimed without an owner.
    pub(super) fn respond(
        self,
    ) -> impl Future<Output = Answer<ResBody, S::Error>> + Send + 'static {
        let Self {
            mut inner,
            config,
            request,
            key,
            switch,
        } = self;
        let (mut parts, body) = request.into_parts();
        // What the block captures has one place in the future. Arguments of an `async fn` would have two.
        async move {
            let AdmittedRequest { call, body, permit } =
                match Admission::of(&config, &parts, body, key).await {
                    Ok(Admission::New(admitted)) => admitted,
                    Ok(Admission::Guarded(body)) => return pass(inner, parts, body).await,
                    Err(refusal) => return Ok(config.refuse(refusal)),
                };
            // Boxed, because it is part of the future until the call has ended.
            let key = call.scoped_key().map(Box::new);
            let claiming = typed::enter(
                typed::handle(&config.idem),
                call,
                ValueCodec::by(
                    |value: &FinalResponse<ResBody>, _, limit| {
                        stored::encode(value.encoded.as_ref(), limit)
                    },
                    |stored| {
                        let mut value =
                            stored::decode(stored.payload()).map(FinalResponse::replayed)?;
                        set_ttl(value.response.headers_mut(), stored.kept_for());
                        Ok(value)
                    },
                ),
                ErrorCodec::none(),
            );
            let claimed = match claim(claiming, &switch).await {
                Ok(running) => Ok(running),
                Err(mut outcome) => match deriving(&mut outcome, &config, || parts.clone()) {
                    Some(deriving) => Err(deriving),
                    None => return answer(outcome, || config.record_of(*key?)),
                },
            };
            let mut running = match claimed {
                Ok(running) => running,
                Err(deriving) => return answer(deriving.await, || config.record_of(*key?)),
            };
            // The result of another call that took over may be a value.
            let head = config.derived.is_some().then(|| Box::new(parts.clone()));
            let attempt = running.attempt();
            let record = attempt.record_id();
            parts.extensions.insert(attempt.clone());
            parts.extensions.insert(GuardedBy(Arc::clone(&config)));
            let handler = async {
                let request = Request::from_parts(parts, body);
                let is_unrouted = finality::is_unrouted(&request);
                poll_fn(|cx| inner.poll_ready(cx))
                    .await
                    .map_err(NotStored::NotReady)?;
                let mut response = inner.call(request).await.map_err(NotStored::Service)?;
                if is_unrouted {
                    response.extensions_mut().insert(Unrouted);
                }
                collect_final(&config, &attempt, response).await
            };
            let outcome = running.drive(handler).await;
            let finish = running.finish(outcome, |error| match error {
                NotStored::Response(_, finality) => *finality,
                NotStored::NotReady(_) => Finality::Transient,
                NotStored::Service(_) if config.on_crash == OnCrash::Rerun => Finality::Transient,
                NotStored::Service(error) if config.not_run.is(error) => Finality::Transient,
                NotStored::Service(_) | NotStored::Refused(_) => Finality::Unknown,
            });
            let deriving = {
                let mut outcome = finish.await;
                // Without a head the layer derives nothing, and says so.
                let head = || head.map_or_else(|| Request::new(()).into_parts().0, |it| *it);
                match deriving(&mut outcome, &config, head) {
                    Some(deriving) => deriving,
                    None => {
                        drop(permit);
                        return answer(outcome, || Some(record));
                    }
                }
            };
            let outcome = deriving.await;
            drop(permit);
            answer(outcome, || Some(record))
        }
    }
}

/// Calls the inner service, because this layer holds the claim of the request further outside.
async fn pass<S, ReqBody, ResBody>(
    mut inner: S,
    parts: request::Parts,
    body: ReqBody,
) -> Answer<ResBody, S::Error>
where
    S: Service<Request<Body<ReqBody>>, Response = Response<ResBody>>,
    ReqBody: HttpBody,
    ResBody: HttpBody,
{
    let ready = poll_fn(|cx| inner.poll_ready(cx)).await;
    ready.map_err(Unanswered::Service)?;
    let request = Request::from_parts(parts, Body::passed(body));
    let response = inner.call(request).await.map_err(Unanswered::Service)?;
    Ok(response.map(Body::passed))
}

/// Waits for a claim. A replay from memory is ready at the first poll, and needs no task. Everything else continues in a
/// task, and nothing can drop the future before.
async fn claim<F, Granted, Outcome>(mut claiming: F, switch: &TaskSwitch) -> F::Output
where
    F: Future<Output = Result<Granted, Outcome>> + Unpin,
{
    let claimed = match poll_fn(|cx| Poll::Ready(Pin::new(&mut claiming).poll(cx))).await {
        Poll::Ready(Ok(granted)) => Some(granted),
        Poll::Ready(Err(outcome)) => return Err(outcome),
        Poll::Pending => None,
    };
    switch.to_own_task().await;
    match claimed {
        Some(granted) => Ok(granted),
        None => claiming.await,
    }
}

/// Answer to the outcome of a call, of which `record` returns the id of its record.
fn answer<ResBody: HttpBody, E>(
    outcome: GuardedResult<ResBody, E>,
    record: impl FnOnce() -> Option<RecordId>,
) -> Answer<ResBody, E> {
    match outcome {
        Ok(stored) => Ok(stored.response),
        Err(NotStored::Response(response, _)) => Ok(response),
        Err(NotStored::NotReady(error) | NotStored::Service(error)) => {
            Err(Unanswered::Service(error))
        }
        Err(NotStored::Refused(error)) => Err(Unanswered::Refused(error, record())),
    }
}

/// Reads the body of a final response, so that it can be stored. Any other response is not read.
async fn collect_final<ResBody, E>(
    config: &Config,
    attempt: &Attempt,
    response: Response<ResBody>,
) -> GuardedResult<ResBody, E>
where
    ResBody: HttpBody<Data = Bytes>,
{
    let (mut parts, body) = response.into_parts();
    let finality = config.finality.of(&parts, config.on_crash);
    if finality != Finality::Final {
        let response = Response::from_parts(parts, Body::passed(body));
        return Err(NotStored::Response(response, finality));
    }
    if let Some(ttl) = config.retention.of_response(&parts) {
        Box::pin(retain_for(attempt, ttl)).await;
    }
    if let Some(derived) = &config.derived
        && let StoredAs::Value(value) = derived.stored(&parts)
    {
        let encoded = stored::write_value(parts.status, &value);
        set_ttl(&mut parts.headers, attempt.kept_for());
        return Ok(FinalResponse {
            response: Response::from_parts(parts, Body::passed(body)),
            encoded: Some(encoded),
            underived: None,
        });
    }
    let any_room = |_| Ok::<(), Infallible>(());
    // Boxed, because a body that was read in part goes to the client.
    let mut body = Box::pin(body);
    match collect(body.as_mut(), config.max_response_bytes, any_room).await {
        Ok(Read {
            bytes, trailers, ..
        }) => {
            // A response of another length was cut off on its way here, for example from a server behind a gateway.
            let is_whole = has_no_body(parts.status)
                || content_length(&parts.headers).is_none_or(|it| it == bytes.len() as u64);
            let encoded =
                is_whole.then(|| config.allowed.write(parts.status, &parts.headers, &bytes));
            set_ttl(&mut parts.headers, attempt.kept_for());
            Ok(FinalResponse {
                response: Response::from_parts(parts, Body::read(bytes, trailers)),
                encoded,
                underived: None,
            })
        }
        // The status says that the work is done. The handler must not run again, although its response is not stored.
        Err(Stopped::Over(head)) => Ok(not_stored(attempt, parts, Body::rest(head, body))),
        Err(Stopped::Failed(head, error)) => {
            Ok(not_stored(attempt, parts, Body::failed(head, error)))
        }
        Err(Stopped::NoRoom(never)) => match never {},
    }
}

fn not_stored<ResBody: HttpBody>(
    attempt: &Attempt,
    mut parts: response::Parts,
    body: Body<ResBody>,
) -> FinalResponse<ResBody> {
    set_ttl(&mut parts.headers, attempt.kept_for());
    FinalResponse {
        response: Response::from_parts(parts, body),
        encoded: None,
        underived: None,
    }
}

/// Says for how long the key of a response is stored.
fn set_ttl(headers: &mut HeaderMap, kept_for: Option<Duration>) {
    if let Some(kept_for) = kept_for {
        headers.insert(IDEMPOTENCY_TTL, ttl(kept_for));
    }
}

/// True for statuses whose responses have no body, and may have the `Content-Length` of another response.
fn has_no_body(status: StatusCode) -> bool {
    status.is_informational() || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

/// Sets how long the response is stored. The work is done, so a failure must not end the request.
async fn retain_for(attempt: &Attempt, ttl: Duration) {
    if let Err(error) = attempt.retain_for(ttl).await {
        tracing::warn!(
            target: "idem",
            operation = attempt.operation().as_str(),
            record = %attempt.record_id(),
            error = %error,
            "the ttl of a response could not be set; it is stored for the ttl of its request",
        );
    }
}

impl<ResBody: HttpBody> FinalResponse<ResBody> {
    fn replayed(stored: Stored) -> Self {
        let (stored, underived) = match stored {
            Stored::Response(response) => (response, None),
            Stored::Value(status, value) => (
                Response::default(),
                Some(Box::new(Underived { status, value })),
            ),
        };
        let mut response = stored.map(Body::from);
        response
            .headers_mut()
            .insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
        Self {
            response,
            encoded: None,
            underived,
        }
    }
}

/// Derives the response to a retry.
type Deriving<ResBody, E> = Pin<Box<dyn Future<Output = GuardedResult<ResBody, E>> + Send>>;

/// Begins to derive the response to a retry, if a value is stored in its place.
///
/// A future of its own, because the future of every request would otherwise have places for the outcome. Few layers derive
/// responses.
fn deriving<ResBody, E>(
    outcome: &mut GuardedResult<ResBody, E>,
    config: &Arc<Config>,
    head: impl FnOnce() -> request::Parts,
) -> Option<Deriving<ResBody, E>>
where
    ResBody: HttpBody + Send + 'static,
    E: Send + 'static,
{
    let replayed = outcome.as_mut().ok()?;
    let Underived { status, value } = *replayed.underived.take()?;
    // The mark of a replay, and for how long the key is stored.
    let marks = mem::take(replayed.response.headers_mut());
    let (config, request) = (Arc::clone(config), head());
    Some(Box::pin(async move {
        let reply = StoredReply {
            status,
            value,
            request,
        };
        let response = match derived::derive(config.derived.as_ref(), reply).await? {
            Ok(response) => {
                let mut response = response.map(Body::from);
                response.headers_mut().extend(marks);
                response
            }
            Err(problem) => config.problem(problem),
        };
        Ok(FinalResponse {
            response,
            encoded: None,
            underived: None,
        })
    }))
}
