//! The middleware against servers that support keys, through the extractor and through the layer, over a network that
//! loses replies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use axum::{Json, Router};
use idem_runtime::client::{IdempotencyMiddleware, RetryPolicy};
use idem_runtime::http::{
    IDEMPOTENT_REPLAYED, IdempotencyKey, IdempotencyLayer, Principal, scoped_by,
};
use idem_runtime::{Error, Idem, Key, MemoryStore, ToScope, idempotent};
use idem_tests::proxy::Proxy;
use tokio::net::TcpListener;

use super::sent;

const REQUESTS: usize = 10_000;
const CALLERS: usize = 64;
const AN_HOUR: Duration = Duration::from_secs(3600);

/// Number of times that each charge was made, by its number.
struct Bank {
    idem: Idem<MemoryStore>,
    effects: Vec<AtomicU64>,
}

impl Bank {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            idem: Idem::new(MemoryStore::new()),
            effects: (0..REQUESTS).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    async fn make(&self, number: usize) -> String {
        let made = self.effects[number].fetch_add(1, Ordering::SeqCst) + 1;
        // Lets other requests run between the two.
        tokio::task::yield_now().await;
        receipt(made, number)
    }

    #[idempotent(key = key, ttl = "1h", name = "charges.create", store = self.idem)]
    async fn charge(&self, key: &Key, number: usize) -> Result<String, Error> {
        Ok(self.make(number).await)
    }
}

fn receipt(made: u64, number: usize) -> String {
    format!("receipt {made} for charge {number}")
}

/// Customer who sends the requests.
struct Customer(String);

impl Customer {
    fn of(parts: &Parts) -> Option<Self> {
        let claim_id = parts.headers.get("authorization")?.to_str().ok()?;
        Some(Self(claim_id.strip_prefix("Bearer token-of-")?.to_owned()))
    }
}

impl Principal for Customer {
    fn scope(&self) -> impl ToScope {
        self.0.as_str()
    }
}

impl<S: Sync> FromRequestParts<S> for Customer {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, StatusCode> {
        Self::of(parts).ok_or(StatusCode::UNAUTHORIZED)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_requests_to_an_extractor_over_a_network_that_loses_replies() {
    async fn charge(
        State(bank): State<Arc<Bank>>,
        key: IdempotencyKey<Customer>,
        Json(number): Json<usize>,
    ) -> Result<String, Error> {
        bank.charge(&key, number).await
    }

    let bank = Bank::new();
    let charges = Router::new().route("/charges", post(charge));
    let answers = charge_all(charges.with_state(Arc::clone(&bank))).await;

    assert_eq!(answers.len(), REQUESTS);
    for (number, answer) in answers.iter().enumerate() {
        assert_eq!(
            (answer.status, &answer.body),
            (StatusCode::OK, &receipt(1, number))
        );
    }
    assert_each_once(&bank);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_requests_to_a_layer_over_a_network_that_loses_replies() {
    /// Handler without any knowledge of keys.
    async fn charge(State(bank): State<Arc<Bank>>, Json(number): Json<usize>) -> impl IntoResponse {
        let location = [("location", format!("/charges/{number}"))];
        (StatusCode::CREATED, location, bank.make(number).await)
    }

    let bank = Bank::new();
    let scoping = scoped_by(|parts| Some(Customer::of(parts)?.0));
    let layer = IdempotencyLayer::builder(&bank.idem, "charges", AN_HOUR, scoping).build();
    let charges = Router::new()
        .route("/charges", post(charge))
        .layer(layer.unwrap());
    let answers = charge_all(charges.with_state(Arc::clone(&bank))).await;

    assert_eq!(answers.len(), REQUESTS);
    for (number, answer) in answers.iter().enumerate() {
        assert_eq!(
            (answer.status, &answer.body),
            (StatusCode::CREATED, &receipt(1, number))
        );
        assert_eq!(answer.headers["location"], format!("/charges/{number}"));
        // Only replies were lost, so every request that was sent again had already been executed.
        let replayed = answer.headers.get(IDEMPOTENT_REPLAYED);
        assert_eq!(replayed.is_some(), answer.tries > 1, "charge {number}");
    }
    assert_each_once(&bank);
}

/// The final answer to a caller.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
    tries: u32,
}

/// Sends a request for each charge to these routes. The network loses three in ten replies. Returns the answers by
/// number.
async fn charge_all(routes: Router) -> Vec<Answer> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap()).await.unwrap();
    let serving = tokio::spawn(async move { axum::serve(listener, routes).await });
    proxy.lose_replies(30);
    let policy = RetryPolicy::new()
        .retries(60)
        .backoff(Duration::from_millis(1), Duration::from_millis(20));
    let client = super::client(IdempotencyMiddleware::new().policy(policy));
    let url = format!("http://{}/charges", proxy.address());

    let next = Arc::new(AtomicU64::new(0));
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (client, url, next) = (client.clone(), url.clone(), Arc::clone(&next));
            tokio::spawn(async move {
                let mut answers = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::SeqCst) as usize;
                    if number >= REQUESTS {
                        return answers;
                    }
                    let request = client.post(&url).bearer_auth("token-of-ann");
                    let request = request.header("content-type", "application/json");
                    let response = request.body(number.to_string()).send().await.unwrap();
                    let answer = Answer {
                        status: response.status(),
                        headers: response.headers().clone(),
                        tries: sent(&response).tries(),
                        body: response.text().await.unwrap(),
                    };
                    answers.push((number, answer));
                }
            })
        })
        .collect();
    let mut answers = Vec::new();
    for caller in callers {
        answers.extend(caller.await.unwrap());
    }
    serving.abort();

    let lost = proxy.lost_replies();
    assert!(lost > REQUESTS as u64 * 3 / 10, "{lost} replies were lost");
    let tries: u64 = answers.iter().map(|(_, it)| u64::from(it.tries)).sum();
    assert!(
        tries >= REQUESTS as u64 + lost,
        "{tries} tries, {lost} lost"
    );
    answers.sort_by_key(|(number, _)| *number);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

fn assert_each_once(bank: &Bank) {
    let wrong = bank
        .effects
        .iter()
        .filter(|it| it.load(Ordering::SeqCst) != 1);
    assert_eq!(wrong.count(), 0, "each charge was made once");
}
