//! Rules of draft-ietf-httpapi-idempotency-key-header-07, by section, and of the RFCs that it uses.

use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use idem_runtime::conformance::faults::{Fault, FaultStore, Op};
use idem_runtime::error::StoreErrorKind;
use idem_runtime::http::KeySyntax;
use idem_runtime::{Idem, MemoryStore};
use tokio::sync::Semaphore;

use super::client::Request;
use super::*;

/// §2: the header makes POST and PATCH requests idempotent.
#[tokio::test]
async fn section_2_post_and_patch_are_guarded() {
    for method in ["POST", "PATCH"] {
        let effects = Effects::default();
        let server = server(&effects, |layer| layer).await;
        let request = Request::new(method, "/charges").key("k").body("5");
        let first = server.send(request.clone()).await;
        let second = server.send(request).await;
        assert_eq!((first.status, second.status), (201, 201));
        assert_eq!(first.body, second.body);
        assert!(!first.is_replayed() && second.is_replayed());
        assert_eq!(effects.count(), 1);
    }
}

/// §1 and RFC 9110 §9.2: safe and idempotent methods need no key, and a key on them has no effect.
#[tokio::test]
async fn section_1_safe_and_idempotent_methods_pass_through() {
    let effects = Effects::default();
    let layer = builder(&idem()).build().unwrap();
    let seen = effects.clone();
    let any = axum::routing::any(move || async move { format!("{}", seen.happen()) });
    let server = Server::start(Router::new().route("/", any).layer(layer)).await;
    for (number, method) in (1..).zip(["GET", "OPTIONS", "PUT", "DELETE", "TRACE"]) {
        let answer = server
            .send(Request::new(method, "/").key("\"malformed"))
            .await;
        assert_eq!(
            (answer.status, answer.text()),
            (200, number.to_string().as_str()),
            "{method}"
        );
        assert!(!answer.is_replayed());
    }
    assert_eq!(effects.count(), 5);
}

/// §2.1: the value must be a string of structured fields, RFC 9651 §3.3.3.
#[tokio::test]
async fn section_2_1_a_key_is_a_string_of_structured_fields() {
    let effects = Effects::default();
    let server = server(&effects, |layer| layer.key_syntax(KeySyntax::Strict)).await;
    let quoted = server.send(post_to("/charges").key("\"k\"")).await;
    assert_eq!(quoted.status, 201);
    for malformed in ["(\"k\")", "\"k", "\"k\", \"l\"", "\"\"", "", "a b"] {
        let answer = server.send(post_to("/charges").key(malformed)).await;
        answer.problem(400, "malformed-key");
    }
    // An unquoted key may have been used in lenient syntax before the setting changed.
    for unquoted in ["k", "42", "?1", ":aw==:", "'k'"] {
        let answer = server.send(post_to("/charges").key(unquoted)).await;
        answer.problem(400, "unquoted-key");
    }
    assert_eq!(effects.count(), 1);
}

/// §2.1 in lenient syntax: most clients send unquoted keys. An unquoted key equals the same key in quotes.
#[tokio::test]
async fn section_2_1_in_lenient_syntax_a_bare_key_equals_the_quoted_key() {
    let effects = Effects::default();
    let server = server(&effects, |layer| layer).await;
    let unquoted = server.send(post_to("/charges").key("k").body("5")).await;
    let quoted = server
        .send(post_to("/charges").key("\"k\"").body("5"))
        .await;
    let with_parameters = server
        .send(post_to("/charges").key("\"k\";a=1").body("5"))
        .await;
    assert_eq!(unquoted.status, 201);
    for again in [quoted, with_parameters] {
        assert!(again.is_replayed());
        assert_eq!(again.body, unquoted.body);
    }
    for malformed in ["a, b", "a b", "k;a=1", "\"k", "a\\b"] {
        let answer = server.send(post_to("/charges").key(malformed)).await;
        answer.problem(400, "malformed-key");
    }
    assert_eq!(effects.count(), 1);
}

/// RFC 9110 §5.3: a field with one item must not be sent twice. A proxy may join the lines to a list (§2.1).
#[tokio::test]
async fn section_2_1_a_repeated_key_is_refused() {
    let effects = Effects::default();
    let server = server(&effects, |layer| layer).await;
    for second in ["k", "l"] {
        let answer = server.send(post_to("/charges").key("k").key(second)).await;
        answer.problem(400, "repeated-key");
    }
    assert_eq!(effects.count(), 0);
}

/// §2.2: a key must be unique, and must not be reused with another payload.
#[tokio::test]
async fn section_2_2_a_key_is_for_one_request() {
    let effects = Effects::default();
    let server = server(&effects, |layer| layer).await;
    let first = post_to("/charges?a=1")
        .key("k")
        .header("content-type", "text/plain")
        .body("5");
    assert_eq!(server.send(first.clone()).await.status, 201);
    for other in [
        first.clone().body("6"),
        post_to("/charges?a=2")
            .key("k")
            .header("content-type", "text/plain")
            .body("5"),
        post_to("/charges")
            .key("k")
            .header("content-type", "text/plain")
            .body("5"),
        post_to("/refunds?a=1")
            .key("k")
            .header("content-type", "text/plain")
            .body("5"),
        post_to("/charges?a=1")
            .key("k")
            .header("content-type", "text/html")
            .body("5"),
        Request::new("PATCH", "/charges?a=1")
            .key("k")
            .header("content-type", "text/plain")
            .body("5"),
    ] {
        let problem = server.send(other).await.problem(422, "key-reused");
        assert_eq!(problem["retryable"], false);
    }
    assert!(server.send(first).await.is_replayed());
    assert_eq!(effects.count(), 1);
}

/// §2.3: the resource defines the expiry of keys, and publishes it. Uses the store's clock, which is paused.
#[tokio::test(start_paused = true)]
async fn section_2_3_a_key_expires() {
    let effects = Effects::default();
    let layer = builder(&idem()).build().unwrap();
    let router = charges(&effects).layer(layer);
    let first = call(&router, "k", "5").await;
    tokio::time::advance(TTL - Duration::from_secs(1)).await;
    let replayed = call(&router, "k", "5").await;
    tokio::time::advance(Duration::from_secs(2)).await;
    let anew = call(&router, "k", "6").await;
    assert_eq!(
        (first.1, replayed.1),
        ("charge 1: 5".to_owned(), "charge 1: 5".to_owned())
    );
    assert_eq!(anew.1, "charge 2: 6");
}

/// §2.3: the policy for the expiry of keys is published with the rest of the policy.
#[tokio::test]
async fn section_2_3_the_policy_is_published() {
    let layer = builder(&idem()).policy_url("/idempotency").build().unwrap();
    let page = layer.policy_page();
    let router = charges(&Effects::default()).layer(layer);
    let server = Server::start(router.route("/idempotency", get(page))).await;

    let page = server.send(Request::new("GET", "/idempotency")).await;
    assert_eq!(
        (page.status, page.header("content-type")),
        (200, Some("text/html; charset=utf-8"))
    );
    for said in [
        "1 to 255 printable ASCII",
        "24 hours",
        "1048576 bytes",
        "30 seconds to arrive",
        "<code>location</code>",
        "RFC 9651",
    ] {
        assert!(page.text().contains(said), "{said}\n{}", page.text());
    }
    assert!(
        !page.text().contains("test.http"),
        "the page must not name the operation"
    );

    // The type of a problem links to its section.
    let problem = server
        .send(post_to("/charges"))
        .await
        .problem(400, "missing-key");
    let (url, section) = problem["type"].as_str().unwrap().split_once('#').unwrap();
    assert_eq!(url, "/idempotency");
    assert!(page.text().contains(&format!("id=\"{section}\"")));
}

/// §2.4: the fingerprint covers the payload. JSON that was serialized again is the same payload.
#[tokio::test]
async fn section_2_4_json_is_compared_by_value() {
    let effects = Effects::default();
    let server = server(&effects, |layer| layer).await;
    let first = server
        .send(post_to("/charges").key("k").json(r#"{"a":1,"b":[1.0]}"#))
        .await;
    assert_eq!(first.status, 201);
    for same in [
        r#"{ "b": [1], "a": 1e0 }"#,
        "{\"b\":[10e-1],\n\"\\u0061\":1}",
    ] {
        assert!(
            server
                .send(post_to("/charges").key("k").json(same))
                .await
                .is_replayed(),
            "{same}"
        );
    }
    let with_parameters = post_to("/charges")
        .key("k")
        .header("content-type", "Application/JSON; charset=utf-8")
        .body(r#"{"a":1,"b":[1]}"#);
    assert!(server.send(with_parameters).await.is_replayed());
    for other in [
        r#"{"a":2,"b":[1]}"#,
        r#"{"a":"1","b":[1]}"#,
        r#"{"a":1,"b":[1],"c":null}"#,
    ] {
        server
            .send(post_to("/charges").key("k").json(other))
            .await
            .problem(422, "key-reused");
    }
    assert_eq!(effects.count(), 1);
}

/// §2.4: the meaning of a body depends on the parameters of its type (a version, a profile) and on its encoding.
#[tokio::test]
async fn section_2_4_type_and_encoding_are_compared() {
    let effects = Effects::default();
    let server = server(&effects, |layer| layer).await;
    let typed = |kind: &str| {
        post_to("/charges")
            .key("typed")
            .header("content-type", kind)
            .body("{}")
    };
    let first = typed("application/vnd.bank+json; version=1");
    assert_eq!(server.send(first).await.status, 201);
    let same = typed("application/vnd.bank+json;charset=UTF-8;version=1;");
    assert!(server.send(same).await.is_replayed());
    for other in [
        "application/vnd.bank+json; version=2",
        "application/vnd.bank+json",
        "application/json; version=1",
    ] {
        let answer = server.send(typed(other)).await;
        answer.problem(422, "key-reused");
    }

    for kind in ["text/plain", "application/json"] {
        let key = kind.replace('/', "-");
        let coded = |codings: &[&str]| {
            let request = post_to("/charges").key(&key).header("content-type", kind);
            let with = |request: Request, coding: &&str| request.header("content-encoding", coding);
            codings.iter().fold(request, with).body("[1]")
        };
        assert_eq!(server.send(coded(&["gzip, br"])).await.status, 201);
        for same in [&["GZIP", "br"][..], &["identity,gzip,br"]] {
            assert!(server.send(coded(same)).await.is_replayed(), "{same:?}");
        }
        for other in [
            &[][..],
            &["identity"],
            &["gzip"],
            &["br, gzip"],
            &["gzipbr"],
        ] {
            let answer = server.send(coded(other)).await;
            answer.problem(422, "key-reused");
        }
    }
    assert_eq!(effects.count(), 3);
}

/// §2.4: invalid JSON is compared byte by byte. The handler decides whether to accept it.
#[tokio::test]
async fn section_2_4_invalid_json_is_compared_byte_by_byte() {
    let effects = Effects::default();
    let server = server(&effects, |layer| layer).await;
    for (key, body) in [
        ("k", "{"),
        ("l", r#"{"a":1,"a":2}"#),
        ("m", ""),
        ("n", "[1] [2]"),
    ] {
        let first = server.send(post_to("/charges").key(key).json(body)).await;
        assert_eq!(first.status, 201, "{body}");
        assert!(
            server
                .send(post_to("/charges").key(key).json(body))
                .await
                .is_replayed()
        );
        let other = format!("{body} ");
        server
            .send(post_to("/charges").key(key).json(&other))
            .await
            .problem(422, "key-reused");
    }
    assert_eq!(effects.count(), 4);
}

/// §2.6: a duplicate of a completed request gets its result, a success or an error.
#[tokio::test]
async fn section_2_6_a_duplicate_gets_the_same_result() {
    let effects = Effects::default();
    let seen = effects.clone();
    let declined = move || {
        seen.happen();
        async {
            (
                StatusCode::PAYMENT_REQUIRED,
                [("content-language", "de")],
                "abgelehnt",
            )
        }
    };
    let layer = builder(&idem()).build().unwrap();
    let server = Server::start(Router::new().route("/", post(declined)).layer(layer)).await;
    let first = server.send(post_to("/").key("k")).await;
    let second = server.send(post_to("/").key("k")).await;
    for answer in [&first, &second] {
        assert_eq!((answer.status, answer.text()), (402, "abgelehnt"));
        assert_eq!(answer.header("content-language"), Some("de"));
    }
    assert!(second.is_replayed());
    assert_eq!(effects.count(), 1);
}

/// §2.6 and §2.7: a concurrent duplicate gets 409 with `Retry-After` (RFC 9110 §10.2.3).
#[tokio::test]
async fn section_2_7_in_flight_is_409_with_retry_after() {
    let effects = Effects::default();
    let gate: &'static Semaphore = Box::leak(Box::new(Semaphore::new(0)));
    let (begun, mut began) = tokio::sync::mpsc::unbounded_channel();
    let seen = effects.clone();
    let slow = move || {
        seen.happen();
        begun.send(()).unwrap();
        async {
            gate.acquire().await.unwrap().forget();
            "done"
        }
    };
    let layer = builder(&idem()).build().unwrap();
    let server = Server::start(Router::new().route("/", post(slow)).layer(layer)).await;

    let client = server.client;
    let first = tokio::spawn(async move { client.send(post_to("/").key("k")).await });
    began.recv().await.unwrap();
    let early = server.send(post_to("/").key("k")).await;
    let problem = early.problem(409, "in-flight");
    assert_eq!(problem["retryable"], true);
    let seconds: u64 = early.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=30).contains(&seconds), "{seconds}");
    // Another request with the key of the running one gets 422, without `Retry-After`.
    server
        .send(post_to("/").key("k").body("other"))
        .await
        .problem(422, "key-reused");

    gate.add_permits(1);
    assert_eq!(first.await.unwrap().text(), "done");
    let late = server.send(post_to("/").key("k")).await;
    assert!(late.is_replayed());
    assert_eq!(effects.count(), 1);
}

/// §2.7: a missing key is 400 if the operation requires one, with a link to the documentation.
#[tokio::test]
async fn section_2_7_a_missing_key_is_400() {
    let effects = Effects::default();
    let server = server(&effects, |layer| layer).await;
    let problem = server
        .send(post_to("/charges").body("5"))
        .await
        .problem(400, "missing-key");
    assert!(
        problem["detail"]
            .as_str()
            .unwrap()
            .contains("Idempotency-Key")
    );
    assert_eq!(effects.count(), 0);
}

/// §2.7: a missing key is accepted if the operation does not require one.
#[tokio::test]
async fn section_2_7_an_optional_key_may_be_missing() {
    let effects = Effects::default();
    let server = server(&effects, LayerBuilder::key_optional).await;
    for number in 1..=2 {
        let answer = server.send(post_to("/charges").body("5")).await;
        assert_eq!(answer.text(), format!("charge {number}: 5"));
    }
    server
        .send(post_to("/charges").key("\"k").body("5"))
        .await
        .problem(400, "malformed-key");
    server.send(post_to("/charges").key("k").body("5")).await;
    assert!(
        server
            .send(post_to("/charges").key("k").body("5"))
            .await
            .is_replayed()
    );
    assert_eq!(effects.count(), 3);
}

/// §2.7: a reused key is 422, with a link to the documentation, and reveals nothing of the first request.
#[tokio::test]
async fn section_2_7_a_reused_key_is_422_and_reveals_nothing() {
    let effects = Effects::default();
    let server = server(&effects, |layer| layer).await;
    let secret = "card 4242-4242-4242-4242";
    server
        .send(post_to("/charges").key("the-key-itself").body(secret))
        .await;
    let answer = server
        .send(post_to("/charges").key("the-key-itself").body("guess"))
        .await;
    let problem = answer.problem(422, "key-reused");
    assert!(problem["type"].as_str().unwrap().starts_with("https://"));
    for hidden in ["the-key-itself", "4242", "charge", "guess", "test.http"] {
        assert!(!answer.text().contains(hidden), "{hidden}");
    }
    assert!(answer.header("location").is_none() && answer.header("set-cookie").is_none());
}

/// RFC 9110 §15.6.4: without the store, nothing runs, and the response is 503.
#[tokio::test]
async fn a_store_that_is_down_is_503() {
    let store = FaultStore::new(MemoryStore::new());
    let policy = Idem::builder(store.clone()).store_patience(Duration::from_millis(50));
    let effects = Effects::default();
    let layer = builder(&policy.build()).build().unwrap();
    let server = Server::start(charges(&effects).layer(layer)).await;
    store.always(Op::Claim, Fault::FailBefore(StoreErrorKind::Unavailable));
    let down = server.send(post_to("/charges").key("k").body("5")).await;
    let problem = down.problem(503, "store-unavailable");
    assert_eq!(problem["retryable"], true);

    store.always(Op::Claim, Fault::FailBefore(StoreErrorKind::Full));
    let full = server.send(post_to("/charges").key("k").body("5")).await;
    assert_eq!(full.problem(503, "store-unavailable")["retryable"], false);
    assert_eq!(effects.count(), 0);

    store.always(Op::Claim, Fault::None);
    assert_eq!(
        server
            .send(post_to("/charges").key("k").body("5"))
            .await
            .status,
        201
    );
}

/// RFC 9457 §3.1: each occurrence has a unique `instance`.
#[tokio::test]
async fn problems_have_a_unique_instance() {
    let server = server(&Effects::default(), |layer| layer).await;
    let one = server
        .send(post_to("/charges"))
        .await
        .problem(400, "missing-key");
    let other = server
        .send(post_to("/charges"))
        .await
        .problem(400, "missing-key");
    assert!(one["instance"].as_str().unwrap().starts_with("urn:uuid:"));
    assert_ne!(one["instance"], other["instance"]);
    assert_eq!(one["type"], other["type"]);
}
