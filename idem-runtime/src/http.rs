//! Idempotent HTTP requests with an `Idempotency-Key` header, as in
//! [draft-ietf-httpapi-idempotency-key-header-07][draft]. Refusals are problems (RFC 9457).
//!
//! - The extractor `IdempotencyKey` (feature `axum`) is for handlers that call `#[idempotent]` functions.
//! - The layer [`IdempotencyLayer`] makes whole routes idempotent without changes to their handlers, in any tower service
//!   with `http` types.
//!
//! Both require a [`Principal`], the authenticated caller that a key belongs to, or an explicit [`unscoped`].
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

// `detached`: a client that disconnects does not stop the work.
#[idempotent(key = key, ttl = "24h", name = "orders.place", store = idem, detached)]
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

/// Authenticated user: an extractor that the service has.
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

/// Authenticated user: an outer middleware has put it into the request's extensions.
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
    .layer(layer) // add the authentication layer after this line: later lines are outer layers
    .route("/idempotency", get(page));
// axum::serve(listener, app).with_graceful_shutdown(...).await, then drain.finished().await
# Ok(())
# }
```
"##
)]
//!
//! The layer guards POST and PATCH, or [other methods](LayerBuilder::methods). The rest passes through, and so do
//! requests without a key if the key is [optional](LayerBuilder::key_optional). A guarded request is processed in these steps:
//!
//! 1. **Principal and key.** A request without a principal is refused with 403, before anything else is checked. To
//!    answer 401 instead, refuse the request in your authentication, outside the layer.
//! 2. **Fingerprint.** The body is read, [up to a limit](LayerBuilder::max_request_bytes) and within [a
//!    timeout](LayerBuilder::body_timeout). The fingerprint covers the method, the path, the query, `Content-Type`,
//!    `Content-Encoding` and the body. A body that is [visibly not whole](#whole-requests) is refused.
//!    - JSON is compared by value, any other body byte by byte. A retry of `multipart/form-data` must have the same
//!      boundary. A retry of a compressed body must have the same bytes, unless an outer layer decompresses it.
//!    - Inside a nested router, the path is the client's only with feature `axum`.
//!    - Members of JSON and query parameters that a retry may change can be [left out](LayerBuilder::ignore_member).
//!    - No other header counts, `Host`, `Accept` and `If-Match` included, and no trailer. A service with one tenant per
//!      host must put the tenant into the scope, see [`scoped_by`].
//! 3. **Claim.** The key is claimed, in a separate task unless the answer is available immediately. From here on, the
//!    request continues even if its client disconnects, and [`Drain`] waits for it. Task-local values of the server are
//!    not available. A stored response is returned with [`Idempotent-Replayed`](IDEMPOTENT_REPLAYED). Whoever must not repeat
//!    the request asks the [outcome route](OutcomeRoute).
//! 4. **Handler.** The handler runs in that task, with the [`Attempt`](crate::Attempt) in the request's extensions.
//! 5. **Response.** A [final](finality) response is read, up to [a limit](LayerBuilder::max_response_bytes), and stored:
//!    status, body and [some headers](LayerBuilder::store_header), for the layer's ttl, or that of
//!    [its request](LayerBuilder::request_ttl) or [its own](LayerBuilder::response_ttl). If the response is too long, ends
//!    with an error, or has another length than its `Content-Length`, only its first caller gets it, and its key becomes
//!    [`Unrecorded`](crate::Error::Unrecorded). Trailers reach the
//!    first caller but are not stored. Proxies may drop them as well (RFC 9110 §6.5.1).
//!
//! After a crash or a panic of the handler, the next request runs the handler again as soon as the lease lapses, unless
//! the layer [refuses](LayerBuilder::refuse) to.
//!
//! # Whole requests
//!
//! A request runs only if its body is whole. HTTP/1 servers check the end of a body themselves. An HTTP/2 stream that is
//! reset with `NO_ERROR`, as proxies do when their client leaves, looks like the end of its body:
//!
//! - If the request has a `Content-Length`, a body of another length is refused. An outer middleware that changes the
//!   length must remove the header.
//! - Otherwise, if the body does not report its end (`is_end_stream`), the layer yields once before the claim. Hyper then
//!   asks whether the stream was reset, and drops the request if it was. This works for every type of body, but not in a
//!   task that an outer middleware has spawned.
//!
//! # Order of layers
//!
//! An outer layer sees every response, replays and refusals included. These layers belong outside this one:
//!
//! - Authentication, decompression of requests, compression of responses, and layers that add headers to all responses.
//! - **CORS.** A script in a browser can send a key only if the preflight allows the header, and can read only exposed
//!   headers. With `CorsLayer` of tower-http: `.allow_headers([AUTHORIZATION, CONTENT_TYPE, IDEMPOTENCY_KEY])` and
//!   `.expose_headers([IDEMPOTENT_REPLAYED, IDEMPOTENT_DERIVED, IDEMPOTENCY_TTL, IDEMPOTENT_STATUS, RETRY_AFTER])`.
//! - **Request timeouts.** The client gets its timeout response, for example 408, while the handler runs to its end. A
//!   retry gets 409 until then, and the stored response afterwards. Inside this layer, a timeout would cancel the
//!   handler midway, and each retry would run it again.
//! - **Catching panics**, if a retry should wait for the lease as after any crash. Inside this layer, a caught panic is a
//!   response like any other: a 500 releases the key immediately, or interrupts it under `refuse`.
//!
//! Layers that only the handler needs belong inside:
//!
//! - **Transactions.** A middleware that commits a transaction when the response comes must be inside. Outside, the
//!   response is stored before the commit. If the commit fails, the client gets an error, and its retry gets the stored
//!   success of work that was undone.
//! - **Concurrency limits.** A request waits for a place after its key is claimed, so bodies that arrive slowly hold no
//!   place. This layer is ready when its inner service is, because a replay is not recognized before the request is read.
//!   If a limit wraps the handler in a `ServiceBuilder`, replays therefore wait for a free place too. In a `Router` of
//!   axum, each `.layer(...)` is always ready, and its inner services wait when they are called: there replays do not
//!   wait.
//! - **Load shedding.** A request that was shed did not run. Its key is released, but under `refuse` only for the errors
//!   that [`not_run`](LayerBuilder::not_run) knows, and for responses that the policy calls
//!   [`Transient`](crate::advanced::Finality::Transient).
//!
//! A request that passes one layer twice, in a part of a router and in the whole, is guarded once. Two layers with the
//! same operation and other settings refuse it as `misconfigured`.
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

/// Does the same as `TimeoutLayer` of tower-http.
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
    .layer(from_fn(within_ten_seconds)); // a later line is an outer layer
# Ok(())
# }
```
"##
)]
//!
//! # Load
//!
//! Handlers outlive their clients, and request bodies are in memory before their keys are claimed. A layer therefore
//! limits three things:
//!
//! - the [number of running requests](LayerBuilder::max_running)
//! - the [bytes of their bodies](LayerBuilder::max_buffered_bytes)
//! - the [time for a body to arrive](LayerBuilder::body_timeout)
//!
//! Each principal gets a [share](LayerBuilder::principal_share) of the first two. A body that is still arriving does not
//! count as a running request, and only the bytes that have arrived count. By default, a layer holds at most 256 MiB of
//! request bodies, of which at most 64 MiB belong to one principal.
//!
//! # gRPC
//!
//! The layer refuses gRPC and gRPC-Web calls that it would guard: requests with a `Content-Type` of `application/grpc`.
//! The outcome of a gRPC call is in its trailers, and its HTTP status is always 200. A gRPC client shows only the status
//! of an HTTP error, so the refusal has gRPC's own form: HTTP 200, `grpc-status: 12` (`UNIMPLEMENTED`, which clients do
//! not retry) and a `grpc-message` with the remedy. Route gRPC past the layer. In the service's method, call an
//! `#[idempotent]` function with the key from the call's metadata.
//!
//! # Streaming responses
//!
//! A final response is held back until it is complete, so server-sent events would arrive too late or never. Other
//! responses are streamed. To stream a response, use a policy that does not store it. A retry then runs the handler
//! again:
#![cfg_attr(
    all(feature = "axum", feature = "memory"),
    doc = r##"
```
# use std::time::Duration;
# use idem_runtime::http::{IdempotencyLayer, unscoped};
use axum::http::header::CONTENT_TYPE;
use idem_runtime::advanced::Finality;
use idem_runtime::http::finality;
# use idem_runtime::{Idem, MemoryStore};
# let idem = Idem::new(MemoryStore::new());
# let ttl = Duration::from_secs(3600);

let layer = IdempotencyLayer::builder(&idem, "chats", ttl, unscoped())
    .finality(|response| match response.headers.get(CONTENT_TYPE) {
        Some(kind) if kind.as_bytes().starts_with(b"text/event-stream") => Finality::Transient,
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
//! Every refusal is a [`Problem`] of some [`ProblemKind`]. With feature `axum`, an [`Error`](crate::Error) is a response
//! too, and `documented_at` sets the URL of its policy page.
//!
//! A service whose clients expect another error format sets a function from the [`Problem`] to the response:
//! [`LayerBuilder::problem_response`], and for handlers that use the extractor the middleware `problem_response`. Clients
//! that were generated for one format may take any other for a success:
#![cfg_attr(
    all(feature = "axum", feature = "memory"),
    doc = concat!(
        // Hides the first line of the file, which describes the file.
        "```\n# //",
        include_str!("http/stripe_errors.rs"),
        r##"
# use axum::Router;
# use axum::body::Body;
# use axum::middleware::map_response;
# use axum::routing::post;
# use idem_runtime::http::{IdempotencyKey, IdempotencyLayer, Unscoped, problem_response, unscoped};
# use idem_runtime::{Idem, MemoryStore};
# async fn handler(_: IdempotencyKey<Unscoped>) {}
#
# fn main() -> Result<(), Box<dyn std::error::Error>> {
# let idem = Idem::new(MemoryStore::new());
# let ttl = std::time::Duration::from_secs(3600);
let layer = IdempotencyLayer::builder(&idem, "orders", ttl, unscoped())
    .problem_response(stripe_error)
    .build()?;
let app: Router = Router::new()
    .route("/orders", post(async || "made").layer(layer))
    .route("/refunds", post(handler).layer(map_response(problem_response(stripe_error))));
# use axum::http::{Request, StatusCode};
# use tower_service::Service as _;
# for path in ["/orders", "/refunds"] {
#     let mut app = app.clone();
#     let refused = async move { app.call(Request::post(path).body(Body::empty()).unwrap()).await.unwrap() };
#     let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
#     let refused = runtime.block_on(refused);
#     assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
#     assert_eq!(refused.headers()["content-type"], "application/json");
#     assert_eq!(refused.headers()["stripe-should-retry"], "false");
# }
# Ok(())
# }
```
"##
    )
)]

mod admission;
mod body;
mod config;
mod deadline;
mod derived;
mod drain;
#[cfg(feature = "axum")]
mod extract;
mod finality;
mod fingerprint;
mod future;
mod grpc;
mod guarded;
#[cfg(feature = "axum")]
mod handlers;
mod header;
mod ignored;
mod layer;
mod marks;
mod outcome_route;
mod policy_json;
mod policy_page;
mod principal;
mod problem;
mod refusal;
mod retention;
mod service;
mod stored;
mod syntax;

pub use self::body::Body;
pub use self::deadline::Deadline;
pub use self::derived::{StoredAs, StoredReply};
pub use self::drain::Drain;
#[cfg(feature = "axum")]
pub use self::extract::{IdempotencyKey, KeyRejection, Lenient, Strict, Syntax};
pub use self::finality::finality;
pub use self::future::ResponseFuture;
#[cfg(feature = "axum")]
pub use self::handlers::{detached, documented_at, mark_replays, problem_response};
pub use self::header::{IDEMPOTENCY_KEY, InvalidKeyHeader};
pub use self::layer::{IdempotencyLayer, InvalidLayer, LayerBuilder};
pub use self::marks::{
    IDEMPOTENCY_TTL, IDEMPOTENT_DERIVED, IDEMPOTENT_REPLAYED, IDEMPOTENT_STATUS,
};
pub use self::outcome_route::OutcomeRoute;
pub use self::policy_json::PolicyJson;
pub use self::policy_page::PolicyPage;
pub use self::principal::{Principal, Scoping, Unscoped, scoped_by, scoped_by_extension, unscoped};
pub use self::problem::{Problem, ProblemKind};
pub use self::service::Idempotency;
pub use self::syntax::KeySyntax;
