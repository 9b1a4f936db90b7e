//! The HTTP layer, the extractor and the client, in front of one handle.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::from_fn;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use http_body_util::BodyExt as _;
use idem_runtime::client::{DirectoryJournal, IdempotencyMiddleware, Job, RetryPolicy};
use idem_runtime::http::{IdempotencyKey, IdempotencyLayer, Unscoped, detached, unscoped};
use idem_runtime::{Key, idempotent};
use reqwest_middleware::ClientWithMiddleware;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use tower_service::Service as _;

use crate::Handle;
use crate::trace::{Failure, Trace, Traces};

const TTL: Duration = Duration::from_secs(3600);

pub(crate) const LAYER: &str = "drops.layer";
pub(crate) const REFUSING_LAYER: &str = "drops.refusing_layer";
pub(crate) const EXTRACTOR: &str = "drops.extractor";

/// Routes on one handle. The body of each request is the key of its trace.
pub(crate) struct Web {
    router: Router,
    server: OnceCell<Server>,
    client: OnceCell<ClientWithMiddleware>,
}

/// A server that runs until it is dropped.
struct Server {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Clone)]
struct Shared {
    idem: Handle,
    traces: Arc<Traces>,
}

impl Web {
    pub(crate) fn new(idem: &Handle, traces: &Arc<Traces>) -> Self {
        let shared = Shared {
            idem: idem.clone(),
            traces: Arc::clone(traces),
        };
        let layer = |operation| IdempotencyLayer::builder(idem, operation, TTL, unscoped());
        let layers = "the layers are valid";
        let router = Router::new()
            .route("/layer", post(run))
            .layer(layer(LAYER).build().expect(layers))
            .merge(
                Router::new()
                    .route("/refusing_layer", post(run))
                    .layer(layer(REFUSING_LAYER).refuse().build().expect(layers)),
            )
            .route("/extractor", post(extract))
            .merge(
                Router::new()
                    .route("/detached_extractor", post(extract))
                    .layer(from_fn(detached(idem))),
            )
            .with_state(shared);
        Self {
            router,
            server: OnceCell::new(),
            client: OnceCell::new(),
        }
    }

    /// Sends a request directly through the router, without a network.
    pub(crate) async fn call(&self, path: &str, trace: &Trace) -> Result<String, Failure> {
        let request = Request::post(path).header("idempotency-key", &trace.key);
        let request = request.body(Body::from(trace.key.clone()));
        let request = request.expect("a well-formed request");
        let response = match self.router.clone().call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let status = response.status();
        let collected = response.into_body().collect().await;
        let bytes = collected.map_err(|it| Failure::NoResponse(it.to_string()))?;
        read(status.as_u16(), &bytes.to_bytes())
    }

    /// Starts the server and the client before the first call, so that no call starts them.
    pub(crate) async fn start(&self, journal: &Journal) -> Result<()> {
        let router = &self.router;
        let start = async || {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let address = listener.local_addr()?;
            let router = router.clone();
            let task = tokio::spawn(async move {
                let _ = axum::serve(listener, router).await;
            });
            anyhow::Ok(Server { address, task })
        };
        self.server.get_or_try_init(start).await?;
        let pause = Duration::from_millis(5);
        let policy = RetryPolicy::new().retries(3).backoff(pause, pause);
        let middleware = IdempotencyMiddleware::new()
            .policy(policy)
            .journal(Arc::clone(&journal.keys) as _, TTL);
        let client = async || {
            let client = middleware.client(reqwest::Client::builder())?;
            anyhow::Ok(client.build())
        };
        self.client.get_or_try_init(client).await?;
        Ok(())
    }

    /// Sends a request over a socket, with its own key or with a key of the journal.
    pub(crate) async fn send(&self, trace: &Trace, journaled: bool) -> Result<String, Failure> {
        let (Some(server), Some(client)) = (self.server.get(), self.client.get()) else {
            return Err(Failure::NoResponse("the server was not started".to_owned()));
        };
        let request = client
            .post(format!("http://{}/layer", server.address))
            .body(trace.key.clone());
        let request = match journaled {
            true => request.with_extension(Job::new(trace.key.as_str())),
            false => request
                .with_extension(Key::new(trace.key.as_str()).map_err(idem_runtime::Error::from)?),
        };
        let response = request.send().await;
        let response = response.map_err(|it| Failure::NoResponse(format!("{it:?}")))?;
        let status = response.status().as_u16();
        let bytes = response.bytes().await;
        let bytes = bytes.map_err(|it| Failure::NoResponse(it.to_string()))?;
        read(status, &bytes)
    }
}

/// Keys of the clients of a case.
pub(crate) struct Journal {
    keys: Arc<DirectoryJournal>,
    _directory: TempDir,
}

impl Journal {
    pub(crate) async fn open() -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let keys = DirectoryJournal::open(directory.path().join("keys")).await?;
        Ok(Self {
            keys: Arc::new(keys),
            _directory: directory,
        })
    }
}

fn read(status: u16, bytes: &[u8]) -> Result<String, Failure> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    match status {
        200..300 => Ok(text),
        _ => Err(Failure::Http { status, text }),
    }
}

/// Handler that knows nothing about keys.
async fn run(State(shared): State<Shared>, key: String) -> Result<String, StatusCode> {
    let trace = shared.traces.get(&key).ok_or(StatusCode::NOT_FOUND)?;
    Ok(trace.body().await)
}

async fn extract(
    State(shared): State<Shared>,
    key: IdempotencyKey<Unscoped>,
    trace: String,
) -> Response {
    let Some(trace) = shared.traces.get(&trace) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    match extracted(&shared.idem, &key, &trace).await {
        Ok(receipt) => receipt.into_response(),
        Err(error) => error.into_response(),
    }
}

#[idempotent(key = key, ttl = "1h", name = EXTRACTOR, store = idem, on_crash = refuse, skip(trace))]
async fn extracted(
    idem: &Handle,
    key: &IdempotencyKey<Unscoped>,
    trace: &Trace,
) -> Result<String, idem_runtime::Error> {
    Ok(trace.body().await)
}
