//! Slow, numerous or large request bodies and their effect on other clients; trailers of requests and responses.

use axum::extract::Request;
use axum::http::HeaderMap;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _, poll, stream};
use http_body::Frame;
use http_body_util::StreamBody;
use idem_runtime::conformance::faults::Op;
use idem_runtime::http::{Drain, InvalidLayer};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::*;

/// Body that sends these bytes, and then never ends.
fn stalled(bytes: usize) -> Body {
    let sent = stream::once(async move { Ok::<_, std::io::Error>(vec![b'x'; bytes]) });
    Body::from_stream(sent.chain(stream::pending()))
}

/// Service without a socket, for tests with paused time.
struct Service {
    idem: Idem<Store>,
    effects: Effects,
    router: Router,
}

impl Service {
    fn of_users(layer: impl FnOnce(LayerBuilder) -> LayerBuilder) -> Self {
        let (idem, effects) = (idem(), Effects::default());
        let scoping = scoped_by_extension::<User>();
        let built = IdempotencyLayer::builder(&idem, "test.http", TTL, scoping);
        let router = charges(&effects).layer(layer(built).build().unwrap());
        let router = router.layer(from_fn(authenticate));
        Self {
            idem,
            effects,
            router,
        }
    }

    fn send(&self, user: &str, key: &str, body: Body) -> BoxFuture<'static, Answer> {
        let request = Request::post("/charges")
            .header("authorization", format!("Bearer token-of-{user}"))
            .header("idempotency-key", key)
            .body(body)
            .unwrap();
        let mut router = self.router.clone();
        async move { answer(router.call(request).await.unwrap()).await }.boxed()
    }

    /// Starts requests whose bodies do not end.
    async fn stall(&self, user: &str, count: usize, bytes: usize) -> Vec<BoxFuture<'_, Answer>> {
        let mut all = Vec::new();
        for number in 0..count {
            let mut sent = self.send(user, &format!("stalled-{number}"), stalled(bytes));
            assert!(poll!(&mut sent).is_pending(), "{number}");
            all.push(sent);
        }
        all
    }
}

async fn answer(response: Response) -> Answer {
    let (parts, body) = response.into_parts();
    let text = |(name, value): (&http::HeaderName, &HeaderValue)| {
        (name.to_string(), value.to_str().unwrap().to_owned())
    };
    Answer {
        status: parts.status.as_u16(),
        headers: parts.headers.iter().map(text).collect(),
        body: body.collect().await.unwrap().to_bytes().into(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_arrive_in_time_is_408() {
    for limit in [None, Some(Duration::from_secs(2))] {
        let service = Service::of_users(|layer| match limit {
            Some(limit) => layer.body_timeout(limit),
            None => layer,
        });
        let begun = Instant::now();
        let slow = service.send("ann", "k", stalled(3)).await;
        let problem = slow.problem(408, "body-timeout");
        // A retry in time is accepted. With a new key, the request could be carried out twice.
        assert_eq!(problem["retryable"], true);
        let limit = limit.unwrap_or(Duration::from_secs(30));
        assert_eq!(begun.elapsed().as_secs(), limit.as_secs());
        assert_eq!(service.effects.count(), 0);
        assert_eq!(service.idem.store().count(Op::Claim), 0);
        let again = service.send("ann", "k", Body::from("xxx")).await;
        assert_eq!((again.status, again.text()), (201, "charge 1: xxx"));
    }
}

/// The timeout is for the whole body: single bytes do not extend it.
#[tokio::test(start_paused = true)]
async fn a_body_that_trickles_is_408() {
    let service = Service::of_users(|layer| layer);
    let trickle = stream::unfold((), async |()| {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Some((Ok::<_, std::io::Error>("x"), ()))
    });
    let begun = Instant::now();
    let slow = service.send("ann", "k", Body::from_stream(trickle)).await;
    slow.problem(408, "body-timeout");
    assert_eq!(begun.elapsed().as_secs(), 30);
}

/// A request whose body is still arriving does not count as running, neither in total nor for its principal.
#[tokio::test(start_paused = true)]
async fn slow_bodies_do_not_block_other_requests() {
    let service = Service::of_users(|layer| layer.max_running(4));
    let stalled = service.stall("ann", 1000, 1).await;
    for user in ["bob", "ann"] {
        let answer = service.send(user, "k", Body::from("5")).await;
        assert_eq!(answer.status, 201, "{user}");
    }
    for slow in stalled {
        slow.await.problem(408, "body-timeout");
    }
}

/// Bytes of unfinished bodies count towards the share of their principal.
#[tokio::test(start_paused = true)]
async fn one_principal_cannot_buffer_too_many_bytes() {
    let service =
        Service::of_users(|layer| layer.max_request_bytes(1000).max_buffered_bytes(10_000));
    // The share is a quarter of the bytes.
    let stalled = service.stall("ann", 2, 900).await;
    let over = service.send("ann", "k", Body::from("x".repeat(900))).await;
    let problem = over.problem(429, "too-many-requests");
    assert_eq!(problem["retryable"], true);
    let fits = service.send("ann", "k", Body::from("x".repeat(500))).await;
    assert_eq!(fits.status, 201);
    for number in 0..10 {
        let key = number.to_string();
        let of_bob = service.send("bob", &key, Body::from("x".repeat(1000)));
        assert_eq!(of_bob.await.status, 201);
    }
    // They are released when the bodies time out.
    for slow in stalled {
        assert_eq!(slow.await.status, 408);
    }
    let again = service.send("ann", "l", Body::from("x".repeat(900))).await;
    assert_eq!(again.status, 201);
}

/// Without principals there are no shares, only the common limit.
#[tokio::test(start_paused = true)]
async fn all_bodies_together_are_limited() {
    let effects = Effects::default();
    let layer = builder(&idem())
        .max_request_bytes(1000)
        .max_buffered_bytes(2500);
    let router = charges(&effects).layer(layer.build().unwrap());
    let send = |key: &str, body: Body| {
        let request = Request::post("/charges").header("idempotency-key", key);
        let mut router = router.clone();
        let request = request.body(body).unwrap();
        async move { answer(router.call(request).await.unwrap()).await }.boxed()
    };
    let mut stalls: Vec<_> = ["a", "b"].map(|key| send(key, stalled(1000))).into();
    for stalled in &mut stalls {
        assert!(poll!(stalled).is_pending());
    }
    let over = send("c", Body::from("x".repeat(600))).await;
    over.problem(503, "overloaded");
    let fits = send("d", Body::from("x".repeat(500))).await;
    assert_eq!(fits.status, 201);
    // A client that disconnects releases its bytes immediately.
    drop(stalls);
    assert_eq!(send("c", Body::from("x".repeat(600))).await.status, 201);
}

/// Handlers of one principal cannot take all places.
#[tokio::test(start_paused = true)]
async fn one_principal_cannot_occupy_all_running_requests() {
    let gate: &'static Semaphore = Box::leak(Box::new(Semaphore::new(0)));
    let slow = move || async { gate.acquire().await.unwrap().forget() };
    let (idem, drain) = (idem(), Drain::new());
    let layer = IdempotencyLayer::builder(&idem, "test.http", TTL, scoped_by_extension::<User>())
        .max_running(4)
        .principal_share(50)
        .drain(drain.clone())
        .build()
        .unwrap();
    let service = Service {
        idem,
        effects: Effects::default(),
        router: Router::new()
            .route("/charges", post(slow))
            .layer(layer)
            .layer(from_fn(authenticate)),
    };
    let mut running = Vec::new();
    for (user, key) in [("ann", "1"), ("ann", "2"), ("bob", "1"), ("bob", "2")] {
        let over = service.send("ann", "3", Body::empty());
        if running.len() >= 2 {
            over.await.problem(429, "too-many-requests");
        }
        let mut sent = service.send(user, key, Body::empty());
        assert!(poll!(&mut sent).is_pending());
        running.push(sent);
    }
    assert_eq!(drain.running(), 4);
    gate.add_permits(5);
    for sent in running {
        assert_eq!(sent.await.status, 200);
    }
    assert_eq!(service.send("ann", "3", Body::empty()).await.status, 200);
}

#[tokio::test]
async fn limits_of_zero_are_refused() {
    let idem = idem();
    assert_eq!(
        builder(&idem)
            .body_timeout(Duration::ZERO)
            .build()
            .unwrap_err(),
        InvalidLayer::ZeroLimit
    );
    for share in [0, 101] {
        assert_eq!(
            builder(&idem).principal_share(share).build().unwrap_err(),
            InvalidLayer::Share(share)
        );
    }
    // A body of the maximum length always fits.
    let effects = Effects::default();
    let server = server(&effects, |layer| layer.max_buffered_bytes(0)).await;
    let request = post_to("/charges").key("k").body("x".repeat(100_000));
    assert_eq!(server.send(request).await.status, 201);
}

/// RFC 9110 §6.5: trailers reach the first caller. A replay has no trailers, and does not announce any.
#[tokio::test]
async fn trailers_reach_the_first_caller() {
    let handler = async || {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-checksum", HeaderValue::from_static("abc"));
        let frames = [
            Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(b"made"))),
            Ok(Frame::trailers(trailers)),
        ];
        let body = Body::new(StreamBody::new(stream::iter(frames)));
        ([("trailer", "x-checksum")], body)
    };
    let layer = builder(&idem()).build().unwrap();
    let server = Server::start(Router::new().route("/", post(handler)).layer(layer)).await;
    let request = post_to("/").key("k").header("te", "trailers");

    let mut stream = server.client.connect().await;
    let bytes = request.bytes();
    tokio::io::AsyncWriteExt::write_all(&mut stream, &bytes)
        .await
        .unwrap();
    let mut first = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut first)
        .await
        .unwrap();
    assert!(first.contains("transfer-encoding: chunked"), "{first}");
    assert!(
        first.ends_with("4\r\nmade\r\n0\r\nx-checksum: abc\r\n\r\n"),
        "{first}"
    );

    let replay = server.send(request).await;
    assert!(replay.is_replayed());
    assert_eq!(replay.text(), "made");
    assert_eq!(replay.header("content-length"), Some("4"));
    assert_eq!(replay.header("trailer"), None);
}
