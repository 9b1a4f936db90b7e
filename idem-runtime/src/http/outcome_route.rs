//! The route that tells the owner of a key what became of its request.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, RETRY_AFTER};
use http::{HeaderValue, Method, Request, Response, StatusCode, request};
use http_body::Body as HttpBody;
use tokio::time::Instant;
use tower_service::Service;

use super::body::Body;
use super::config::Config;
use super::deadline;
use super::derived::{self, StoredReply};
use super::marks::{IDEMPOTENT_STATUS, mark};
use super::problem::{Problem, ProblemKind};
use super::refusal::Refusal;
use super::stored::{self, Stored};
use crate::engine::{KeyStatus, Provenance};
use crate::error::Error;

/// Pause, in seconds, after which a client asks again about a request that runs.
const ASK_AGAIN: HeaderValue = HeaderValue::from_static("1");

/// Service that tells the owner of a key what became of its request: a GET with the key, in the header and the syntax of the
/// layer. Made by [`IdempotencyLayer::outcome_route`](super::IdempotencyLayer::outcome_route).
///
/// | the request with this key | answer |
/// | --- | --- |
/// | has a stored response | 200 with the headers and the body of that response, its status in [`Idempotent-Status`](IDEMPOTENT_STATUS), and `Idempotent-Replayed: true` |
/// | is running | 202 with `Retry-After`, once the layer's [`wait`](super::LayerBuilder::wait) is over |
/// | was not seen, did nothing, or lost its lease | 404, the problem [`NoOutcome`](ProblemKind::NoOutcome): send the request again with its key |
/// | crashed, under [`refuse`](super::LayerBuilder::refuse) | 409, [`Interrupted`](ProblemKind::Interrupted) |
/// | was carried out, but its response was not stored | 409, [`Unrecorded`](ProblemKind::Unrecorded) |
/// | was carried out, and its response is no longer kept | 410, [`Expired`](ProblemKind::Expired) |
///
/// It runs no handler and claims no key. The principal is found as for guarded requests, so the route must be behind the same
/// authentication: a key of another principal is as unknown as one that was never used. Answers have `Cache-Control:
/// no-store`. A question that waits counts against the layer's limits, as a duplicate that waits does.
///
/// The URL of the route stands for the operation of the layer: a service with several layers has a route for each of them.
/// Method, path and body of the first request are not compared, because the owner of a key may see all its outcomes.
#[cfg_attr(
    all(feature = "axum", feature = "memory"),
    doc = r#"
```
# use std::time::Duration;
# use axum::Router;
# use axum::routing::{get, post};
# use idem_runtime::http::{IdempotencyLayer, unscoped};
# use idem_runtime::{Idem, MemoryStore};
# fn main() -> Result<(), Box<dyn std::error::Error>> {
# let idem = Idem::new(MemoryStore::new());
# let ttl = Duration::from_secs(24 * 3600);
let layer = IdempotencyLayer::builder(&idem, "orders", ttl, unscoped())
    .outcome_url("/orders/outcome")
    .build()?;
let (outcome, policy) = (layer.outcome_route(), layer.policy_json());
let app: Router = Router::new()
    .route("/orders", post(async || "made"))
    .layer(layer)
    .route_service("/orders/outcome", outcome)
    .route("/orders/idempotency.json", get(policy)); // clients learn the URL from it
# Ok(())
# }
```
"#
)]
#[derive(Debug, Clone)]
pub struct OutcomeRoute(Arc<Config>);

impl OutcomeRoute {
    pub(super) fn new(config: &Arc<Config>) -> Self {
        Self(Arc::clone(config))
    }
}

impl<B> Service<Request<B>> for OutcomeRoute
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Send,
{
    type Response = Response<Body<B>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let config = Arc::clone(&self.0);
        let (parts, _) = request.into_parts();
        Box::pin(async move { Ok(respond(&config, &parts).await.map(Body::from)) })
    }
}

async fn respond(config: &Config, parts: &request::Parts) -> Response<Bytes> {
    let mut response = match parts.method {
        Method::GET | Method::HEAD => match answer(config, parts).await {
            Ok(response) => response,
            Err(refusal) => config.refuse(refusal),
        },
        _ => {
            let mut refused = empty(StatusCode::METHOD_NOT_ALLOWED);
            let allowed = HeaderValue::from_static("GET, HEAD");
            refused.headers_mut().insert(ALLOW, allowed);
            refused
        }
    };
    let no_store = HeaderValue::from_static("no-store");
    response.headers_mut().insert(CACHE_CONTROL, no_store);
    response
}

async fn answer(config: &Config, parts: &request::Parts) -> Result<Response<Bytes>, Refusal> {
    // Before the key, so that an unauthenticated client gets no other information.
    let scope = config.scoping.scope(parts).ok_or(Refusal::NoPrincipal)?;
    let key = config.syntax.find(&parts.headers, &config.key_header)?;
    let key = key.ok_or_else(|| Refusal::MissingKey(config.key_header.clone()))?;
    let mut place = config
        .drain
        .admit(&scope, config.limits)
        .map_err(Refusal::Full)?;
    place.run().map_err(Refusal::Full)?;
    let operation = config.operation.clone();
    let query = config
        .idem
        .outcome_by(operation, key, |stored| stored::decode(stored.payload()));
    let status = query.scope(&scope).attach(wait(config, parts)).await;
    drop(place);
    Ok(match status {
        Ok(KeyStatus::Ended(Ok(Stored::Response(stored)), provenance)) => {
            found(stored, &provenance)
        }
        Ok(KeyStatus::Ended(Ok(Stored::Value(status, value)), provenance)) => {
            let reply = StoredReply {
                status,
                value,
                request: parts.clone(),
            };
            match derived::derive(config.derived.as_ref(), reply).await {
                Ok(Ok(response)) => found(response, &provenance),
                Ok(Err(problem)) => config.problem(problem),
                Err(error) => config.problem(error),
            }
        }
        Ok(KeyStatus::Ended(Err(never), _)) => match never {},
        Ok(KeyStatus::Running { .. }) => {
            let mut response = empty(StatusCode::ACCEPTED);
            response.headers_mut().insert(RETRY_AFTER, ASK_AGAIN);
            response
        }
        Ok(KeyStatus::Absent | KeyStatus::Lapsed { .. }) => config.problem(Problem::new(
            ProblemKind::NoOutcome,
            "no request with this key is running, and none has a stored response; send the request again with the same key",
        )),
        Ok(KeyStatus::Interrupted) => config.problem(Error::Interrupted),
        Ok(KeyStatus::Unrecorded) => config.problem(Error::Unrecorded),
        Ok(KeyStatus::Expired) => config.problem(Problem::new(
            ProblemKind::Expired,
            "the request was carried out, and its response is no longer kept; look up its result",
        )),
        Err(error) => config.problem(error),
    })
}

/// Maximum time to wait for a request that runs: as a duplicate, and not for longer than the client waits.
fn wait(config: &Config, parts: &request::Parts) -> Duration {
    let wait = config.wait.unwrap_or(config.idem.policy().wait);
    match deadline::of(&parts.extensions) {
        Some(deadline) => wait.min(deadline.begin_by().duration_since(Instant::now())),
        None => wait,
    }
}

/// A stored response. Its own status could be that of a redirection, or of a request for credentials, which clients of this
/// route must not follow.
fn found(mut stored: Response<Bytes>, provenance: &Provenance) -> Response<Bytes> {
    let status = HeaderValue::from(stored.status().as_u16());
    stored.headers_mut().insert(IDEMPOTENT_STATUS, status);
    mark(stored.headers_mut(), provenance);
    *stored.status_mut() = StatusCode::OK;
    stored
}

fn empty(status: StatusCode) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = status;
    response
}
