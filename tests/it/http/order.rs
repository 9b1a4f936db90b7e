//! The layer with outer and inner layers, streamed responses, and erased handles.

use axum::extract::Request;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use http::header::CONTENT_TYPE;
use idem_runtime::advanced::Finality;
use idem_runtime::http::finality;
use tokio::time::{advance, sleep, timeout};

use super::*;

/// Drops the future after ten seconds and responds with 408, as `TimeoutLayer` of tower-http does.
async fn within_ten_seconds(request: Request, next: Next) -> Response {
    match timeout(Duration::from_secs(10), next.run(request)).await {
        Ok(response) => response,
        Err(_) => StatusCode::REQUEST_TIMEOUT.into_response(),
    }
}

/// Handler that takes a minute, with the counts of its starts and ends.
fn slow() -> (Router, Effects, Effects) {
    let (begun, ended) = (Effects::default(), Effects::default());
    let (begins, ends) = (begun.clone(), ended.clone());
    let handler = move || {
        begins.happen();
        let ends = ends.clone();
        async move {
            sleep(Duration::from_secs(60)).await;
            format!("charge {}", ends.happen())
        }
    };
    let router = Router::new().route("/charges", post(handler));
    (router, begun, ended)
}

#[tokio::test(start_paused = true)]
async fn an_outer_timeout_does_not_stop_the_handler() {
    let (handler, begun, ended) = slow();
    let layer = builder(&idem()).build().unwrap();
    let drain = layer.drain();
    let router = handler.layer(layer).layer(from_fn(within_ten_seconds));
    assert_eq!(call(&router, "k", "").await.0, 408);
    assert_eq!(call(&router, "k", "").await.0, 409);
    drain.finished().await;
    for _ in 0..2 {
        let replay = call(&router, "k", "").await;
        assert_eq!(replay, (200, "charge 1".to_owned()));
    }
    assert_eq!((begun.count(), ended.count()), (1, 1));
}

/// The opposite order, which is not recommended: the timeout also stops the handler of each retry.
#[tokio::test(start_paused = true)]
async fn an_inner_timeout_stops_the_handler_in_each_attempt() {
    let (handler, begun, ended) = slow();
    let layer = builder(&idem()).build().unwrap();
    let router = handler.layer(from_fn(within_ten_seconds)).layer(layer);
    for _ in 0..3 {
        assert_eq!(call(&router, "k", "").await.0, 408);
    }
    assert_eq!((begun.count(), ended.count()), (3, 0));
}

/// Streaming responses need a policy that does not store them.
#[tokio::test(start_paused = true)]
async fn a_response_that_is_not_final_is_streamed() {
    let events = || async {
        let event = stream::once(async { Ok::<_, std::io::Error>("data: 1\n\n") });
        let endless = Body::from_stream(event.chain(stream::pending()));
        ([(CONTENT_TYPE, "text/event-stream")], endless)
    };
    let layer = builder(&idem())
        .finality(|response| match response.headers.get(CONTENT_TYPE) {
            Some(kind) if kind.as_bytes().starts_with(b"text/event-stream") => Finality::Transient,
            _ => finality(response),
        })
        .build()
        .unwrap();
    let mut router = Router::new().route("/charges", post(events)).layer(layer);
    let request = Request::post("/charges").header("idempotency-key", "k");
    let request = request.body(Body::empty()).unwrap();
    let mut body = router.call(request).await.unwrap().into_body();
    let first = body.frame().await.unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), "data: 1\n\n");
    assert!(
        body.frame().now_or_never().is_none(),
        "the stream has not ended"
    );
}

/// Headers that restrict what a browser does with a body are stored with it.
#[tokio::test]
async fn a_replay_has_the_headers_that_protect_its_body() {
    const HEADERS: [(&str, &str); 16] = [
        ("content-security-policy", "sandbox"),
        ("content-security-policy-report-only", "default-src 'self'"),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-embedder-policy", "require-corp"),
        ("referrer-policy", "no-referrer"),
        ("permissions-policy", "camera=()"),
        ("document-policy", "unsized-media=?0"),
        ("origin-agent-cluster", "?1"),
        ("reporting-endpoints", "csp=\"/reports\""),
        ("repr-digest", "sha-256=:AAAA:"),
        ("x-download-options", "noopen"),
        ("x-robots-tag", "noindex"),
        ("x-xss-protection", "0"),
    ];
    // Headers of the host, of one client's `Origin`, or of one moment.
    const LEFT_OUT: [(&str, &str); 3] = [
        ("strict-transport-security", "max-age=1"),
        ("access-control-allow-origin", "https://one.example"),
        ("clear-site-data", "\"cookies\""),
    ];
    let handler = || async {
        let mut response = "<script>alert(1)</script>".into_response();
        for (name, value) in HEADERS.into_iter().chain(LEFT_OUT) {
            let value = HeaderValue::from_static(value);
            response.headers_mut().insert(name, value);
        }
        response
    };
    let layer = builder(&idem()).build().unwrap();
    let server = Server::start(Router::new().route("/", post(handler)).layer(layer)).await;
    let first = server.send(post_to("/").key("k")).await;
    let replay = server.send(post_to("/").key("k")).await;
    assert!(replay.is_replayed());
    for (name, value) in HEADERS {
        assert_eq!(first.header(name), Some(value));
        assert_eq!(replay.header(name), Some(value));
    }
    for (name, value) in LEFT_OUT {
        assert_eq!(first.header(name), Some(value));
        assert_eq!(replay.header(name), None);
    }
}

/// If a handler fails, each waiting duplicate runs it again, one after the other, as documented at `wait`.
#[tokio::test(start_paused = true)]
async fn duplicates_of_a_failing_handler_run_one_after_the_other() {
    let effects = Effects::default();
    let seen = effects.clone();
    let failing = move || {
        let number = seen.happen();
        async move {
            sleep(Duration::from_secs(1)).await;
            (StatusCode::INTERNAL_SERVER_ERROR, number.to_string())
        }
    };
    let layer = builder(&idem()).wait(Duration::from_secs(600));
    let router = Router::new()
        .route("/charges", post(failing))
        .layer(layer.build().unwrap());
    let calls = (0..10).map(|_| call(&router, "k", ""));
    let answers = futures_util::future::join_all(calls).await;
    assert!(answers.iter().all(|(status, _)| *status == 500));
    assert_eq!(effects.count(), 10);
}

/// A layer accepts a handle whose store type is erased.
#[tokio::test(start_paused = true)]
async fn a_layer_is_built_on_an_erased_handle() {
    let effects = Effects::default();
    let erased: Idem = idem().erased();
    let shared: &Idem = &erased;
    let layer = IdempotencyLayer::builder(shared, "test.http", TTL, unscoped());
    let router = charges(&effects).layer(layer.build().unwrap());
    assert_eq!(call(&router, "k", "5").await.0, 201);
    advance(Duration::from_secs(1)).await;
    assert_eq!(call(&router, "k", "5").await.1, "charge 1: 5");
    // A handle that is erased twice has the same store.
    let layer = IdempotencyLayer::builder(&erased.erased(), "test.http", TTL, unscoped());
    let router = charges(&effects).layer(layer.build().unwrap());
    assert_eq!(call(&router, "k", "5").await.1, "charge 1: 5");
    assert_eq!(effects.count(), 1);
}
