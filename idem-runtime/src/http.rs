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
//! 2. Its body is read up to [a limit](LayerBuilder::max_request_bytes), and with the method, path (behind a nested
//!    router the client's own with feature `axum` alone), query and
//!    `Content-Type` and `Content-Encoding` it becomes the fingerprint. JSON counts by what it says, anything else by its
//!    bytes; so a `multipart/form-data` body must be repeated with the same boundary, and a compressed one as the same
//!    bytes, unless a layer in front of this one has decompressed it.
//! 3. The key is claimed. A stored response is given as it was, with [`Idempotent-Replayed`](IDEMPOTENT_REPLAYED).
//! 4. The handler runs in a task of its own, with the [`Attempt`](crate::Attempt) in the request's extensions: from
//!    here on a client that goes away stops nothing, and [`Drain`] waits for it. Task-locals of the server are not there.
//! 5. A [final](finality) response is read up to [a limit](LayerBuilder::max_response_bytes) and stored: its status, its
//!    body and [some headers](LayerBuilder::store_header). One that is too long, or breaks off, is given to its caller
//!    alone, and its key is [`Unrecorded`](crate::Error::Unrecorded). Trailers are not stored: the layer is not for gRPC.
//!    Nor is it for responses that are read while they are made, as of server-sent events: they are held back until then.
//!
//! After a crash, the handler's panic included, the next request runs the handler again once the lease is over, unless
//! the layer was told to [`refuse`](LayerBuilder::refuse). Put the layer behind what compresses responses or adds headers
//! to all of them, such as CORS, which replays need as well, and in front of what limits the time of handlers.
//!
//! # Errors on the wire
//!
//! [`Problem`] is how every refusal looks, and [`ProblemKind`] which there are. With feature `axum` an
//! [`Error`](crate::Error) is a response by itself, and `documented_at` says where its policy page is.

mod body;
mod drain;
#[cfg(feature = "axum")]
mod extract;
mod finality;
mod future;
mod grpc;
mod header;
mod layer;
mod page;
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
pub use self::page::PolicyPage;
pub use self::principal::{Principal, Scoping, Unscoped, scoped_by, scoped_by_extension, unscoped};
pub use self::problem::{Problem, ProblemKind};
pub use self::service::Idempotency;
