//! Middleware for routes whose handlers use the extractor.

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::IntoResponse;
use futures_util::poll;
use idem_runtime::advanced::{Provenance, with_provenance};
use idem_runtime::http::{IdempotencyKey, Unscoped, detached, mark_replays};
use idem_runtime::{Error, idempotent};
use tokio::sync::Notify;
use tokio::task::yield_now;

use super::*;

#[derive(Clone)]
struct Shop {
    idem: Idem<Store>,
    effects: Effects,
    go: Arc<Notify>,
}

impl Shop {
    fn new() -> Self {
        Self {
            idem: idem(),
            effects: Effects::default(),
            go: Arc::default(),
        }
    }

    #[idempotent(key = key, ttl = "1h", name = "place", store = self.idem, replay_err = Failure::Declined)]
    async fn place(&self, key: &IdempotencyKey<Unscoped>, cents: u64) -> Result<u64, Failure> {
        self.effects.happen();
        (cents > 0).then_some(cents).ok_or(Failure::Declined)
    }

    #[idempotent(key = key, ttl = "1h", name = "wait", store = self.idem, detached)]
    async fn wait_apart(self, key: IdempotencyKey<Unscoped>) -> Result<u32, Error> {
        self.go.notified().await;
        Ok(self.effects.happen())
    }

    #[idempotent(key = key, ttl = "1h", name = "wait", store = self.idem)]
    async fn wait_here(&self, key: &IdempotencyKey<Unscoped>) -> Result<u32, Error> {
        self.go.notified().await;
        Ok(self.effects.happen())
    }

    /// Sends a request, and drops it while its handler waits.
    async fn depart(&self, router: &Router) {
        let request = Request::post("/charges").header("idempotency-key", "k");
        let request = request.body(Body::empty()).unwrap();
        let mut response = Box::pin(router.clone().call(request));
        for _ in 0..10 {
            assert!(poll!(response.as_mut()).is_pending(), "its handler waits");
            yield_now().await;
        }
    }
}

#[derive(Debug, thiserror::Error, serde::Serialize, serde::Deserialize)]
enum Failure {
    #[error("declined")]
    Declined,
    #[error(transparent)]
    #[serde(skip)]
    Idempotency(#[from] Error),
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        match self {
            Self::Declined => StatusCode::PAYMENT_REQUIRED.into_response(),
            Self::Idempotency(error) => error.into_response(),
        }
    }
}

async fn place(
    State(shop): State<Shop>,
    key: IdempotencyKey<Unscoped>,
    Json(cents): Json<u64>,
) -> Result<Json<u64>, Failure> {
    Ok(Json(shop.place(&key, cents).await?))
}

/// Sets the header itself.
async fn placed(
    State(shop): State<Shop>,
    key: IdempotencyKey<Unscoped>,
    Json(cents): Json<u64>,
) -> (Option<Provenance>, Result<Json<u64>, Failure>) {
    let (placed, provenance) = with_provenance(shop.place(&key, cents)).await;
    (provenance, placed.map(Json))
}

#[tokio::test]
async fn a_replayed_result_is_marked_as_by_the_layer() {
    let shop = Shop::new();
    let marked = Router::new()
        .route("/marked", post(place))
        .layer(from_fn(mark_replays));
    let in_a_task = Router::new()
        .route("/task", post(place))
        .layer(from_fn(detached(&shop.idem)))
        .layer(from_fn(mark_replays));
    let router = Router::new()
        .route("/plain", post(place))
        .route("/by_hand", post(placed))
        .merge(marked)
        .merge(in_a_task)
        .with_state(shop.clone());
    let server = Server::start(router).await;
    for (path, is_marked) in [
        ("/plain", false),
        ("/by_hand", true),
        ("/marked", true),
        ("/task", true),
    ] {
        // A stored result, and a stored error.
        for (cents, status) in [("5", 200), ("0", 402)] {
            let request = post_to(path).key(&format!("{path}{cents}")).json(cents);
            for attempt in 0..2 {
                let answer = server.send(request.clone()).await;
                assert_eq!(answer.status, status, "{path}");
                assert_eq!(
                    answer.is_replayed(),
                    is_marked && attempt > 0,
                    "{path} {cents}"
                );
            }
        }
        let reused = post_to(path).key(&format!("{path}5")).json("6");
        let refused = server.send(reused).await;
        assert!(!refused.is_replayed());
        refused.problem(422, "key-reused");
    }
    assert_eq!(shop.effects.count(), 8);
}

#[tokio::test(start_paused = true)]
async fn a_detached_function_runs_on_after_its_client_left() {
    async fn handler(
        State(shop): State<Shop>,
        key: IdempotencyKey<Unscoped>,
    ) -> Result<String, Error> {
        Ok(shop.wait_apart(key).await?.to_string())
    }

    let shop = Shop::new();
    let router = Router::new()
        .route("/charges", post(handler))
        .with_state(shop.clone());
    runs_on(&shop, &router).await;
}

#[tokio::test(start_paused = true)]
async fn a_detached_handler_runs_on_after_its_client_left() {
    async fn handler(
        State(shop): State<Shop>,
        key: IdempotencyKey<Unscoped>,
    ) -> Result<String, Error> {
        Ok(shop.wait_here(&key).await?.to_string())
    }

    let shop = Shop::new();
    let router = Router::new()
        .route("/charges", post(handler))
        .layer(from_fn(detached(&shop.idem)))
        .with_state(shop.clone());
    runs_on(&shop, &router).await;
}

/// Without either, a client that leaves is a crash.
#[tokio::test(start_paused = true)]
async fn any_other_handler_ends_with_its_client() {
    async fn handler(
        State(shop): State<Shop>,
        key: IdempotencyKey<Unscoped>,
    ) -> Result<String, Error> {
        Ok(shop.wait_here(&key).await?.to_string())
    }

    let shop = Shop::new();
    let router = Router::new()
        .route("/charges", post(handler))
        .with_state(shop.clone());
    shop.depart(&router).await;
    assert_eq!(shop.idem.detached_tasks(), 0);
    shop.go.notify_waiters();
    shop.idem.drain().await;
    assert_eq!(call(&router, "k", "").await.0, 409);
    assert_eq!(shop.effects.count(), 0);
}

async fn runs_on(shop: &Shop, router: &Router) {
    shop.depart(router).await;
    assert_eq!(shop.idem.detached_tasks(), 1);
    assert_eq!(call(router, "k", "").await.0, 409);
    shop.go.notify_waiters();
    shop.idem.drain().await;
    assert_eq!(call(router, "k", "").await, (200, "1".to_owned()));
    assert_eq!(shop.effects.count(), 1);
}

/// The handle waits for the handlers behind its layers, too.
#[tokio::test(start_paused = true)]
async fn the_handle_waits_for_the_handlers_of_layers() {
    let shop = Shop::new();
    let (effects, go) = (shop.effects.clone(), Arc::clone(&shop.go));
    let handler = move || async move {
        go.notified().await;
        effects.happen().to_string()
    };
    let layer = builder(&shop.idem).build().unwrap();
    let drain = layer.drain();
    let router = Router::new().route("/charges", post(handler)).layer(layer);
    shop.depart(&router).await;
    assert_eq!((shop.idem.detached_tasks(), drain.running()), (1, 1));
    shop.go.notify_waiters();
    shop.idem.drain().await;
    assert_eq!((shop.effects.count(), drain.running()), (1, 0));
}
