//! Refusals: their form, and that none of them promises that a new key is safe.

use axum::Json;
use axum::extract::{Request, State};
use axum::middleware::map_response;
use http_body::Body as _;
use idem_runtime::conformance::faults::{Fault, Op};
use idem_runtime::error::{FingerprintError, InvalidCall, InvalidKey, StoreErrorKind};
use idem_runtime::fingerprint::Secret;
use idem_runtime::http::{IdempotencyKey, KeySyntax, Unscoped, documented_at, problem_response};
use idem_runtime::{Error, Key, OnCrash, Scope, idempotent};
use tokio::time::advance;

use self::stripe_errors::stripe_error;
use super::*;

#[path = "../../../idem-runtime/src/http/stripe_errors.rs"]
mod stripe_errors;

/// If an inner call is refused, the handler may still have had effects before it.
#[tokio::test]
async fn under_refuse_a_problem_of_a_handler_is_not_run_again() {
    let errors: [fn() -> Error; 7] = [
        || Error::KeyReused,
        || InvalidKey::Empty.into(),
        || InvalidKey::Expired.into(),
        || InvalidCall::ZeroTtl.into(),
        || FingerprintError::new("a key twice").into(),
        || Error::NotInstalled,
        || Error::NoRuntime,
    ];
    for error in errors {
        let effects = Effects::default();
        let seen = effects.clone();
        let charge = move || {
            seen.happen();
            async move { Err::<(), _>(error()) }
        };
        let idem = idem();
        let layer = builder(&idem).refuse().build().unwrap();
        let server = Server::start(Router::new().route("/", post(charge)).layer(layer)).await;
        let first = server.send(post_to("/").key("k")).await;
        assert!(first.status >= 400 && first.status != 409);
        for _ in 0..2 {
            let again = server.send(post_to("/").key("k")).await;
            again.problem(409, "interrupted");
        }
        assert_eq!(effects.count(), 1, "{:?}", error());
        let records = idem.records();
        let record = records.find("test.http", "k").await;
        assert_eq!(record.unwrap().unwrap().on_crash, OnCrash::Refuse);
    }
}

/// A refused request may be the retry of one that was carried out before the layer's settings changed. With a new key, it
/// would be carried out twice.
#[tokio::test]
async fn a_refusal_by_settings_does_not_say_that_a_new_key_is_safe() {
    type Setup = fn(LayerBuilder) -> LayerBuilder;
    let cases: [(Setup, Setup, client::Request, u16, &str); 3] = [
        (
            |layer| layer,
            |layer| layer.key_syntax(KeySyntax::Strict),
            post_to("/charges").key("k"),
            400,
            "unquoted-key",
        ),
        (
            LayerBuilder::key_optional,
            |layer| layer,
            post_to("/charges"),
            400,
            "missing-key",
        ),
        (
            |layer| layer,
            |layer| layer.max_request_bytes(3),
            post_to("/charges").key("k").body("5000"),
            413,
            "body-too-large",
        ),
    ];
    for (yesterday, today, request, status, slug) in cases {
        let (idem, effects) = (idem(), Effects::default());
        let server = async |layer: Setup| {
            let layer = layer(builder(&idem)).build().unwrap();
            Server::start(charges(&effects).layer(layer)).await
        };
        let accepted = server(yesterday).await.send(request.clone()).await;
        assert_eq!(accepted.status, 201);
        let refused = server(today).await.send(request).await;
        refused.problem(status, slug);
    }
}

/// An HTTP library may send a retry of the same form with another boundary.
#[tokio::test]
async fn a_retry_with_another_boundary_is_refused() {
    let effects = Effects::default();
    let server = server(&effects, |layer| layer).await;
    let form = |boundary: &str| {
        let kind = format!("multipart/form-data; boundary={boundary}");
        let part = "content-disposition: form-data; name=\"cents\"\r\n\r\n500";
        post_to("/charges")
            .key("k")
            .header("content-type", kind)
            .body(format!("--{boundary}\r\n{part}\r\n--{boundary}--\r\n"))
    };
    assert_eq!(server.send(form("AAA")).await.status, 201);
    let retry = server.send(form("BBB")).await;
    retry.problem(422, "key-reused");
    assert_eq!(effects.count(), 1);
}

#[derive(Clone)]
struct Shop {
    idem: Idem<Store>,
    effects: Effects,
}

impl Shop {
    #[idempotent(key = key, ttl = "1h", name = "orders.place", store = self.idem, issued)]
    async fn place(&self, key: &Key, cents: u64) -> Result<u32, Error> {
        let _ = cents;
        Ok(self.effects.happen())
    }
}

/// After the record of an issued key has expired, only the key's own expiry is known.
#[tokio::test(start_paused = true)]
async fn an_issued_key_that_has_expired_may_have_been_used() {
    async fn place(
        State(shop): State<Shop>,
        key: IdempotencyKey<Unscoped>,
    ) -> Result<Json<u32>, Error> {
        Ok(Json(shop.place(&key, 500).await?))
    }

    let secret = Secret::new("thirty-two random bytes, say here").unwrap();
    let idem = Idem::builder(FaultStore::new(MemoryStore::new()))
        .fingerprint_secret(secret)
        .build();
    let effects = Effects::default();
    let shop = Shop {
        idem: idem.clone(),
        effects: effects.clone(),
    };
    let router = Router::new()
        .route("/charges", post(place))
        .with_state(shop);
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    let token = idem
        .issue("orders.place", &Scope::none(), minutes(10))
        .await
        .unwrap();
    let token = token.as_str();
    assert_eq!(call(&router, token, "").await, (200, "1".to_owned()));
    advance(minutes(30)).await;
    assert_eq!(call(&router, token, "").await, (200, "1".to_owned()));

    advance(minutes(24 * 60)).await;
    for key in [token, "made-up"] {
        let (status, text) = call(&router, key, "").await;
        let problem: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(status, 400, "{text}");
        assert!(
            problem["type"]
                .as_str()
                .unwrap()
                .ends_with("#key-not-issued")
        );
        assert!(!text.contains("not used"), "{text}");
    }
    assert!(
        !InvalidKey::Expired
            .to_string()
            .contains("was not used in it")
    );
    assert_eq!(effects.count(), 1);
}

/// Texts for clients do not use terms of Rust.
#[tokio::test]
async fn problems_explain_malformed_keys_to_clients() {
    let server = server(&Effects::default(), |layer| layer).await;
    let long = "k".repeat(256);
    let over = server.send(post_to("/charges").key(&long)).await;
    let over = over.problem(400, "malformed-key");
    let detail = over["detail"].as_str().unwrap();
    assert!(detail.contains("256") && detail.contains("255"), "{detail}");
    let empty = server.send(post_to("/charges").key("\"\"")).await;
    for problem in [over.clone(), empty.problem(400, "malformed-key")] {
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("UUID"), "{detail}");
        assert!(!detail.contains("::") && !detail.contains('`'), "{detail}");
    }
}

/// The outcome of a gRPC call is in its trailers: a replay would have no outcome, and a failed call would be stored.
#[tokio::test]
async fn grpc_is_refused_in_its_own_form() {
    let (idem, effects) = (idem(), Effects::default());
    let layer = builder(&idem).policy_url("/idempotency").build().unwrap();
    let router = charges(&effects)
        .layer(layer)
        .layer(map_response(documented_at("/elsewhere")));
    let server = Server::start(router.clone()).await;
    for kind in [
        "application/grpc",
        "application/grpc+proto",
        "application/grpc-web",
    ] {
        for request in [post_to("/charges").key("k"), post_to("/charges")] {
            let answer = server.send(request.header("content-type", kind)).await;
            assert_eq!((answer.status, answer.body.len()), (200, 0));
            assert_eq!(answer.header("content-type"), Some(kind));
            assert_eq!(answer.header("grpc-status"), Some("12"));
            let message = answer.header("grpc-message").unwrap();
            assert!(message.contains("does not support gRPC"), "{message}");
        }
    }
    // In HTTP/2, the head ends the stream, so the response is trailers-only.
    let request = Request::post("/charges").header("content-type", "application/grpc");
    let request = request.header("idempotency-key", "k").body(Body::empty());
    let response = router.clone().call(request.unwrap()).await.unwrap();
    assert!(response.body().is_end_stream());
    assert_eq!((effects.count(), idem.store().count(Op::Claim)), (0, 0));
}

#[tokio::test]
async fn grpc_without_a_key_passes_if_keys_are_optional() {
    let effects = Effects::default();
    let server = server(&effects, LayerBuilder::key_optional).await;
    let call = post_to("/charges").header("content-type", "application/grpc");
    assert_eq!(server.send(call.clone()).await.status, 201);
    let with_key = server.send(call.key("k")).await;
    assert_eq!(with_key.header("grpc-status"), Some("12"));
    assert_eq!(effects.count(), 1);
}

/// Some clients take any response that is not in their own error format for a success.
#[tokio::test]
async fn refusals_can_have_another_format() {
    let effects = Effects::default();
    let layer = builder(&idem())
        .policy_url("/idempotency")
        .problem_response(stripe_error);
    let router = charges(&effects).layer(layer.build().unwrap());
    let server = Server::start(router).await;
    let first = server.send(post_to("/charges").key("k").body("5")).await;
    assert_eq!((first.status, first.text()), (201, "charge 1: 5"));
    let reused = server.send(post_to("/charges").key("k").body("6")).await;
    assert_eq!(reused.status, 422);
    let error = stripe_error_of(&reused, false);
    assert_eq!(error["code"], "key-reused");
    assert_eq!(error["doc_url"], "/idempotency#key-reused");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("different request"), "{message}");
    let missing = server.send(post_to("/charges").body("6")).await;
    assert_eq!(stripe_error_of(&missing, false)["code"], "missing-key");
    // The form of gRPC is no matter of the service.
    let grpc = post_to("/charges")
        .key("g")
        .header("content-type", "application/grpc");
    let grpc = server.send(grpc).await;
    assert_eq!((grpc.status, grpc.header("grpc-status")), (200, Some("12")));
    assert_eq!(effects.count(), 1);
}

#[tokio::test]
async fn another_format_keeps_the_time_of_the_retry() {
    let idem = idem();
    let fault = Fault::FailBefore(StoreErrorKind::Unavailable);
    idem.store().always(Op::Claim, fault);
    let layer = builder(&idem)
        .problem_response(stripe_error)
        .build()
        .unwrap();
    let server = Server::start(charges(&Effects::default()).layer(layer)).await;
    let answer = server.send(post_to("/charges").key("k")).await;
    assert_eq!(
        (answer.status, answer.header("retry-after")),
        (503, Some("1"))
    );
    assert_eq!(stripe_error_of(&answer, true)["code"], "store-unavailable");
}

/// Handlers that use the extractor have no layer. The same function converts their problems.
#[tokio::test]
async fn problems_of_handlers_can_have_another_format() {
    let refused = async || Error::InFlight {
        retry_after: Duration::from_secs(7),
    };
    let other = async || (StatusCode::CONFLICT, "the handler's own");
    let router = Router::new()
        .route("/keyed", post(async |_: IdempotencyKey<Unscoped>| ()))
        .route("/refused", post(refused))
        .route("/other", post(other))
        .layer(map_response(documented_at("/idempotency")))
        .layer(map_response(problem_response(stripe_error)))
        // A converted problem is not converted again, and does not get another URL.
        .layer(map_response(problem_response(|_| unreachable!())))
        .layer(map_response(documented_at("/other")));
    let server = Server::start(router).await;
    let missing = server.send(post_to("/keyed")).await;
    assert_eq!(missing.status, 400);
    let error = stripe_error_of(&missing, false);
    assert_eq!(error["doc_url"], "/idempotency#missing-key");
    let refused = server.send(post_to("/refused")).await;
    assert_eq!(
        (refused.status, refused.header("retry-after")),
        (409, Some("7"))
    );
    assert_eq!(stripe_error_of(&refused, true)["code"], "in-flight");
    let other = server.send(post_to("/other")).await;
    assert_eq!((other.status, other.text()), (409, "the handler's own"));
}

/// Error in Stripe's format.
fn stripe_error_of(answer: &Answer, should_retry: bool) -> serde_json::Value {
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let expected = should_retry.to_string();
    assert_eq!(
        answer.header("stripe-should-retry"),
        Some(expected.as_str())
    );
    let mut body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    body["error"].take()
}
