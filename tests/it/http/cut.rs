//! Requests and responses that are cut off: nothing that is visibly not whole is run or stored.

mod proxied;

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::extract::Request;
use axum::middleware::map_request;
use futures_util::StreamExt as _;
use http_body::Frame as BodyFrame;
use http_body_util::Limited;
use idem_runtime::conformance::faults::Op;
use idem_runtime::http::Drain;
use idem_tests::until;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::frames::{self, Cut, END_HEADERS, END_STREAM, Frame, NO_ERROR};
use super::*;

/// Body of the requests. Each of its beginnings is a valid form.
const FORM: &str = "to=bob&amount=1000";
const FORM_TYPE: &str = "application/x-www-form-urlencoded";

/// What a middleware outside of the layer makes of a body.
type Wrap = fn(Body) -> Body;

/// The usual wrappers. The last two do not report the end of a body: `is_end_stream` is always false.
const WRAPPERS: [(&str, Wrap); 5] = [
    ("none", |body| body),
    ("Limited", |body| Body::new(Limited::new(body, 1 << 20))),
    ("map_err", |body| {
        Body::new(body.map_err(|error| format!("read: {error}")))
    }),
    ("from_stream", |body| {
        Body::from_stream(body.into_data_stream())
    }),
    ("decompression", |body| Body::new(Opaque(body))),
];

/// Has only what a body must have, as the bodies of tower-http's decompression do.
struct Opaque(Body);

impl http_body::Body for Opaque {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyFrame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.0).poll_frame(cx)
    }
}

/// Counts a request that has ended, or was dropped.
struct Departure(Effects);

impl Drop for Departure {
    fn drop(&mut self) {
        self.0.happen();
    }
}

struct Service {
    server: Server,
    idem: Idem<Store>,
    effects: Effects,
    drain: Drain,
    begun: Effects,
    ended: Effects,
}

impl Service {
    async fn start(wrap: Wrap) -> Self {
        let [effects, begun, ended] = [(); 3].map(|()| Effects::default());
        let idem = idem();
        let layer = builder(&idem).build().unwrap();
        let drain = layer.drain();
        let observed = (begun.clone(), ended.clone());
        let observe = move |request: Request, next: Next| {
            let (begun, ended) = observed.clone();
            async move {
                begun.happen();
                let _departure = Departure(ended);
                next.run(request).await
            }
        };
        let router = charges(&effects)
            .layer(layer)
            .layer(map_request(move |request: Request| {
                std::future::ready(request.map(wrap))
            }))
            .layer(from_fn(observe));
        Self {
            server: Server::start(router).await,
            idem,
            effects,
            drain,
            begun,
            ended,
        }
    }

    /// Waits until this many requests have begun, and all of them have ended with their handlers.
    async fn settled(&self, begun: u32) {
        until(async || self.begun.count() == begun && self.ended.count() == begun).await;
        self.drain.finished().await;
    }

    /// Sends the whole request with this key, and checks that it runs now.
    async fn runs_now(&self, key: &str, context: &str) {
        let number = self.effects.count() + 1;
        let request = post_to("/charges")
            .key(key)
            .header("content-type", FORM_TYPE)
            .body(FORM);
        let answer = self.server.send(request).await;
        let expected = format!("charge {number}: {FORM}");
        assert_eq!(
            (answer.status, answer.text()),
            (201, &*expected),
            "{context}"
        );
        assert!(!answer.is_replayed(), "{context}");
        assert_eq!(self.effects.count(), number, "{context}");
    }

    /// Opens a connection of HTTP/2.
    async fn connect(&self) -> TcpStream {
        let mut socket = self.server.client.connect().await;
        let begin = [frames::PREFACE, &frames::settings()].concat();
        socket.write_all(&begin).await.unwrap();
        socket
    }

    /// Reads until the server has seen everything, or has closed the connection.
    async fn seen(&self, socket: &mut TcpStream) {
        let _ = socket.write_all(&frames::ping()).await;
        while let Some(frame) = Frame::read(socket).await {
            if frame.is_pong() {
                return;
            }
        }
    }
}

/// Head of a request with this key and length.
fn head(key: &str, length: Option<usize>) -> Vec<u8> {
    let length = length.map(|it| it.to_string());
    let mut fields = vec![
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "test"),
        (":path", "/charges"),
        ("content-type", FORM_TYPE),
        ("idempotency-key", key),
    ];
    if let Some(length) = &length {
        fields.push(("content-length", length));
    }
    frames::head(1, END_HEADERS, &fields)
}

/// Every boundary of a request, every cut, with and without a length, behind every wrapper.
#[tokio::test]
async fn a_cut_request_of_http_2_does_not_run() {
    for (wrapper, wrap) in WRAPPERS {
        let service = Service::start(wrap).await;
        let mut number = 0;
        for length in [None, Some(FORM.len())] {
            for cut in Cut::all() {
                for sent in 0..=3 {
                    number += 1;
                    let key = format!("k{number}");
                    let all = [
                        head(&key, length),
                        frames::data(1, 0, b"to=bob&"),
                        frames::data(1, 0, b"amount=10"),
                        // Then only the end mark is missing, so a length proves that the body is whole.
                        frames::data(1, 0, b"00"),
                    ];
                    let sent = match length {
                        None => sent + 1,
                        Some(_) => sent,
                    };
                    let mut socket = service.connect().await;
                    let bytes = all[..sent].concat();
                    socket.write_all(&bytes).await.unwrap();
                    let begun = service.begun.count() + u32::from(sent > 0);
                    // An idle stream cannot be reset, and the connection ends.
                    cut.make(&mut socket, 1).await;
                    service.seen(&mut socket).await;
                    service.settled(begun).await;

                    let context = format!("{wrapper}, {length:?}, {cut:?} after {sent}");
                    let store = service.idem.store();
                    assert_eq!(
                        store.count(Op::Claim),
                        u64::from(service.effects.count()),
                        "{context}"
                    );
                    service.runs_now(&key, &context).await;
                }
            }
        }
    }
}

/// Every form of the end of a body, behind every wrapper.
#[tokio::test]
async fn a_whole_request_of_http_2_runs() {
    for (wrapper, wrap) in WRAPPERS {
        let service = Service::start(wrap).await;
        for length in [None, Some(FORM.len())] {
            let ends = [
                vec![frames::data(1, END_STREAM, FORM.as_bytes())],
                vec![
                    frames::data(1, 0, FORM.as_bytes()),
                    frames::data(1, END_STREAM, b""),
                ],
                vec![
                    frames::data(1, 0, b"to=bob&"),
                    frames::data(1, 0, b"amount=1000"),
                    frames::head(1, END_HEADERS | END_STREAM, &[("checksum", "1")]),
                ],
            ];
            for (number, end) in ends.into_iter().enumerate() {
                let (ran, begun) = (service.effects.count(), service.begun.count());
                let key = format!("{length:?}-{number}");
                let mut socket = service.connect().await;
                let bytes = [head(&key, length), end.concat()].concat();
                socket.write_all(&bytes).await.unwrap();
                let context = format!("{wrapper}, {length:?}, {number}");
                service.settled(begun + 1).await;
                assert_eq!(service.effects.count(), ran + 1, "{context}");
            }
            // The handler saw the whole form: the same request is a replay.
            let again = post_to("/charges")
                .key(&format!("{length:?}-0"))
                .header("content-type", FORM_TYPE)
                .body(FORM);
            let begun = service.begun.count();
            let replay = service.server.send(again).await;
            assert!(
                replay.is_replayed() && replay.text().ends_with(FORM),
                "{wrapper}"
            );
            service.settled(begun + 1).await;
        }
    }
}

/// The bytes say less or more than the head.
#[tokio::test]
async fn a_request_of_http_2_with_a_wrong_length_does_not_run() {
    let service = Service::start(|body| body).await;
    for (number, length) in [0, FORM.len() - 2, FORM.len() + 2].into_iter().enumerate() {
        let key = format!("k{number}");
        let mut socket = service.connect().await;
        let whole = frames::data(1, END_STREAM, FORM.as_bytes());
        let bytes = [head(&key, Some(length)), whole].concat();
        socket.write_all(&bytes).await.unwrap();
        service.seen(&mut socket).await;
        until(async || service.begun.count() == service.ended.count()).await;
        service.drain.finished().await;
        service.runs_now(&key, &format!("length {length}")).await;
    }
}

/// Every byte at which a request of HTTP/1.1 can end, with a length and in chunks.
#[tokio::test]
async fn a_cut_request_of_http_1_does_not_run() {
    let service = Service::start(|body| body).await;
    let chunked =
        "transfer-encoding: chunked\r\n\r\n7\r\nto=bob&\r\n9\r\namount=10\r\n2\r\n00\r\n0\r\n\r\n";
    let with_length = format!("content-length: {}\r\n\r\n{FORM}", FORM.len());
    let mut number = 0;
    for rest in [chunked, &with_length] {
        for missing in 1..rest.len() {
            number += 1;
            let key = format!("k{number}");
            let head = format!(
                "POST /charges HTTP/1.1\r\nhost: test\r\nidempotency-key: {key}\r\ncontent-type: {FORM_TYPE}\r\n"
            );
            let cut = &rest[..rest.len() - missing];
            let has_head = cut.contains("\r\n\r\n");
            let begun = service.begun.count() + u32::from(has_head);
            let mut socket = service.server.client.connect().await;
            socket
                .write_all(format!("{head}{cut}").as_bytes())
                .await
                .unwrap();
            socket.shutdown().await.unwrap();
            while Frame::read(&mut socket).await.is_some() {}
            service.settled(begun).await;
            service.runs_now(&key, &format!("{cut:?}")).await;
        }
    }
}

/// A middleware that changes a body must remove its length, or the request is refused: it cannot be told from a cut one.
#[tokio::test]
async fn a_body_of_another_length_is_refused() {
    let effects = Effects::default();
    let layer = builder(&idem()).build().unwrap();
    let router = charges(&effects).layer(layer);
    for (length, status) in [("1", 400), ("3", 400), ("2", 201)] {
        let request = Request::post("/charges")
            .header("idempotency-key", length)
            .header("content-length", length)
            .body(Body::from_stream(futures_util::stream::iter([
                Ok::<_, std::io::Error>("5"),
                Ok("0"),
            ])));
        let response = router.clone().call(request.unwrap()).await.unwrap();
        assert_eq!(response.status(), status, "{length}");
        if status == 400 {
            let body = response.into_body().collect().await.unwrap().to_bytes();
            let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let detail = problem["detail"].as_str().unwrap();
            assert!(
                detail.starts_with("2 bytes of the body arrived"),
                "{detail}"
            );
        }
    }
    assert_eq!(effects.count(), 1);
}

/// A gateway passes on a response that its own server has cut off. The work is done, so it is not repeated.
#[tokio::test]
async fn a_response_of_another_length_is_not_stored() {
    for (length, stored) in [("2", false), ("4", false), ("3", true)] {
        let effects = Effects::default();
        let seen = effects.clone();
        let gateway = move || {
            seen.happen();
            let chunks = futures_util::stream::iter(["ab", "c"]).map(Ok::<_, std::io::Error>);
            let response = Response::builder().header("content-length", length);
            async move { response.body(Body::from_stream(chunks)).unwrap() }
        };
        let layer = builder(&idem()).build().unwrap();
        let router = Router::new().route("/charges", post(gateway)).layer(layer);
        let first = call(&router, "k", "").await;
        assert_eq!(first, (200, "abc".to_owned()));
        let (status, again) = call(&router, "k", "").await;
        match stored {
            true => assert_eq!((status, &*again), (200, "abc")),
            false => assert!(status == 409 && again.contains("#unrecorded"), "{again}"),
        }
        assert_eq!(effects.count(), 1, "{length}");
    }
    // Such a response has no body, and may have the length of another one.
    let effects = Effects::default();
    let seen = effects.clone();
    let unchanged = move || {
        seen.happen();
        let response = Response::builder().status(304).header("content-length", 7);
        async move { response.body(Body::empty()).unwrap() }
    };
    let layer = builder(&idem()).build().unwrap();
    let router = Router::new()
        .route("/charges", post(unchanged))
        .layer(layer);
    for _ in 0..2 {
        assert_eq!(call(&router, "k", "").await.0, 304);
    }
    assert_eq!(effects.count(), 1);
}

/// `NO_ERROR` in the middle of a body, without a length, behind a body that hides the end mark: the server asks for resets
/// whenever the layer has yielded.
#[tokio::test]
async fn a_reset_is_seen_behind_a_body_without_end_mark() {
    let service = Service::start(|body| Body::new(Opaque(body))).await;
    for round in 0..20 {
        let key = format!("k{round}");
        let mut socket = service.connect().await;
        let bytes = [head(&key, None), frames::data(1, 0, b"to=bob&amount=10")].concat();
        socket.write_all(&bytes).await.unwrap();
        let begun = service.begun.count() + 1;
        // The layer waits for the rest by now.
        until(async || service.begun.count() == begun).await;
        Cut::Reset(NO_ERROR).make(&mut socket, 1).await;
        service.seen(&mut socket).await;
        service.settled(begun).await;
        service.runs_now(&key, "").await;
    }
}
