//! Middleware of axum for routes whose handlers use the extractor.

use std::borrow::Cow;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, IntoResponseParts, Response, ResponseParts};
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};

use super::marks::mark;
use super::problem::{PROBLEM_JSON, Problem};
use crate::engine::{Idem, Provenance, with_provenance};
use crate::error::Error;
use crate::store::Store;

/// Links the `type` of problems to this page, by an absolute or relative URL.
///
/// It changes the rejections of [`IdempotencyKey`](super::IdempotencyKey) and the [`Error`](crate::Error)s that handlers
/// return, because no layer has set a page for them. It does not change other responses, problems that already have a
/// page, and problems in another format.
///
/// Add it to the routes themselves, inside any layer that encodes bodies:
///
/// ```
/// # use axum::{Router, middleware::map_response, routing::post};
/// # use idem_runtime::http::{IdempotencyKey, Unscoped, documented_at};
/// # async fn handler(key: IdempotencyKey<Unscoped>) {}
/// let app: Router = Router::new()
///     .route("/orders", post(handler))
///     .layer(map_response(documented_at("/idempotency")));
/// ```
pub fn documented_at(
    url: impl Into<Cow<'static, str>>,
) -> impl Fn(Response) -> Ready<Response> + Clone + Send + Sync + 'static {
    let url = url.into();
    move |mut response| {
        let problem = problem_of(&response).filter(|it| !it.is_documented());
        if let Some(problem) = problem {
            let problem = problem.clone().documented_at(url.clone());
            *response.body_mut() = Body::from(problem.to_json());
            response.headers_mut().remove(CONTENT_LENGTH);
            response.extensions_mut().insert(problem);
        }
        ready(response)
    }
}

/// Converts problems to another format, with the function that a layer takes as
/// [`problem_response`](super::LayerBuilder::problem_response).
///
/// It changes the rejections of [`IdempotencyKey`](super::IdempotencyKey) and the [`Error`](crate::Error)s that handlers
/// return. It does not change other responses, and problems that are in another format already. The function's status and
/// headers replace those of the problem. `Retry-After` and other headers stay.
///
/// Add it to the routes themselves, inside any layer that encodes bodies, and after [`documented_at`]:
///
/// ```
/// # use axum::{Router, body::Bytes, http::Response, middleware::map_response, routing::post};
/// # use idem_runtime::http::{IdempotencyKey, Problem, Unscoped, documented_at, problem_response};
/// # async fn handler(key: IdempotencyKey<Unscoped>) {}
/// fn as_text(problem: &Problem) -> Response<Bytes> {
///     let mut response = Response::new(Bytes::from(problem.to_string()));
///     *response.status_mut() = problem.kind().status();
///     response
/// }
///
/// let app: Router = Router::new()
///     .route("/orders", post(handler))
///     .layer(map_response(documented_at("/idempotency")))
///     .layer(map_response(problem_response(as_text)));
/// ```
pub fn problem_response(
    format: impl Fn(&Problem) -> http::Response<Bytes> + Send + Sync + 'static,
) -> impl Fn(Response) -> Ready<Response> + Clone + Send + Sync + 'static {
    let format = Arc::new(format);
    move |mut response| {
        if let Some(problem) = problem_of(&response) {
            let (formatted, body) = format(problem).into_parts();
            *response.status_mut() = formatted.status;
            *response.body_mut() = Body::from(body);
            let headers = response.headers_mut();
            headers.remove(CONTENT_LENGTH);
            headers.remove(CONTENT_TYPE);
            headers.extend(formatted.headers);
        }
        ready(response)
    }
}

/// Adds [`Idempotent-Replayed`](super::IDEMPOTENT_REPLAYED) to responses of handlers whose idempotent call did not run its
/// body, and [`Idempotency-TTL`](super::IDEMPOTENCY_TTL) to those with a stored result, as the layer does. It observes the first such call of a handler, with [`with_provenance`]. A call in a task that the
/// handler has spawned is not observed, except in [`Idem::detach`].
///
/// ```
/// # use axum::{Router, middleware::from_fn, routing::post};
/// # use idem_runtime::http::{IdempotencyKey, Unscoped, mark_replays};
/// # async fn handler(key: IdempotencyKey<Unscoped>) {}
/// let app: Router = Router::new().route("/orders", post(handler)).layer(from_fn(mark_replays));
/// ```
pub async fn mark_replays(request: Request, next: Next) -> Response {
    let (mut response, provenance) = with_provenance(next.run(request)).await;
    if let Some(provenance) = provenance {
        mark(response.headers_mut(), &provenance);
    }
    response
}

/// Runs handlers in tasks of their own, as the layer does: a client that disconnects does not cancel them.
///
/// `#[idempotent(detached)]` does this for one function, and costs no task for a replay. The middleware is for handlers
/// with several calls, or with transactional ones. [`Idem::drain`] waits for the handlers. Nothing limits their number:
/// put a limit of concurrent requests around them, *inside* of this middleware, so that it counts those whose clients
/// have left.
///
/// ```
/// # use axum::{Router, middleware::from_fn, routing::post};
/// # use idem_runtime::{Idem, MemoryStore};
/// # use idem_runtime::http::{IdempotencyKey, Unscoped, detached};
/// # async fn handler(key: IdempotencyKey<Unscoped>) {}
/// # let idem = Idem::new(MemoryStore::new());
/// let app: Router = Router::new().route("/orders", post(handler)).layer(from_fn(detached(&idem)));
/// ```
pub fn detached<S: Store + ?Sized>(
    idem: &Idem<S>,
) -> impl Fn(Request, Next) -> BoxedResponse + Clone + Send + Sync + 'static {
    let idem = idem.clone().erased();
    move |request, next| {
        let idem = idem.clone();
        Box::pin(async move {
            let handler = async move { Ok::<_, Error>(next.run(request).await) };
            idem.detach(handler).await.into_response()
        })
    }
}

type BoxedResponse = Pin<Box<dyn Future<Output = Response> + Send>>;

/// As a part of a response, adds [`Idempotent-Replayed`](super::IDEMPOTENT_REPLAYED) if the result was replayed, and
/// [`Idempotency-TTL`](super::IDEMPOTENCY_TTL) if it is stored.
impl IntoResponseParts for Provenance {
    type Error = Infallible;

    fn into_response_parts(self, mut parts: ResponseParts) -> Result<ResponseParts, Infallible> {
        mark(parts.headers_mut(), &self);
        Ok(parts)
    }
}

/// Problem of a response, unless it is in another format.
fn problem_of(response: &Response) -> Option<&Problem> {
    let content_type = response.headers().get(CONTENT_TYPE)?;
    let problem = response.extensions().get::<Problem>();
    problem.filter(|_| content_type == PROBLEM_JSON)
}
