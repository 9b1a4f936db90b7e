//! Idempotent HTTP on an axum server behind a real socket.

mod bodies;
mod client;
mod curl;
mod cut;
mod deadlines;
mod derived;
mod disconnects;
mod extract;
pub(crate) mod frames;
mod handlers;
mod hostile;
mod layer;
mod order;
mod outcome;
pub(crate) mod proxies;
mod ready;
mod refusals;
mod retention;
mod scope;
mod settings;
mod statuses;
mod twice;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use http_body_util::BodyExt as _;
use idem_runtime::conformance::faults::FaultStore;
use idem_runtime::http::{
    IdempotencyLayer, LayerBuilder, Principal, scoped_by_extension, unscoped,
};
use idem_runtime::{Idem, MemoryStore, ToScope};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tower_service::Service as _;

use self::client::{Answer, Client, post_to};

const TTL: Duration = Duration::from_secs(24 * 3600);

type Store = FaultStore<MemoryStore>;

fn idem() -> Idem<Store> {
    Idem::new(FaultStore::new(MemoryStore::new()))
}

/// Builder of a layer without principals.
fn builder(idem: &Idem<Store>) -> LayerBuilder {
    IdempotencyLayer::builder(idem, "test.http", TTL, unscoped())
}

/// Server that runs until it is dropped.
#[derive(Debug)]
struct Server {
    client: Client,
    task: JoinHandle<()>,
}

impl Server {
    async fn start(router: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client(listener.local_addr().unwrap());
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { client, task }
    }

    async fn send(&self, request: client::Request) -> Answer {
        self.client.send(request).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Counts the runs of a handler.
#[derive(Debug, Clone, Default)]
struct Effects(Arc<AtomicU32>);

impl Effects {
    fn happen(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

/// Route that makes numbered charges, and responds with the number and the request's body.
fn charges(effects: &Effects) -> Router {
    let effects = effects.clone();
    let handler = move |body: Bytes| {
        let number = effects.happen();
        async move {
            let headers = [
                ("content-type", "text/plain; charset=utf-8".to_owned()),
                ("location", format!("/charges/{number}")),
                ("etag", format!("\"{number}\"")),
                ("set-cookie", format!("session={number}")),
                ("x-ratelimit-remaining", "41".to_owned()),
                ("x-own", "mine".to_owned()),
            ];
            let text = format!("charge {number}: {}", String::from_utf8_lossy(&body));
            (StatusCode::CREATED, headers, text)
        }
    };
    Router::new()
        .route(
            "/charges",
            post(handler.clone())
                .patch(handler.clone())
                .put(handler.clone()),
        )
        .route("/refunds", post(handler))
}

/// Server of charges behind a layer, with a separate store for each test.
async fn server(effects: &Effects, layer: impl FnOnce(LayerBuilder) -> LayerBuilder) -> Server {
    let layer = layer(builder(&idem())).build().unwrap();
    Server::start(charges(effects).layer(layer)).await
}

/// Sends a charge without a socket, for tests with paused time. Returns the status and the body.
async fn call(router: &Router, key: &str, body: &str) -> (u16, String) {
    let request = Request::post("/charges")
        .header("idempotency-key", key)
        .body(Body::from(body.to_owned()));
    // A router is always ready.
    let response = router.clone().call(request.unwrap()).await.unwrap();
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.into()).unwrap())
}

/// Authenticated user.
#[derive(Debug, Clone)]
struct User(String);

impl Principal for User {
    fn scope(&self) -> impl ToScope {
        self.0.as_str()
    }
}

/// Authentication of the service: two users, each with a secret token. A wrong token is refused. A request without a token
/// has no principal.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let user = match request
        .headers()
        .get("authorization")
        .map(HeaderValue::as_bytes)
    {
        Some(b"Bearer token-of-ann") => Some("ann"),
        Some(b"Bearer token-of-bob") => Some("bob"),
        Some(_) => return StatusCode::UNAUTHORIZED.into_response(),
        None => None,
    };
    if let Some(user) = user {
        request.extensions_mut().insert(User(user.to_owned()));
    }
    next.run(request).await
}

/// Server of charges for authenticated users.
async fn server_of_users(effects: &Effects) -> Server {
    let layer = IdempotencyLayer::builder(&idem(), "test.http", TTL, scoped_by_extension::<User>());
    let router = charges(effects).layer(layer.build().unwrap());
    Server::start(router.layer(from_fn(authenticate))).await
}
