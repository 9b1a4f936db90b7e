//! The check of a whole HTTP service.

use std::fmt::{self, Debug};
use std::future::poll_fn;

use http::{Request, Response};
use http_body_util::BodyExt;
use idem_runtime::Idem;
use tower_service::Service;

use crate::check::{Check, check_on};
use crate::place::{Memory, Place};

/// Reply of a service: its status, and its body as text.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// Body.
    pub body: String,
}

impl Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.status, self.body)
    }
}

/// Begins the check of a router of axum, or of another tower service with `http` types. The first closure makes the
/// service from a handle, and the second one makes the request, always the same one. A reply with a status of 2xx is a
/// result, and any other one an error.
///
/// Each call is one request to a new service. A client that leaves drops its request at some poll.
///
/// # Example
/// ```
/// use axum::http::{HeaderMap, Request, StatusCode};
/// use axum::{Router, body::Body, extract::State, routing::post};
/// use idem_runtime::Idem;
/// use idem_runtime::http::{IdempotencyLayer, unscoped};
/// use idem_testing::{Provider, check_router};
///
/// async fn order(State(bank): State<Provider>, headers: HeaderMap) -> Result<String, StatusCode> {
///     let key = headers["idempotency-key"].to_str().unwrap_or_default();
///     let receipt = bank.send(key, "charge").await;
///     Ok(receipt.map_err(|_| StatusCode::BAD_GATEWAY)?.to_string())
/// }
///
/// // In a `#[test]`:
/// let bank = Provider::new("bank");
/// let app = |idem: Idem| {
///     let layer = {
///         let day = std::time::Duration::from_secs(24 * 3600);
///         IdempotencyLayer::builder(&idem, "orders", day, unscoped()).build().unwrap()
///     };
///     Router::new().route("/orders", post(order)).layer(layer).with_state(bank.clone())
/// };
/// let request = || {
///     let request = Request::post("/orders").header("Idempotency-Key", "\"order-1\"");
///     request.body(Body::from("a lamp")).unwrap()
/// };
/// check_router(app, request).provider(&bank).assert_promised();
/// ```
pub fn check_router<'a, S, B, R>(
    service: impl Fn(Idem) -> S + 'a,
    request: impl Fn() -> Request<B> + 'a,
) -> Check<'a, Memory, Reply, Reply>
where
    S: Service<Request<B>, Response = Response<R>, Error: Debug> + 'a,
    B: 'a,
    R: http_body::Body<Error: Debug> + 'a,
{
    check_router_on(Memory, service, request)
}

/// Begins the check of a router on this store, as [`check_on`] does for a function: for services that take a handle of a
/// certain type, such as those whose functions have `tx = tx`.
pub fn check_router_on<'a, P: Place, S, B, R>(
    place: P,
    service: impl Fn(Idem<P::Store>) -> S + 'a,
    request: impl Fn() -> Request<B> + 'a,
) -> Check<'a, P, Reply, Reply>
where
    S: Service<Request<B>, Response = Response<R>, Error: Debug> + 'a,
    B: 'a,
    R: http_body::Body<Error: Debug> + 'a,
{
    check_on(place, async move |idem| {
        let mut service = service(idem);
        let ready = poll_fn(|context| service.poll_ready(context)).await;
        ready.map_err(|error| failed(&error))?;
        let response = service.call(request()).await;
        let (parts, body) = response.map_err(|error| failed(&error))?.into_parts();
        let body = body.collect().await.map_err(|error| failed(&error))?;
        let reply = Reply {
            status: parts.status.as_u16(),
            body: String::from_utf8_lossy(&body.to_bytes()).into_owned(),
        };
        match parts.status.is_success() {
            true => Ok(reply),
            false => Err(reply),
        }
    })
}

/// A service that failed without a reply.
fn failed(error: &impl Debug) -> Reply {
    Reply {
        status: 0,
        body: format!("no reply: {error:?}"),
    }
}
