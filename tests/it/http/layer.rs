//! The layer with handlers, their responses, and clients that disconnect.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Path;
use axum::routing::post;
use axum::{Extension, Json};
use futures_util::stream;
use http::header::{HeaderName, SET_COOKIE};
use idem_runtime::conformance::faults::Op;
use idem_runtime::error::InvalidCall;
use idem_runtime::http::{Drain, InvalidLayer};
use idem_runtime::record::RecordState;
use idem_runtime::store::{Filter, PageRequest};
use idem_runtime::{Attempt, SqliteStore};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{Semaphore, mpsc};

use super::client::Request;
use super::*;

#[tokio::test]
async fn a_replay_has_the_stored_headers_and_the_same_body() {
    let effects = Effects::default();
    let own = HeaderName::from_static("x-own");
    let server = server(&effects, |layer| layer.store_header(own)).await;
    let request = post_to("/charges").key("k").body(b"\0\xff\r\n\r\n");
    let first = server.send(request.clone()).await;
    let second = server.send(request).await;

    assert_eq!((first.status, second.status), (201, 201));
    assert_eq!(first.body, second.body);
    for name in [
        "content-type",
        "location",
        "etag",
        "x-own",
        "content-length",
    ] {
        assert!(first.header(name).is_some(), "{name}");
        assert_eq!(first.header(name), second.header(name), "{name}");
    }
    for name in ["set-cookie", "x-ratelimit-remaining"] {
        assert!(
            first.header(name).is_some(),
            "the first caller gets the whole response"
        );
        assert!(second.header(name).is_none(), "{name}");
    }
    assert!(second.header("date").is_some(), "the server's own");
}

#[tokio::test]
async fn invalid_settings_are_refused() {
    let idem = idem();
    for name in [
        "set-cookie",
        "date",
        "x-ratelimit-limit",
        "transfer-encoding",
    ] {
        let name = HeaderName::from_static(name);
        let error = builder(&idem)
            .store_header(name.clone())
            .build()
            .unwrap_err();
        assert_eq!(error, InvalidLayer::Header(name));
    }
    assert!(builder(&idem).store_header(SET_COOKIE).build().is_err());
    let named =
        |name: &'static str, ttl| IdempotencyLayer::builder(&idem, name, ttl, unscoped()).build();
    assert_eq!(named("", TTL).unwrap_err(), InvalidCall::Name.into());
    assert_eq!(named("a\nb", TTL).unwrap_err(), InvalidCall::Name.into());
    assert_eq!(
        named("a", Duration::ZERO).unwrap_err(),
        InvalidCall::ZeroTtl.into()
    );
    let lease = builder(&idem).lease(Duration::ZERO).build();
    assert_eq!(lease.unwrap_err(), InvalidCall::ZeroLease.into());
    assert_eq!(
        builder(&idem).max_running(0).build().unwrap_err(),
        InvalidLayer::ZeroLimit
    );
    for url in ["", "no url", "/page#section", "http://"] {
        assert_eq!(
            builder(&idem).policy_url(url).build().unwrap_err(),
            InvalidLayer::PolicyUrl,
            "{url}"
        );
    }
}

/// In a nested router, a handler sees only a part of the path that the client sent.
#[tokio::test]
async fn a_key_is_bound_to_the_path_that_the_client_sent() {
    let effects = Effects::default();
    let layer = builder(&idem()).build().unwrap();
    let inner = charges(&effects).layer(layer);
    let server = Server::start(Router::new().nest("/v1", inner.clone()).nest("/v2", inner)).await;
    assert_eq!(
        server.send(post_to("/v1/charges").key("k")).await.status,
        201
    );
    server
        .send(post_to("/v2/charges").key("k"))
        .await
        .problem(422, "key-reused");
    assert!(
        server
            .send(post_to("/v1/charges").key("k"))
            .await
            .is_replayed()
    );
    assert_eq!(effects.count(), 1);
}

#[tokio::test]
async fn layers_do_not_share_keys() {
    let effects = Effects::default();
    let idem = idem();
    let named = |name: &'static str| {
        let layer = IdempotencyLayer::builder(&idem, name, TTL, unscoped()).build();
        charges(&effects).layer(layer.unwrap())
    };
    let router = Router::new().nest("/a", named("a")).nest("/b", named("b"));
    let server = Server::start(router).await;
    for number in 1..=2 {
        let path = ["/a/charges", "/b/charges"][number - 1];
        let answer = server.send(post_to(path).key("k").body("5")).await;
        assert_eq!(answer.text(), format!("charge {number}: 5"));
    }
}

#[tokio::test]
async fn a_handler_knows_its_attempt() {
    let handler = |Extension(attempt): Extension<Attempt>| async move {
        Json((
            attempt.number(),
            attempt.downstream_key("bank").as_str().to_owned(),
        ))
    };
    let layer = builder(&idem()).build().unwrap();
    let server = Server::start(Router::new().route("/", post(handler)).layer(layer)).await;
    let answer = server.send(post_to("/").key("k")).await;
    let (number, key): (u32, String) = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!((number, key.len()), (1, 36));
}

/// Route whose handler signals its start, and waits for a permission to continue.
struct Gated {
    gate: &'static Semaphore,
    began: mpsc::UnboundedReceiver<()>,
    effects: Effects,
    handler: Router,
}

impl Gated {
    fn new() -> Self {
        let gate: &'static Semaphore = Box::leak(Box::new(Semaphore::new(0)));
        let (begun, began) = mpsc::unbounded_channel();
        let effects = Effects::default();
        let seen = effects.clone();
        let handler = move || {
            let (begun, seen) = (begun.clone(), seen.clone());
            async move {
                begun.send(()).unwrap();
                gate.acquire().await.unwrap().forget();
                format!("effect {}", seen.happen())
            }
        };
        Self {
            gate,
            began,
            effects,
            handler: Router::new().route("/", post(handler)),
        }
    }
}

#[tokio::test]
async fn a_client_that_disconnects_does_not_stop_its_handler() {
    let mut gated = Gated::new();
    let layer = builder(&idem()).build().unwrap();
    let drain = layer.drain();
    let server = Server::start(gated.handler.layer(layer)).await;

    let mut stream = server.client.connect().await;
    stream
        .write_all(&post_to("/").key("k").bytes())
        .await
        .unwrap();
    gated.began.recv().await.unwrap();
    drop(stream);
    // The server has noticed the disconnect after it answers twice on a later connection: it reads before it writes.
    for _ in 0..2 {
        server
            .send(post_to("/").key("k"))
            .await
            .problem(409, "in-flight");
    }
    assert_eq!((drain.running(), gated.effects.count()), (1, 0));
    gated.gate.add_permits(1);
    drain.finished().await;
    assert_eq!((drain.running(), gated.effects.count()), (0, 1));

    let retry = server.send(post_to("/").key("k")).await;
    assert!(retry.is_replayed());
    assert_eq!(retry.text(), "effect 1");
}

/// Drops the response future itself, because a server may notice a disconnect late.
#[tokio::test]
async fn a_dropped_response_future_does_not_stop_its_handler() {
    let mut gated = Gated::new();
    let drain = Drain::new();
    let layer = builder(&idem()).drain(drain.clone()).build().unwrap();
    let mut router = gated.handler.layer(layer);
    let request = || {
        let request = axum::extract::Request::post("/").header("idempotency-key", "k");
        request.body(Body::empty()).unwrap()
    };
    let mut response = Box::pin(router.call(request()));
    tokio::select! {
        _ = &mut response => panic!("the gate is closed"),
        _ = gated.began.recv() => {}
    }
    drop(response);
    gated.gate.add_permits(1);
    drain.finished().await;
    assert_eq!(gated.effects.count(), 1);
    let replay = router.call(request()).await.unwrap();
    assert_eq!(replay.headers()["idempotent-replayed"], "true");
}

/// A server that stops closes its connections. The drain waits for the running handlers.
#[tokio::test]
async fn a_shutdown_waits_for_running_handlers() {
    let mut gated = Gated::new();
    let layer = builder(&idem()).build().unwrap();
    let drain = layer.drain();
    drain.finished().await; // nothing is running yet
    let server = Server::start(gated.handler.layer(layer)).await;
    let mut stream = server.client.connect().await;
    stream
        .write_all(&post_to("/").key("k").bytes())
        .await
        .unwrap();
    gated.began.recv().await.unwrap();
    drop((server, stream));

    let mut finished = Box::pin(drain.finished());
    tokio::select! {
        biased;
        () = &mut finished => panic!("the handler still runs"),
        () = tokio::task::yield_now() => {}
    }
    gated.gate.add_permits(1);
    finished.await;
    assert_eq!(gated.effects.count(), 1);
}

#[tokio::test]
async fn a_duplicate_may_wait_for_the_running_request() {
    let mut gated = Gated::new();
    let layer = builder(&idem())
        .wait(Duration::from_secs(600))
        .build()
        .unwrap();
    let server = Server::start(gated.handler.layer(layer)).await;
    let client = server.client;
    let send = || tokio::spawn(async move { client.send(post_to("/").key("k")).await });
    let first = send();
    gated.began.recv().await.unwrap();
    let second = send();
    gated.gate.add_permits(1);
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert_eq!((first.text(), second.text()), ("effect 1", "effect 1"));
    assert!(second.is_replayed());
}

#[tokio::test]
async fn fifty_concurrent_duplicates_run_once() {
    let mut gated = Gated::new();
    let layer = builder(&idem())
        .wait(Duration::from_secs(600))
        .build()
        .unwrap();
    let server = Server::start(gated.handler.layer(layer)).await;
    let client = server.client;
    let all: Vec<_> = (0..50)
        .map(|_| tokio::spawn(async move { client.send(post_to("/").key("k")).await }))
        .collect();
    gated.began.recv().await.unwrap();
    gated.gate.add_permits(1);
    let mut replays = 0;
    for answer in all {
        let answer = answer.await.unwrap();
        assert_eq!(answer.text(), "effect 1");
        replays += u32::from(answer.is_replayed());
    }
    assert_eq!((replays, gated.effects.count()), (49, 1));
}

/// A panic of the handler is resumed in the caller. To the key it is a crash.
#[tokio::test(start_paused = true)]
async fn a_panic_is_a_crash() {
    let effects = Effects::default();
    let seen = effects.clone();
    let handler = move || {
        let number = seen.happen();
        async move {
            assert!(number > 1, "the first one panics");
            "done"
        }
    };
    let layer = builder(&idem()).build().unwrap();
    let router = Router::new().route("/charges", post(handler)).layer(layer);
    let panicking = router.clone();
    let panicked = tokio::spawn(async move { call(&panicking, "k", "").await }).await;
    assert!(panicked.unwrap_err().is_panic());
    assert_eq!(call(&router, "k", "").await.0, 409);
    tokio::time::advance(Duration::from_secs(31)).await;
    assert_eq!(call(&router, "k", "").await, (200, "done".to_owned()));
    assert_eq!(effects.count(), 2);
}

#[tokio::test]
async fn under_refuse_a_panic_is_not_run_again() {
    let effects = Effects::default();
    let seen = effects.clone();
    let handler = move || {
        seen.happen();
        async { panic!("on purpose") as &'static str }
    };
    let layer = builder(&idem()).refuse().build().unwrap();
    let server = Server::start(Router::new().route("/", post(handler)).layer(layer)).await;
    let mut stream = server.client.connect().await;
    stream
        .write_all(&post_to("/").key("k").bytes())
        .await
        .unwrap();
    let mut nothing = Vec::new();
    let _ = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut nothing).await;
    assert!(
        nothing.is_empty(),
        "as without the layer: the connection is closed"
    );
    server
        .send(post_to("/").key("k"))
        .await
        .problem(409, "interrupted");
    assert_eq!(effects.count(), 1);
}

/// Route whose response streams the number of bytes in its path, in chunks of 1,000, and optionally ends with an error.
fn streams(effects: &Effects) -> Router {
    let effects = effects.clone();
    let handler = move |Path((bytes, end)): Path<(usize, String)>| {
        effects.happen();
        async move {
            let mut chunks: Vec<std::io::Result<Vec<u8>>> =
                (0..bytes / 1000).map(|_| Ok(vec![b'x'; 1000])).collect();
            if end == "broken" {
                chunks.push(Err(std::io::ErrorKind::BrokenPipe.into()));
            }
            Body::from_stream(stream::iter(chunks))
        }
    };
    Router::new().route("/{bytes}/{end}", post(handler))
}

#[tokio::test]
async fn a_streamed_response_is_stored_up_to_the_limit() {
    let effects = Effects::default();
    let layer = builder(&idem()).max_response_bytes(10_000).build().unwrap();
    let server = Server::start(streams(&effects).layer(layer)).await;
    let first = server.send(post_to("/10000/whole").key("k")).await;
    let second = server.send(post_to("/10000/whole").key("k")).await;
    assert_eq!((first.body.len(), second.body.len()), (10_000, 10_000));
    assert!(second.is_replayed());

    // One chunk more: the first caller gets the whole response, and a retry does not run the handler again.
    let long = server.send(post_to("/11000/whole").key("l")).await;
    assert_eq!((long.status, long.body.len()), (200, 11_000));
    let problem = server
        .send(post_to("/11000/whole").key("l"))
        .await
        .problem(409, "unrecorded");
    assert_eq!(problem["retryable"], false);
    assert_eq!(effects.count(), 2);
}

/// The limit of the handle includes the response's headers.
#[tokio::test]
async fn a_response_over_the_limit_of_the_handle_is_unrecorded() {
    let effects = Effects::default();
    let idem = Idem::builder(FaultStore::new(MemoryStore::new()))
        .max_result_bytes(100)
        .build();
    let layer = builder(&idem).max_response_bytes(1000).build().unwrap();
    let server = Server::start(charges(&effects).layer(layer)).await;
    let body = "5".repeat(80);
    let first = server.send(post_to("/charges").key("k").body(&body)).await;
    assert_eq!(first.text(), format!("charge 1: {body}"));
    server
        .send(post_to("/charges").key("k").body(&body))
        .await
        .problem(409, "unrecorded");
    assert_eq!(effects.count(), 1);
}

#[tokio::test]
async fn a_response_that_ends_with_an_error_is_unrecorded() {
    let effects = Effects::default();
    let layer = builder(&idem()).build().unwrap();
    let server = Server::start(streams(&effects).layer(layer)).await;
    let mut stream = server.client.connect().await;
    stream
        .write_all(&post_to("/2000/broken").key("k").bytes())
        .await
        .unwrap();
    let mut bytes = Vec::new();
    let _ = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut bytes).await;
    assert!(
        !bytes.ends_with(b"0\r\n\r\n"),
        "its caller sees that it is not whole"
    );
    server
        .send(post_to("/2000/broken").key("k"))
        .await
        .problem(409, "unrecorded");
    assert_eq!(effects.count(), 1);
}

/// If the store is unreachable at completion, the caller gets the response while the lease is valid.
#[tokio::test]
async fn a_response_is_returned_before_it_can_be_recorded() {
    let store = FaultStore::new(MemoryStore::new());
    let idem = Idem::builder(store.clone())
        .store_patience(Duration::from_millis(20))
        .build();
    let effects = Effects::default();
    let layer = builder(&idem).build().unwrap();
    let server = Server::start(charges(&effects).layer(layer)).await;
    store.fail_before(Op::Complete, 2);
    let first = server.send(post_to("/charges").key("k").body("5")).await;
    assert_eq!((first.status, first.text()), (201, "charge 1: 5"));
    let page = PageRequest {
        limit: 1,
        after: None,
    };
    let recorded = async {
        loop {
            let listed = idem
                .records()
                .list(&Filter::default(), &page)
                .await
                .unwrap();
            if listed.records[0].record.state == RecordState::Completed {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), recorded)
        .await
        .unwrap();
    assert!(
        server
            .send(post_to("/charges").key("k").body("5"))
            .await
            .is_replayed()
    );
    assert_eq!(effects.count(), 1);
}

/// The stored form of a response looks like an HTTP message.
#[tokio::test]
async fn a_stored_response_is_readable_for_operators() {
    let idem = idem();
    let layer = builder(&idem).build().unwrap();
    let server = Server::start(charges(&Effects::default()).layer(layer)).await;
    let request = post_to("/charges").key("k").body("5");
    assert_eq!(server.send(request).await.status, 201);
    let records = idem.records();
    let record = records.find("test.http", "k").await;
    let payload = record.unwrap().unwrap().payload.unwrap();
    assert_eq!(payload.codec, "http/1");
    let text = std::str::from_utf8(&payload.bytes).unwrap();
    assert!(text.starts_with("201\r\n"), "{text}");
    assert!(text.contains("\r\nlocation: /charges/1\r\n"), "{text}");
    assert!(text.ends_with("\r\n\r\ncharge 1: 5"), "{text}");
}

/// The layer works with any service with `http` types, without axum.
#[tokio::test]
async fn a_plain_tower_service_is_guarded() {
    use http_body_util::Full;
    use tower_layer::Layer as _;

    type Sent = http::Request<idem_runtime::http::Body<Full<Bytes>>>;

    #[derive(Clone)]
    struct Echo(Effects);

    impl tower_service::Service<Sent> for Echo {
        type Response = http::Response<Full<Bytes>>;
        type Error = Infallible;
        type Future =
            std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

        fn poll_ready(
            &mut self,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), Infallible>> {
            std::task::Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Sent) -> Self::Future {
            self.0.happen();
            Box::pin(async {
                let body = request.into_body().collect().await?.to_bytes();
                Ok(http::Response::new(Full::new(body)))
            })
        }
    }

    let effects = Effects::default();
    let mut service = builder(&idem())
        .build()
        .unwrap()
        .layer(Echo(effects.clone()));
    for round in 0..2 {
        let request = http::Request::post("/").header("idempotency-key", "k");
        let response = service
            .call(request.body(Full::from("hello")).unwrap())
            .await
            .unwrap();
        assert_eq!(
            response.headers().contains_key("idempotent-replayed"),
            round == 1
        );
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "hello");
    }
    assert_eq!(effects.count(), 1);
}

#[tokio::test]
async fn responses_survive_a_restart_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("http.sqlite");
    let effects = Effects::default();
    let mut answers = Vec::new();
    for _ in 0..2 {
        let idem = Idem::new(SqliteStore::open(&path).await.unwrap());
        let layer = IdempotencyLayer::builder(&idem, "test.http", TTL, unscoped())
            .build()
            .unwrap();
        let server = Server::start(charges(&effects).layer(layer)).await;
        let request = Request::new("POST", "/charges").key("k").body(b"\0\xff");
        answers.push(server.send(request).await);
    }
    assert_eq!(answers[0].body, answers[1].body);
    assert_eq!(answers[0].header("location"), answers[1].header("location"));
    assert!(!answers[0].is_replayed() && answers[1].is_replayed());
    assert_eq!(effects.count(), 1);
}
