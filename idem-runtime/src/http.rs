//! Idempotent HTTP: requests with an `Idempotency-Key` header, by the rules of
//! [draft-ietf-httpapi-idempotency-key-header-07][draft], answered with problems (RFC 9457) where they are refused.
//!
//! - A handler that calls an `#[idempotent]` function takes an `IdempotencyKey` (feature `axum`).
//! - [`IdempotencyLayer`] makes whole routes idempotent whose handlers know nothing of it, in any tower service with
//!   `http` types.
//!
//! Neither can be had without saying whose a request is: see [`Principal`].
//!
//! [draft]: https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header-07
#![cfg_attr(
    all(feature = "axum", feature = "macros", feature = "memory"),
    doc = r##"
# The extractor

```
use axum::extract::{FromRequestParts, State};
use axum::http::{StatusCode, request::Parts};
use axum::routing::post;
use axum::{Json, Router};
use idem_runtime::http::{IdempotencyKey, Principal};
use idem_runtime::{Error, Fingerprint, Idem, Key, MemoryStore, ToScope, idempotent};
use serde::{Deserialize, Serialize};

#[derive(Fingerprint, Deserialize)]
struct Order { cents: u64 }

#[derive(Serialize, Deserialize)]
struct Receipt { cents: u64 }

#[idempotent(key = key, ttl = "24h", name = "orders.place", store = idem)]
async fn place(idem: &Idem<MemoryStore>, key: &Key, order: Order) -> Result<Receipt, Error> {
    Ok(Receipt { cents: order.cents })
}

async fn handler(
    State(idem): State<Idem<MemoryStore>>,
    key: IdempotencyKey<User>,
    Json(order): Json<Order>,
) -> Result<Json<Receipt>, Error> {
    Ok(Json(place(&idem, &key, order).await?))
}

/// Whoever is authenticated: an extractor of the service's own.
struct User { id: u64 }

impl Principal for User {
    fn scope(&self) -> impl ToScope {
        self.id
    }
}

impl<S: Sync> FromRequestParts<S> for User {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, StatusCode> {
        # fn verified(_: &Parts) -> Option<u64> { None }
        let id = verified(parts).ok_or(StatusCode::UNAUTHORIZED)?;
        Ok(Self { id })
    }
}

let app: Router = Router::new()
    .route("/orders", post(handler))
    .with_state(Idem::new(MemoryStore::new()));
```

# The layer

```
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use idem_runtime::http::{IdempotencyLayer, Principal, scoped_by_extension};
use idem_runtime::{Idem, MemoryStore, ToScope};

/// Whoever is authenticated: a middleware in front of the layer has put it into the request's extensions.
#[derive(Clone)]
struct User { id: u64 }

impl Principal for User {
    fn scope(&self) -> impl ToScope {
        self.id
    }
}

# fn main() -> Result<(), Box<dyn std::error::Error>> {
let idem = Idem::new(MemoryStore::new());
let ttl = Duration::from_secs(24 * 60 * 60);
let layer = IdempotencyLayer::builder(&idem, "orders", ttl, scoped_by_extension::<User>())
    .policy_url("/idempotency")
    .build()?;
let page = layer.policy_page();
let drain = layer.drain();
let app: Router = Router::new()
    .route("/orders", post(async || "made"))
    .layer(layer) // the layer that authenticates comes behind this line, and so in front of it
    .route("/idempotency", get(page));
// axum::serve(listener, app).with_graceful_shutdown(...).await, then drain.finished().await
# Ok(())
# }
```
"##
)]
//!
//! POST and PATCH are guarded; other methods pass through, and so do requests without a key where it is
//! [optional](LayerBuilder::key_optional). What is guarded goes this way:
//!
//! 1. Its principal and its key are read. Without a principal it is refused with 403 and told nothing else; a service
//!    that would rather answer 401 does so in its authentication, in front of the layer.
//! 2. Its body is read, [up to a limit](LayerBuilder::max_request_bytes) and [in time](LayerBuilder::body_timeout), and
//!    with the method, path (behind a nested router the client's own with feature `axum` alone), query and
//!    `Content-Type` and `Content-Encoding` it becomes the fingerprint. JSON counts by what it says, anything else by its
//!    bytes; so a `multipart/form-data` body must be repeated with the same boundary, and a compressed one as the same
//!    bytes, unless a layer in front of this one has decompressed it. No other header counts, `Host`, `Accept` and
//!    `If-Match` included, and neither do trailers of the request. So a service with a tenant per host puts the host
//!    into the scope, see [`scoped_by`].
//! 3. Its key is claimed, in a task of its own unless the claim is answered at once: from here on a client that goes
//!    away stops nothing, and [`Drain`] waits for the request. Task-locals of the server are not there. A stored response
//!    is given as it was, with [`Idempotent-Replayed`](IDEMPOTENT_REPLAYED).
//! 4. The handler runs in that task, with the [`Attempt`](crate::Attempt) in the request's extensions.
//! 5. A [final](finality) response is read up to [a limit](LayerBuilder::max_response_bytes) and stored: its status, its
//!    body and [some headers](LayerBuilder::store_header). One that is too long, or breaks off, is given to its caller
//!    alone, and its key is [`Unrecorded`](crate::Error::Unrecorded). Trailers reach the first caller and are not
//!    stored: a replay has none, as behind a proxy that drops them (RFC 9110 §6.5.1).
//!
//! After a crash, the handler's panic included, the next request runs the handler again once the lease is over, unless
//! the layer was told to [`refuse`](LayerBuilder::refuse).
//!
//! # Order of layers
//!
//! In front of this layer, where replays and refusals pass as well, belongs:
//!
//! - what authenticates, decompresses requests, compresses responses, or adds headers to all responses.
//! - **CORS.** A browser's script may send a key only if the preflight allows the header, and read only the headers that
//!   are exposed. With `CorsLayer` of tower-http: `.allow_headers([AUTHORIZATION, CONTENT_TYPE, IDEMPOTENCY_KEY])` and
//!   `.expose_headers([IDEMPOTENT_REPLAYED, RETRY_AFTER])`.
//! - **what limits the time of requests.** The client whose time is over is told so, 408 for instance, and the handler
//!   runs to its end. The retry gets 409 until then, and afterwards the replay. Behind this layer a time-out cuts the
//!   handler off in the middle, and each retry runs it anew.
//! - what catches panics, where a retry should wait for the lease as after any crash. Behind this layer the panic is a
//!   response like any other: a 500 releases the key at once, and under `refuse` interrupts it.
//!
//! Behind it belongs what only the handler needs. This layer is ready when the service behind it is, since nobody knows
//! at that time whether a request will be replayed: where a limit of concurrency is built around the handler with
//! `ServiceBuilder`, replays wait for a place as well. In a `Router` of axum each `.layer(...)` is always ready, and what
//! is behind it waits when it is called; there replays wait for nothing.
#![cfg_attr(
    all(feature = "axum", feature = "memory"),
    doc = r##"
```
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
# use idem_runtime::http::{IdempotencyLayer, unscoped};
# use idem_runtime::{Idem, MemoryStore};

/// As `TimeoutLayer` of tower-http does it.
async fn within_ten_seconds(request: Request, next: Next) -> Response {
    match tokio::time::timeout(Duration::from_secs(10), next.run(request)).await {
        Ok(response) => response,
        Err(_) => StatusCode::REQUEST_TIMEOUT.into_response(),
    }
}

# fn main() -> Result<(), Box<dyn std::error::Error>> {
# let idem = Idem::new(MemoryStore::new());
# let layer = IdempotencyLayer::builder(&idem, "orders", Duration::from_secs(3600), unscoped()).build()?;
let app: Router = Router::new()
    .route("/orders", post(async || "made"))
    .layer(layer)
    .layer(from_fn(within_ten_seconds)); // a later line is further in front
# Ok(())
# }
```
"##
)]
//!
//! # Load
//!
//! Handlers outlive their clients, and bodies are in memory before anybody knows what they are worth. So a layer bounds
//! [the requests under way](LayerBuilder::max_running), [the bytes of their bodies](LayerBuilder::max_buffered_bytes) and
//! [the time that a body may take](LayerBuilder::body_timeout), and one principal gets [a
//! share](LayerBuilder::principal_share) of the first two. A body that is slow to arrive takes no place of a request
//! under way, and only as many bytes as have arrived. By default a layer holds 256 MiB of requests at most, and 64 MiB
//! of one principal's.
//!
//! # gRPC
//!
//! The layer refuses gRPC and gRPC-Web calls that it would guard, those with a `Content-Type` of `application/grpc`: the
//! outcome of such a call is in trailers, under HTTP 200 whatever became of it. A gRPC client shows nothing of an HTTP
//! error but its status, so the refusal has its own form: HTTP 200, `grpc-status: 12` (`UNIMPLEMENTED`, which no client
//! repeats) and a `grpc-message` that says what to do. Call an `#[idempotent]` function in the service's method instead,
//! with the key from its metadata, and route gRPC past the layer.
//!
//! # Responses that are read while they are made
//!
//! Final responses are held back until they are complete, so server-sent events would arrive too late, or never. A
//! response that is not final passes as it is made. The way out is a policy that stores no such response; a retry runs
//! its handler again:
#![cfg_attr(
    all(feature = "axum", feature = "memory"),
    doc = r##"
```
# use std::time::Duration;
# use idem_runtime::http::{IdempotencyLayer, unscoped};
use axum::http::header::CONTENT_TYPE;
use idem_runtime::ErrorKind;
use idem_runtime::http::finality;
# use idem_runtime::{Idem, MemoryStore};
# let idem = Idem::new(MemoryStore::new());
# let ttl = Duration::from_secs(3600);

let layer = IdempotencyLayer::builder(&idem, "chats", ttl, unscoped())
    .finality(|response| match response.headers.get(CONTENT_TYPE) {
        Some(kind) if kind.as_bytes().starts_with(b"text/event-stream") => ErrorKind::Transient,
        _ => finality(response),
    })
    .build();
# assert!(layer.is_ok());
```
"##
)]
//!
//! # Errors on the wire
//!
//! [`Problem`] is how every refusal looks, and [`ProblemKind`] which there are. With feature `axum` an
//! [`Error`](crate::Error) is a response by itself, and `documented_at` says where its policy page is.
//!
//! A service whose clients expect errors of another shape makes it of the [`Problem`] that each refusal carries in its
//! extensions, in front of the layer or around the routes with an extractor. Clients generated for one shape may take
//! any other for a success:
#![cfg_attr(
    all(feature = "axum", feature = "memory"),
    doc = r##"
```
use axum::Router;
use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::post;
use idem_runtime::http::Problem;
# use idem_runtime::http::{IdempotencyLayer, unscoped};
# use idem_runtime::{Idem, MemoryStore};

/// Refusals in the shape of Stripe's errors. The status, `Retry-After` and the extensions stay as they are.
async fn stripe_errors(response: Response) -> Response {
    let Some(problem) = response.extensions().get::<Problem>() else {
        return response;
    };
    let error = serde_json::json!({
        "error": {
            "type": "idempotency_error",
            "code": problem.kind().slug(),
            "message": problem.to_string(),
            "request_log_url": problem.instance(),
        }
    });
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(CONTENT_LENGTH);
    parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Response::from_parts(parts, Body::from(error.to_string()))
}

# fn main() -> Result<(), Box<dyn std::error::Error>> {
# let idem = Idem::new(MemoryStore::new());
# let ttl = std::time::Duration::from_secs(3600);
# let layer = IdempotencyLayer::builder(&idem, "orders", ttl, unscoped()).build()?;
let app: Router = Router::new()
    .route("/orders", post(async || "made"))
    .layer(layer)
    .layer(map_response(stripe_errors));
# use axum::http::{Request, StatusCode};
# use tower_service::Service as _;
# let mut app = app;
# let refused = async move { app.call(Request::post("/orders").body(Body::empty()).unwrap()).await.unwrap() };
# let refused = tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(refused);
# assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
# assert_eq!(refused.headers()[CONTENT_TYPE], "application/json");
# Ok(())
# }
```
"##
)]

mod body;
mod drain;
#[cfg(feature = "axum")]
mod extract;
mod finality;
mod future;
mod grpc;
mod header;
mod layer;
mod policy_page;
mod principal;
mod problem;
mod service;
mod stored;

pub use self::body::Body;
pub use self::drain::Drain;
#[cfg(feature = "axum")]
pub use self::extract::{IdempotencyKey, KeyRejection, Lenient, Strict, Syntax, documented_at};
pub use self::finality::finality;
pub use self::future::ResponseFuture;
pub use self::header::{IDEMPOTENCY_KEY, IDEMPOTENT_REPLAYED, KeySyntax};
pub use self::layer::{IdempotencyLayer, InvalidLayer, LayerBuilder};
pub use self::policy_page::PolicyPage;
pub use self::principal::{Principal, Scoping, Unscoped, scoped_by, scoped_by_extension, unscoped};
pub use self::problem::{Problem, ProblemKind};
pub use self::service::Idempotency;
