//! The extractor, in short handlers that call an annotated function.

use axum::Json;
use axum::extract::{FromRequestParts, State};
use axum::middleware::map_response;
use axum::routing::post;
use http::request::Parts;
use idem_runtime::http::{IdempotencyKey, Strict, Unscoped, documented_at};
use idem_runtime::{Error, Fingerprint, Scope, idempotent};
use serde::{Deserialize, Serialize};

use super::*;

#[derive(Clone)]
struct Shop {
    idem: Idem<Store>,
    effects: Effects,
}

#[derive(Fingerprint, Serialize, Deserialize)]
struct Order {
    cents: u64,
}

impl Shop {
    #[idempotent(key = key, ttl = "24h", name = "orders.place", store = self.idem)]
    async fn place(&self, key: &IdempotencyKey<User>, order: Order) -> Result<String, Error> {
        Ok(format!(
            "order {} of {} cents",
            self.effects.happen(),
            order.cents
        ))
    }
}

async fn place(
    State(shop): State<Shop>,
    key: IdempotencyKey<User>,
    Json(order): Json<Order>,
) -> Result<String, Error> {
    shop.place(&key, order).await
}

/// Extractor of the service: rejects requests that are not authenticated.
impl FromRequestParts<Shop> for User {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, _: &Shop) -> Result<Self, StatusCode> {
        parts
            .extensions
            .get()
            .cloned()
            .ok_or(StatusCode::UNAUTHORIZED)
    }
}

async fn shop() -> (Server, Shop) {
    let shop = Shop {
        idem: idem(),
        effects: Effects::default(),
    };
    let echo = |key: IdempotencyKey<Unscoped, Strict>| async move { key.as_str().to_owned() };
    let optional = |key: Option<IdempotencyKey<User>>| async move { format!("{key:?}") };
    let router = Router::new()
        .route("/orders", post(place))
        .route("/strict", post(echo))
        .route("/optional", post(optional))
        .with_state(shop.clone())
        .layer(from_fn(authenticate));
    (Server::start(router).await, shop)
}

fn order(token: &str, cents: u32) -> client::Request {
    post_to("/orders")
        .token(token)
        .json(&format!(r#"{{"cents": {cents}}}"#))
}

#[tokio::test]
async fn a_handler_of_one_line_is_idempotent() {
    let (server, shop) = shop().await;
    let first = server.send(order("token-of-ann", 5).key("k")).await;
    let again = server.send(order("token-of-ann", 5).key("\"k\"")).await;
    assert_eq!((first.status, first.text()), (200, "order 1 of 5 cents"));
    assert_eq!(again.text(), first.text());
    let reused = server.send(order("token-of-ann", 6).key("k")).await;
    reused.problem(422, "key-reused");
    assert_eq!(shop.effects.count(), 1);
}

#[tokio::test]
async fn a_key_belongs_to_its_principal() {
    let (server, shop) = shop().await;
    let ann = server.send(order("token-of-ann", 5).key("k")).await;
    let bob = server.send(order("token-of-bob", 5).key("k")).await;
    assert_eq!(
        (ann.text(), bob.text()),
        ("order 1 of 5 cents", "order 2 of 5 cents")
    );

    let anonymous = server
        .send(post_to("/orders").key("k").json(r#"{"cents": 5}"#))
        .await;
    assert_eq!(anonymous.status, 401);
    let forged = server.send(order("token-of-eve", 5).key("k")).await;
    assert_eq!((forged.status, forged.body.len()), (401, 0));
    assert_eq!(shop.effects.count(), 2);
}

/// A principal without a scope would share its keys with all others.
#[tokio::test]
async fn a_principal_without_a_scope_is_refused() {
    #[derive(Clone)]
    struct Member(Option<&'static str>);

    impl Principal for Member {
        fn scope(&self) -> impl ToScope {
            self.0.map_or(Scope::none(), |id| Scope::new(id).unwrap())
        }
    }

    impl<S: Sync> FromRequestParts<S> for Member {
        type Rejection = StatusCode;

        async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, StatusCode> {
            Ok(Self(parts.headers.get("x-ann").map(|_| "ann")))
        }
    }

    let effects = Effects::default();
    let seen = effects.clone();
    let handler = move |key: IdempotencyKey<Member>| async move {
        seen.happen();
        assert!(!key.scope().is_none());
    };
    let server = Server::start(Router::new().route("/", post(handler))).await;
    let anonymous = server.send(post_to("/").key("k")).await;
    anonymous.problem(403, "no-principal");
    let ann = server.send(post_to("/").key("k").header("x-ann", "")).await;
    assert_eq!((ann.status, effects.count()), (200, 1));
}

#[tokio::test]
async fn missing_repeated_and_malformed_keys_are_refused() {
    let (server, shop) = shop().await;
    let ann = || order("token-of-ann", 5);
    server.send(ann()).await.problem(400, "missing-key");
    server
        .send(ann().key("k").key("k"))
        .await
        .problem(400, "repeated-key");
    server
        .send(ann().key("a, b"))
        .await
        .problem(400, "malformed-key");
    server
        .send(ann().key(&"k".repeat(256)))
        .await
        .problem(400, "malformed-key");
    assert_eq!(shop.effects.count(), 0);
}

#[tokio::test]
async fn a_key_may_be_strict_unscoped_or_optional() {
    let (server, _) = shop().await;
    assert_eq!(
        server.send(post_to("/strict").key("\"k\"")).await.text(),
        "k"
    );
    server
        .send(post_to("/strict").key("k"))
        .await
        .problem(400, "unquoted-key");

    let optional = |token| post_to("/optional").token(token);
    assert_eq!(server.send(optional("token-of-ann")).await.text(), "None");
    let some = server.send(optional("token-of-ann").key("k")).await;
    assert_eq!(some.text(), "Some(Key(1 bytes))");
    server
        .send(optional("token-of-ann").key("\"k"))
        .await
        .problem(400, "malformed-key");
    assert_eq!(server.send(post_to("/optional").key("k")).await.status, 401);
}

/// Every problem links to the service's page, except a problem that already has a page.
#[tokio::test]
async fn problems_link_to_the_page_of_the_service() {
    let scoping = scoped_by_extension::<User>();
    let layer = IdempotencyLayer::builder(&idem(), "test.http", TTL, scoping);
    let layer = layer.policy_url("/of-the-layer").build().unwrap();
    let shop = Shop {
        idem: idem(),
        effects: Effects::default(),
    };
    let router = Router::new()
        .route("/layered", post(async || "made").layer(layer))
        .route("/orders", post(place))
        .with_state(shop)
        .layer(map_response(documented_at("/idempotency")))
        .layer(from_fn(authenticate));
    let server = Server::start(router).await;
    let ann = |cents| order("token-of-ann", cents);

    // Rejections of the extractor, errors that the handler returns, and responses that are not problems.
    let missing = server.send(ann(5)).await.problem(400, "missing-key");
    assert_eq!(missing["type"], "/idempotency#missing-key");
    let first = server.send(ann(5).key("k")).await;
    assert_eq!((first.status, first.text()), (200, "order 1 of 5 cents"));
    let reused = server.send(ann(6).key("k")).await;
    let reused = reused.problem(422, "key-reused");
    assert_eq!(reused["type"], "/idempotency#key-reused");

    let layered = server.send(post_to("/layered").token("token-of-ann")).await;
    let layered = layered.problem(400, "missing-key");
    assert_eq!(layered["type"], "/of-the-layer#missing-key");
}

/// Every error has a status and a problem. The problem's text does not contain the error's source.
#[tokio::test]
async fn every_error_is_a_problem() {
    use std::time::Duration;

    use idem_runtime::error::{
        DecodeError, FingerprintError, InvalidCall, InvalidKey, StoreError, StoreErrorKind,
    };

    let store = |kind| Error::Store(StoreError::new(kind, "secret").with_source("secret"));
    let cases: [(Error, u16, &str, bool); 19] = [
        (
            Error::InFlight {
                retry_after: Duration::from_millis(1500),
            },
            409,
            "in-flight",
            true,
        ),
        (Error::KeyReused, 422, "key-reused", false),
        (Error::Interrupted, 409, "interrupted", false),
        (Error::LeaseLost, 409, "lease-lost", true),
        (Error::Unrecorded, 409, "unrecorded", false),
        (Error::Expired, 410, "expired", false),
        (InvalidKey::Empty.into(), 400, "malformed-key", false),
        (InvalidKey::TooLong(256).into(), 400, "malformed-key", false),
        (InvalidKey::NotIssued.into(), 400, "key-not-issued", false),
        (InvalidKey::Expired.into(), 400, "key-not-issued", false),
        (
            InvalidKey::ScopeTooLong(300).into(),
            403,
            "no-principal",
            false,
        ),
        (InvalidCall::ZeroTtl.into(), 500, "misconfigured", false),
        (
            FingerprintError::new("a key twice").into(),
            400,
            "invalid-request",
            false,
        ),
        (DecodeError::new("secret").into(), 500, "undecodable", false),
        (
            store(StoreErrorKind::Unavailable),
            503,
            "store-unavailable",
            true,
        ),
        (
            store(StoreErrorKind::Timeout),
            503,
            "store-unavailable",
            true,
        ),
        (store(StoreErrorKind::Full), 503, "store-unavailable", false),
        (Error::NotInstalled, 500, "misconfigured", false),
        (Error::NoRuntime, 500, "misconfigured", false),
    ];
    for (error, status, slug, retryable) in cases {
        let debug = format!("{error:?}");
        let response = error.into_response();
        let retry_after = response.headers().get("retry-after").cloned();
        if slug == "in-flight" {
            assert_eq!(
                retry_after.as_ref().unwrap(),
                "2",
                "whole seconds, rounded up"
            );
        }
        let (parts, body) = response.into_parts();
        let answer = Answer {
            status: parts.status.as_u16(),
            headers: parts
                .headers
                .iter()
                .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
                .collect(),
            body: body.collect().await.unwrap().to_bytes().into(),
        };
        let problem = answer.problem(status, slug);
        assert_eq!(problem["retryable"], retryable, "{debug}");
        assert!(!answer.text().contains("secret"), "{debug}");
        // The text for clients does not mention Rust.
        assert!(!answer.text().contains("::"), "{debug}");
    }
}
