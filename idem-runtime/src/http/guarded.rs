//! A guarded request, from its admission to its response.

use std::any::Any;
use std::convert::Infallible;
use std::error::Error as StdError;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body::Body as HttpBody;
use tower_service::Service;
use tracing::Instrument as _;

use super::admission::{Admission, AdmittedRequest, GuardedBy, content_length};
use super::body::{Body, Collected, Read, collect};
use super::config::Config;
use super::finality::{self, Unrouted};
use super::header::{IDEMPOTENT_REPLAYED, InvalidKeyHeader};
use super::refusal::Refusal;
use super::stored;
use crate::engine::typed::{self, ErrorCodec, Running, ValueCodec};
use crate::engine::{Attempt, Finality};
use crate::error::Error;
use crate::key::Key;
use crate::record::OnCrash;

/// One call of the inner service, made at most once for its key.
pub(super) struct GuardedCall<S, ReqBody> {
    /// Instance that is made ready after the claim.
    pub(super) inner: S,
    pub(super) config: Arc<Config>,
    pub(super) request: Request<ReqBody>,
    /// The request's key, or the reason why it has none.
    pub(super) key: Result<Option<Key>, InvalidKeyHeader>,
}

/// Result of the engine: a response that is stored, or what takes its place.
type GuardedResult<ResBody, E> = Result<FinalResponse<ResBody>, NotStored<ResBody, E>>;

/// Response that the engine stores, or has replayed.
struct FinalResponse<ResBody: HttpBody> {
    response: Response<Body<ResBody>>,
    /// Stored form of the response. None if it is too long, was cut off, or is a replay.
    encoded: Option<Vec<u8>>,
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

/// Reason for which the handler's task returned nothing.
enum TaskFailure {
    /// The handler panicked. The panic is resumed in the caller, as it would be without the layer.
    Panicked(Box<dyn Any + Send>),
    /// The runtime was shut down.
    Cancelled,
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
    pub(super) async fn respond(self) -> Result<Response<Body<ResBody>>, S::Error> {
        let Self {
            mut inner,
            config,
            request,
            key,
        } = self;
        let admitted = match Admission::of(&config, request, key).await {
            Ok(Admission::New(admitted)) => admitted,
            Ok(Admission::Guarded(request)) => {
                poll_fn(|cx| inner.poll_ready(cx)).await?;
                let response = inner.call(request.map(Body::passed)).await?;
                return Ok(response.map(Body::passed));
            }
            Err(refusal) => return Ok(config.refuse(refusal)),
        };
        match Self::execute(inner, Arc::clone(&config), admitted).await {
            Ok(Ok(stored)) => Ok(stored.response),
            Ok(Err(NotStored::Response(response, _))) => Ok(response),
            Ok(Err(NotStored::NotReady(error) | NotStored::Service(error))) => Err(error),
            Ok(Err(NotStored::Refused(error))) => Ok(config.problem(error)),
            Err(TaskFailure::Panicked(panic)) => std::panic::resume_unwind(panic),
            Err(TaskFailure::Cancelled) => Ok(config.refuse(Refusal::ShuttingDown)),
        }
    }

    /// Claims the key, and runs the handler if the claim is granted.
    ///
    /// A server drops this future when its client disconnects. Everything that does not finish at its first poll
    /// therefore runs in a separate task. That includes the claim: a claim that is cancelled on its way to the store could
    /// leave the key claimed without an owner.
    async fn execute(
        inner: S,
        config: Arc<Config>,
        admitted: AdmittedRequest<ReqBody>,
    ) -> Result<GuardedResult<ResBody, S::Error>, TaskFailure> {
        let AdmittedRequest {
            call,
            request,
            permit,
        } = admitted;
        let mut claiming = typed::enter(
            typed::handle(&config.idem),
            call,
            ValueCodec::by(
                |value: &FinalResponse<ResBody>, _, limit| {
                    stored::encode(value.encoded.as_deref(), limit)
                },
                |payload| stored::decode(payload).map(FinalResponse::replayed),
            ),
            ErrorCodec::none(),
        );
        // A replay from memory is ready at the first poll and needs no task. Nothing can drop this future between that
        // poll and the spawn.
        let claimed = poll_fn(|cx| Poll::Ready(Pin::new(&mut claiming).poll(cx))).await;
        let claimed = match claimed {
            Poll::Ready(Err(outcome)) => return Ok(outcome),
            Poll::Ready(Ok(running)) => Some(running),
            Poll::Pending => None,
        };
        let counted = config.idem.count_detached();
        let task = async move {
            let claimed = match claimed {
                Some(running) => Ok(running),
                None => claiming.await,
            };
            let outcome = match claimed {
                Ok(running) => Self::run(inner, config, running, request).await,
                Err(outcome) => outcome,
            };
            drop((permit, counted));
            outcome
        };
        let task = tokio::spawn(task.in_current_span());
        task.await.map_err(|error| match error.try_into_panic() {
            Ok(panic) => TaskFailure::Panicked(panic),
            Err(_) => TaskFailure::Cancelled,
        })
    }

    /// Runs the handler, and settles its claim.
    async fn run(
        mut inner: S,
        config: Arc<Config>,
        mut running: Running<FinalResponse<ResBody>, NotStored<ResBody, S::Error>>,
        mut request: Request<Body<ReqBody>>,
    ) -> GuardedResult<ResBody, S::Error> {
        let attempt = running.attempt();
        request.extensions_mut().insert(attempt.clone());
        request
            .extensions_mut()
            .insert(GuardedBy(Arc::clone(&config)));
        let is_unrouted = finality::is_unrouted(&request);
        let handler = async {
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
        finish.await
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
    let (parts, body) = response.into_parts();
    let finality = config.finality.of(&parts, config.on_crash);
    if finality != Finality::Final {
        let response = Response::from_parts(parts, Body::passed(body));
        return Err(NotStored::Response(response, finality));
    }
    if let Some(ttl) = config.retention.of_response(&parts) {
        retain_for(attempt, ttl).await;
    }
    let any_room = |_| Ok::<(), Infallible>(());
    match collect(body, config.max_response_bytes, any_room).await {
        Collected::All(Read {
            bytes, trailers, ..
        }) => {
            // A response of another length was cut off on its way here, for example from a server behind a gateway.
            let is_whole = has_no_body(parts.status)
                || content_length(&parts.headers).is_none_or(|it| it == bytes.len() as u64);
            let encoded =
                is_whole.then(|| config.allowed.write(parts.status, &parts.headers, &bytes));
            Ok(FinalResponse {
                response: Response::from_parts(parts, Body::read(bytes, trailers)),
                encoded,
            })
        }
        // The status says that the work is done. The handler must not run again, although its response is not stored.
        Collected::Over(body) | Collected::Failed(body) => Ok(FinalResponse {
            response: Response::from_parts(parts, body),
            encoded: None,
        }),
        Collected::NoRoom(never) => match never {},
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
    fn replayed(stored: Response<Bytes>) -> Self {
        let mut response = stored.map(Body::from);
        response
            .headers_mut()
            .insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
        Self {
            response,
            encoded: None,
        }
    }
}
