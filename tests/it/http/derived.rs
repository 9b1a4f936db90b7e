//! Responses that hold a secret: a value is stored in their place, and the response to a retry is derived from it.

use std::sync::atomic::AtomicBool;

use axum::extract::Path;
use idem_runtime::http::{StoredAs, StoredReply};
use idem_runtime::key::{Identity, Operation, RecordId};
use idem_runtime::{Key, Scope};
use idem_tests::on_stores;
use idem_tests::places::shared;

use super::client::Request as Asked;
use super::*;

on_stores! { [] shared:
    a_secret_is_not_stored_and_a_retry_is_derived,
    a_function_that_fails_runs_nothing_again,
}

const SECRET: &str = "sk_live_51HxQ2eRtY8zKpLmN";
const URL: &str = "/outcome";

/// Id of an account, which its handler adds to the response.
#[derive(Clone)]
struct AccountId(u32);

/// Service that makes accounts, and shows the secret of an account once.
struct Accounts {
    server: Server,
    effects: Effects,
    /// The database of the service is reachable.
    is_up: Arc<AtomicBool>,
    store: Arc<dyn idem_runtime::Store>,
}

fn stored(response: &http::response::Parts) -> StoredAs {
    match response.extensions.get::<AccountId>() {
        Some(AccountId(id)) => StoredAs::Value(id.to_string()),
        None => StoredAs::Response,
    }
}

impl Accounts {
    async fn open(store: Arc<dyn idem_runtime::Store>) -> Self {
        let idem = Idem::new(Arc::clone(&store)).erased();
        let (effects, is_up) = (Effects::default(), Arc::new(AtomicBool::new(true)));
        let database = Arc::clone(&is_up);
        let derive = move |reply: StoredReply| {
            let database = Arc::clone(&database);
            async move {
                if !database.load(Ordering::SeqCst) {
                    return Err("the database is down");
                }
                let shown = format!("account {} of {}", reply.value, reply.request.method);
                let mut response = Response::new(Bytes::from(shown));
                *response.status_mut() = reply.status;
                Ok(response)
            }
        };
        let layer = IdempotencyLayer::builder(&idem, "test.accounts", TTL, unscoped())
            .derive_replays(stored, derive)
            .outcome_url(URL)
            .build()
            .unwrap();
        let happening = effects.clone();
        let create = move |Path(name): Path<String>| {
            let number = happening.happen();
            async move {
                if name == "taken" {
                    return (StatusCode::CONFLICT, "this name is taken").into_response();
                }
                let headers = [("location", format!("/accounts/{SECRET}"))];
                let mut response =
                    (StatusCode::CREATED, headers, format!("secret {SECRET}")).into_response();
                response.extensions_mut().insert(AccountId(number));
                response
            }
        };
        let outcome = layer.outcome_route();
        let router = Router::new()
            .route("/accounts/{name}", post(create))
            .layer(layer)
            .route_service(URL, outcome);
        Self {
            server: Server::start(router).await,
            effects,
            is_up,
            store,
        }
    }

    async fn create(&self, name: &str, key: &str) -> Answer {
        let request = post_to(&format!("/accounts/{name}")).key(key);
        self.server.send(request).await
    }

    async fn ask(&self, key: &str) -> Answer {
        self.server.send(Asked::new("GET", URL).key(key)).await
    }

    /// Everything that the store has about the request with this key.
    async fn record(&self, key: &str) -> idem_runtime::record::Record {
        let id = RecordId::of(&Identity {
            scope: Scope::none(),
            operation: Operation::new("test.accounts").unwrap(),
            key: Key::new(key).unwrap(),
        });
        self.store.get(&id).await.unwrap().unwrap()
    }
}

async fn a_secret_is_not_stored_and_a_retry_is_derived(store: Arc<dyn idem_runtime::Store>) {
    let accounts = Accounts::open(store).await;
    let first = accounts.create("ann", "k").await;
    assert_eq!(
        (first.status, first.text()),
        (201, &*format!("secret {SECRET}"))
    );
    assert!(!first.is_replayed() && first.header("idempotent-derived").is_none());
    let ttl: u64 = first.header("idempotency-ttl").unwrap().parse().unwrap();
    assert!(ttl > TTL.as_secs() - 600);

    let record = accounts.record("k").await;
    let payload = record.payload.clone().unwrap();
    assert_eq!(
        (&*payload.codec, &*payload.bytes),
        ("http-value/1", &b"201\r\n1"[..])
    );
    assert!(!format!("{record:?}").contains(SECRET));

    for _ in 0..2 {
        let again = accounts.create("ann", "k").await;
        assert_eq!((again.status, again.text()), (201, "account 1 of POST"));
        assert!(again.is_replayed());
        assert_eq!(again.header("idempotent-derived"), Some("true"));
        assert_eq!(again.header("location"), None);
        assert!(again.header("idempotency-ttl").is_some());
    }
    let asked = accounts.ask("k").await;
    assert_eq!((asked.status, asked.text()), (200, "account 1 of GET"));
    assert_eq!(asked.header("idempotent-status"), Some("201"));
    assert_eq!(asked.header("idempotent-derived"), Some("true"));

    // A response without the value is stored whole.
    for is_replay in [false, true] {
        let taken = accounts.create("taken", "other").await;
        assert_eq!((taken.status, taken.text()), (409, "this name is taken"));
        assert_eq!(taken.is_replayed(), is_replay);
        assert_eq!(taken.header("idempotent-derived"), None);
    }
    let reused = accounts.create("bob", "k").await;
    reused.problem(422, "key-reused");
    assert_eq!(accounts.effects.count(), 2);
}

async fn a_function_that_fails_runs_nothing_again(store: Arc<dyn idem_runtime::Store>) {
    let accounts = Accounts::open(store).await;
    assert_eq!(accounts.create("ann", "k").await.status, 201);
    accounts.is_up.store(false, Ordering::SeqCst);
    for answer in [accounts.create("ann", "k").await, accounts.ask("k").await] {
        answer.problem(500, "undecodable");
        assert_eq!(answer.header("retry-after"), Some("1"));
        let problem: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(problem["retryable"], true);
        assert!(!answer.text().contains("database"), "{}", answer.text());
    }
    accounts.is_up.store(true, Ordering::SeqCst);
    let again = accounts.create("ann", "k").await;
    assert_eq!(again.text(), "account 1 of POST");
    assert_eq!(accounts.effects.count(), 1);
}

/// A deploy that removes the function.
#[tokio::test]
async fn a_layer_without_the_function_runs_nothing_again() {
    let store: Arc<dyn idem_runtime::Store> = Arc::new(MemoryStore::new());
    let accounts = Accounts::open(Arc::clone(&store)).await;
    assert_eq!(accounts.create("ann", "k").await.status, 201);
    let idem = Idem::new(store).erased();
    let layer = IdempotencyLayer::builder(&idem, "test.accounts", TTL, unscoped())
        .build()
        .unwrap();
    let router = Router::new().route("/accounts/{name}", post(async || "made"));
    let server = Server::start(router.layer(layer)).await;
    let answer = server.send(post_to("/accounts/ann").key("k")).await;
    answer.problem(500, "undecodable");
    assert_eq!(answer.header("retry-after"), None);
}

/// The body of a response whose value is stored is not held back, and may be longer than the limit.
#[tokio::test]
async fn a_body_that_is_not_stored_has_no_limit() {
    let idem = idem();
    let effects = Effects::default();
    let layer = builder(&idem)
        .max_response_bytes(10)
        .derive_replays(stored, async |reply: StoredReply| {
            Ok::<_, std::convert::Infallible>(Response::new(Bytes::from(reply.value)))
        })
        .build()
        .unwrap();
    let seen = effects.clone();
    let handler = move || {
        let number = seen.happen();
        async move {
            let mut response = "x".repeat(1_000).into_response();
            response.extensions_mut().insert(AccountId(number));
            response
        }
    };
    let server = Server::start(Router::new().route("/", post(handler)).layer(layer)).await;
    assert_eq!(server.send(post_to("/").key("k")).await.body.len(), 1_000);
    assert_eq!(server.send(post_to("/").key("k")).await.text(), "1");
    assert_eq!(effects.count(), 1);
}
