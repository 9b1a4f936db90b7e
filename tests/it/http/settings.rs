//! Settings of a layer that change which requests are guarded, and by which header.

use axum::Json;
use axum::routing::{any, post};
use http::header::HeaderName;
use http::{HeaderMap, Method};
use idem_runtime::fingerprint::{Secret, compare_members, json};
use idem_runtime::http::{
    IDEMPOTENCY_KEY, IdempotencyKey, InvalidKeyHeader, InvalidLayer, KeySyntax, Problem, Syntax,
    Unscoped,
};

use idem_runtime::error::InvalidCall;
use idem_runtime::key::{Identity, Operation, RecordId};
use idem_runtime::{Key, Scope};

use super::client::Request;
use super::*;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

#[tokio::test]
async fn a_layer_guards_the_methods_that_it_names() {
    let effects = Effects::default();
    let seen = effects.clone();
    let handler = any(move || async move { seen.happen().to_string() });
    let purge = Method::from_bytes(b"PURGE").unwrap();
    let layer = builder(&idem()).methods([Method::PUT, Method::DELETE, purge]);
    let router = Router::new().route("/", handler);
    let server = Server::start(router.layer(layer.build().unwrap())).await;
    for (number, method) in (1..).zip(["PUT", "DELETE", "PURGE"]) {
        for attempt in 0..2 {
            let request = Request::new(method, "/").key(method);
            let answer = server.send(request).await;
            assert_eq!(answer.text(), number.to_string(), "{method}");
            assert_eq!(answer.is_replayed(), attempt > 0, "{method}");
        }
        let without = server.send(Request::new(method, "/")).await;
        without.problem(400, "missing-key");
    }
    // No longer guarded, because they are not named.
    for method in ["POST", "PATCH", "GET"] {
        let before = effects.count();
        for _ in 0..2 {
            let answer = server.send(Request::new(method, "/").key("k")).await;
            assert!(!answer.is_replayed(), "{method}");
        }
        assert_eq!(effects.count(), before + 2, "{method}");
    }
}

#[test]
fn methods_that_change_nothing_are_refused() {
    let idem = idem();
    let build = |methods: &[Method]| builder(&idem).methods(methods.to_vec()).build().map(|_| ());
    for method in [
        Method::GET,
        Method::HEAD,
        Method::OPTIONS,
        Method::TRACE,
        Method::CONNECT,
    ] {
        let error = build(&[Method::POST, method.clone()]).unwrap_err();
        assert!(error.to_string().contains(method.as_str()), "{error}");
        assert_eq!(error, InvalidLayer::Method(method));
    }
    assert_eq!(build(&[]), Err(InvalidLayer::NoMethod));
    assert_eq!(build(&[Method::PUT]), Ok(()));
}

#[tokio::test]
async fn a_layer_reads_the_key_from_the_header_that_it_names() {
    let effects = Effects::default();
    let server = server(&effects, |layer| layer.key_header(REQUEST_ID)).await;
    let request = post_to("/charges").body("5");
    for key in ["k", "\"k\""] {
        let answer = server
            .send(request.clone().header("x-request-id", key))
            .await;
        assert_eq!((answer.status, answer.text()), (201, "charge 1: 5"));
    }
    // The header of the draft has no effect any more.
    let problem = server.send(request.clone().key("k")).await;
    let problem = problem.problem(400, "missing-key");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("`X-Request-Id`"), "{detail}");
    let other = request.header("x-request-id", "l").key("k");
    assert_eq!(server.send(other).await.text(), "charge 2: 5");
}

#[test]
fn headers_that_cannot_carry_a_key_are_refused() {
    let idem = idem();
    for name in [
        "authorization",
        "host",
        "set-cookie",
        "connection",
        "idempotent-replayed",
    ] {
        let name = HeaderName::from_static(name);
        let error = builder(&idem).key_header(name.clone()).build().unwrap_err();
        assert_eq!(error, InvalidLayer::KeyHeader(name));
    }
    assert!(builder(&idem).key_header(IDEMPOTENCY_KEY).build().is_ok());
    let stored = builder(&idem)
        .key_header(REQUEST_ID)
        .store_header(REQUEST_ID);
    assert_eq!(
        stored.build().unwrap_err(),
        InvalidLayer::Header(REQUEST_ID)
    );
}

#[tokio::test]
async fn an_extractor_reads_the_key_from_a_header_of_its_own() {
    struct RequestId;

    impl Syntax for RequestId {
        const SYNTAX: KeySyntax = KeySyntax::Strict;
        const HEADER: HeaderName = REQUEST_ID;
    }

    let required =
        |key: IdempotencyKey<Unscoped, RequestId>| async move { key.as_str().to_owned() };
    let optional = |key: Option<IdempotencyKey<Unscoped, RequestId>>| async move {
        Json(key.map(|key| key.as_str().to_owned()))
    };
    let router = Router::new()
        .route("/required", post(required))
        .route("/optional", post(optional));
    let server = Server::start(router).await;
    let with_key = post_to("/required").header("x-request-id", "\"k\"");
    assert_eq!(server.send(with_key).await.text(), "k");
    let unquoted = post_to("/required").header("x-request-id", "k");
    server.send(unquoted).await.problem(400, "unquoted-key");
    let other = server.send(post_to("/required").key("\"k\"")).await;
    other.problem(400, "missing-key");
    let none = server.send(post_to("/optional").key("\"k\"")).await;
    assert_eq!(none.text(), "null");
    let some = post_to("/optional").header("x-request-id", "\"k\"");
    assert_eq!(server.send(some).await.text(), "\"k\"");
}

/// As a framework does that has neither the layer nor the extractor.
#[tokio::test]
async fn a_handler_can_parse_the_header_itself() {
    async fn handler(headers: HeaderMap) -> Result<String, Problem> {
        let key = KeySyntax::Lenient.find(&headers, &IDEMPOTENCY_KEY)?;
        let key = key.ok_or(InvalidKeyHeader::Missing)?;
        Ok(key.as_str().to_owned())
    }

    let server = Server::start(Router::new().route("/", post(handler))).await;
    assert_eq!(server.send(post_to("/").key("\"a b\"")).await.text(), "a b");
    assert_eq!(server.send(post_to("/").key("a-b")).await.text(), "a-b");
    server.send(post_to("/")).await.problem(400, "missing-key");
    let repeated = server.send(post_to("/").key("a").key("a")).await;
    repeated.problem(400, "repeated-key");
    for malformed in ["a b", "\"a", "\"\"", &"k".repeat(256)] {
        let answer = server.send(post_to("/").key(malformed)).await;
        answer.problem(400, "malformed-key");
    }
}

#[tokio::test]
async fn ignored_parts_of_a_request_may_change() {
    let effects = Effects::default();
    let layer = |layer: LayerBuilder| {
        let layer = layer
            .ignore_member("/sent_at")
            .ignore_member("/items/*/trace");
        layer.ignore_query_parameter("trace")
    };
    let server = server(&effects, layer).await;
    let request =
        |query: &str, json: &str| post_to(&format!("/charges{query}")).key("k").json(json);
    let first = request(
        "?a=1&trace=x",
        r#"{"sent_at": 1, "items": [{"n": 2, "trace": 3}]}"#,
    );
    assert_eq!(server.send(first).await.status, 201);
    for (query, json) in [
        (
            "?a=1&trace=y",
            r#"{"items": [{"n": 2, "trace": [4]}], "sent_at": "now"}"#,
        ),
        ("?trace=y&a=1", r#"{"items": [{"n": 2}]}"#),
        ("?a=1", r#"{"items": [{"trace": null, "n": 2.0}]}"#),
    ] {
        let answer = server.send(request(query, json)).await;
        assert!(answer.is_replayed(), "{query} {json}: {}", answer.text());
    }
    for (query, json) in [
        ("?a=2", r#"{"items": [{"n": 2}]}"#),
        ("?a=1&traces=y", r#"{"items": [{"n": 2}]}"#),
        ("?a=1", r#"{"items": [{"n": 3}]}"#),
        ("?a=1", r#"{"items": [{"n": 2, "sent_at": 1}]}"#),
        ("?a=1", r#"{"items": [{"n": 2}], "trace": 1}"#),
    ] {
        let answer = server.send(request(query, json)).await;
        answer.problem(422, "key-reused");
    }
    // Other media types are compared byte by byte.
    let text = |body| {
        post_to("/charges")
            .key("t")
            .header("content-type", "text/plain")
            .body(body)
    };
    assert_eq!(server.send(text(r#"{"sent_at": 1}"#)).await.status, 201);
    let other = server.send(text(r#"{"sent_at": 2}"#)).await;
    other.problem(422, "key-reused");
    assert_eq!(effects.count(), 2);
}

#[test]
fn members_are_named_by_json_pointers() {
    let idem = idem();
    for invalid in ["", "sent_at", "/a~2", "/~"] {
        let error = builder(&idem).ignore_member(invalid).build().unwrap_err();
        assert_eq!(error, InvalidLayer::Pointer(invalid.to_owned()));
    }
}

/// An operator learns which members of another request differ, by their names.
#[tokio::test]
async fn digests_of_the_members_of_requests_are_stored() {
    let without = builder(&idem()).member_digests().build();
    let missing = InvalidCall::NoMemberSecret;
    assert_eq!(without.map(|_| ()), Err(InvalidLayer::Call(missing)));

    let secret = Secret::new([7; 32]).unwrap();
    let store = FaultStore::new(MemoryStore::new());
    let idem = Idem::builder(store)
        .fingerprint_secret(secret.clone())
        .build();
    let layer = builder(&idem).member_digests().build().unwrap();
    let server = Server::start(charges(&Effects::default()).layer(layer)).await;
    let body = r#"{"cents": 5, "card": {"number": "4242"}}"#;
    let request = post_to("/charges?a=1").key("k");
    let as_json = request.clone().header("content-type", "application/json");
    assert_eq!(server.send(as_json.clone().body(body)).await.status, 201);
    let other = as_json.body(r#"{"cents": 6, "card": {"number": "4242"}}"#);
    server.send(other).await.problem(422, "key-reused");

    let identity = Identity {
        scope: Scope::none(),
        operation: Operation::new("test.http").unwrap(),
        key: Key::new("k").unwrap(),
    };
    let attempts = idem.records().attempts(&RecordId::of(&identity)).await;
    let attempts = attempts.unwrap().unwrap();
    let differences = |query, body: &'static [u8]| {
        let kind = &b"application/json"[..];
        let request = ("POST", "/charges", query, kind, json(body));
        let (members, fingerprint) = (attempts.members.as_ref(), &attempts.record.fingerprint);
        let found = compare_members(members.unwrap(), fingerprint, &request, &secret);
        found.unwrap().unwrap()
    };
    let found = differences(Some("a=1"), br#"{"cents": 6, "card": {"number": "4242"}}"#);
    assert_eq!(
        (&*found.changed, found.count()),
        (&["4.cents".to_owned()][..], 1)
    );
    let found = differences(
        None,
        br#"{"cents": 5, "card": {"number": "4242", "month": 1}}"#,
    );
    assert_eq!(found.changed, ["2"]);
    assert_eq!(found.added, ["4.card.month"]);
}
