//! The server: a payment route that knows nothing about keys, behind the layer, and a ledger of its effects.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use http_body_util::BodyExt as _;
use idem_runtime::http::{Drain, IDEMPOTENT_REPLAYED, IdempotencyLayer, scoped_by};
use idem_runtime::{Idem, Store};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::answers::Answers;
use crate::{OPERATIONS, Work};

/// The path that Stripe's SDK posts payments to.
pub(crate) const PATH: &str = "/v1/payment_intents";
/// The longest time that a payment takes.
const PAYMENT_MS: u64 = 10;
const AN_HOUR: Duration = Duration::from_secs(3600);

/// A server that runs until it is closed.
#[derive(Debug)]
pub(crate) struct Bank {
    address: SocketAddr,
    ledger: Arc<Mutex<Ledger>>,
    drain: Drain,
    serving: JoinHandle<()>,
}

/// Effects and responses of a server.
#[derive(Debug, Default, Clone)]
pub(crate) struct Ledger {
    /// Receipts of an operation: one for each run of its handler.
    effects: BTreeMap<u64, Vec<String>>,
    /// Successful bodies of an operation, including those that were lost in the network.
    bodies: BTreeMap<u64, HashSet<Bytes>>,
    /// Number of responses with each status, with the kind of the problem if there is one.
    statuses: BTreeMap<String, u32>,
    replays: u32,
}

impl Bank {
    pub(crate) async fn open<S: Store>(idem: &Idem<S>) -> Self {
        let ledger = Arc::<Mutex<Ledger>>::default();
        let customer = scoped_by(|parts| {
            let claim_id = parts.headers.get("authorization")?.to_str().ok()?;
            Some(claim_id.strip_prefix("Bearer ")?.to_owned())
        });
        let layer = IdempotencyLayer::builder(idem, "payments.create", AN_HOUR, customer)
            .build()
            .unwrap();
        let drain = layer.drain();
        let router = Router::new()
            .route(PATH, post(pay))
            .layer(layer)
            .layer(from_fn_with_state(Arc::clone(&ledger), observe))
            .with_state(Arc::clone(&ledger));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self {
            address: listener.local_addr().unwrap(),
            ledger,
            drain,
            serving: tokio::spawn(async move { axum::serve(listener, router).await.unwrap() }),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until all handlers have ended, and returns the ledger.
    pub(crate) async fn close(self) -> Ledger {
        self.drain.finished().await;
        self.serving.abort();
        self.ledger.lock().unwrap().clone()
    }
}

/// Makes a payment with a unique receipt, in the form that Stripe's SDK expects.
async fn pay(
    State(ledger): State<Arc<Mutex<Ledger>>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let Some(operation) = amount(&headers, &body) else {
        return StatusCode::UNPROCESSABLE_ENTITY.into_response();
    };
    let receipt = format!("pi_{:032x}", rand::random::<u128>());
    ledger
        .lock()
        .unwrap()
        .effects
        .entry(operation)
        .or_default()
        .push(receipt.clone());
    // Gives retries time to arrive while the payment is in flight.
    tokio::time::sleep(Duration::from_millis(rand::random_range(0..=PAYMENT_MS))).await;
    let payment = json!({
        "id": receipt,
        "object": "payment_intent",
        "amount": operation,
        "currency": "eur",
        "status": "succeeded",
    });
    (StatusCode::CREATED, Json(payment)).into_response()
}

/// The amount is the number of the operation: `amount` in a form, as Stripe's SDK sends it, or in JSON.
fn amount(headers: &HeaderMap, body: &[u8]) -> Option<u64> {
    if headers.get("content-type")?.as_bytes() == b"application/json" {
        return serde_json::from_slice::<Value>(body).ok()?["amount"].as_u64();
    }
    url::form_urlencoded::parse(body)
        .find(|(name, _)| name == "amount")?
        .1
        .parse()
        .ok()
}

/// Records the responses of the layer.
async fn observe(
    State(ledger): State<Arc<Mutex<Ledger>>>,
    request: Request,
    next: Next,
) -> Response {
    let (parts, body) = next.run(request).await.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    {
        let mut ledger = ledger.lock().unwrap();
        *ledger
            .statuses
            .entry(status(parts.status, &body))
            .or_default() += 1;
        ledger.replays += u32::from(parts.headers.contains_key(IDEMPOTENT_REPLAYED));
        if parts.status.is_success() {
            let payment: Value = serde_json::from_slice(&body).unwrap();
            let operation = payment["amount"].as_u64().unwrap();
            let bodies = ledger.bodies.entry(operation).or_default();
            bodies.insert(body.clone());
        }
    }
    Response::from_parts(parts, body.into())
}

/// A status, such as `409 in-flight`: the type of a problem ends in its kind.
fn status(status: StatusCode, body: &[u8]) -> String {
    let problem: Option<Value> = serde_json::from_slice(body).ok();
    let kind = problem
        .as_ref()
        .and_then(|it| it["type"].as_str()?.split_once('#'));
    match kind {
        Some((_, kind)) => format!("{} {kind}", status.as_u16()),
        None => status.as_u16().to_string(),
    }
}

impl Ledger {
    /// Compares the server's effects with the client's answers. Returns every problem, one line for each operation.
    pub(crate) fn compare(&self, answers: &Answers) -> Vec<String> {
        (0..OPERATIONS)
            .filter_map(|operation| {
                let wrong = self.wrong_with(operation, answers)?;
                Some(format!("operation {operation}: {wrong}"))
            })
            .collect()
    }

    fn wrong_with(&self, operation: u64, answers: &Answers) -> Option<String> {
        let runs = self.effects.get(&operation).map_or(0, Vec::len);
        let receipts = match answers.of(operation) {
            Ok(receipts) => receipts,
            Err(error) => return Some(format!("no answer after {runs} runs: {error}")),
        };
        let sends = Work::sends(operation);
        if receipts.len() != sends {
            return Some(format!("{} answers to {sends} requests", receipts.len()));
        }
        if runs != 1 {
            return Some(format!("{runs} runs"));
        }
        let receipt = &self.effects[&operation][0];
        if receipts.iter().any(|it| it != receipt) {
            return Some(format!(
                "the receipt is {receipt}, but the answers are {receipts:?}"
            ));
        }
        let bodies = self.bodies.get(&operation).map_or(0, HashSet::len);
        (bodies != 1).then(|| format!("{bodies} different answers"))
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs: usize = self.effects.values().map(Vec::len).sum();
        let Self {
            effects,
            statuses,
            replays,
            ..
        } = self;
        write!(
            f,
            "{} operations run, {runs} runs, {replays} replays, statuses {statuses:?}",
            effects.len()
        )
    }
}
