//! The layer for HTTP: requests as they arrive, and replies as they are stored.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use idem_runtime::http::{IDEMPOTENT_REPLAYED, Idempotency, IdempotencyLayer, unscoped};
use idem_runtime::{Idem, MemoryStore, Store as _};
use idem_store::record::{Outcome, Owner, Payload};
use idem_store::store::{ClaimOutcome, ClaimRequest, Filter, PageRequest, Resolution};
use tower_layer::Layer as _;
use tower_service::Service;

use super::{running, sample};

/// A handler that always gives the same reply, and counts how often it ran.
#[derive(Clone)]
struct Handler {
    reply: Response<Full<Bytes>>,
    runs: Arc<AtomicU64>,
}

impl<B> Service<Request<B>> for Handler {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<std::result::Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        self.runs.fetch_add(1, Ordering::Relaxed);
        ready(Ok(self.reply.clone()))
    }
}

/// A guarded handler, and the store behind it.
struct Server {
    store: Arc<MemoryStore>,
    service: Idempotency<Handler>,
    runs: Arc<AtomicU64>,
}

impl Server {
    fn new(reply: Response<Full<Bytes>>) -> Self {
        let store = Arc::new(MemoryStore::new());
        let idem = Idem::new(Arc::clone(&store));
        let ttl = Duration::from_secs(3600);
        let layer = IdempotencyLayer::builder(&idem, "fuzz", ttl, unscoped())
            .ignore_member("/trace")
            .ignore_query_parameter("trace")
            .build()
            .expect("valid settings");
        let runs = Arc::default();
        let handler = Handler {
            reply,
            runs: Arc::clone(&runs),
        };
        Self {
            store,
            service: layer.layer(handler),
            runs,
        }
    }

    async fn send(&mut self, request: &Request<Bytes>) -> Response<Bytes> {
        let request = request.clone().map(Full::new);
        let Ok(reply) = self.service.call(request).await;
        let (parts, body) = reply.into_parts();
        let body = body.collect().await.expect("the body is in memory");
        Response::from_parts(parts, body.to_bytes())
    }

    fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }
}

/// A request is answered, and a handler behind a valid key runs once however often the request is repeated.
pub(super) fn requests(input: &[u8]) {
    let Some(request) = request(input) else {
        return;
    };
    let mut reply = Response::new(Full::from("made"));
    *reply.status_mut() = StatusCode::CREATED;
    let mut server = Server::new(reply);
    running::run(async {
        let first = server.send(&request).await;
        let second = server.send(&request).await;
        assert_eq!(first.status(), second.status());
        if first.status() == StatusCode::CREATED {
            assert_eq!(first.body(), second.body());
        }
        let is_guarded = matches!(*request.method(), Method::POST | Method::PATCH);
        let expected = match (is_guarded, first.status()) {
            (true, StatusCode::CREATED) => 1,
            (true, _) => 0,
            (false, _) => 2,
        };
        assert_eq!(server.runs(), expected, "{request:?}");
        let replayed = second.headers().contains_key(&IDEMPOTENT_REPLAYED);
        assert_eq!(replayed, expected == 1);
    });
}

/// The request in the bytes of a connection. What follows its head is its body.
fn request(input: &[u8]) -> Option<Request<Bytes>> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut head = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(length) = head.parse(input).ok()? else {
        return None;
    };
    let mut request = Request::new(Bytes::copy_from_slice(&input[length..]));
    *request.method_mut() = head.method?.parse().ok()?;
    *request.uri_mut() = head.path?.parse::<Uri>().ok()?;
    for header in head.headers.iter() {
        let name = HeaderName::from_bytes(header.name.as_bytes()).ok()?;
        let value = HeaderValue::from_bytes(header.value).ok()?;
        request.headers_mut().append(name, value);
    }
    Some(request)
}

/// A replay is the stored part of the first reply, and stored bytes of any kind are a reply.
pub(super) fn replies(input: &[u8]) {
    let (kind, rest) = input.split_first().unwrap_or((&0, &[]));
    if kind % 2 == 0 {
        running::run(replay_of_stored(rest));
    } else if let Ok(reply) = reply(&mut Unstructured::new(rest)) {
        running::run(replay_of_reply(reply));
    }
}

fn reply(bytes: &mut Unstructured<'_>) -> Result<Response<Full<Bytes>>> {
    const NAMES: &[&str] = &[
        "content-type",
        "location",
        "etag",
        "set-cookie",
        "link",
        "retry-after",
        "x-own",
        "content-length",
    ];
    let mut reply = Response::new(Full::default());
    let status = StatusCode::from_u16(bytes.int_in_range(200..=999)?);
    *reply.status_mut() = status.unwrap_or_default();
    for _ in 0..bytes.int_in_range(0..=4)? {
        let name = HeaderName::from_static(bytes.choose(NAMES)?);
        if let Ok(value) = HeaderValue::from_bytes(bytes.arbitrary()?) {
            reply.headers_mut().append(name, value);
        }
    }
    *reply.body_mut() = Full::from(bytes.arbitrary::<Vec<u8>>()?);
    Ok(reply)
}

fn post() -> Request<Bytes> {
    let mut request = Request::new(Bytes::from_static(b"{}"));
    *request.method_mut() = Method::POST;
    let key = HeaderValue::from_static("\"key\"");
    request.headers_mut().insert("idempotency-key", key);
    request
}

async fn replay_of_reply(reply: Response<Full<Bytes>>) {
    let mut server = Server::new(reply);
    let first = server.send(&post()).await;
    let second = server.send(&post()).await;
    let replayed = second.headers().contains_key(&IDEMPOTENT_REPLAYED);
    if !is_whole(&first) {
        // Either the status of the first reply releases the key, or the work is done and its reply unrecorded.
        assert!(!replayed, "{first:?}, {second:?}");
        let is_repeated = (second.status(), second.body()) == (first.status(), first.body());
        assert_eq!(server.runs(), if is_repeated { 2 } else { 1 });
        return;
    }
    assert_eq!(
        server.runs(),
        if replayed { 1 } else { 2 },
        "{first:?}, {second:?}"
    );
    assert_eq!(first.status(), second.status());
    assert_eq!(first.body(), second.body());
    for name in second
        .headers()
        .keys()
        .filter(|name| **name != IDEMPOTENT_REPLAYED)
    {
        let values = |reply: &Response<Bytes>| {
            let values = reply.headers().get_all(name).iter();
            values.cloned().collect::<Vec<_>>()
        };
        assert_eq!(values(&first), values(&second), "{name}");
    }
}

/// Returns false if the body of a reply has another length than the reply says. Replies of these statuses have no body.
fn is_whole(reply: &Response<Bytes>) -> bool {
    if [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&reply.status()) {
        return true;
    }
    let length = reply.headers().get(CONTENT_LENGTH);
    let length = length.and_then(|it| it.to_str().ok()?.parse().ok());
    length.is_none_or(|it: usize| it == reply.body().len())
}

/// Replaces the stored reply by these bytes.
async fn replay_of_stored(bytes: &[u8]) {
    let mut server = Server::new(Response::new(Full::default()));
    server.send(&post()).await;
    let store = Arc::clone(&server.store);
    let page = store
        .list(&Filter::default(), &PageRequest::default())
        .await;
    let record = page.expect("memory does not fail").records.remove(0).record;
    let erased = store
        .resolve(&record.observation(), &Resolution::Erase)
        .await;
    erased.expect("memory does not fail");
    let claim = ClaimRequest {
        id: record.id,
        identity: record.identity,
        ..sample::claim(record.fingerprint)
    };
    let Ok(ClaimOutcome::Granted(granted)) = store.claim(&claim).await else {
        unreachable!("the record was erased");
    };
    let owner = Owner {
        id: claim.id,
        claim_id: claim.claim_id,
        fencing_token: granted.fencing_token,
    };
    let payload = Payload {
        codec: "http/1".into(),
        bytes: bytes.into(),
    };
    let completed = store.complete(&owner, &Outcome::Completed(payload)).await;
    completed.expect("memory does not fail");
    let reply = server.send(&post()).await;
    assert_eq!(
        server.runs(),
        1,
        "the handler runs although there is an outcome"
    );
    assert!(!reply.status().is_success() || reply.headers().contains_key(&IDEMPOTENT_REPLAYED));
}
